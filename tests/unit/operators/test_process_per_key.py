"""A process written for one key at a time gives what the same process over batches gives."""

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from unit.operators.operator_epochs import Epochs, plain, rows_of
from unit.operators.test_process import EPOCHS, PAYMENTS, Totals, run

from statebed.errors import InputError, ProcessError
from statebed.operators.operator import MAIN
from statebed.operators.process import (
    KeyContext,
    KeyStates,
    ListState,
    MapState,
    ProcessKey,
    ProcessOperator,
    TimerKind,
    ValueState,
)

MICROSECOND = dt.timedelta(microseconds=1)


class TotalsPerKey(ProcessKey):
    """The same as `Totals`, key by key."""

    total = ValueState("sum bigint, alarm timestamp")
    payments = ListState("amount bigint")
    by_shop = MapState(key="string", value="bigint")
    output = "card string, sum bigint, paid array<bigint>, shops bigint, why string"
    side_outputs = {"large": "card string, amount bigint"}  # noqa: RUF012 - as users write it

    def on_rows(self, key: Any, rows: Any, state: KeyStates, ctx: KeyContext) -> Iterator[dict[str, Any]]:
        before = state.total.get()
        total = 0 if before is None else before["sum"]
        if before is not None:
            ctx.cancel(before["alarm"])
        for row in rows:
            total += row["amount"] or 0
            state.payments.append(amount=row["amount"])
            state.by_shop.put(row["shop"], (state.by_shop.get(row["shop"]) or 0) + (row["amount"] or 0))
            if (row["amount"] or 0) > 7:
                ctx.side("large", {"card": key, "amount": row["amount"]})
        state.by_shop.remove("none")
        alarm = rows[-1]["_time"] + 10 * MICROSECOND
        ctx.timer(alarm)
        state.total.put(sum=total, alarm=alarm)
        yield self.shown(key, state, "paid")

    def on_key_timer(self, key: Any, times: list[Any], state: KeyStates, ctx: KeyContext) -> list[dict[str, Any]]:
        assert ctx.timer_kind is TimerKind.EVENT
        assert times == sorted(times)
        assert ctx.watermark is not None
        assert times[-1] <= ctx.watermark
        shown = self.shown(key, state, "quiet")
        for one in (state.total, state.payments, state.by_shop):
            one.delete()
        return [shown]

    def shown(self, key: Any, state: KeyStates, why: str) -> dict[str, Any]:
        return {
            "card": key,
            "sum": state.total.get()["sum"],
            "paid": [row["amount"] for row in state.payments.get()],
            "shops": len(state.by_shop.items()),
            "why": why,
        }


@settings(max_examples=examples(4), deadline=None)
@given(epochs=EPOCHS)
def test_p6_key_by_key_is_the_same_as_batch_by_batch(epochs: Any) -> None:
    batches = ProcessOperator("totals", PAYMENTS, Totals())
    keys = ProcessOperator("totals", PAYMENTS, TotalsPerKey())
    for (one, _), (other, _) in zip(run(batches, epochs), run(keys, epochs), strict=True):
        for name in one:
            rows, others = ([repr(row) for row in plain(outputs[name])] for outputs in (one, other))
            assert sorted(rows) == sorted(others)


class InFrames(ProcessKey):
    """Counts in pandas."""

    output = "card string, n bigint, total bigint"
    rows_as = "pandas"

    def on_rows(self, key: Any, rows: Any, state: KeyStates, ctx: KeyContext) -> list[dict[str, Any]]:
        return [{"card": key, "n": len(rows), "total": int(rows["amount"].sum())}]


def test_rows_may_come_as_a_data_frame() -> None:
    with Epochs(ProcessOperator("frames", PAYMENTS, InFrames())) as stream:
        rows = [{"card": card, "amount": amount} for card, amount in (("a", 1), ("b", 2), ("a", 3))]
        out = plain(stream.feed(rows_of(PAYMENTS, rows, [1, 2, 3]), watermark_us=0)[MAIN])
    assert sorted((row["card"], row["n"], row["total"]) for row in out) == [("a", 2, 4), ("b", 1, 2)]


class Clocked(ProcessKey):
    """One timer of processing time, one that is cancelled."""

    output = "card string, at timestamp"

    def on_rows(self, key: Any, rows: Any, state: KeyStates, ctx: KeyContext) -> None:
        for later in (5, 6):
            ctx.processing_timer(ctx.epoch_time + later * MICROSECOND)
        ctx.cancel_processing(ctx.epoch_time + 6 * MICROSECOND)

    def on_key_timer(self, key: Any, times: list[Any], state: KeyStates, ctx: KeyContext) -> list[dict[str, Any]]:
        return [{"card": key, "at": time} for time in times]


def test_a_timer_of_processing_time_fires_once_and_a_cancelled_one_never() -> None:
    with Epochs(ProcessOperator("clocked", PAYMENTS, Clocked())) as stream:
        stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [None]), epoch_time_us=100)
        fired = [plain(stream.feed(rows_of(PAYMENTS, [], []), epoch_time_us=time)[MAIN]) for time in (104, 105, 110)]
    assert [len(rows) for rows in fired] == [0, 1, 0]


class Wrong(ProcessKey):
    value = ValueState("n bigint")
    listed = ListState("n bigint")
    mapped = MapState(key="bigint", value="bigint")
    output = "card string"
    side_outputs = {"more": "n bigint"}  # noqa: RUF012 - as users write it

    def __init__(self, what: str) -> None:
        self.what = what

    def on_rows(self, key: Any, rows: Any, state: KeyStates, ctx: KeyContext) -> Any:
        match self.what:
            case "column":
                return [{"card": key, "n": 1}]
            case "type":
                return [{"card": 5}]
            case "no dict":
                return ["card"]
            case "state":
                state.value.put(m=1)
            case "state type":
                state.value.put(n="text")
            case "changed state":
                state.value.put(n=1.5)
            case "changed item":
                state.listed.append(n=1.5)
            case "changed entry":
                state.mapped.put(1, 1.5)
            case "changed key":
                state.mapped.put(1.5, 1)
            case "changed side":
                ctx.side("more", {"n": 1.5})
            case "number":
                return [7]
            case "exit":
                raise SystemExit(7)
            case "item":
                state.listed.append(m=1)
            case "side":
                ctx.side("more", {"m": 1})
            case "unknown side":
                ctx.side("other", {"m": 1})
            case "time":
                ctx.timer(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - the mistake that is tested
            case "unknown state":
                state.nothing.get()
        return None


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("column", r"has \['card', 'n'\], expected \['card'\]"),
        ("type", "do not fit"),
        ("no dict", "has str, expected"),
        ("number", "has int, expected"),
        ("changed state", "the values do not fit .*: 1.5 would become 1"),
        ("changed item", "the items do not fit .*: 1.5 would become 1"),
        ("changed entry", "the values of the map do not fit .*: 1.5 would become 1"),
        ("changed key", "the keys of the map do not fit .*: 1.5 would become 1"),
        ("changed side", "the rows do not fit .*: 1.5 would become 1"),
        ("state", r"has the columns \['n'\], got \['m'\]"),
        ("state type", "do not fit"),
        ("item", r"one of the items has \['m'\]"),
        ("side", r"one of the rows has \['m'\]"),
        ("unknown side", "no side output 'other'"),
        ("time", "must be a datetime with a time zone"),
    ],
)
def test_mistakes_are_named(what: str, match: str) -> None:
    operator = ProcessOperator("wrong", PAYMENTS, Wrong(what))
    with Epochs(operator) as stream, pytest.raises(InputError, match=match):
        stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [1]), watermark_us=0)


def test_a_process_that_exits_is_an_error_of_the_user() -> None:
    """Spark repeated it three times, and named the executors' logs instead of the user's line."""
    operator = ProcessOperator("wrong", PAYMENTS, Wrong("exit"))
    with Epochs(operator) as stream, pytest.raises(ProcessError, match="on_rows raised SystemExit: 7"):
        stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [1]), watermark_us=0)


def test_an_error_names_the_function_that_the_user_wrote() -> None:
    operator = ProcessOperator("wrong", PAYMENTS, Wrong("unknown state"))
    with Epochs(operator) as stream, pytest.raises(ProcessError, match=r"on_rows raised AttributeError: there is no"):
        stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [1]), watermark_us=0)
    with pytest.raises(InputError, match="has no on_rows"):
        ProcessOperator("none", PAYMENTS, type("NoOutgoingRows", (ProcessKey,), {"output": "n int"})())


def test_keys_of_several_columns_come_as_tuples() -> None:
    class Keyed(ProcessKey):
        output = "n bigint"

        def on_rows(self, key: Any, rows: Any, state: KeyStates, ctx: KeyContext) -> list[dict[str, Any]]:
            assert key == ("a", 5)
            return [{"n": len(rows)}]

    payments = type(PAYMENTS)("payments", PAYMENTS.columns, ("card", "amount"))
    with Epochs(ProcessOperator("keyed", payments, Keyed()), chance=random.Random(1)) as stream:
        out = stream.feed(rows_of(payments, [{"card": "a", "amount": 5}] * 3, [1] * 3), watermark_us=0)
    assert out[MAIN]["n"].to_pylist() == [3]
    assert isinstance(out[MAIN], pa.Table)
