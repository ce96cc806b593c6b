"""Executors of a real cluster whose Python has no statebed: refused at the start, served by the packed archive."""

import os
import subprocess
import sys
import tarfile
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


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_an_archive_brings_statebed_to_executors_that_lack_it(rides: Any, tmp_path: Path) -> None:
    if subprocess.run([BARE_PYTHON, "-c", "import statebed"], capture_output=True, check=False).returncode == 0:
        pytest.skip("the Python beneath this environment has statebed")
    rides.add_files(2)
    place = tmp_path / "cluster"
    place.mkdir()
    # What a host has on its PATH: a Python of this version, without any of our packages.
    with started_cluster(place, {"PATH": f"{BARE_PYTHON.parent}:/usr/bin:/bin"}, workers=1) as cluster:
        code, output = drive(rides, cluster, str(BARE_PYTHON))
        assert code == 1, output
        assert "[EXECUTOR] the executor cannot run the job: executor " in output
        assert "No module named 'statebed'" in output
        assert "statebed pack" in output
        assert not (rides.state / "rides").exists()  # refused before a run was opened
        made = pack_environment(tmp_path / "statebed-env.tar.gz")
        with tarfile.open(made.path) as archive:
            archive.extractall(tmp_path / "unpacked", filter="data")
        code, output = drive(
            rides,
            cluster,
            f"./{FOLDER}/bin/python",
            archive=f"{made.path}#{FOLDER}",
            # The driver has what was packed, too: the code of a checkout may change meanwhile.
            PYTHONPATH=str(tmp_path / "unpacked" / "lib"),
        )
        assert code == 0, f"{output}\n{cluster.logs()}"
    assert rides.results() == rides.expected() != []
