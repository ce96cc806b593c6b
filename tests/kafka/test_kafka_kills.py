"""Jobs from topic to topic while drivers, Python workers and the broker are killed: `make demo-kafka` as a test."""

from pathlib import Path

import pytest

from scripts.demo_kafka import EXECUTOR, FAULTS, soak


def test_p2_p3_every_ride_is_counted_once_though_driver_worker_and_broker_are_killed(tmp_path: Path) -> None:
    assert soak(tmp_path, ["worker", "broker", "driver"], per_second=300, say=False) > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_p2_p3_thirty_kills_leave_topic_and_lakehouse_tables_equal_to_what_was_sent(tmp_path: Path) -> None:
    kinds = (*FAULTS, EXECUTOR)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    assert soak(tmp_path, faults, per_second=300, lake=True) > 0
