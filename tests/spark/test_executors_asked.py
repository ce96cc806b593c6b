"""The Python of the executors is probed before a run opens; here a local Spark with another Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from statebed.config import Settings, resolve
from statebed.errors import ExecutorError, InputError
from statebed.spark import session as sessions
from statebed.spark.plan.host_memory import executors_of
from statebed.spark.probe.probe import is_this_process, probe_executors
from statebed.spark.session import check_session, configuration, default_session
from statebed.storage import LocalStore

BARE_PYTHON = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())


def settings(folder: Path, **keywords: object) -> Settings:
    return resolve({"cache_folder": folder / "cache", **keywords}, spark_conf={}, environ={}, folder=folder)


@pytest.fixture
def python(spark: SparkSession) -> Iterator[SparkSession]:
    """A session whose workers' Python may be changed."""
    before = spark.sparkContext.pythonExec
    yield spark
    spark.sparkContext.pythonExec = before


def jobs_run(spark: SparkSession) -> int:
    """Jobs of no group, which is what a test's thread runs."""
    return len(spark.sparkContext.statusTracker().getJobIdsForGroup())


def test_a_local_spark_on_this_very_python_is_not_asked(spark: SparkSession, tmp_path: Path) -> None:
    assert is_this_process(spark.sparkContext)
    before = jobs_run(spark)
    report = probe_executors(spark, LocalStore(tmp_path / "state"), settings=settings(tmp_path), job_id="rides")
    assert report.answers == ()
    assert report.min_memory > 0
    assert jobs_run(spark) == before
    assert (tmp_path / "cache").is_dir()
    assert not (tmp_path / "state").exists()


def test_workers_of_another_name_for_the_same_python_are_asked_and_fit(python: SparkSession, tmp_path: Path) -> None:
    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    python.sparkContext.pythonExec = str(wrapper)
    store = LocalStore(tmp_path / "state")
    report = probe_executors(python, store, settings=settings(tmp_path), job_id="rides")
    assert len(report.answers) == 1
    assert abs(report.skew_seconds) < 1
    assert not list(store.list(""))  # nothing is left behind


def test_workers_without_statebed_are_named_with_what_to_do(python: SparkSession, tmp_path: Path) -> None:
    if subprocess.run([BARE_PYTHON, "-c", "import statebed"], capture_output=True, check=False).returncode == 0:
        pytest.skip("the Python beneath this environment has statebed")
    python.sparkContext.pythonExec = BARE_PYTHON
    with pytest.raises(
        ExecutorError, match=r"No module named|cannot load statebed\.spark\.epoch\.worker_daemon"
    ) as caught:
        probe_executors(python, LocalStore(tmp_path / "state"), settings=settings(tmp_path), job_id="rides")
    assert BARE_PYTHON in caught.value.what
    assert "statebed pack" in caught.value.fix


def test_workers_of_another_version_of_python_are_refused(python: SparkSession, tmp_path: Path) -> None:
    names = [f"python3.{minor}" for minor in range(9, 16) if minor != sys.version_info.minor]
    found = next((path for name in names if (path := shutil.which(name)) and works(path)), None)
    if found is None:
        pytest.skip("no Python of another version on the PATH")
    python.sparkContext.pythonExec = found
    with pytest.raises(ExecutorError, match="different minor versions") as caught:
        probe_executors(python, LocalStore(tmp_path / "state"), settings=settings(tmp_path), job_id="rides")
    assert f"use Python {sys.version_info.major}.{sys.version_info.minor}" in caught.value.fix


def works(program: str) -> bool:
    return subprocess.run([program, "-V"], capture_output=True, check=False, timeout=30).returncode == 0


def test_a_python_that_the_executors_do_not_have_is_named(python: SparkSession, tmp_path: Path) -> None:
    python.sparkContext.pythonExec = "/nowhere/python"
    with pytest.raises(ExecutorError, match="there is no program '/nowhere/python'") as caught:
        probe_executors(python, LocalStore(tmp_path / "state"), settings=settings(tmp_path), job_id="rides")
    assert "PYSPARK_PYTHON" in caught.value.fix
    assert "executor driver on" in caught.value.where


def test_executors_that_do_not_answer_end_the_start(python: SparkSession, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 3\n")
    slow.chmod(0o755)
    python.sparkContext.pythonExec = str(slow)
    with pytest.raises(ExecutorError, match="no executor answered within 1 s") as caught:
        probe_executors(
            python,
            LocalStore(tmp_path / "state"),
            settings=settings(tmp_path, probe_timeout="1 second"),
            job_id="rides",
        )
    assert "probe_timeout" in caught.value.fix


def test_a_cache_folder_that_cannot_be_used_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot use the folder of the host cache") as caught:
        probe_executors(
            spark,
            LocalStore(tmp_path / "state"),
            settings=settings(tmp_path, cache_folder=tmp_path / "file" / "cache"),
            job_id="rides",
        )
    assert "cache_folder" in caught.value.fix


def test_the_slots_of_a_local_spark_are_its_threads(spark: SparkSession) -> None:
    [driver] = executors_of(spark)
    assert (driver.executor_id, driver.slots) == ("driver", 2)


def test_the_configuration_of_a_session_is_read_as_spark_gives_it(spark: SparkSession) -> None:
    spark.conf.set("spark.statebed.attempts", "a -> b, (c)")
    try:
        found = configuration(spark)
        assert found["spark.statebed.attempts"] == "a -> b, (c)"
        assert found == dict(spark.conf.getAll)
    finally:
        spark.conf.unset("spark.statebed.attempts")


def test_a_stopped_session_is_refused(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_session(spark) is spark
    monkeypatch.setattr(sessions, "is_stopped", lambda _: True)
    with pytest.raises(InputError, match="was stopped") as caught:
        check_session(spark)
    assert "create a new session" in caught.value.fix


def test_an_environment_that_makes_connect_sessions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "SPARK_REMOTE", "sc://far")
    with pytest.raises(InputError, match="SPARK_REMOTE turns every new session into a Spark Connect session") as caught:
        default_session("rides")
    assert "unset SPARK_REMOTE" in caught.value.fix
