"""A clock that is set back in mid-epoch fails nothing: durations come from a clock that only goes forward."""

from types import SimpleNamespace
from typing import Any

import pytest

from statebed.checkpoint import Environment
from statebed.format import checkpoint_pb2 as pb
from statebed.metrics import JobMetrics
from statebed.spark.compaction.rounds import CompactionCounts
from statebed.spark.epoch import epoch_log as book_module
from statebed.spark.epoch.epoch_figures import EpochMeasurements
from statebed.spark.epoch.epoch_log import EpochLog
from statebed.spark.epoch.observers import Observers

HOUR_US = 3_600_000_000
START_US = 1_800_000_000_000_000


class Clocks:
    """A wall clock that an administrator sets, and a steady one; every look takes a second."""

    def __init__(self) -> None:
        self.offset_us = START_US
        self.seconds = 0.0

    def steady(self) -> float:
        self.seconds += 1
        return self.seconds

    def now_us(self) -> int:
        return self.offset_us + int(self.seconds * 1_000_000)


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def epoch_log(clocks: Clocks, monkeypatch: pytest.MonkeyPatch) -> EpochLog:
    context = SimpleNamespace(defaultParallelism=2)
    plan: Any = SimpleNamespace(
        job_id="rides",
        state_url="memory://",
        operators={},
        session=SimpleNamespace(sparkContext=context),
        topology=SimpleNamespace(levels=[]),
    )
    meter = SimpleNamespace(take=EpochMeasurements)
    monkeypatch.setattr(book_module, "Meter", SimpleNamespace(of=lambda *_: meter))
    environment = Environment(now_us=clocks.now_us, steady_seconds=clocks.steady)
    return EpochLog(plan, 3, environment, Observers(JobMetrics("rides"), None, None))


@pytest.mark.parametrize("jump_at", range(6))
def test_a_clock_set_back_in_mid_epoch_gives_no_negative_figures(
    epoch_log: EpochLog, clocks: Clocks, jump_at: int
) -> None:
    def step(number: int) -> None:
        if number == jump_at:
            clocks.offset_us -= HOUR_US

    meter = epoch_log.begin(7)
    step(0)
    epoch_log.planned()
    step(1)
    figures = epoch_log.figures(meter, CompactionCounts(), preaggregated=False)
    step(2)
    epoch_log.committing()
    step(3)
    epoch_log.committed()
    step(4)
    record = pb.CheckpointMetadata(epoch=7, figures=figures)
    epoch_log.published(record)
    step(5)
    epoch_log.ended(record, {}, {}, batch_id=1)
    summary = epoch_log.progress[-1]
    assert all(us > 0 for name, us in summary.phases_us.items() if name in {"planning", "commit", "publish"})
    assert 0 < summary.duration_us < HOUR_US
    assert epoch_log.carried(record).previous_phases_us["commit"] > 0, "the next record takes it"
