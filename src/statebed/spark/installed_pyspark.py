"""Import PySpark from where it is installed instead of from Spark's archive of its sources.

Spark puts `pyspark.zip` first on the import path of its Python processes. Modules of an archive are compiled again in
each of them, which takes a second of processor time. A PySpark that pip has installed contains that archive, and the
same modules beside it, compiled once.
"""

from pathlib import Path

_IN_PACKAGE = ("pyspark", "python", "lib")
"""Folder of the archives in an installed PySpark."""


def prefer_installed(path: list[str]) -> None:
    """Remove archives from an import path that also has the installed packages they belong to."""
    path[:] = [entry for entry in path if not _is_installed(Path(entry), path)]


def _is_installed(archive: Path, path: list[str]) -> bool:
    if archive.suffix != ".zip" or archive.parent.parts[-3:] != _IN_PACKAGE:
        return False
    packages = archive.parents[3]
    if str(packages) not in path:
        return False
    if archive.name == "pyspark.zip":
        return (packages / "pyspark" / "__init__.py").is_file()
    return (packages / f"{archive.stem.removesuffix('-src')}.dist-info").is_dir()  # py4j-VERSION-src.zip
