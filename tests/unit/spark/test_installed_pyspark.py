"""PySpark is imported from where it is installed, unless Spark's archive is all there is."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from statebed.spark.epoch.worker_daemon import until_closed
from statebed.spark.installed_pyspark import prefer_installed

ROOT = Path(__file__).parents[3]
PACKAGES = Path(pyspark.__file__).parents[1]
ARCHIVES = sorted(map(str, (PACKAGES / "pyspark" / "python" / "lib").glob("*.zip")))


def test_archives_of_installed_packages_are_removed_from_the_path() -> None:
    assert [Path(archive).name.partition("-")[0] for archive in ARCHIVES] == ["py4j", "pyspark.zip"]
    path = [*ARCHIVES, "/usr/lib/python3", str(PACKAGES)]
    prefer_installed(path)
    assert path == ["/usr/lib/python3", str(PACKAGES)]


def test_archives_without_an_installed_package_stay(tmp_path: Path) -> None:
    spark = tmp_path / "pyspark" / "python" / "lib"
    path = [str(spark / "pyspark.zip"), str(spark / "py4j-9-src.zip"), str(tmp_path), *ARCHIVES]
    before = [*path]
    prefer_installed(path)
    assert path == before


SHOWN_AT_THE_END = (
    "import atexit, sys; atexit.register(lambda: print(sys.modules['pyspark.daemon'].__file__, file=sys.stderr))"
)
DAEMON = "from statebed.spark.epoch import worker_daemon; worker_daemon.LOADED = (); worker_daemon.main()"
STARTUP = str(ROOT / "scripts" / "python_startup")


@pytest.mark.parametrize(
    ("program", "startup", "installed"),
    [(DAEMON, (), True), ("import pyspark.daemon", (STARTUP,), True), ("import pyspark.daemon", (), False)],
    ids=["daemon of workers", "processes of tests", "others"],
)
def test_where_processes_of_spark_import_pyspark_from(program: str, startup: tuple[str, ...], installed: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{SHOWN_AT_THE_END}; {program}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*startup, *ARCHIVES])},
        stdin=subprocess.DEVNULL,  # the daemon ends at once
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,  # the daemon ends with an error when its input does
    )
    assert (done.stderr.strip() == str(PACKAGES / "pyspark" / "daemon.py")) == installed, done.stderr


def test_a_worker_whose_connection_spark_has_closed_ends_without_a_traceback() -> None:
    def closed(connection: object, authenticated: bool) -> int:
        raise BrokenPipeError

    assert until_closed(closed)(None, True) == 1
    assert until_closed(lambda *_: 0)(None, True) == 0
