"""Distinct counts and the ends of a changelog: each value is a row of the state, and results are as with lists."""

import collections
import io
import random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import statebed as sb
from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow
from statebed.operators.updating import entry_results
from statebed.state import CompactionMode
from statebed.storage import MemoryStore

COLUMNS = "k bigint, n bigint, v bigint, x double, t string, ts timestamp"
VALUES = [None, 0.0, -0.0, 1.5, float("nan"), -3.0]


def flow_of(*, lists: bool) -> Flow:
    """The same aggregates with and without a time to live, which nothing reaches: with one, entries are lists."""
    flow = Flow("entries")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "0s"))
    ttl: dict[str, Any] = {"ttl": "1000 days", "ttl_clock": "epoch_time"} if lists else {}
    each = rows.key_by("k", "n", name="each").agg(v=f.max("v"), x=f.max("x"), t=f.min("t"))
    each.key_by("k", name="result").agg(
        **ttl,
        rows=f.count(),
        values=f.count_distinct("v"),
        texts=f.count_distinct("t"),
        least=f.min("v"),
        most=f.max("v"),
        lowest=f.min("x"),
        highest=f.max("x"),
        first=f.min("t"),
        all=f.collect_set("v"),
        often=f.mode("v"),
        text_often=f.mode("t"),
        middle=f.median("v"),
        middle_x=f.percentile("x", 0.3),
        bits=f.bit_and("v"),
        some_bits=f.bit_or("v"),
        text_of_least=f.min_by("t", "v"),
        text_of_highest=f.max_by("t", "x"),
        total=f.sum_distinct("v"),
    )
    return flow


def rows_of(draw: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": draw.randrange(4),
            "n": draw.randrange(12),
            "v": draw.choice([None, *range(20)]),
            "x": draw.choice(VALUES),
            "t": draw.choice([None, "a", "b", "", "é"]),
            "ts": draw.randrange(100),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(("seed", "entries_at_once"), [(0, 1 << 17), (1, 3), (2, 1 << 17), (3, 3)])
def test_p6_results_are_those_of_lists_under_crashes_and_rescaling(
    seed: int, entries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_results, "_AT_ONCE", entries_at_once)
    monkeypatch.setattr(entry_results, "_BUCKETS", 2 * entries_at_once)
    draw = random.Random(seed)
    with (
        testing.run(flow_of(lists=True)) as lists,
        testing.run(flow_of(lists=False), parallelism=2, memory=1 << 20) as entries,
    ):
        for epoch in range(8):
            some = rows_of(draw, draw.randrange(1, 40))
            lists.feed("rows", some)
            entries.feed("rows", draw.sample(some, len(some)))
            if epoch % 3 == 1:
                entries.crash()
            if epoch == 4:
                entries.rescale(3)
            assert sorted(map(repr, entries.output("result"))) == sorted(map(repr, lists.output("result")))


def test_groups_that_lose_all_rows_lose_their_entries() -> None:
    flow = Flow("entries")
    left = flow.source("left", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    right = flow.source("right", "k bigint, ts timestamp", watermark=("ts", "0s"))
    alone = left.join(right, sb.eq("k", "k"), how="anti", name="alone")
    alone.key_by("k", name="result").agg(values=f.count_distinct("v"), least=f.min("v"))
    with testing.run(flow) as run:
        run.feed("left", [{"k": 1, "v": v, "ts": 0} for v in (3, 4, 4, 5)])
        assert run.state("result", "values_0").num_rows == 3
        run.feed("right", [{"k": 1, "ts": 1}])
        assert run.output("result") == []
        assert run.state_rows("result") == 0


def test_one_more_value_writes_one_entry() -> None:
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(values=f.count_distinct("v"))
    with testing.run(flow) as run:
        run.feed("rows", [{"k": 1, "v": v, "ts": 0} for v in range(5000)])
        run.feed("rows", [{"k": 1, "v": 5000, "ts": 0}])
        assert [(row["k"], row["values"]) for row in run.output("result")] == [(1, 5001)]
        assert run.state("result", "groups")["values"].to_pylist() == [5001]
    store = MemoryStore()
    with testing.run(flow, store=store, compaction=CompactionMode.OFF) as run:
        run.feed("rows", [{"k": 1, "v": v, "ts": 0} for v in range(5000)])
        first = {info.path for info in store.list("")}
        run.feed("rows", [{"k": 1, "v": 5000, "ts": 0}])
        (added,) = [
            info.path for info in store.list("") if info.path not in first and "/data/result-values_0-" in info.path
        ]
        assert pq.read_metadata(io.BytesIO(store.get(added))).num_rows == 1


def test_when_the_smallest_value_leaves_the_next_is_found() -> None:
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, n bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    each = rows.key_by("k", "n", name="each").agg(v=f.max("v"))
    each.key_by("k", name="result").agg(least=f.min("v"), most=f.max("v"))
    with testing.run(flow) as run:
        run.feed("rows", [{"k": 1, "n": n, "v": n, "ts": 0} for n in range(10)])
        run.feed("rows", [{"k": 1, "n": 0, "v": 100, "ts": 0}])
        assert [(row["least"], row["most"]) for row in run.output("result")] == [(1, 100)]
        run.feed("rows", [{"k": 1, "n": 1, "v": 1000, "ts": 0}, {"k": 1, "n": 2, "v": 50, "ts": 0}])
        assert [(row["least"], row["most"]) for row in run.output("result")] == [(3, 1000)]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.999, 1.0])
def test_percentiles_of_many_values_are_selected_in_passes(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry_results, "_AT_ONCE", 16)
    draw = random.Random(7)
    numbers = [
        draw.choice([draw.uniform(-1e9, 1e9), draw.uniform(-1, 1), float(draw.randrange(-9, 9)), float("inf")])
        for _ in range(3000)
    ]
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, x double, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(found=f.percentile("x", share), often=f.mode("x"))
    with testing.run(flow) as run, duckdb.connect() as database:
        for start in (0, 1000, 2000):
            run.feed("rows", [{"k": 1, "x": x, "ts": 0} for x in numbers[start : start + 1000]])
            known = pa.table({"x": numbers[: start + 1000]})  # noqa: F841 - the query reads it
            expected = database.execute("select quantile_cont(x, cast(? as double)) from known", [share]).fetchall()[0][
                0
            ]
            (row,) = run.output("result")
            assert row["found"] == pytest.approx(expected, rel=1e-15, abs=0)
            counts = collections.Counter(numbers[: start + 1000])
            assert row["often"] == min(counts, key=lambda x: (-counts[x], x))


@pytest.mark.parametrize("aggregate", [f.mode("v"), f.median("v"), f.count_distinct("v"), f.percentile("v", 0.9)])
def test_one_more_value_writes_one_entry_whatever_the_result(aggregate: Any) -> None:
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(found=aggregate)
    store = MemoryStore()
    with testing.run(flow, store=store, compaction=CompactionMode.OFF) as run:
        run.feed("rows", [{"k": 1, "v": v, "ts": 0} for v in range(5000)])
        before = {info.path for info in store.list("")}
        run.feed("rows", [{"k": 1, "v": 5000, "ts": 0}])
        added = [info for info in store.list("") if info.path not in before and "/data/result-" in info.path]
        assert len(added) == 2
        assert sum(info.size for info in added) < 10_000
