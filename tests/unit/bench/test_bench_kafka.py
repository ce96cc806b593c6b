"""The benchmark over Kafka: its input, its report, and, in `make test-long`, all sides on a small topic."""

import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

from bench.kafka import publishing, race, topics
from bench.kafka.cases import Case, Side, cases
from bench.report import Report
from bench.spark.racer import Batch, Racer
from bench.spark.watch import ProcessorClock

SMALL = Case(keys=1_000, batch_rows=2_000, warm=2, measured=2)


def racer(side: Side, seconds: float, *, java: float) -> Racer[Side]:
    process = subprocess.Popen([sys.executable, "-c", ""], text=True)
    process.wait(60)
    measured = Batch(seconds, processor_seconds=2 * seconds, java_seconds=java)
    warm = Batch(100.0, 100.0, 100.0)
    return Racer(
        side, Path(), process, sys.stderr, ProcessorClock(process.pid), batches=[warm, warm, measured, measured]
    )


def test_warm_batches_fill_the_state_with_every_key_and_the_input_is_always_the_same() -> None:
    rows = topics.rows_of(SMALL)
    assert rows.num_rows == SMALL.rows == 8_000
    assert pc.count_distinct(rows["k"].slice(0, 4_000)).as_py() == SMALL.keys
    assert rows.equals(topics.rows_of(SMALL))
    for case in (*cases(quick=True), *cases(quick=False)):
        assert case.warm * case.batch_rows >= case.keys


def test_ratios_are_of_measured_batches_only_and_java_is_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    racers = {
        Side.OURS: racer(Side.OURS, 1.0, java=1.5),
        Side.ROCKSDB: racer(Side.ROCKSDB, 3.0, java=6.0),
    }
    race._tell(SMALL, Report(as_json=False), racers)
    lines = capsys.readouterr().out.splitlines()
    throughput, processor = lines[1:3]
    assert throughput.split()[-5:-1] == ["throughput", "2,000", "667", "3.00x"]
    assert "3.00x" in processor
    assert "    processor time, ms/Mrow: 750,000 Java, 250,000 Python" in lines


def test_writers_of_a_team_share_the_rows_of_an_epoch() -> None:
    whole = publishing._epoch(publishing.Share(1_000, 1, 0))
    halves = [publishing._epoch(publishing.Share(1_000, 2, number)) for number in range(2)]
    assert whole.files[0].rows == 2_000
    assert [half.files[0].rows for half in halves] == [1_000, 1_000]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(1_200)
def test_all_sides_have_the_totals_of_duckdb(capsys: pytest.CaptureFixture[str]) -> None:
    race.measure(SMALL, Report(as_json=False))
    printed = capsys.readouterr().out
    for side in Side:
        assert f"  {side.value}: " in printed
    publishing.measure(Report(as_json=False), quick=True)
