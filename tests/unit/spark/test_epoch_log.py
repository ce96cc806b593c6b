"""Log lines of epochs: at which level, and about what."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from statebed.checkpoint import Environment
from statebed.metrics import JobMetrics
from statebed.spark import EpochSummary, OperatorSummary
from statebed.spark.epoch.epoch_log import EpochLog
from statebed.spark.epoch.observers import Observers


def summary(epoch: int, late: int) -> EpochSummary:
    operator = OperatorSummary(10, late, 4, None, state_rows=1, state_bytes=1, state_files=1)
    return EpochSummary(epoch, 0, {"per_minute": operator}, duration_us=1_500_000)


@pytest.fixture
def epoch_log() -> EpochLog:
    plan: Any = SimpleNamespace(job_id="rides")
    return EpochLog(plan, 3, Environment(), Observers(JobMetrics("rides"), None, None))


def test_an_epoch_is_one_line(epoch_log: EpochLog, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "statebed"):
        epoch_log._log(summary(7, late=0))
    [record] = caplog.records
    assert record.getMessage() == "epoch 7: 10 rows in, 0 late, 4 out, 1.500 s"
    assert (record.__dict__["job"], record.__dict__["run"], record.__dict__["epoch"]) == ("rides", 3, 7)


def test_p9_late_rows_are_worth_a_warning_once_and_a_line_always(
    epoch_log: EpochLog, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "statebed"):
        for epoch in (7, 8):
            epoch_log._log(summary(epoch, late=2))
    told = [(one.levelname, one.__dict__["epoch"]) for one in caplog.records if one.__dict__.get("operator")]
    assert told == [("WARNING", 7), ("INFO", 8)]
    assert "operator per_minute: 2 of 10 rows were late" in caplog.text
