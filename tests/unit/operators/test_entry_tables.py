"""Aggregates that have to know all values: each value is a row of the state, and results are as with lists."""

import collections
import functools
import io
import random
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from unit.operators.operator_epochs import Epochs
from unit.operators.operator_epochs import rows_of as rows_of_input

import statebed as sb
from statebed import testing
from statebed.aggregates import functions as f
from statebed.flow import Flow
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.operator import MAIN
from statebed.operators.updating import entry_results, percentile_windows
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.state import CompactionMode
from statebed.storage import MemoryStore

COLUMNS = "k bigint, n bigint, v bigint, x double, t string, ts timestamp"
VALUES = [None, 0.0, -0.0, 1.5, float("nan"), -3.0]


def flow_of(*, lists: bool, **ttl: Any) -> Flow:
    """The same aggregates with and without a window, which never closes: in a window, entries are lists."""
    flow = Flow("entries")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "0s"))
    each = rows.key_by("k", "n", name="each").agg(v=f.max("v"), x=f.max("x"), t=f.min("t"))
    grouped: Any = (
        each.group_by("k", sb.tumbling("1000 days"), name="result") if lists else each.key_by("k", name="result")
    )
    grouped.agg(
        **({"emit": "early"} if lists else ttl),
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
        total_x=f.sum_distinct("x"),
        numbers=f.collect_list("x"),
        texts_in_order=f.string_agg("t", "|"),
    )
    return flow


def appended_flow_of(*, lists: bool) -> Flow:
    """Collected values of rows that are never retracted."""
    flow = Flow("entries")
    rows = flow.source("rows", COLUMNS, watermark=("ts", "0s"))
    grouped: Any = (
        rows.group_by("k", sb.tumbling("1000 days"), name="result") if lists else rows.key_by("k", name="result")
    )
    grouped.agg(
        **({"emit": "early"} if lists else {}),
        numbers=f.collect_list("x"),
        values=f.collect_list("v"),
        texts=f.string_agg("t", "|"),
        all=f.collect_set("x"),
        total=f.sum_distinct("x"),
        often=f.mode("v"),
    )
    return flow


def results_of(run: testing.TestRun) -> list[str]:
    """The results, without the columns of a window."""
    rows = [{name: row[name] for name in row if not name.startswith("window_")} for row in run.output("result")]
    return sorted(map(repr, rows))


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


@pytest.mark.parametrize(
    ("seed", "entries_at_once"),
    [
        *(pytest.param(seed, *rest, marks=pytest.mark.long) for seed, *rest in [(0, 1 << 17), (1, 3)]),
        (2, 1 << 17),
        (3, 3),
    ],
)
def test_p6_results_are_those_of_lists_under_crashes_and_rescaling(
    seed: int, entries_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_results, "_AT_ONCE", entries_at_once)
    monkeypatch.setattr(entry_results, "_BUCKETS", 2 * entries_at_once)
    draw = random.Random(seed)
    make = appended_flow_of if seed == 2 else flow_of
    ttl = {"ttl": "1000 days"} if seed == 3 else {}
    with (
        testing.run(make(lists=True)) as lists,
        testing.run(make(lists=False, **ttl), memory=1 << 20) as entries,
    ):
        for epoch in range(4):
            some = rows_of(draw, draw.randrange(1, 40))
            lists.feed("rows", some)
            entries.feed("rows", draw.sample(some, len(some)))
            if epoch % 3 == 1:
                entries.crash()
            if epoch == 2:
                entries.rescale(2)
            assert results_of(entries) == results_of(lists)


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


@pytest.mark.parametrize(
    "aggregate",
    [
        f.mode("v"),
        f.median("v"),
        f.count_distinct("v"),
        f.percentile("v", 0.9),
        f.sum_distinct("v"),
        f.collect_list("v"),
        f.collect_set("v"),
        f.string_agg("cast(v as string)", ","),
    ],
)
@pytest.mark.parametrize("ttl", [{}, {"ttl": "1 hour"}])
def test_one_more_value_writes_one_entry_whatever_the_result(aggregate: Any, ttl: dict[str, Any]) -> None:
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(found=aggregate, **ttl)
    store = MemoryStore()
    with testing.run(flow, store=store, compaction=CompactionMode.OFF) as run:
        run.feed("rows", [{"k": 1, "v": v, "ts": 0} for v in range(5000)])
        before = {info.path for info in store.list("")}
        run.feed("rows", [{"k": 1, "v": 5000, "ts": 0}])
        added = [info for info in store.list("") if info.path not in before and "/data/result-" in info.path]
        assert len(added) <= 3
        assert sum(info.size for info in added) < 15_000


MINUTE = 60_000_000


@pytest.mark.parametrize("clock", ["event_time", "epoch_time"])
def test_values_of_a_group_expire_with_it(clock: str) -> None:
    flow = Flow("entries")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(
        ttl="10 minutes",
        ttl_clock=clock,
        values=f.collect_list("v"),
        different=f.count_distinct("v"),
        often=f.mode("v"),
    )
    with testing.run(flow, memory=1 << 20) as run:

        def results(key: int) -> list[list[int]]:
            return [row["values"] for row in run.output("result") if row["k"] == key]

        def feed(minute: int, *rows: tuple[int, int]) -> None:
            run.tick(to=minute * MINUTE)
            run.feed("rows", [{"k": k, "v": v, "ts": minute * MINUTE} for k, v in rows])

        feed(1, *((1, v) for v in range(1000)), (2, 0))
        feed(9, (1, 1000))
        assert run.state("result", "values_0").num_rows == 1002
        run.crash()
        feed(15, (3, 0))
        feed(16, (3, 1))
        # The second key has expired, the first has not: all its values stay, although most are older than the limit.
        assert sorted(run.state("result", "groups")["k"].to_pylist()) == [1, 3]
        assert run.state("result", "values_0").num_rows == 1003
        feed(17, (1, 1001))
        assert results(1) == [list(range(1002))]
        feed(40, (4, 2))
        feed(41, (1, 7))
        assert sorted(run.state("result", "values_0")["k"].to_pylist()) == [1, 4]
        # The result of an expired group is not retracted.
        assert sorted(results(1), key=len) == [[7], list(range(1002))]
        assert run.state("result", "values_1").num_rows == run.state("result", "values_2").num_rows == 2


def test_more_retractions_than_a_group_has_rows_are_counted() -> None:
    bound = f.collect_list("v").bind("values", input_types=(pa.int64(), TIMESTAMP), changelog=True)
    operator = UpdatingAggregate(
        operator_id="result", keys=(pa.field("k", pa.int64()),), aggregates=(bound,), changes=Changes.CHANGELOG
    )
    with Epochs(operator) as epochs:

        def feed(*rows: tuple[int, int]) -> tuple[list[tuple[Any, int]], int]:
            some = [{"k": 1, "_a0": v, "_a0_1": 0, WEIGHT: weight} for v, weight in rows]
            output = epochs.feed(rows_of_input(operator.inputs[0], some, [0] * len(rows)))[MAIN]
            found = [(row["values"], row[WEIGHT]) for row in output.to_pylist()]
            return found, epochs.results[0].counts[UNKNOWN_RETRACTIONS]

        assert feed((5, 1), (6, 2)) == ([([5, 6, 6], 1)], 0)
        # Three rows are there, and five are retracted: two are retractions of rows that the group does not have.
        assert feed((5, -1), (6, -4)) == ([([5, 6, 6], -1)], 2)
        assert epochs.state_rows("groups") == epochs.state_rows("values_0") == 0
        assert feed((7, -3)) == ([], 3)
        assert feed((8, 1)) == ([([8], 1)], 0)


@pytest.mark.parametrize(
    ("share", "seed"),
    [(0.5, 1), *(pytest.param(*more, marks=pytest.mark.long) for more in [(0.0, 2), (0.9, 3), (1.0, 4), (0.25, 5)])],
)
def test_percentiles_of_large_groups_are_found_in_their_windows(
    share: float, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (percentile_windows, entry_results):
        monkeypatch.setattr(module, "WINDOW_VALUES", 8)
        monkeypatch.setattr(module, "MAX_VALUES", 32)
    monkeypatch.setattr(entry_results, "_AT_ONCE", 64)
    passes: collections.Counter[str] = collections.Counter()
    for name in ("_of_entries", "_selected"):
        original = getattr(entry_results._Percentile, name)
        counted = functools.partialmethod(_counting, original, passes, name)
        monkeypatch.setattr(entry_results._Percentile, name, counted)
    bound = f.percentile("x", share).bind("found", input_types=(pa.float64(),), changelog=True)
    operator = UpdatingAggregate(
        operator_id="result", keys=(pa.field("k", pa.int64()),), aggregates=(bound,), changes=Changes.CHANGELOG
    )
    draw = random.Random(seed)
    held: dict[int, list[float]] = {key: [] for key in range(3)}
    shown: dict[int, float | None] = {}
    with Epochs(operator, parallelism=2, chance=draw) as epochs, duckdb.connect() as database:
        for epoch in range(40):
            rows = []
            for key, values in held.items():
                drift = epoch * draw.choice([0, 1, 5]) if key == 1 else 0
                added = [
                    draw.choice([draw.gauss(drift, 10), float(draw.randrange(9))]) for _ in range(draw.randrange(9))
                ]
                added += [draw.choice([float("inf"), float("nan"), -0.0])] if epoch % 7 == 0 else []
                gone = [values.pop(draw.randrange(len(values))) for _ in range(draw.randrange(6)) if len(values) > 50]
                gone, values[:] = (gone + values, []) if key == 2 and epoch == 30 else (gone, values)
                values.extend(added)
                rows += [{"k": key, "_a0": x, WEIGHT: 1} for x in added] + [
                    {"k": key, "_a0": x, WEIGHT: -1} for x in gone
                ]
            if epoch % 13 == 5:
                epochs.restart(draw.randrange(1, 4))
            for row in epochs.feed(rows_of_input(operator.inputs[0], rows, [0] * len(rows)))[MAIN].to_pylist():
                shown.update({row["k"]: row["found"]} if row[WEIGHT] > 0 else {})
            for key, values in held.items():
                if values:
                    known = pa.table({"x": values})  # noqa: F841 - the query reads it
                    query = "select quantile_cont(x, cast(? as double)) from known"
                    expected = database.execute(query, [share]).fetchall()[0][0]
                    assert shown[key] == pytest.approx(expected, rel=1e-12, nan_ok=True), (epoch, key)
        assert epochs.state_rows("middle_0") > 0
    # Three groups changed in each of 40 epochs; most changes of large ones read nothing but the window.
    assert 0 < passes.total() < 80


def _counting(self: Any, original: Any, passes: collections.Counter[str], name: str, *arguments: Any) -> Any:
    passes[name] += 1
    return original(self, *arguments)
