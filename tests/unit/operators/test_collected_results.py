"""Results that contain all values of a key: in order, the same bytes however they were built, in little memory."""

import datetime as dt
import decimal
import gc
import random
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import statebed as sb
from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import ResultTooLargeError
from statebed.operators import external_sort
from statebed.operators.updating import aggregate, collected_results
from statebed.state import KeyedView
from statebed.state.tiers import spooled_values

KINDS = "v bigint, x double, small float, t string, b binary, yes boolean, d decimal(30, 2)"
COLUMNS = f"k bigint, n bigint, {KINDS}, ts timestamp"
HOT, VALUES, BUDGET = 7, 60_000, 1 << 20


def flow_of(*, changelog: bool) -> sb.Flow:
    flow = sb.Flow("collected")
    rows: Any = flow.source("rows", COLUMNS, watermark=("ts", "0s"))
    names = ("v", "x", "small", "t", "b", "yes", "d")
    if changelog:
        rows = rows.key_by("k", "n", name="each").agg(**{name: f.max(name) for name in names})
    lists = {f"all_{name}": f.collect_list(name) for name in names}
    sets = {f"set_{name}": f.collect_set(name) for name in names}
    rows.key_by("k", name="result").agg(
        rows=f.count(), **lists, **sets, texts=f.string_agg("t", ", "), text=f.string_agg("t")
    )
    return flow


def rows_of(draw: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "k": draw.choice([1, 1, 1, 2, 3]),
            "n": draw.randrange(30),
            "v": draw.choice([None, *range(20)]),
            "x": draw.choice([None, 0.0, -0.0, 1.5, float("nan"), -3.0]),
            "small": draw.choice([None, 0.0, -0.0, 2.5, float("nan")]),
            "t": draw.choice([None, "a", "b", "", "\u00e9", "longer than a word of memory"]),
            "b": draw.choice([None, b"", b"\x00", b"\xff\x01"]),
            "yes": draw.choice([None, True, False]),
            "d": draw.choice([None, decimal.Decimal("1.50"), decimal.Decimal(-2), decimal.Decimal(10**20)]),
            "ts": dt.datetime.fromtimestamp(draw.randrange(40), dt.UTC),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("changelog", [pytest.param(False, marks=pytest.mark.long), True])
def test_p6_results_have_the_same_bytes_whatever_fits_into_memory(
    changelog: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = []
    for chunk_bytes, fan_in in ((1 << 20, 64), (300, 2)):
        monkeypatch.setattr(KeyedView, "chunk_bytes", chunk_bytes)
        monkeypatch.setattr(external_sort, "FAN_IN", fan_in)
        monkeypatch.setattr(external_sort, "MIN_PAGE_ROWS", 2)
        draw = random.Random(3)
        with testing.run(flow_of(changelog=changelog), memory=8 << 20) as run:
            for _ in range(3):
                run.feed("rows", rows_of(draw, 30))
            run.crash()
            run.feed("rows", rows_of(draw, 5))
            changes = run.changes("result")
        outputs.append([changes.schema, *(repr(row) for row in changes.to_pylist())])
    assert len(outputs[0]) > 10
    assert outputs[0] == outputs[1]


def hot_rows(first: int, count: int) -> pa.Table:
    values = np.arange(first, first + count)
    return pa.table(
        {
            "k": pa.array(np.full(count, HOT)),
            "v": pa.array(values * 7919 % 1_000_003),
            "t": pa.array([f"note {value}" for value in values.tolist()]),
            "ts": pa.array(values).cast(pa.timestamp("us", tz="UTC")),
        }
    )


@pytest.mark.parametrize(
    "function",
    [f.collect_list("v"), pytest.param(f.collect_set("v"), marks=pytest.mark.long), f.string_agg("t", ",")],
    ids=lambda one: one.function.name,
)
def test_p4_one_more_row_of_a_key_with_many_values_takes_the_memory_of_a_chunk(function: Any) -> None:
    flow = sb.Flow("hot")
    rows = flow.source("rows", "k bigint, v bigint, t string, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(all=function)
    with testing.run(flow, memory=BUDGET) as run:
        run.feed("rows", hot_rows(0, VALUES))
        run.feed("rows", hot_rows(VALUES, 1))
        gc.collect()
        arrow, seen = pa.total_allocated_bytes(), []
        original = collected_results.ResultFile.add

        def watched(self: Any, sets: Any) -> None:
            original(self, sets)
            seen.append(pa.total_allocated_bytes())

        tracemalloc.start()
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(collected_results.ResultFile, "add", watched)
                run.feed("rows", hot_rows(VALUES + 1, 1))
            numpy_peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        result = run.changes("result").slice(3)
        assert result["_weight"].to_pylist() == [-1, 1]
        nbytes = result["all"].nbytes
        assert nbytes > 950_000
        # The old and the new result are mapped files.
        assert max(seen) - arrow < BUDGET
        assert pa.total_allocated_bytes() - arrow < nbytes // 8
        assert numpy_peak < BUDGET
        assert run.memory_used <= BUDGET
        old, new = result["all"].to_pylist()
    expected: Any = [value * 7919 % 1_000_003 for value in range(VALUES + 2)]
    match function.function.name:
        case "collect_list":
            assert (old, new) == (expected[:-1], expected)
        case "collect_set":
            assert (old, new) == (sorted(expected[:-1]), sorted(expected))
        case _:
            texts = [f"note {value}" for value in range(VALUES + 2)]
            assert (old, new) == (",".join(texts[:-1]), ",".join(texts))


def test_p4_results_of_many_keys_at_once_are_not_held_in_memory() -> None:
    flow = sb.Flow("many")
    rows = flow.source("rows", "k bigint, v bigint, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(all=f.collect_list("v"))
    keys, each = 50, 2_000

    def fed(first: int, count: int) -> pa.Table:
        values = np.tile(np.arange(first, first + count), keys)
        times = pa.array(values).cast(pa.timestamp("us", tz="UTC"))
        return pa.table({"k": np.repeat(np.arange(keys), count), "v": values, "ts": times})

    with testing.run(flow, memory=BUDGET) as run:
        run.feed("rows", fed(0, each))
        gc.collect()
        before = pa.total_allocated_bytes()
        run.feed("rows", fed(each, 1))
        result = run.changes("result").slice(keys)
        assert result.num_rows == 2 * keys
        assert result["all"].nbytes > 3 << 19
        assert pa.total_allocated_bytes() - before < 1 << 19
        for row in result.slice(keys - 1, 2).to_pylist():
            assert row["all"] == list(range(each + (row["_weight"] > 0)))


def test_a_result_that_no_column_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyedView, "chunk_bytes", 200)
    monkeypatch.setattr(spooled_values, "MAX_BYTES", 1_000)
    flow = sb.Flow("large")
    rows = flow.source("rows", "k bigint, t string, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="result").agg(all=f.string_agg("t", ","))
    with testing.run(flow) as run, pytest.raises(ResultTooLargeError, match="limit="):
        run.feed("rows", [{"k": 1, "t": f"text {number}" * 5, "ts": number} for number in range(100)])


def test_groups_are_cut_by_the_number_of_their_values() -> None:
    counts = np.array([1, 5, 2, 2, 9, 0, 0, 3])
    assert list(aggregate._runs_within(4, counts)) == [(0, 1), (1, 1), (2, 2), (4, 1), (5, 3)]
