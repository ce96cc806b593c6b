"""`statebed pack`: packs everything that executors need into one file to ship with a job.

There are two kinds of archive. The environment is a `.tar.gz` for Spark's `--archives`: statebed, its dependencies at
the versions installed here, and `bin/python`, which starts the executor's own Python of the same version with them. It
is built from installed files alone, so it needs neither a network nor another tool; compiled packages tie it to
machines of the same platform. The other kind is a `.zip` of statebed alone for `--py-files`, for executors that have
the dependencies.

The bytes of an archive depend only on its content, so an unchanged environment gives an identical file.
"""

import gzip
import importlib.metadata
import io
import json
import re
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import statebed
from statebed.errors import InputError, MissingDependencyError

ENVIRONMENT_SUFFIX = ".tar.gz"
CODE_SUFFIX = ".zip"
FOLDER = "statebed-env"
"""Name under which the archive is unpacked in each executor's working folder."""
_LIBRARY = "lib"
_COMPRESSION = 1
"""Compression level. Level 1 is three times as fast for an eighth more bytes, and hosts of a cluster are close to each
other.
"""
_EXTRA = "spark"
_OF_THE_CLUSTER = frozenset({"pyspark", "py4j"})
"""Packages that Spark itself provides on executors."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[[^]]*\])?[^;]*(?:;\s*(?P<marker>.*))?")
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")
_TIME = (1980, 1, 1, 0, 0, 0)

_PYTHON = """#!/bin/sh
# Starts the Python {version} of this host with the packages of this archive (made by `statebed pack`).
here=$(cd "$(dirname "$0")/.." && pwd)
PYTHONPATH="$here/{library}${{PYTHONPATH:+:$PYTHONPATH}}"
PYTHONNOUSERSITE=1
export PYTHONPATH PYTHONNOUSERSITE
for python in python{version} python3 python; do
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))' 2>/dev/null; then
    exec "$python" "$@"
  fi
done
echo "statebed pack: this archive needs Python {version}, but this host has none on its PATH: $PATH" >&2
exit 69
"""


@dataclass(frozen=True)
class PackedArchive:
    """The archive written, and how to use it."""

    path: Path
    packages: tuple[str, ...]
    """Names and versions of the packages."""
    usage: tuple[str, ...]
    """Shell lines that use the archive."""


def pack_environment(path: Path) -> PackedArchive:
    """Write the archive of everything that executors need besides Python and Spark."""
    _check_suffix(path, ENVIRONMENT_SUFFIX)
    packages = closure("statebed")
    major, minor = sys.version_info[:2]
    script = _PYTHON.format(version=f"{major}.{minor}", major=major, minor=minor, library=_LIBRARY)
    members = {"bin/python": Member(script.encode(), mode=0o755)}
    for package in packages:
        members |= {f"{_LIBRARY}/{name}": member for name, member in _members(package)}
    with (
        _replacing(path) as beside,
        beside.open("wb") as file,
        # A file name or time in the gzip header would change the bytes.
        gzip.GzipFile("", "wb", compresslevel=_COMPRESSION, fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as archive,
    ):
        for name, member in sorted(members.items()):
            data = member.read()
            archive.addfile(_described(name, len(data), member.mode), io.BytesIO(data))
    shipped, python = f"{path}#{FOLDER}", f"./{FOLDER}/bin/python"
    submit = f"PYSPARK_DRIVER_PYTHON={shlex.quote(sys.executable)} PYSPARK_PYTHON={python} spark-submit"
    usage = (
        "# in the program, before the session is created:",
        f'os.environ["PYSPARK_PYTHON"] = "{python}"',
        f'spark = SparkSession.builder.config("spark.archives", {json.dumps(shipped)}).getOrCreate()',
        "",
        "# or with spark-submit:",
        f"{submit} --archives {shlex.quote(shipped)} job.py",
    )
    return PackedArchive(path, tuple(f"{distribution.name} {distribution.version}" for distribution in packages), usage)


def pack_code(path: Path) -> PackedArchive:
    """Write the archive of statebed alone."""
    _check_suffix(path, CODE_SUFFIX)
    package = importlib.metadata.distribution("statebed")
    with _replacing(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in sorted(_members(package)):
            archive.writestr(zipfile.ZipInfo(name, _TIME), member.read(), zipfile.ZIP_DEFLATED)
    usage = (
        "# in the program, before job.start():",
        f"spark.sparkContext.addPyFile({json.dumps(str(path))})",
        "",
        "# or with spark-submit:",
        f"spark-submit --py-files {shlex.quote(str(path))} job.py",
    )
    return PackedArchive(path, (f"statebed {package.version}",), usage)


# ---- what belongs to it --------------------------------------------------------------------------------------


def closure(name: str) -> list[importlib.metadata.Distribution]:
    """Return an installed package and its transitive dependencies on an executor, sorted by name."""
    packages: dict[str, importlib.metadata.Distribution] = {}
    waiting = [(name, _EXTRA)]
    while waiting:
        wanted, extra = waiting.pop()
        if wanted in packages or wanted in _OF_THE_CLUSTER:
            continue
        package = _installed(wanted)
        if package is None:
            # Only needed on another system or an older Python.
            continue
        packages[wanted] = package
        waiting += [(requirement, "") for requirement in _requirements(package, extra)]
    lacking = [
        requirement
        for requirement in _requirements(packages[name], "")
        if requirement not in packages and requirement not in _OF_THE_CLUSTER
    ]
    if lacking:
        raise MissingDependencyError(
            f"statebed needs {', '.join(lacking)}, which is not installed", fix="pip install statebed"
        )
    return [package for _, package in sorted(packages.items())]


def _requirements(package: importlib.metadata.Distribution, extra: str) -> Iterator[str]:
    for text in package.requires or ():
        parts = _REQUIREMENT.match(text)
        if parts is None:
            continue
        of_extra = _OF_EXTRA.search(parts["marker"] or "")
        if of_extra is None or of_extra[1] == extra:
            yield _canonical(parts[1])


def _installed(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# ---- files ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class Member:
    """One file of an archive."""

    content: bytes | Path
    mode: int = 0o644

    def read(self) -> bytes:
        return self.content.read_bytes() if isinstance(self.content, Path) else self.content


def _described(name: str, nbytes: int, mode: int) -> tarfile.TarInfo:
    """Build a tar header without anything specific to this machine: no owner, no time."""
    about = tarfile.TarInfo(name)
    about.size, about.mode = nbytes, mode
    return about


def _members(package: importlib.metadata.Distribution) -> Iterator[tuple[str, Member]]:
    """Yield the files of an installed package with their names relative to site-packages."""
    if _canonical(package.name) == "statebed":
        # statebed's own files, wherever they are: an editable installation has none in site-packages.
        above = Path(statebed.__file__).parent.parent
        for folder in ("statebed", "pyspark_statebed"):
            for path in (above / folder).rglob("*"):
                if path.is_file() and _belongs(path):
                    yield path.relative_to(above).as_posix(), Member(path)
        metadata = f"statebed-{package.version}.dist-info/METADATA"
        yield metadata, Member(f"Metadata-Version: 2.1\nName: statebed\nVersion: {package.version}\n".encode())
        return
    files = package.files
    if files is None:
        raise InputError(
            f"package {package.name} does not list its files", fix=f"install it with pip: pip install {package.name}"
        )
    for file in files:
        path = Path(str(file.locate()))
        if ".." not in file.parts and _belongs(path) and path.is_file():
            yield file.as_posix(), Member(path, mode=0o755 if path.suffix == ".so" else 0o644)


def _belongs(path: Path) -> bool:
    return "__pycache__" not in path.parts and path.suffix not in {".pyc", ".pyi"}


def _check_suffix(path: Path, suffix: str) -> None:
    if not path.name.endswith(suffix):
        raise InputError(
            f"the archive name must end in {suffix}, got {path.name!r}",
            fix=f"Spark unpacks archives by their suffix: choose a name such as x{suffix}",
        )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, and rename it to `path` once it is complete."""
    beside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        beside.replace(path)
    except OSError as error:
        raise InputError(
            f"the archive cannot be written: {error}", where=str(path), fix="choose another file"
        ) from error
    finally:
        beside.unlink(missing_ok=True)
