"""Windows with many values: their values are rows of the state, and results are as with lists."""

import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import diagonals, every_third

import statebed as sb
from statebed import testing
from statebed.aggregates import functions as f
from statebed.aggregates import partials as aggregate_partials
from statebed.aggregates.accumulators import multisets
from statebed.aggregates.partials import Partials
from statebed.arrays.columns import one_chunk
from statebed.arrays.key_hash import normalise_key
from statebed.flow import Flow
from statebed.inspect import diff_state, read_state
from statebed.operators.updating import entry_results
from statebed.operators.window_definition import SessionWindow, Window
from statebed.operators.windows import large_groups
from statebed.operators.windows.large_groups import LargeGroups
from statebed.state import KeyedView, TimeKeyedView
from statebed.state.keyed.groups import element_page
from statebed.storage import get_storage_provider

COLUMNS = "k bigint, n bigint, v bigint, x double, t string, ts timestamp"
NUMBERS = [None, 0.0, -0.0, 1.5, float("nan"), -3.0]
SPAN = 100
"""Length of the windows in microseconds."""
WINDOWS = {
    "tumbling": sb.tumbling(f"{SPAN} us"),
    "sliding": sb.sliding(f"{SPAN} us", "25 us"),
    "cumulative": sb.cumulative(f"{SPAN} us", "50 us"),
}
COLLECTED = {"numbers": f.collect_list("x"), "texts": f.string_agg("t", "|"), "all": f.collect_set("v")}
FUNCTIONS = {
    "rows": f.count(),
    "total": f.sum("v"),
    "values": f.count_distinct("v"),
    "different": f.count_distinct("t"),
    "often": f.mode("v"),
    "middle": f.median("v"),
    "low": f.percentile("x", 0.3),
    "distinct_total": f.sum_distinct("x"),
    "least": f.min("v"),
    "most": f.max("x"),
    "text_of_least": f.min_by("t", "v"),
    "bits": f.bit_and("v"),
}


def flow_of(
    window: Window | SessionWindow, functions: dict[str, Any], *, keys: tuple[str, ...], changelog: bool, **options: Any
) -> Flow:
    flow = Flow("windows")
    rows: Any = flow.source("rows", COLUMNS, watermark=("ts", "1 hour"))
    if changelog:
        rows = rows.group_by("k", "n", sb.tumbling("5 us"), name="each").agg(
            v=f.max("v"), x=f.max("x"), t=f.min("t"), emit="early"
        )
    rows.group_by(*keys, window, name="result").agg(**functions, **options)
    return flow


def rows_of(draw: random.Random, count: int, first: int) -> list[dict[str, Any]]:
    return [
        {
            "k": draw.choice([1, 1, 1, 2]),
            "n": draw.randrange(12),
            "v": draw.choice([None, *range(20)]),
            "x": draw.choice(NUMBERS),
            "t": draw.choice([None, "a", "b", "", "é"]),
            "ts": max(first + draw.randrange(-60, 60), 0),
        }
        for _ in range(count)
    ]


def many(values: range, *, times: int) -> pa.Table:
    """Return a row of each value, all of one key, with as many event times."""
    numbers = pa.array(values, pa.int64())
    return pa.table(
        {
            "k": pa.array(np.ones(len(values), dtype=np.int64)),
            "n": pa.array(np.zeros(len(values), dtype=np.int64)),
            "v": numbers,
            "x": pc.divide(numbers.cast(pa.float64()), 2.0),
            "t": numbers.cast(pa.string()),
            "ts": pa.array(np.asarray(values) % times).cast(pa.timestamp("us", "UTC")),
        }
    )


def results_of(run: testing.TestRun) -> list[str]:
    return sorted(map(repr, run.output("result")))


def played(flow: Flow, seed: int, *, rows: int = 40, **options: Any) -> list[list[str]]:
    """Return the results after each epoch of a random job."""
    draw, results = random.Random(seed), []
    with testing.run(flow, **options) as run:
        run.watermark(0)
        for epoch in range(4):
            run.feed("rows", rows_of(draw, draw.randrange(rows // 3, rows), 60 * epoch))
            if options and epoch == 1:
                run.crash()
            if options and epoch == 2:
                run.rescale(options.get("parallelism", 1) + 1)
            run.watermark(max(60 * epoch - 70, 0))
            results.append(results_of(run))
        run.watermark(10_000)
        results.append(results_of(run))
        assert run.state_rows("result") == 0, "values of windows that ended are left"
    return results


EARLY, LATE = {"emit": "early"}, {"allowed_lateness": "60 us"}
CASES = [
    ("tumbling", EARLY, False, FUNCTIONS),
    ("sliding", LATE, True, FUNCTIONS),
    ("cumulative", EARLY, True, COLLECTED),
    ("tumbling", LATE, False, COLLECTED),
]
MORE_CASES = [
    ("sliding", EARLY, False, COLLECTED | FUNCTIONS),
    ("cumulative", LATE, False, FUNCTIONS),
    ("tumbling", EARLY, True, COLLECTED | FUNCTIONS),
]
KEYS = [("k",), ()]


@pytest.mark.parametrize(("case", "keys"), diagonals(CASES, KEYS) + diagonals(MORE_CASES, KEYS, kept=0))
def test_p6_results_are_those_of_lists(
    monkeypatch: pytest.MonkeyPatch, case: tuple[str, dict[str, Any], bool, dict[str, Any]], keys: tuple[str, ...]
) -> None:
    (shape, emit, changelog, functions), seed = case, len(keys)
    flow = flow_of(WINDOWS[shape], functions, keys=keys, changelog=changelog, **emit)
    listed = played(flow, seed)
    monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 3)
    assert played(flow, seed, memory=1 << 20) == listed


def normal_rows(table: pa.Table) -> list[str]:
    """Return rows in order, with one zero of floats."""
    columns = {name: normalise_key(one_chunk(table[name])) for name in table.column_names}
    return sorted(map(repr, pa.table(columns).to_pylist()))


@pytest.mark.parametrize("shape", ["tumbling", "sliding"])
def test_results_of_large_windows_can_be_read(monkeypatch: pytest.MonkeyPatch, shape: str, tmp_path: Path) -> None:
    monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 5)
    flow = flow_of(WINDOWS[shape], FUNCTIONS | COLLECTED, keys=("k",), changelog=False, emit="early")
    draw = random.Random(7)
    with testing.run(flow, store=get_storage_provider(tmp_path)) as run:
        run.watermark(0)
        for epoch in range(4):
            run.feed("rows", rows_of(draw, 1 if epoch == 3 else 20, 60 * epoch))
        shown = run.table("result")
        assert run.state("result", "large_windows").num_rows
    stored = read_state(tmp_path, job="windows", operator="result", results=True).to_arrow()
    assert normal_rows(stored) == normal_rows(shown.select(stored.column_names))


def counted_rows(patched: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the number of rows and listed values that each access reads or writes."""
    rows: list[int] = []

    def count(table: Any) -> None:
        lists = [column for column in table.columns if "list" in str(column.type)]
        rows.append(table.num_rows + sum(len(part.flatten()) for column in lists for part in column.chunks))

    get, elements, upsert = KeyedView.get, KeyedView.elements, KeyedView.upsert
    read, append = TimeKeyedView.read, TimeKeyedView.append

    def counted_get(view: KeyedView, keys: Any) -> Any:
        count(keys)
        return get(view, keys)

    def counted_elements(view: KeyedView, keys: Any) -> Any:
        for page in elements(view, keys):
            count(page.rows)
            yield page

    def counted_upsert(view: KeyedView, keys: Any, values: Any, **options: Any) -> None:
        count(values)
        upsert(view, keys, values, **options)

    def counted_read(view: TimeKeyedView, *times: Any, **options: Any) -> Any:
        table = read(view, *times, **options)
        count(table)
        return table

    def counted_append(view: TimeKeyedView, table: Any) -> None:
        count(table)
        append(view, table)

    patched.setattr(KeyedView, "get", counted_get)
    patched.setattr(KeyedView, "elements", counted_elements)
    patched.setattr(KeyedView, "upsert", counted_upsert)
    patched.setattr(TimeKeyedView, "read", counted_read)
    patched.setattr(TimeKeyedView, "append", counted_append)
    return rows


@pytest.mark.parametrize("count", [pytest.param(1_500, marks=pytest.mark.long), 6_000])
@pytest.mark.parametrize(
    ("shape", "emit"), diagonals(["tumbling", "sliding"], [{"emit": "early"}, {"allowed_lateness": "1 hour"}])
)
def test_p4_what_an_epoch_reads_and_writes_does_not_grow_with_the_values_of_a_window(
    monkeypatch: pytest.MonkeyPatch, count: int, emit: dict[str, Any], shape: str
) -> None:
    functions = {name: function for name, function in FUNCTIONS.items() if name not in ("middle", "low")}
    flow = flow_of(WINDOWS[shape], functions, keys=("k",), changelog=False, **emit)
    with testing.run(flow) as run:
        run.watermark(0)
        run.feed("rows", many(range(count), times=20))
        if "allowed_lateness" in emit:
            run.watermark(2 * SPAN)
        run.feed("rows", [{"k": 1, "n": 0, "v": -1, "x": 0.25, "t": "-1", "ts": 5}])
        with monkeypatch.context() as patched:
            rows = counted_rows(patched)
            run.feed("rows", [{"k": 1, "n": 0, "v": -2, "x": 0.75, "t": "-2", "ts": 5}])
        assert {(row["rows"], row["values"], row["least"]) for row in run.output("result")} == {
            (count + 2, count + 2, -2)
        }
        assert sum(rows) < 300


@pytest.mark.parametrize(("shape", "changelog"), diagonals(["tumbling", "sliding"], [True, False]))
def test_p6_results_of_windows_that_close_are_those_of_lists_in_memory(
    monkeypatch: pytest.MonkeyPatch, shape: str, changelog: bool
) -> None:
    flow = flow_of(WINDOWS[shape], FUNCTIONS | COLLECTED, keys=("k",), changelog=changelog)
    in_memory = played(flow, 5)
    monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 1)
    monkeypatch.setattr(large_groups, "MERGED_ENTRIES", 2)
    monkeypatch.setattr(TimeKeyedView, "part_bytes", 1)
    monkeypatch.setattr(aggregate_partials, "LISTS_BYTES", 1)
    assert played(flow, 5, parallelism=2) == in_memory


def played_late(flow: Flow, seed: int, **options: Any) -> list[list[str]]:
    """Return the results after each epoch of a random job with late rows of windows that were emitted."""
    draw, results = random.Random(seed), []
    with testing.run(flow, **options) as run:
        run.watermark(0)
        for _ in range(2):
            run.feed("rows", rows_of(draw, 30, SPAN // 2))
        for watermark in (SPAN // 2, SPAN, 2 * SPAN):
            run.watermark(watermark)
            run.feed("rows", rows_of(draw, 3, SPAN // 2))
            results.append(results_of(run))
            if options:
                run.crash()
        run.watermark(10_000_000)
        results.append(results_of(run))
        assert run.state_rows("result") == 0, "values of windows that ended are left"
    return results


@pytest.mark.parametrize("shape", every_third(WINDOWS, 1))
def test_p6_lists_of_windows_that_become_large_late_are_moved_in_parts(
    monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    late = {"allowed_lateness": f"{2 * SPAN} us"}
    functions = {name: FUNCTIONS[name] for name in ("rows", "values", "often", "middle", "least", "text_of_least")}
    flow = flow_of(WINDOWS[shape], functions | COLLECTED, keys=("k",), changelog=False, **late)
    listed = played_late(flow, 3)
    monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 1)
    monkeypatch.setattr(large_groups, "MERGED_ENTRIES", 2)
    monkeypatch.setattr(TimeKeyedView, "part_bytes", 1)
    moved: list[int] = []
    add_all = LargeGroups.add_all

    def counted(large: LargeGroups, tables: Any, groups: pa.Table, entries: Any) -> None:
        moved.append(groups.num_rows)
        add_all(large, tables, groups, entries)

    monkeypatch.setattr(LargeGroups, "add_all", counted)
    assert played_late(flow, 3, parallelism=2) == listed
    assert moved, "no list was moved"


def test_p4_a_late_row_reads_ascending_values_of_a_window_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved in the order of values, each part would have the median computed from all values again."""
    functions, count = {"middle": f.median("v")}, 100_000
    flow = flow_of(WINDOWS["tumbling"], functions, keys=("k",), changelog=False, allowed_lateness="1 hour")
    monkeypatch.setattr(TimeKeyedView, "part_bytes", 1)
    from_all_entries: list[int] = []
    selected = entry_results._Percentile._selected

    def counted(result: Any, *arguments: Any) -> Any:
        from_all_entries.append(1)
        return selected(result, *arguments)

    monkeypatch.setattr(entry_results, "_AT_ONCE", 1_000)
    monkeypatch.setattr(entry_results._Percentile, "_selected", counted)
    with testing.run(flow, memory=1 << 20) as run:
        run.watermark(0)
        for first in range(0, count, 10_000):
            run.feed("rows", many(range(first, first + 10_000), times=SPAN))
        run.watermark(2 * SPAN)
        assert [row["middle"] for row in run.output("result")] == [(count - 1) / 2]
        from_all_entries.clear()
        run.feed("rows", many(range(count, count + 1), times=SPAN))
        assert [row["middle"] for row in run.output("result")] == [count / 2]
    assert len(from_all_entries) == 1


@pytest.mark.parametrize("options", [{}, {"allowed_lateness": "1 hour"}], ids=["close", "late"])
def test_p4_a_window_that_closes_or_changes_late_holds_a_part_of_its_values(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = flow_of(
        WINDOWS["tumbling"],
        {"values": f.count_distinct("v"), "middle": f.median("v"), "often": f.mode("v"), "all": f.sum_distinct("v")},
        keys=("k",),
        changelog=False,
        **options,
    )
    count, epochs = 4_000, 5
    with testing.run(flow, memory=1 << 20) as run:
        run.watermark(0)
        for epoch in range(epochs):
            values = range(epoch * count, (epoch + 1) * count)
            run.feed("rows", many(values, times=SPAN))
        run.compact()
        assert run.state("result", "partials").num_rows > 1, "a row would list all values"
        merged: list[int] = []
        merge = Partials.merge

        def counted(partials: Partials, rows: pa.Table, grouping: Any) -> Any:
            merged.append(rows.nbytes)
            return merge(partials, rows, grouping)

        monkeypatch.setattr(Partials, "merge", counted)
        run.watermark(10 * SPAN)
        (row,) = run.output("result")
        assert (row["values"], row["middle"], row["often"]) == (epochs * count, epochs * count / 2 - 0.5, 0)
        assert row["all"] == sum(range(epochs * count))
        assert max(merged) < 16 * count, "less than the values of one epoch"
        if options:
            run.feed("rows", [{"k": 1, "n": 0, "v": -1, "x": 0.5, "t": "", "ts": 5}])
            (row,) = run.output("result")
            assert (row["values"], row["middle"], row["often"]) == (epochs * count + 1, epochs * count / 2 - 1, -1)
            assert row["all"] == sum(range(epochs * count)) - 1
            assert max(merged) < 4 * 17 * count, "the values of one epoch, in a list for each function"


def test_p4_a_page_of_values_is_let_go_before_the_next_one_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = flow_of(WINDOWS["tumbling"], {"middle": f.median("v")}, keys=("k",), changelog=False, emit="early")
    pages: list[weakref.ref[Any]] = []

    def built(*arguments: Any) -> Any:
        assert not any(page() is not None for page in pages)
        page = element_page(*arguments)
        pages.append(weakref.ref(page))
        return page

    monkeypatch.setattr("statebed.state.keyed.view.element_page", built)
    with testing.run(flow, memory=1 << 20) as run:
        run.watermark(0)
        for first in range(0, 40_000, 10_000):
            run.feed("rows", many(range(first, first + 10_000), times=SPAN))
        assert run.output("result")[-1]["middle"] == (40_000 - 1) / 2
    assert len(pages) > 20


def test_p4_compaction_sorts_a_part_of_the_values_of_a_window_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorting takes several times the memory of the values."""
    flow = flow_of(WINDOWS["tumbling"], {"values": f.count_distinct("v")}, keys=("k",), changelog=False)
    sorted_at_once: list[int] = []
    combined = multisets.combined_sets

    def counted(owners: Any, *columns: Any, **options: Any) -> Any:
        sorted_at_once.append(len(owners))
        return combined(owners, *columns, **options)

    monkeypatch.setattr(multisets, "combined_sets", counted)
    with testing.run(flow, memory=64 << 20) as run:
        run.watermark(0)
        for first in range(0, 120_000, 10_000):
            run.feed("rows", many(range(first, first + 10_000), times=SPAN))
        run.compact()
    assert max(sorted_at_once) <= 70_000, "an eighth of a row group, of which all were 120,000"


def test_p4_compaction_keeps_the_lists_of_a_window_short() -> None:
    flow = flow_of(WINDOWS["tumbling"], {"values": f.count_distinct("v")}, keys=("k",), changelog=False)
    count, epochs = 5_000, 12
    with testing.run(flow, memory=64 << 20) as run:
        run.watermark(0)
        for epoch in range(epochs):
            values = range(epoch * count, (epoch + 1) * count)
            run.feed("rows", many(values, times=SPAN))
        run.compact()
        partials = run.state("result", "partials")
    lists = [column for column in partials.columns if pa.types.is_list(column.type)]
    longest = max(pc.max(pc.list_value_length(column)).as_py() for column in lists)
    assert count < longest <= epochs * count / 2, "some were merged, and not all into one list"


# ---- sessions --------------------------------------------------------------------------------------------------


def sessions_of(functions: dict[str, Any], *, keys: tuple[str, ...] = ("k",), **options: Any) -> Flow:
    return flow_of(sb.session("10 us"), functions, keys=keys, changelog=False, **options)


SESSIONS = [({}, FUNCTIONS | COLLECTED), (LATE, COLLECTED)]
MORE_SESSIONS = [(EARLY, FUNCTIONS), (LATE, FUNCTIONS | COLLECTED), (EARLY | LATE, FUNCTIONS | COLLECTED)]


@pytest.mark.parametrize(("case", "keys"), diagonals(SESSIONS, KEYS) + diagonals(MORE_SESSIONS, KEYS, kept=0))
def test_p6_results_of_sessions_are_those_of_lists(
    monkeypatch: pytest.MonkeyPatch, case: tuple[dict[str, Any], dict[str, Any]], keys: tuple[str, ...]
) -> None:
    emit, functions = case
    flow = sessions_of(functions, keys=keys, **emit)
    listed = played(flow, 3, rows=14)
    monkeypatch.setattr(large_groups, "LISTED_ENTRIES", 2)
    assert played(flow, 3, rows=14, parallelism=2, memory=1 << 20) == listed


def session_rows(first: int, count: int, time: int) -> pa.Table:
    rows = many(range(first, first + count), times=1)
    times = pa.array(np.full(count, time)).cast(pa.timestamp("us", "UTC"))
    return rows.set_column(rows.column_names.index("ts"), "ts", times)


@pytest.mark.parametrize("emit", [{}, EARLY], ids=["close", "early"])
def test_two_large_sessions_that_merge_become_one(emit: dict[str, Any], tmp_path: Path) -> None:
    functions = {**FUNCTIONS, "all": f.collect_set("v")}
    with testing.run(sessions_of(functions, **emit), store=get_storage_provider(tmp_path)) as run:
        run.watermark(0)
        run.feed("rows", session_rows(0, 3_000, 100))
        run.feed("rows", session_rows(2_000, 3_000, 115))
        assert run.state("result", "large_windows").num_rows == 2
        run.feed("rows", session_rows(9_000, 1, 107))
        assert run.state("result", "large_windows").num_rows == 1
        assert run.state("result", "values_2").num_rows == 5_001
        stored = read_state(tmp_path, job="windows", operator="result", results=True).to_arrow()
        run.watermark(1_000)
        (row,) = run.output("result")
        assert (row["rows"], row["values"], row["often"], row["least"]) == (6_001, 5_001, 2_000, 0)
        assert row["all"] == [*range(5_000), 9_000]
        assert normal_rows(stored) == normal_rows(run.table("result").select(stored.column_names))
        assert run.state_rows("result") == 0


@pytest.mark.parametrize("count", [pytest.param(1_500, marks=pytest.mark.long), 6_000])
@pytest.mark.parametrize("emit", [{}, EARLY], ids=["close", "early"])
def test_p4_what_an_epoch_reads_and_writes_does_not_grow_with_the_values_of_a_session(
    monkeypatch: pytest.MonkeyPatch, count: int, emit: dict[str, Any]
) -> None:
    functions = {name: function for name, function in FUNCTIONS.items() if name not in ("middle", "low")}
    with testing.run(sessions_of(functions, **emit)) as run:
        run.watermark(0)
        run.feed("rows", session_rows(0, count, 100))
        run.feed("rows", session_rows(-1, 1, 101))
        with monkeypatch.context() as patched:
            rows = counted_rows(patched)
            run.feed("rows", session_rows(-2, 1, 99))
            run.feed("rows", session_rows(-4, 2, 80))
            run.feed("rows", session_rows(-5, 1, 90))
        assert sum(rows) < 500, "a row before the session, and a small session that merges with it"
        run.watermark(1_000)
        assert [(row["rows"], row["values"], row["least"]) for row in run.output("result")] == [
            (count + 5, count + 5, -5)
        ]


def test_a_change_of_a_value_of_a_large_session_is_a_difference(tmp_path: Path) -> None:
    with testing.run(sessions_of({"values": f.count_distinct("v")}), store=get_storage_provider(tmp_path)) as run:
        run.watermark(0)
        run.feed("rows", session_rows(0, 2_000, 100))
        epoch = run.epoch
        run.feed("rows", session_rows(2_000, 1, 100))
    changes = diff_state(tmp_path, job="windows", operator="result", since=epoch, results=True).to_arrow()
    assert changes["values"].to_pylist() == [2_000, 2_001]
