"""Compaction alongside the epochs of a query when its driver dies, and over many epochs."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from spark.trips import expected, live_files, per_driver, state_of

from statebed.format import names


def test_p5_a_driver_killed_in_a_round_loses_nothing_and_leaves_nothing_for_ever(rides: Any) -> None:
    rides.add_files(8, rows=60)
    script = Path(__file__).with_name("compaction_driver.py")
    killed = subprocess.run(
        [sys.executable, str(script), str(rides.folder)], capture_output=True, text=True, timeout=280, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stdout + killed.stderr
    folder = rides.state / "rides" / "compactions"
    orphans = set(folder.rglob("*.parquet"))
    assert orphans
    assert not [path for path in live_files(rides) if names.run_of_compaction(path)]
    job = per_driver(rides, reader_grace="0 seconds")
    query = job.start(available_now=True)
    assert query.await_termination(300)
    assert state_of(rides, job) == expected(rides)
    assert not orphans & set(folder.rglob("*.parquet"))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_p5_over_300_epochs_on_spark_files_and_objects_stay_few(rides: Any) -> None:
    rides.add_files(300, rows=20)
    job = per_driver(rides, reader_grace="0 seconds", collect_every=8)
    query = job.start(available_now=True)
    assert query.await_termination(1800)
    assert query.compaction.failures == 0
    assert query.compaction.edits_applied >= 20
    assert state_of(rides, job) == expected(rides)
    assert len(live_files(rides)) <= 2 * 10
    objects = [path for path in (rides.state / "rides" / "checkpoints").rglob("*") if path.is_file()]
    merged = list((rides.state / "rides" / "compactions").rglob("*.parquet"))
    # Ten epochs are retained; each has its record, two metadata objects, two files, and a marker.
    assert len(objects) < 150
    assert len(merged) < 40
