"""Mistakes in processes: definitions, calls, returned rows, errors, and attributes that change."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.errors import InputError, ProcessError
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.operator import MAIN
from statebed.operators.process import Context, ListState, MapState, Process, ProcessOperator, ValueState
from statebed.operators.process.returned_rows import RAISED_TIMES

COLUMNS = pa.schema([("card", pa.string()), ("amount", pa.int64()), ("shop", pa.string())])
PAYMENTS = Input("payments", COLUMNS, ("card",))


class Given(Process):
    """Gives back whatever it was made with."""

    output = "card string, n bigint not null"
    side_outputs = {"more": "n int"}  # noqa: RUF012 - as users write it

    def __init__(self, rows: Any, **sides: Any) -> None:
        self.rows = rows
        self.sides = sides

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> Any:
        for name, table in self.sides.items():
            ctx.side(name, table)
        return self.rows


def step(process: Process) -> dict[str, pa.Table]:
    with Epochs(ProcessOperator("given", PAYMENTS, process)) as stream:
        return stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [1]), watermark_us=0)


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([1], "must return a table, a batch or None, got list"),
        (pa.table({"card": ["a"]}), "missing n"),
        (pa.table({"card": ["a"], "n": [1], "x": [1]}), "not declared: x"),
        (pa.table({"card": [1], "n": [1]}), "'card' of the returned rows has type int64, expected string"),
        (pa.table({"card": ["a"], "n": ["1"]}), "'n' .* has type string, expected int64"),
        (pa.table({"card": ["a"], "n": [1.5]}), "'n' .* has type double, expected int64"),
        (pa.table({"card": ["a"], "n": pa.array([None], pa.int64())}), "has nulls but is declared as not null"),
    ],
)
def test_what_is_given_back_must_be_what_was_declared(rows: Any, match: str) -> None:
    with pytest.raises(InputError, match=match):
        step(Given(rows))


def test_numbers_that_fit_are_taken_and_columns_may_stand_in_any_order() -> None:
    out = step(Given(pa.table({"n": pa.array([1.0]), "card": [None]}), more=pa.table({"n": [7]})))
    assert plain(out[MAIN]) == [{"card": None, "n": 1, "_time": 0}]
    assert plain(out["more"]) == [{"n": 7, "_time": 0}]
    with pytest.raises(InputError, match="no side output 'other'"):
        step(Given(None, other=pa.table({"n": [7]})))


def test_an_event_time_that_is_over_is_raised_to_the_last_watermark_and_counted() -> None:
    times = pa.array([-100, 30, None], pa.int64()).cast(TIMESTAMP)
    process = Given(pa.table({"card": ["a", "b", "c"], "n": [1, 2, 3], "_time": times}))
    operator = ProcessOperator("given", PAYMENTS, process)
    with Epochs(operator) as stream:
        stream.feed(rows_of(PAYMENTS, [], []), watermark_us=10)
        out = stream.feed(rows_of(PAYMENTS, [{"card": "a"}], [25]), watermark_us=20)
        assert [row["_time"] for row in plain(out[MAIN])] == [10, 30, 20]
        assert stream.results[0].counts[RAISED_TIMES] == 1
    assert min(10, 30, 20) > operator.output_watermark(10)


class Failing(Process):
    output = "card string"

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> None:
        raise KeyError("oh")


class Remembering(Process):
    output = "card string"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> None:
        self.seen.append(rows.num_rows)


def test_an_error_of_the_user_says_where_it_was_and_keeps_its_cause() -> None:
    with pytest.raises(
        ProcessError, match=r"on_batch raised KeyError.*\n.*'given', Failing.on_batch, a batch of 1 rows"
    ) as raised:
        step(Failing())
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_process_that_remembers_something_of_its_own_is_refused() -> None:
    with pytest.raises(InputError, match="changed attributes of the Remembering instance"):
        step(Remembering())


def test_definitions_that_make_no_sense_are_refused() -> None:
    def made(output: Any = "n int", **more: Any) -> ProcessOperator:
        kind = type("Made", (Process,), {"output": output, "on_batch": lambda self, rows, ctx: None, **more})
        return ProcessOperator("made", PAYMENTS, kind())

    made()
    refused: dict[str, dict[str, Any]] = {
        "is not text": {"output": 5},
        "must name at least one column": {"output": ""},
        "reserved": {"output": "_time timestamp"},
        "has no on_batch": {"on_batch": Process.on_batch},
        "'late' is reserved for late rows": {"side_outputs": {"late": "n int"}},
        "have the names of key columns": {"state": ValueState("card string")},
        "names of timer tables": {"event_timers": ValueState("n int")},
        "`ttl` must be positive": {"state": ValueState("n int", ttl="0s")},
        "cannot be keys of a map": {"state": MapState(key="array<int>", value="int")},
    }
    for match, arguments in refused.items():
        with pytest.raises(InputError, match=match):
            made(**arguments)
    with pytest.raises(InputError, match="needs at least one key"):
        ProcessOperator("made", Input("payments", COLUMNS, ()), Given(None))
    with pytest.raises(InputError, match="cannot be pickled"):
        ProcessOperator("made", PAYMENTS, Given(lambda: None))
    shared = ValueState("n int")
    with pytest.raises((InputError, RuntimeError)):
        type("Twice", (Process,), {"one": shared, "two": shared})


class Misusing(Process):
    value = ValueState("n bigint")
    listed = ListState("n bigint")
    mapped = MapState(key="string", value="bigint")
    output = "card string"

    def __init__(self, what: str) -> None:
        self.what = what

    def on_batch(self, rows: pa.RecordBatch, ctx: Context) -> None:
        one: Any = pa.table({"n": [1]})
        calls: dict[str, Any] = {
            "two rows": lambda: ctx.put(self.value, pa.table({"n": [1, 2]})),
            "other column": lambda: ctx.put(self.value, pa.table({"m": [1]})),
            "no table": lambda: ctx.put(self.value, pa.array([1])),
            "no list": lambda: ctx.put(self.listed, one),
            "append to value": lambda: ctx.append(self.value, one),  # type: ignore[arg-type]  # on purpose
            "append two": lambda: ctx.append(self.listed, pa.table({"n": [1, 2]})),
            "place": lambda: ctx.append(self.listed, one, np.array([5])),
            "mask": lambda: ctx.get(self.value, np.array([True, False])),
            "foreign": lambda: ctx.get(ValueState("n bigint")),
            "timer": lambda: ctx.timer(0),
            "items of list": lambda: ctx.get_items(self.listed, pa.array(["a"])),  # type: ignore[arg-type]  # on purpose
            "keys": lambda: ctx.get(self.value, pa.table({"x": [1]})),
        }
        calls[self.what]()


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("two rows", "the values have length 2, but there are 1 keys"),
        ("other column", "not declared"),
        ("no table", "must be set to a table or batch, got Int64Array"),
        ("no list", "must be set to an array of lists"),
        ("append to value", "must be a ListState, got a ValueState"),
        ("append two", "2 items but 1 positions"),
        ("place", "must be integers of at least 0 and below 1"),
        ("mask", "one value for each of 1 keys, got 2"),
        ("foreign", "is not a state of this process"),
        ("timer", "defines no `on_timer`"),
        ("items of list", "must be a MapState, got a ListState"),
        ("keys", "keys lack"),
    ],
)
def test_calls_that_make_no_sense_say_so(what: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        step(Misusing(what))
