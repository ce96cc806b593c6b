"""Executors of a real cluster whose Python has no statebed: refused at the start, served by the packed archive."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark.cluster import Cluster, started_cluster

from statebed.cli.pack import FOLDER, pack_environment

BARE_PYTHON = Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def drive(
    rides: Any, cluster: Cluster, python: str, *, archive: str = "-", py_file: str = "-", **environment: str
) -> tuple[int, str]:
    script = Path(__file__).with_name("packed_driver.py")
    done = subprocess.run(
        [sys.executable, str(script), str(rides.folder), cluster.url, archive, py_file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
    )
    return done.returncode, done.stdout


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of hosts that have a Python of this version on their PATH, without any of our packages."""
    if subprocess.run([BARE_PYTHON, "-c", "import statebed"], capture_output=True, check=False).returncode == 0:
        pytest.skip("the Python beneath this environment has statebed")
    place = tmp_path / "cluster"
    place.mkdir()
    with started_cluster(place, {"PATH": f"{BARE_PYTHON.parent}:/usr/bin:/bin"}, workers=1) as cluster:
        yield cluster


@pytest.mark.cluster
@pytest.mark.long  # test_executors_asked.py has a local Spark whose workers lack it
@pytest.mark.timeout(600)
def test_executors_that_lack_statebed_are_refused(rides: Any, bare: Cluster) -> None:
    rides.add_files(1)
    code, output = drive(rides, bare, str(BARE_PYTHON))
    assert code == 1, output
    assert "[EXECUTOR] the executor cannot run the job: executor " in output
    assert "No module named 'statebed'" in output
    assert "statebed pack" in output
    assert not (rides.state / "rides").exists()  # refused before a run was opened


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_an_archive_brings_statebed_to_executors_that_lack_it(rides: Any, bare: Cluster, tmp_path: Path) -> None:
    rides.add_files(2)
    made = pack_environment(tmp_path / "statebed-env.tar.gz")
    with tarfile.open(made.path) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    code, output = drive(
        rides,
        bare,
        f"./{FOLDER}/bin/python",
        archive=f"{made.path}#{FOLDER}",
        # The driver has what was packed, too: the code of a checkout may change meanwhile.
        PYTHONPATH=str(tmp_path / "unpacked" / "lib"),
    )
    assert code == 0, f"{output}\n{bare.logs()}"
    assert rides.results() == rides.expected() != []
