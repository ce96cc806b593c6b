"""Lists and maps of processes that are large, and lists and maps against Python's own."""

import operator
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from effort import diagonals
from unit.operators.operator_epochs import Epochs, rows_of

import statebed as sb
from statebed.expressions.type_text import schema_of
from statebed.format.stream_schema import Input
from statebed.operators.operator import MAIN
from statebed.operators.process import ProcessOperator, key_states
from statebed.operators.process.collections import ListTables

INPUT = Input("rows", schema_of("k bigint, op string, at bigint, v bigint"), ("k",))
HOT = 50_000


class Kept(sb.ProcessKey):
    """Does to a list and a map what its rows say, and tells both on request."""

    listed = sb.ListState("v bigint")
    mapped = sb.MapState(key="bigint", value="bigint")
    output = "k bigint, shown string"

    def on_rows(self, key: Any, rows: Any, state: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        for row in rows:
            op, at, v = row["op"], row["at"], row["v"]
            if op == "append":
                state.listed.append(v=v)
            elif op == "set list":
                state.listed.put([{"v": v}] * (v % 3))
            elif op == "clear list":
                state.listed.delete()
            elif op == "put":
                state.mapped.put(v, at)
            elif op == "remove":
                state.mapped.remove(v)
            elif op == "clear map":
                state.mapped.delete()
            elif op == "get":
                yield {"k": key, "shown": repr(state.mapped.get(v, "none"))}
            elif op == "last":
                yield {"k": key, "shown": repr([item["v"] for item in state.listed.last(1 + at)])}
            elif op == "show":
                listed = [one["v"] for one in state.listed.get()]
                yield {"k": key, "shown": f"{listed} {sorted(state.mapped.items().items())}"}


class Model:
    """The same with a list and a dict for each key."""

    def __init__(self) -> None:
        self.lists: dict[int, list[int]] = {}
        self.maps: dict[int, dict[int, int]] = {}

    def apply(self, k: int, op: str, at: int, v: int) -> str | None:
        listed, mapped = self.lists.setdefault(k, []), self.maps.setdefault(k, {})
        if op == "append":
            listed.append(v)
        elif op == "set list":
            listed[:] = [v] * (v % 3)
        elif op == "clear list":
            listed.clear()
        elif op == "put":
            mapped[v] = at
        elif op == "remove":
            mapped.pop(v, None)
        elif op == "clear map":
            mapped.clear()
        elif op == "get":
            return repr(mapped.get(v, "none"))
        elif op == "last":
            return repr(listed[-1 - at :])
        elif op == "show":
            return f"{listed} {sorted(mapped.items())}"
        return None


WEIGHTS = {
    "append": 8,
    "put": 8,
    "get": 4,
    "last": 3,
    "remove": 2,
    "set list": 1,
    "clear list": 1,
    "clear map": 1,
    "show": 1,
}


@pytest.mark.parametrize(("seed", "small"), diagonals(range(3), [0, 1024]))
def test_lists_and_maps_are_as_pythons_own(seed: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_states, "SMALL", small)
    monkeypatch.setattr(key_states, "READ_AT_ONCE", 1 + 8 * small)
    chance, model = random.Random(seed), Model()
    with Epochs(ProcessOperator("kept", INPUT, Kept())) as stream:
        for epoch in range(8):
            ops = chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=60)
            calls = [(chance.randrange(5), op, at, chance.randrange(7)) for at, op in enumerate(ops)]
            rows = [dict(zip(INPUT.columns.names, call, strict=True)) for call in calls]
            out = stream.feed(rows_of(INPUT, rows, [1000 * epoch + at for at in range(60)]))[MAIN]
            expected = [(call[0], shown) for call in calls if (shown := model.apply(*call)) is not None]
            shown_by_key = sorted(((row["k"], row["shown"]) for row in out.to_pylist()), key=operator.itemgetter(0))
            assert shown_by_key == sorted(expected, key=operator.itemgetter(0))
            if epoch % 3 == 2:
                stream.restart(1 + epoch % 4)


def written_by_one_more_row(op: str, before: int) -> int:
    """Bytes that an epoch writes that adds one row to a key with about this many, which compaction has merged."""

    def rows(first: int, count: int) -> pa.Table:
        numbers = range(first, first + count)
        return rows_of(INPUT, [{"k": 1, "op": op, "at": at, "v": at} for at in numbers], list(numbers))

    with Epochs(ProcessOperator("kept", INPUT, Kept())) as stream:
        stream.feed(rows(0, before))
        for number in (before, before + 1):
            stream.feed(rows(number, 1))
        stored = {info.path for info in stream.store.list("")}
        stream.feed(rows(before + 2, 1))
        return sum(info.size for info in stream.store.list("") if info.path not in stored)


@pytest.mark.parametrize("op", ["append", "put"])
def test_one_more_row_of_a_hot_key_writes_what_one_more_of_a_small_key_does(op: str) -> None:
    assert written_by_one_more_row(op, HOT) < 3 * written_by_one_more_row(op, 2)


def test_the_last_items_of_a_long_list_are_read_without_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListTables, "read", None)

    def rows(op: str, first: int, count: int) -> pa.Table:
        numbers = range(first, first + count)
        return rows_of(INPUT, [{"k": 1, "op": op, "at": 2, "v": at} for at in numbers], list(numbers))

    with Epochs(ProcessOperator("kept", INPUT, Kept())) as stream:
        stream.feed(rows("append", 0, HOT))
        out = stream.feed(rows("last", HOT, 1))[MAIN]
        assert out["shown"].to_pylist() == [repr([HOT - 3, HOT - 2, HOT - 1])]


class Recent(sb.Process):
    """Tells the last three of the items that have not expired."""

    recent = sb.ListState("v bigint", ttl="1 second")
    output = "k bigint, kept bigint"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        ctx.append(self.recent, pa.table({"v": rows["v"]}))
        lists = ctx.last(self.recent, 3)
        return pa.table({"k": ctx.keys["k"], "kept": pc.list_value_length(lists).cast(pa.int64())})


def test_expired_items_are_not_among_the_last() -> None:
    with Epochs(ProcessOperator("recent", INPUT, Recent())) as stream:
        for second, expected in ((0, 3), (9, 3), (10, 2)):
            count = 1 if second else 4
            rows = [{"k": 1, "op": "", "at": 0, "v": at} for at in range(count)]
            now_us = second * 1_000_000
            out = stream.feed(rows_of(INPUT, rows, [now_us] * count), watermark_us=now_us)[MAIN]
            assert out["kept"].to_pylist() == [expected]


@pytest.mark.parametrize("count", [0, -1])
def test_a_number_of_last_items_below_one_is_refused(count: int) -> None:
    class Asks(sb.Process):
        """Asks for no items."""

        recent = sb.ListState("v bigint")
        output = "v bigint"

        def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> None:
            ctx.last(self.recent, count)

    with (
        Epochs(ProcessOperator("asks", INPUT, Asks())) as stream,
        pytest.raises(sb.InputError, match=f"`count` must be at least 1, got {count}"),
    ):
        stream.feed(rows_of(INPUT, [{"k": 1, "op": "", "at": 0, "v": 0}], [0]))


class Two(sb.Process):
    """One state is named as what is kept beside the other."""

    recent = sb.ListState("v bigint")
    recent__end = sb.ValueState("v bigint")
    output = "n bigint"

    def on_batch(self, rows: Any, ctx: sb.Context) -> None: ...


def test_a_state_named_as_the_table_beside_a_list_is_refused() -> None:
    with pytest.raises(sb.InputError, match="two tables are named 'recent__end'"):
        _ = ProcessOperator("two", INPUT, Two())
