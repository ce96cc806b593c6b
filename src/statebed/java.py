"""Java discovery.

Spark starts the Java that JAVA_HOME or PATH points to, which may be too old. This module searches the same places in
the same order as `scripts/with-java`, which can also install Java.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from statebed.errors import JavaMissingError

OLDEST = 17
INSTALL = "install Java 17 (Debian, Ubuntu: sudo apt-get install openjdk-17-jre-headless), or set JAVA_HOME"
_VERSION = re.compile(r'version "(\d+)')
_TIMEOUT_SECONDS = 20
_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables with options for every Java. One that Java refuses must not look like a missing Java."""


@dataclass(frozen=True)
class Java:
    """An installed Java."""

    home: Path
    major: int
    text: str
    """First line of `java -version`."""


def find_java(system: Path = Path("/usr/lib/jvm")) -> Java | None:
    """Return the first Java that is new enough, or None. Searches JAVA_HOME, then PATH, then `system`."""
    installed = (java for path in _candidates(system) if (java := _inspect(path)) is not None)
    return next((java for java in installed if java.major >= OLDEST), None)


def use_java() -> Java:
    """Find Java and set JAVA_HOME, so that Spark uses the same one."""
    java = find_java()
    if java is None:
        raise JavaMissingError(f"Spark needs Java {OLDEST} or newer, but none was found", fix=INSTALL)
    os.environ["JAVA_HOME"] = str(java.home)
    return java


def _candidates(system: Path) -> list[Path]:
    named = [Path(home, "bin", "java") for home in [os.environ.get("JAVA_HOME")] if home]
    on_path = [Path(binary) for binary in [shutil.which("java")] if binary]
    return [*named, *on_path, *sorted(system.glob("*/bin/java"))]


def _inspect(binary: Path) -> Java | None:
    if not os.access(binary, os.X_OK):
        return None
    environment = {name: value for name, value in os.environ.items() if name not in _OPTIONS}
    try:
        done = subprocess.run(  # noqa: S603 - the program is the one that Spark would run
            [binary, "-version"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = _VERSION.search(done.stderr)
    if version is None:
        return None
    line = next(line for line in done.stderr.splitlines() if _VERSION.search(line))
    return Java(home=binary.resolve().parent.parent, major=int(version.group(1)), text=line)
