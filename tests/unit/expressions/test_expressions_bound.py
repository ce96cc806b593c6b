"""Bound expressions: types and columns, batches of every shape, conditions, functions in place of text, travelling."""

import math
import pickle
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from expression_cases import EXPRESSIONS, REFUSED, ROWS

from statebed.errors import ExpressionError, InputError, StatebedError, UnsupportedTypeError
from statebed.expressions import BoundExpression, bind, filter_rows


def same(one: list[Any], other: list[Any]) -> bool:
    return repr(one) == repr(other)  # NaN is equal to NaN, 0.0 is not -0.0


def test_every_case_has_its_type_without_rows() -> None:
    for text in EXPRESSIONS:
        bound = bind(text, ROWS.schema)
        assert bound.evaluate(ROWS.slice(0, 0)).type == bound.type, text
        assert len(bound.evaluate(ROWS.slice(0, 0))) == 0, text


def travelled(bound: BoundExpression) -> BoundExpression:
    arrived: BoundExpression = pickle.loads(pickle.dumps(bound))  # noqa: S301 - our own bytes
    return arrived


def test_every_case_gives_the_same_in_parts_in_chunks_and_after_a_journey() -> None:
    pieces = pa.concat_tables([ROWS.slice(0, 2), ROWS.slice(2, 0), ROWS.slice(2)])
    batch = ROWS.slice(3).combine_chunks().to_batches()[0]
    for text in EXPRESSIONS:
        bound = bind(text, ROWS.schema)
        whole = bound.evaluate(ROWS).to_pylist()
        parts = [bound.evaluate(ROWS.slice(start, length)) for start, length in ((0, 1), (1, 3), (4, 2))]
        assert same(pa.concat_arrays(parts).to_pylist(), whole), text
        assert same(bound.evaluate(pieces).to_pylist(), whole), text
        assert same(bound.evaluate(batch).to_pylist(), whole[3:]), text
        arrived = travelled(bound)
        assert (arrived.text, arrived.name, arrived.type) == (bound.text, bound.name, bound.type)
        assert same(arrived.evaluate(ROWS).to_pylist(), whole), text


def test_every_case_gives_null_for_rows_of_nulls_or_what_it_gives_for_them() -> None:
    nothing = pa.table([pa.nulls(3, field.type) for field in ROWS.schema], schema=ROWS.schema)
    for text in EXPRESSIONS:
        bound = bind(text, ROWS.schema)
        found = bound.evaluate(nothing)
        assert found.type == bound.type, text
        assert len({repr(value) for value in found.to_pylist()}) == 1, text


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_answer_is_refused_and_says_where(text: str) -> None:
    with pytest.raises((ExpressionError, InputError)) as caught:
        bind(text, ROWS.schema, where="operator 'x', condition").evaluate(ROWS)
    assert isinstance(caught.value, StatebedError)
    assert caught.value.where == "operator 'x', condition"
    assert text in caught.value.what


def test_a_row_without_an_answer_names_the_part_and_what_to_do() -> None:
    table = pa.table({"n": [4, 2], "d": [2, 0]})
    with pytest.raises(ExpressionError) as caught:
        bind("1 + n / d > 3", table.schema, where="operator 'x'").evaluate(table)
    assert str(caught.value) == (
        "[EXPRESSION] a division by zero in 'n / d' of '1 + n / d > 3'\n"
        "  where: operator 'x'\n"
        "  what to do: use nullif(divisor, 0) to get null for such rows"
    )
    assert bind("n / nullif(d, 0)", table.schema).evaluate(table).to_pylist() == [2.0, None]


@pytest.mark.parametrize(
    "text",
    [
        "if(d = 0, null, n / d)",
        "case when d = 0 then null else n / d end",
        "case when d <> 0 then n / d end",
        "case d when 0 then null else n / d end",
        "coalesce(if(d = 0, -1D, null), n / d)",
    ],
)
def test_a_branch_is_asked_only_for_the_rows_that_take_it(text: str) -> None:
    table = pa.table({"n": [4, 9, 6, None], "d": [2, 0, 3, 1]})
    found = bind(text, table.schema).evaluate(table).to_pylist()
    assert found in ([2.0, None, 2.0, None], [2.0, -1.0, 2.0, None])


def test_and_and_or_ask_their_right_side_only_where_the_left_does_not_decide() -> None:
    table = pa.table({"n": [4, 9, None, 4], "d": [2, 0, 4, None]})
    assert bind("d <> 0 and n / d > 1", table.schema).evaluate(table).to_pylist() == [True, False, None, None]
    assert bind("d = 0 or n / d > 1", table.schema).evaluate(table).to_pylist() == [True, True, None, None]
    with pytest.raises(ExpressionError):
        bind("n / d > 1 and d <> 0", table.schema).evaluate(table)


def test_a_constant_without_an_answer_fails_only_where_it_is_asked() -> None:
    table = pa.table({"n": [1, 2]})
    assert bind("if(n > 5, 1 / 0, 7D)", table.schema).evaluate(table).to_pylist() == [7.0, 7.0]
    assert len(bind("1 / 0", table.schema).evaluate(table.slice(0, 0))) == 0
    with pytest.raises(ExpressionError):
        bind("1 / 0", table.schema).evaluate(table)


def test_a_bound_expression_knows_what_it_reads_and_whether_it_can_be_null() -> None:
    schema = pa.schema(
        [pa.field("Key", pa.int64(), nullable=False), pa.field("x", pa.float64()), pa.field("y", pa.string())]
    )
    assert bind("key + x > 1 and key < 5", schema).columns == {"Key", "x"}
    assert bind("1 + 1", schema).columns == frozenset()
    assert not bind("key + 1", schema).nullable
    assert not bind("coalesce(x, 0D)", schema).nullable
    assert not bind("x is null", schema).nullable
    assert not bind("x <=> 1", schema).nullable
    assert bind("x + key", schema).nullable
    assert bind("nullif(key, 1)", schema).nullable
    assert bind("case when key > 1 then 2 end", schema).nullable
    assert bind("try_cast(y as int)", schema).nullable
    assert bind("y", schema).text == "y"


def test_columns_of_other_arrow_types_are_computed_in_sparks() -> None:
    table = pa.table(
        {
            "u8": pa.array([255, None], pa.uint8()),
            "u64": pa.array([2**64 - 1, 0], pa.uint64()),
            "large": pa.array(["Web", None], pa.large_string()),
            "view": pa.array(["Web", None], pa.string_view()),
            "coded": pa.array(["a", "b"]).dictionary_encode(),
            "ns": pa.array([-1, 1999], pa.timestamp("ns", "Europe/Berlin")),
            "s": pa.array([60, 3600], pa.timestamp("s")),
            "half": pa.array([1.5, 2.0], pa.float16()),
            "d256": pa.array([Decimal("1.5"), None], pa.decimal256(20, 2)),
            "d64": pa.array([0, 86_400_000], pa.date64()),
            "many": pa.array([["a"], ["b", "c"]], pa.large_list(pa.string())),
            "length": pa.array([1, 2], pa.duration("s")),
        }
    )

    def found(text: str) -> tuple[pa.DataType, list[Any]]:
        bound = bind(text, table.schema)
        return bound.type, bound.evaluate(table).to_pylist()

    assert found("u8 + 1S") == (pa.int16(), [256, None])
    assert found("u64 + 1") == (pa.decimal128(21, 0), [Decimal(2**64), Decimal(1)])
    assert found("upper(large)") == (pa.string(), ["WEB", None])
    assert found("view = 'Web'") == (pa.bool_(), [True, None])
    assert found("coded || '!'") == (pa.string(), ["a!", "b!"])
    assert found("unix_micros(ns)") == (pa.int64(), [-1, 1])
    assert found("minute(s)") == (pa.int32(), [1, 0])
    assert found("half * 2F") == (pa.float32(), [3.0, 4.0])
    assert found("d256 > 1.4") == (pa.bool_(), [True, None])
    assert found("d64 = date '1970-01-02'") == (pa.bool_(), [False, True])
    assert found("many[0]") == (pa.string(), ["a", "b"])
    assert found("length > interval 1 second") == (pa.bool_(), [False, True])
    for name in table.schema.names:  # a bare column is not touched
        assert bind(name, table.schema).evaluate(table).equals(table.column(name).combine_chunks())


def test_floats_are_compared_in_sparks_order() -> None:
    values = [-math.inf, -1.0, -0.0, 0.0, 2.5, math.inf, math.nan]
    rank = [0, 1, 2, 2, 3, 4, 5]
    table = pa.table({"x": [one for one in values for _ in values], "y": values * len(values)})
    ranks = [(one, other) for one in rank for other in rank]
    comparisons: dict[str, Any] = {
        "x = y": lambda one, other: one == other,
        "x <> y": lambda one, other: one != other,
        "x < y": lambda one, other: one < other,
        "x <= y": lambda one, other: one <= other,
        "x > y": lambda one, other: one > other,
        "x >= y": lambda one, other: one >= other,
    }
    for text, expected in comparisons.items():
        assert bind(text, table.schema).evaluate(table).to_pylist() == [expected(*pair) for pair in ranks], text
    for text, expected in comparisons.items():
        against = bind(text.replace("y", "0.0D"), table.schema)
        assert against.evaluate(table).to_pylist() == [expected(one, 2) for one, _ in ranks], text


def test_filter_keeps_the_rows_for_which_a_condition_holds() -> None:
    table = pa.table({"fare": [1.0, None, -2.0, math.nan], "n": [1, 2, 3, 4]})
    condition = bind("fare > 0", table.schema)
    kept = filter_rows(condition, table)
    assert isinstance(kept, pa.Table)
    assert kept.column("n").to_pylist() == [1, 4]
    batch = filter_rows(condition, table.to_batches()[0])
    assert isinstance(batch, pa.RecordBatch)
    assert batch.column("n").to_pylist() == [1, 4]
    assert filter_rows(bind("null", table.schema), table).num_rows == 0
    assert filter_rows(bind("true", table.schema), table).num_rows == 4
    with pytest.raises(UnsupportedTypeError, match="a condition must be a boolean"):
        filter_rows(bind("fare + 1", table.schema), table)


def test_a_batch_may_have_more_columns_in_another_order_but_not_other_types() -> None:
    bound = bind("a + b", pa.schema({"a": pa.int64(), "b": pa.int64()}), where="operator 'x'")
    assert bound.evaluate(pa.table({"c": ["?"], "b": [2], "a": [1]})).to_pylist() == [3]
    with pytest.raises(InputError, match="has no column 'b'"):
        bound.evaluate(pa.table({"a": [1]}))
    with pytest.raises(InputError, match="has 'b' as double"):
        bound.evaluate(pa.table({"a": [1], "b": [1.0]}))


def doubled(batch: pa.RecordBatch) -> pa.Array:
    return pc.multiply(batch.column("n"), 2)


def too_few(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("n").slice(0, 1) if batch.num_rows else pa.nulls(0, pa.int64())


def fickle(batch: pa.RecordBatch) -> pa.Array:
    return batch.column("n") if batch.num_rows else pa.nulls(0, pa.string())


def a_list(batch: pa.RecordBatch) -> list[int]:
    return batch.column("n").to_pylist()  # type: ignore[no-any-return]


def test_a_function_stands_in_place_of_a_text() -> None:
    table = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    bound = travelled(bind(doubled, table.schema, where="select"))
    assert (bound.type, bound.nullable, bound.columns) == (pa.int64(), True, frozenset({"n"}))
    assert (bound.name, bound.text) == ("doubled", "doubled")
    assert bound.evaluate(table).to_pylist() == [2, 4, 6]
    assert bound.evaluate(table.to_batches()[1]).to_pylist() == [6]


def test_a_function_that_cannot_travel_or_gives_something_else_is_refused() -> None:
    table = pa.table({"n": [1, 2]})
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        bind(lambda batch: batch.column("n"), table.schema)
    with pytest.raises(InputError, match="must return an Arrow array, got list"):
        bind(a_list, table.schema)
    with pytest.raises(InputError, match="1 values for 2 rows"):
        bind(too_few, table.schema).evaluate(table)
    with pytest.raises(InputError, match="returned int64, but string for an empty batch"):
        bind(fickle, table.schema).evaluate(table)
    with pytest.raises(InputError, match="must be SQL text or a function"):
        bind(5, table.schema)  # type: ignore[arg-type]
