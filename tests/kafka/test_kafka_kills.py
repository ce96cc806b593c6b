"""Jobs from topic to topic while drivers, Python workers and the broker are killed: `make demo-kafka` as a test."""

from pathlib import Path

import pytest

from scripts.demo_kafka import FAULTS, soak


def test_p2_p3_every_ride_is_counted_once_though_driver_worker_and_broker_are_killed(tmp_path: Path) -> None:
    assert soak(tmp_path, ["worker", "broker", "driver"], per_second=300, say=False) > 0


@pytest.mark.long
def test_p2_p3_thirty_kills(tmp_path: Path) -> None:
    assert soak(tmp_path, [FAULTS[number % 3] for number in range(30)]) > 0
