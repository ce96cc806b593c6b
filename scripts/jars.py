"""Resolve pinned JVM artefacts through Maven into a cache, verify their checksums, and print their paths.

    python scripts/jars.py kafka-broker               class path of a set; downloads what the cache lacks
    python scripts/jars.py kafka-source --separator , for `spark.jars`
    python scripts/jars.py --lock delta               write the checksums of a set's new artefacts

`requirements/jars.toml` lists the sets. The list of a set is complete: Maven resolves no transitive dependency here, so
that no run can pick another version. To add a set, list its artefacts with an empty checksum and run `--lock`.

Files are stored in `statebed/jars` of the user's cache folder (`STATEBED_JARS` overrides it). Maven uses the
repositories of the user's own settings. The exit code is 69 if they cannot be reached.
"""

import argparse
import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
SETS = ROOT / "requirements" / "jars.toml"
PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
UNAVAILABLE = 69
TIMEOUT_SECONDS = 600


class JarsError(Exception):
    """An artefact cannot be had, or is not the one that was pinned."""


@dataclass(frozen=True)
class Artefact:
    """One jar file, named by its Maven coordinates."""

    group: str
    name: str
    version: str
    sha256: str

    @classmethod
    def parse(cls, coordinates: str, sha256: str) -> "Artefact":
        parts = coordinates.split(":")
        if len(parts) != 3 or not all(parts):  # noqa: PLR2004 - group, name, version
            raise JarsError(f"artefact {coordinates!r} is not of the form group:name:version")
        group, name, version = parts
        return cls(group, name, version, sha256)

    @property
    def coordinates(self) -> str:
        return f"{self.group}:{self.name}:{self.version}"

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def cache_folder() -> Path:
    """Return the folder that holds the jars of all checkouts of this user."""
    if configured := os.environ.get("STATEBED_JARS"):
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statebed" / "jars"


def read_sets() -> dict[str, list[Artefact]]:
    """Return the artefacts of each set."""
    document: Mapping[str, Mapping[str, str]] = tomllib.loads(SETS.read_text())
    return {
        name: [Artefact.parse(coordinates, sha256) for coordinates, sha256 in artefacts.items()]
        for name, artefacts in document.items()
    }


def resolve(names: Sequence[str], *, check: bool = True) -> list[Path]:
    """Return the files of the named sets; raise JarsError if one cannot be had or has another checksum."""
    sets = read_sets()
    for name in names:
        if name not in sets:
            raise JarsError(f"unknown set {name!r}; {SETS.name} has {', '.join(sorted(sets))}")
    artefacts = list(dict.fromkeys(artefact for name in names for artefact in sets[name]))
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / ".lock"):
        missing = [artefact for artefact in artefacts if not (folder / artefact.file_name).exists()]
        if missing:
            _download(missing, folder, check=check)
    for artefact in artefacts if check else ():
        _verify(artefact, folder / artefact.file_name)
    return [folder / artefact.file_name for artefact in artefacts]


def lock(name: str) -> None:
    """Write the checksums of those artefacts of a set that have none yet."""
    resolve([name], check=False)
    text = SETS.read_text()
    for artefact in read_sets()[name]:
        if not artefact.sha256:
            digest = _sha256(cache_folder() / artefact.file_name)
            text = text.replace(f'"{artefact.coordinates}" = ""', f'"{artefact.coordinates}" = "{digest}"')
    SETS.write_text(text)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock: several test processes may ask for the same jars at once."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(artefacts: Sequence[Artefact], folder: Path, *, check: bool) -> None:
    print(f"statebed: downloading {len(artefacts)} jars through Maven", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(_pom(artefacts, scratch))
        _run_maven(pom)
        for artefact in artefacts:
            file = Path(scratch) / artefact.file_name
            if check:
                _verify(artefact, file)
            file.replace(folder / artefact.file_name)


def _run_maven(pom: Path) -> None:
    finder = subprocess.run([ROOT / "scripts" / "find-maven"], check=False, text=True, stdout=subprocess.PIPE)
    if finder.returncode:
        raise JarsError("Maven is not installed (see above)")
    arguments = [finder.stdout.strip(), "-q", "-B", "-U", "-f", str(pom), PLUGIN]
    try:
        result = subprocess.run(
            arguments,
            check=False,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise JarsError(f"Maven did not finish within {TIMEOUT_SECONDS} s") from None
    if result.returncode:
        errors = re.findall(r"\[ERROR\] *(.*)", result.stdout)
        raise JarsError(f"Maven failed: {errors[0] if errors else result.stdout.strip()[-500:]}")


def _pom(artefacts: Sequence[Artefact], folder: str) -> str:
    """Return a project that copies the artefacts, and none of their dependencies, into a folder."""
    items = "".join(
        f"<artifactItem><groupId>{escape(artefact.group)}</groupId><artifactId>{escape(artefact.name)}</artifactId>"
        f"<version>{escape(artefact.version)}</version></artifactItem>"
        for artefact in artefacts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>statebed</groupId><artifactId>jars</artifactId>"
        "<version>1</version><packaging>pom</packaging><build><plugins><plugin>"
        "<groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>"
        f"<configuration><outputDirectory>{escape(folder)}</outputDirectory>"
        f"<artifactItems>{items}</artifactItems></configuration></plugin></plugins></build></project>"
    )


def _verify(artefact: Artefact, file: Path) -> None:
    digest = _sha256(file)
    if digest != artefact.sha256:
        raise JarsError(
            f"{artefact.coordinates} has SHA-256 {digest}, but {SETS.name} pins {artefact.sha256 or 'none'}; "
            f"if {file} is damaged, delete it and run this again"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description="resolve pinned jars into a cache and print their paths")
    parser.add_argument("sets", nargs="+", metavar="SET", help=f"sets of {SETS.name}")
    parser.add_argument("--separator", default=os.pathsep, help="put between the paths (default: as in a class path)")
    parser.add_argument("--lock", action="store_true", help="write the checksums of artefacts that have none")
    arguments = parser.parse_args()
    try:
        for name in arguments.sets if arguments.lock else ():
            lock(name)
        print(arguments.separator.join(str(path) for path in resolve(arguments.sets)))
    except JarsError as error:
        print(f"statebed: jars: {error}", file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
