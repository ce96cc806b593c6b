"""Drivers that die or are superseded, as processes of their own: what they leave behind is always a whole epoch."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from statebed.errors import FENCED_EXIT_CODE

SIGKILLED = -9


def driver(rides: Any, mode: str, point: str = "none", epochs: int = 0) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("driver.py")
    return subprocess.Popen(
        [sys.executable, str(script), str(rides.folder), mode, point, str(epochs)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_p1_p2_a_driver_killed_after_the_record_leaves_a_job_that_goes_on(rides: Any) -> None:
    rides.add_files(4)
    killed = driver(rides, "available_now", "after_record", epochs=2)
    output, _ = killed.communicate(timeout=240)
    assert killed.returncode == SIGKILLED, output
    batch_of_head = rides.record().source_position.batch_id
    assert batch_of_head == 2
    query = rides.run()
    assert [progress.batch_id for progress in query.recent_progress] == [3, None]
    assert rides.results() == rides.expected() != []


def test_p3_of_two_drivers_the_older_one_ends_with_its_own_exit_code(rides: Any) -> None:
    rides.add_files(2)
    older = driver(rides, "continuous")
    try:
        wait_for(rides.state / "rides" / "checkpoints" / f"{3:012d}" / "published-minutes", older)
        rides.run()
        rides.add_files(1)  # the older one finds it, and must not get it in
        output, _ = older.communicate(timeout=240)
    finally:
        older.kill()
    assert older.returncode == FENCED_EXIT_CODE, output
    assert "[FENCED]" in output
    rides.run()
    assert rides.results() == rides.expected() != []


def wait_for(path: Path, process: subprocess.Popen[str], timeout: float = 240) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)
