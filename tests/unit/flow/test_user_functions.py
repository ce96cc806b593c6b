"""Python functions in flows: by name in expressions, asynchronous, and from batch to batch."""

import asyncio
import pickle
import time
from typing import Any

import pyarrow as pa
import pytest
import user_functions
from user_functions import doubled, looked_up, one_row_less, slow, with_tip

import statebed as sb
from statebed.errors import ExpressionError, InputError
from statebed.expressions import bind
from statebed.flow import Stream

ROWS = [
    {"driver": "ann", "fare": 7.5, "tip": 1, "ts": "2026-01-01T00:00:00Z"},
    {"driver": "bob", "fare": 2.0, "tip": None, "ts": "2026-01-01T00:00:01Z"},
    {"driver": None, "fare": 1.0, "tip": 2, "ts": "2026-01-01T00:00:02Z"},
]


def rides() -> tuple[sb.Flow, Stream]:
    flow = sb.Flow("rides")
    flow.register_function("with_tip", with_tip)
    flow.register_function("looked_up", looked_up)
    flow.register_function("slow", slow)
    flow.register_function("broken", user_functions.broken, returns="double")
    flow.register_function("of_another_type", user_functions.of_another_type, returns="double")
    flow.register_function("too_few", user_functions.too_few, returns="double")
    return flow, flow.source("rides", "driver string, fare double, tip int, ts timestamp", watermark=("ts", "1 minute"))


def shown(stream: Any, flow: sb.Flow) -> list[dict[str, Any]]:
    stream.named("shown")
    with sb.testing.run(flow) as test:
        test.feed("rides", ROWS)
        return test.output("shown")


def test_expressions_call_functions_by_name_in_any_case() -> None:
    flow, stream = rides()
    found = shown(stream.select("WITH_TIP(fare, coalesce(tip, 0)) * 2 as paid").where("with_tip(paid, 1) > 4"), flow)
    assert [row["paid"] for row in found] == [17.0, 4.0, 6.0]


def test_aggregates_and_keys_call_functions_through_a_crash() -> None:
    flow, stream = rides()
    stream.key_by("looked_up(driver) as who", name="totals").agg(paid=sb.sum("with_tip(fare, coalesce(tip, 0))"))
    with sb.testing.run(flow, parallelism=2) as test:
        test.feed("rides", ROWS)
        test.crash()
        test.feed("rides", ROWS)
        assert {(row["who"], row["paid"]) for row in test.output("totals")} == {
            ("<ann>", 17.0),
            ("<bob>", 4.0),
            (None, 6.0),
        }


def test_a_decorated_function_is_sent_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(with_tip)) is with_tip  # noqa: S301 - our own bytes
    schema = pa.schema({"fare": pa.float64(), "tip": pa.int32()})
    bound = bind("with_tip(fare, tip)", schema, functions={"with_tip": with_tip})
    arrived = pickle.loads(pickle.dumps(bound))  # noqa: S301 - our own bytes
    batch = pa.table({"fare": [1.0], "tip": pa.array([2], pa.int32())})
    assert arrived.evaluate(batch).to_pylist() == [3.0]


def test_asynchronous_calls_run_together_once_per_distinct_value() -> None:
    calls, running, most = [], 0, 0

    async def fetched(key: str) -> str:
        nonlocal running, most
        calls.append(key)
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(0.01)
        running -= 1
        return key.upper()

    function = sb.udf(fetched, returns="string", concurrency=8)
    keys = pa.array([f"k{number % 40}" for number in range(400)])
    started = time.monotonic()
    assert function.evaluate(keys).to_pylist() == [key.upper() for key in keys.to_pylist()]
    assert len(calls) == 40
    assert most == 8
    assert time.monotonic() - started < 4


def test_a_failing_call_is_repeated_and_then_told_with_its_operands() -> None:
    attempts = 0

    async def flaky(key: str) -> str:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            raise ConnectionError("not yet")
        return key

    function = sb.udf(flaky, returns="string", retries=2, backoff="1 millisecond")
    assert function.evaluate(pa.array(["a"])).to_pylist() == ["a"]
    flow, stream = rides()
    with pytest.raises(ExpressionError, match=r"the function looked_up raised KeyError: 'bad' for \('bad'\)") as caught:
        bind("looked_up('bad')", stream.output.columns, functions=flow.graph.functions).evaluate(pa.table({"x": [1]}))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ExpressionError, match="the function slow raised TimeoutError"):
        shown(stream.select("slow(driver) as late"), flow)


def test_functions_work_inside_a_running_event_loop() -> None:
    async def main() -> list[Any]:
        found: list[Any] = looked_up.evaluate(pa.array(["a"])).to_pylist()
        return found

    assert asyncio.run(main()) == ["<a>"]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("broken(fare)", ExpressionError, "the function broken raised ValueError: no result for 7.5"),
        ("of_another_type(fare)", InputError, "returned string, but declares double"),
        ("too_few(fare)", InputError, "returned 2 values for 3 rows"),
    ],
)
def test_wrong_functions_are_named(text: str, kind: type[Exception], said: str) -> None:
    flow, stream = rides()
    with pytest.raises(kind) as caught:
        shown(stream.select(f"{text} as x"), flow)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [(user_functions.one_and_a_half, "1.5 would become 1"), (user_functions.some_text, "Could not convert 'text'")],
)
def test_a_value_of_another_type_from_an_asynchronous_function_is_refused(function: Any, said: str) -> None:
    flow, stream = rides()
    flow.register_function("given", function, returns="bigint")
    with pytest.raises(InputError, match=f"the function given returned a value that is no int64: {said}"):
        shown(stream.select("given(fare) as x"), flow)


def test_what_cannot_be_registered_is_refused() -> None:
    flow, stream = rides()
    with pytest.raises(InputError, match="the type of the result is missing"):
        flow.register_function("f", user_functions.broken)
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        flow.register_function("f", lambda values: values, returns="double")
    with pytest.raises(InputError, match="two functions are called 'broken'"):
        flow.register_function("broken", user_functions.too_few, returns="double")
    with pytest.raises(InputError, match="is not a name that an expression can call"):
        flow.register_function("a b", user_functions.broken, returns="double")
    with pytest.raises(InputError, match="did you mean with_tip"):
        stream.select("with_tipp(fare, tip)")
    with pytest.raises(InputError, match="`concurrency` must be at least 1"):
        sb.udf(user_functions.broken, returns="double", concurrency=0)


def test_a_function_from_batch_to_batch_replaces_the_columns_and_keeps_the_event_time() -> None:
    flow, stream = rides()
    made = stream.transform(doubled, schema="driver string, twice double")
    made.group_by("driver", sb.tumbling("1 minute"), name="sums").agg(total=sb.sum("twice"))
    with sb.testing.run(flow) as test:
        test.feed("rides", ROWS)
        test.watermark("2026-01-01T01:00:00Z")
        assert {(row["driver"], row["total"]) for row in test.output("sums")} == {
            ("ann", 15.0),
            ("bob", 4.0),
            (None, 2.0),
        }
    with pytest.raises(InputError, match="the columns of the result are missing"):
        stream.transform(doubled)


@pytest.mark.parametrize(
    ("function", "schema", "said"),
    [
        (one_row_less, "driver string, twice double", "returned a batch of length 2 for one of length 3"),
        (doubled, "driver string, double double", "columns driver string, twice double, but schema= declares"),
    ],
)
def test_a_wrong_batch_is_refused(function: Any, schema: str, said: str) -> None:
    flow, stream = rides()
    with pytest.raises(InputError) as caught:
        shown(stream.transform(function, schema=schema), flow)
    assert said in str(caught.value)
