"""Operators by keys of nested and unsigned types and of fixed binary: what a plain model of the rows says."""

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from effort import every_third
from unit.state.key_types import KEYS, shown

from statebed import testing
from statebed.aggregates import functions as f
from statebed.errors import InputError
from statebed.flow import Flow, Stream, as_of, between, eq
from statebed.operators.process import MapState, Process, ProcessKey, ValueState
from statebed.operators.window_definition import session, sliding, tumbling

NAMES = [
    "struct",
    "list",
    "list_of_struct",
    "fixed_list",
    "uint64",
    "fixed_binary",
    "decimal256",
    "timestamp_ns",
    "time32",
]


def by_keys(first: int) -> pytest.MarkDecorator:
    """Run a test with keys of these types."""
    return pytest.mark.parametrize("name", every_third(NAMES, first))


TIMESTAMP = pa.timestamp("us", "UTC")
Rows = list[tuple[int, int, int]]
"""Rows of a key, a number, and a time."""
ROWS: Rows = [(row * 7 % 5, row, row * 3 % 40) for row in range(60)]


def streams(name: str) -> tuple[Flow, Stream, Stream]:
    flow = Flow("keys")
    kind = KEYS[name][0]
    left = flow.source("left", pa.schema([("k", kind), ("n", pa.int64()), ("ts", TIMESTAMP)]), watermark=("ts", "0s"))
    right = flow.source("right", pa.schema([("r", kind), ("m", pa.int64()), ("at", TIMESTAMP)]), watermark=("at", "0s"))
    return flow, left, right


def table(name: str, rows: Rows, *, side: str = "left") -> pa.Table:
    kind, values = KEYS[name]
    keys = pa.array(values, kind).take(pa.array([key % len(values) for key, _, _ in rows], pa.int64()))
    columns = [keys, pa.array([n for _, n, _ in rows], pa.int64()), pa.array([at for _, _, at in rows], TIMESTAMP)]
    return pa.table(columns, names=["k", "n", "ts"] if side == "left" else ["r", "m", "at"])


def keys(name: str) -> list[str]:
    """The key of each row of ROWS, as text."""
    return shown(table(name, ROWS)["k"])


def found(t: testing.TestRun, output: str, *columns: str) -> list[tuple[Any, ...]]:
    rows = t.table(output)
    key = shown(rows[rows.column_names[0]].cast(rows.schema.types[0]))
    return sorted(zip(key, *(rows[column].to_pylist() for column in columns), strict=True), key=str)


def fed(t: testing.TestRun, name: str) -> None:
    """All rows, in three epochs, with a crash, a spill and a rescale between them."""
    t.feed("left", table(name, ROWS[:20]))
    t.crash()
    t.feed("left", table(name, ROWS[20:40]))
    t.spill()
    t.rescale(3)
    t.feed("left", table(name, ROWS[40:]))


@by_keys(0)
def test_totals_are_kept_by_such_keys(name: str) -> None:
    flow, left, _ = streams(name)
    totals = left.key_by("k", name="totals").agg(total=f.sum("n"), rows=f.count())
    totals.key_by("rows", name="sizes").agg(groups=f.count())
    with testing.run(flow, parallelism=2) as t:
        fed(t, name)
        want: dict[str, list[int]] = defaultdict(list)
        for key, (_, n, _) in zip(keys(name), ROWS, strict=True):
            want[key].append(n)
        assert found(t, "totals", "total", "rows") == sorted(
            ((key, sum(ns), len(ns)) for key, ns in want.items()), key=str
        )
        assert sum(row["groups"] for row in t.output("sizes")) == len(want)


@by_keys(1)
@pytest.mark.parametrize("panes", [1, 2], ids=["tumbling", "sliding"])
def test_windows_are_aggregated_by_such_keys(name: str, panes: int) -> None:
    flow, left, _ = streams(name)
    window = tumbling("10 us") if panes == 1 else sliding("20 us", "10 us")
    left.group_by("k", window, name="sums").agg(total=f.sum("n"))
    with testing.run(flow, parallelism=2) as t:
        t.watermark(-1)
        fed(t, name)
        t.watermark(1000)
        want: dict[tuple[str, int], int] = defaultdict(int)
        for key, (_, n, time) in zip(keys(name), ROWS, strict=True):
            for start in range(time // 10 * 10 - 10 * (panes - 1), time // 10 * 10 + 1, 10):
                want[key, start] += n
        rows = t.table("sums")
        starts = rows["window_start"].cast(pa.int64()).to_pylist()
        assert dict(zip(zip(shown(rows["k"]), starts, strict=True), rows["total"].to_pylist(), strict=True)) == want
        assert t.state_rows("sums") == 0


@by_keys(2)
def test_sessions_are_kept_by_such_keys(name: str) -> None:
    flow, left, _ = streams(name)
    left.group_by("k", session("1000 us"), name="visits").agg(total=f.sum("n"))
    with testing.run(flow, parallelism=2) as t:
        t.watermark(-1)
        fed(t, name)
        t.watermark(5000)
        want: dict[str, int] = defaultdict(int)
        for key, (_, n, _) in zip(keys(name), ROWS, strict=True):
            want[key] += n
        assert found(t, "visits", "total") == sorted(want.items(), key=str)


def right_rows(name: str) -> Rows:
    return [(key, 100 + key, 5) for key in range(len(KEYS[name][1]))]


@by_keys(3)
@pytest.mark.parametrize("how", ["inner", "left"])
def test_streams_are_joined_by_such_keys(name: str, how: str) -> None:
    flow, left, right = streams(name)
    left.join(right, eq("k", "r"), how=how, name="joined")
    left.join(right, eq("k", "r"), within=between("-100 us", "100 us"), how=how, name="near")
    left.join(right, eq("k", "r"), window=tumbling("100 us"), how=how, name="windowed")
    with testing.run(flow, parallelism=2) as t:
        t.watermark(-1)
        t.feed("right", table(name, right_rows(name)[::2], side="right"))
        fed(t, name)
        t.feed("right", table(name, right_rows(name)[1::2], side="right"))
        t.watermark(1000)
        kind, values = KEYS[name]
        want = []
        for key, (number, n, _) in zip(keys(name), ROWS, strict=True):
            place = number % len(values)
            # A key that is null equals nothing; a null inside of one is a value like others.
            partner = None if values[place] is None else 100 + place
            if partner is not None or how == "left":
                want.append((key, n, partner))
        for output in ("joined", "near", "windowed"):
            assert found(t, output, "n", "m") == sorted(want, key=str), output
        assert kind == t.table("joined").schema.field("k").type


@by_keys(4)
def test_a_row_gets_the_version_of_such_a_key(name: str) -> None:
    flow, left, right = streams(name)
    left.join(right, eq("k", "r"), as_of=as_of(), how="left", name="then")
    with testing.run(flow) as t:
        t.watermark(-1)
        t.feed("right", table(name, right_rows(name), side="right"))
        fed(t, name)
        t.watermark(1000)
        values = KEYS[name][1]
        want = [
            (key, n, 100 + place % len(values) if time >= 5 and values[place % len(values)] is not None else None)
            for key, (place, n, time) in zip(keys(name), ROWS, strict=True)
        ]
        assert found(t, "then", "n", "m") == sorted(want, key=str)


@by_keys(5)
def test_the_first_the_last_and_the_highest_row_of_such_a_key(name: str) -> None:
    flow, left, _ = streams(name)
    left.deduplicate("k", name="first")
    left.deduplicate("k", keep="last", name="last")
    left.key_by("k", name="highest").top(2, "n desc", number="place")
    with testing.run(flow, parallelism=2) as t:
        t.feed("left", table(name, ROWS[:20]))
        first = dict(found(t, "first", "n"))
        fed(t, name)
        want: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for key, (_, n, time) in zip(keys(name), ROWS, strict=True):
            want[key].append((time, n))
        assert first == {key: min(rows[: len([one for one in rows if one[1] < 20])])[1] for key, rows in want.items()}
        assert dict(found(t, "last", "n")) == {key: max(rows)[1] for key, rows in want.items()}
        # Rows of the first epoch came twice.
        twice = {
            key: sorted([n for _, n in rows] + [n for _, n in rows if n < 20], reverse=True)
            for key, rows in want.items()
        }
        assert found(t, "highest", "n", "place") == sorted(
            ((key, n, place) for key, ns in twice.items() for place, n in enumerate(ns[:2], 1)), key=str
        )


class Counting(ProcessKey):
    seen = ValueState("rows bigint")
    output = "rows bigint, size bigint"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Any:
        before = state.seen.get()
        state.seen.put(rows=len(rows) + (before["rows"] if before else 0))
        yield {"rows": state.seen.get()["rows"], "size": len(rows)}


def test_a_process_keeps_state_by_a_struct() -> None:
    flow, left, _ = streams("struct")
    left.key_by("k").process(Counting(), name="counting")
    with testing.run(flow, parallelism=2) as t:
        t.watermark(-1)
        fed(t, "struct")
        rows = t.output("counting")
        assert sum(row["size"] for row in rows) == len(ROWS)
        assert sorted(row["rows"] for row in rows)[-5:] == [12] * 5


def test_p6_the_order_in_which_rows_with_nested_columns_came_does_not_show() -> None:
    outputs = []
    for step in (1, -1):
        flow, left, _ = streams("struct")
        left.key_by("n", name="rows").top(50, "ts")
        with testing.run(flow) as t:
            t.feed("left", table("struct", [(key, 1, 7) for key, _, _ in ROWS][::step]))
            outputs.append((str(t.output("rows")), str(t.changes("rows").to_pylist())))
    assert outputs[0] == outputs[1]


def test_maps_of_processes_have_no_nested_keys() -> None:
    class Mapped(Process):
        state = MapState(key="array<int>", value="int")
        output = "n int"

        def on_batch(self, rows: Any, ctx: Any) -> None:
            """Nothing."""

    _, left, _ = streams("struct")
    with pytest.raises(InputError, match="cannot be keys of a map"):
        left.key_by("k").process(Mapped(), name="mapped")
