"""Drivers that die, are superseded or just end, as processes of their own: what they leave behind is a whole epoch."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from spark.test_run_ends import all_runs, newest_run, summary

from statebed.errors import FENCED_EXIT_CODE
from statebed.inspect.run_states import SILENT_AFTER, RunState

SIGKILLED = -9
HEARTBEAT_SECONDS = 0.5


def driver(rides: Any, mode: str, point: str = "none", epochs: int = 0) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("driver.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(rides.folder), mode, point, str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "STATEBED_HEARTBEAT_EVERY": f"{HEARTBEAT_SECONDS * 1000:.0f} milliseconds"},
    )


def test_p1_p2_a_driver_killed_after_the_record_has_vanished_and_its_job_goes_on(rides: Any) -> None:
    rides.add_files(4)
    killed = driver(rides, "available_now", "after_record", epochs=2)
    output, _ = killed.communicate(timeout=240)
    assert killed.returncode == SIGKILLED, output
    batch_of_head = rides.record().source_position.batch_id
    assert batch_of_head == 2
    time.sleep((SILENT_AFTER + 1) * HEARTBEAT_SECONDS)
    run = newest_run(rides)
    assert summary(rides).status == "vanished"
    assert f"process {killed.pid} on host" in run.what
    assert "start the job again" in run.fix
    query = rides.run()
    assert [progress.batch_id for progress in query.recent_progress] == [3, None]
    assert rides.results() == rides.expected() != []
    newest, before = all_runs(rides)
    assert (newest.state, before.state) == (RunState.FINISHED, RunState.VANISHED)
    assert f"run {newest.run} took over" in before.what


def test_p3_of_two_drivers_the_older_one_ends_with_its_own_exit_code_and_says_what_it_left_running(rides: Any) -> None:
    rides.add_files(2)
    forgotten = type(rides)(rides.spark, rides.folder / "forgotten")
    forgotten.add_files(1)
    older = driver(rides, "forgetful")
    try:
        wait_for(rides.state / "rides" / "checkpoints" / f"{3:012d}" / "published-minutes", older)
        time.sleep((SILENT_AFTER + 1) * HEARTBEAT_SECONDS)
        assert summary(rides).status == "running", "an idle run is no vanished one"
        rides.run()
        rides.add_files(1)  # the older one finds it, and must not get it in
        output, _ = older.communicate(timeout=240)
    finally:
        older.kill()
    assert older.returncode == FENCED_EXIT_CODE, output
    assert "[FENCED]" in output
    rides.run()
    assert rides.results() == rides.expected() != []
    left = newest_run(forgotten)
    assert left.state is RunState.EXITED
    assert "await_termination" in left.fix


def wait_for(path: Path, process: subprocess.Popen[str], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
