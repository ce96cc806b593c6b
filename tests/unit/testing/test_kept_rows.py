"""A test run keeps the rows of its streams until they are discarded."""

import pyarrow as pa
import pytest

import statebed as sb
from statebed.errors import InputError


def test_discarded_rows_are_gone_and_epochs_keep_their_numbers() -> None:
    flow = sb.Flow("rides")
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "0 s"))
    rides.key_by("driver", name="earned").agg(total=sb.sum("fare"))
    with sb.testing.run(flow) as run:
        for fare in (1.0, 2.0):
            run.feed("rides", [{"driver": "ann", "fare": fare, "ts": "2026-01-01T12:00:00Z"}])
        assert [row["fare"] for row in run.output("rides")] == [1.0, 2.0]
        run.discard_rows()
        assert run.output("rides") == []
        before = pa.total_allocated_bytes()
        for _ in range(20):
            run.feed("rides", pa.table({"driver": ["bob"] * 10_000, "fare": [0.0] * 10_000, "ts": [None] * 10_000}))
            run.discard_rows()
        assert pa.total_allocated_bytes() - before < 20 * 10_000 * 8
        run.feed("rides", [{"driver": "ann", "fare": 4.0, "ts": "2026-01-01T12:00:00Z"}])
        assert run.changes("rides").select(["fare", "epoch"]).to_pylist() == [{"fare": 4.0, "epoch": 22}]
        changes = run.changes("earned").select(["total", "_weight", "epoch"]).to_pylist()
        assert sorted(changes, key=lambda row: row["_weight"]) == [
            {"total": 3.0, "_weight": -1, "epoch": 22},
            {"total": 7.0, "_weight": 1, "epoch": 22},
        ]


def test_times_that_python_does_not_have_are_returned_as_arrow() -> None:
    flow = sb.Flow("rides")
    flow.source("rides", "ts timestamp", watermark=("ts", "0 s"))
    with sb.testing.run(flow) as run:
        run.feed("rides", [{"ts": 253_402_300_800_000_000}])  # the year 10000
        with pytest.raises(InputError, match=r"a value cannot be shown .*\n.*'rides'\n.*use table\('rides'\)"):
            run.output("rides")
        assert run.table("rides")["ts"].cast(pa.int64()).to_pylist() == [253_402_300_800_000_000]
