"""Random expressions over random rows against DuckDB, in the part of the language where both mean the same."""

import datetime as dt
import math
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.expressions import bind

Text = st.SearchStrategy[str]
LETTERS = "aB é%"
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "j": pa.int64(),
        "x": pa.float64(),
        "y": pa.float64(),
        "s": pa.string(),
        "t": pa.string(),
        "b": pa.bool_(),
        "c": pa.bool_(),
        "ts": pa.timestamp("us"),
    }
)


def a_table() -> st.SearchStrategy[pa.Table]:
    """Up to six rows with nulls, NaN, infinities and both zeros."""
    number = st.none() | st.integers(-9, 9)
    real = st.none() | st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 0.5, -1.5, 3.0])
    word = st.none() | st.text(LETTERS, max_size=4)
    truth = st.sampled_from([True, False, None])
    time = st.none() | st.datetimes(dt.datetime(1890, 1, 1), dt.datetime(2190, 1, 1))  # noqa: DTZ001 - a naive column
    row = st.tuples(number, number, real, real, word, word, truth, truth, time)
    return st.lists(row, min_size=1, max_size=6).map(
        lambda rows: pa.table(
            [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)],
            schema=SCHEMA,
        )
    )


def quoted(content: str) -> str:
    return f"'{content}'"


WORD = st.text(LETTERS, max_size=3).map(quoted)
PARTS_OF_TIMES = ["year", "quarter", "month", "day", "hour", "minute", "second", "dayofyear"]


def numbers(depth: int) -> Text:
    leaf = st.sampled_from(["i", "j", "0", "1", "-3", "7"])
    if not depth:
        return leaf
    inner, condition = numbers(depth - 1), conditions(depth - 1)
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("({} % nullif({}, 0))".format, inner, inner),
        st.builds("abs({})".format, inner),
        st.builds("-({})".format, inner),
        st.builds("{}({}, {})".format, st.sampled_from(["greatest", "least", "coalesce", "nullif"]), inner, inner),
        st.builds("case when {} then {} when {} then {} end".format, condition, inner, condition, inner),
        st.builds("case {} when {} then {} else {} end".format, inner, inner, inner, inner),
        st.builds("if({}, {}, {})".format, condition, inner, inner),
        st.builds("length({})".format, words(depth - 1)),
        st.builds("{}(ts)".format, st.sampled_from(PARTS_OF_TIMES)),
    )


def reals(depth: int) -> Text:
    leaf = st.sampled_from(["x", "y", "0.5e0", "-2e0"])
    if not depth:
        return leaf
    inner = reals(depth - 1)
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*"]), inner),
        st.builds("({} / nullif({}, 0))".format, numbers(depth - 1), numbers(depth - 1)),
        st.builds("{}({}, {})".format, st.sampled_from(["greatest", "least", "coalesce"]), inner, inner),
        st.builds("if({}, {}, {})".format, conditions(depth - 1), inner, inner),
        st.builds("cast({} as double)".format, numbers(depth - 1)),
    )


def words(depth: int) -> Text:
    leaf = st.sampled_from(["s", "t"]) | WORD
    if not depth:
        return leaf
    inner, position = words(depth - 1), st.integers(1, 4)
    return st.one_of(
        leaf,
        st.builds("({} || {})".format, inner, inner),
        st.builds("{}({})".format, st.sampled_from(["lower", "upper", "trim", "ltrim", "rtrim"]), inner),
        st.builds("substring({}, {}, {})".format, inner, position, st.integers(0, 4)),
        st.builds("left({}, {})".format, inner, position),
        st.builds("right({}, {})".format, inner, position),
        st.builds("replace({}, {}, {})".format, inner, st.text(LETTERS, min_size=1, max_size=2).map(quoted), WORD),
        st.builds("coalesce({}, {})".format, inner, inner),
        st.builds("if({}, {}, {})".format, conditions(depth - 1), inner, inner),
        st.builds("cast({} as string)".format, numbers(depth - 1)),
    )


def conditions(depth: int) -> Text:
    leaf = st.sampled_from(["b", "c", "true", "false", "null::boolean", "s is null", "ts > timestamp '2000-01-01'"])
    if not depth:
        return leaf
    inner, sign = conditions(depth - 1), st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
    kinds = [numbers(depth - 1), reals(depth - 1), words(depth - 1)]
    pattern = st.text("aB_%", max_size=3).map(quoted)
    return st.one_of(
        leaf,
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner),
        st.builds("(not {})".format, inner),
        *(st.builds("({} {} {})".format, kind, sign, kind) for kind in kinds),
        *(st.builds("({} in ({}, {}, null))".format, kind, kind, kind) for kind in kinds),
        *(st.builds("({} not in ({}, {}))".format, kind, kind, kind) for kind in kinds),
        *(st.builds("({} between {} and {})".format, kind, kind, kind) for kind in kinds),
        *(st.builds("({} is not null)".format, kind) for kind in kinds),
        *(st.builds("({} is distinct from {})".format, kind, kind) for kind in kinds),
        st.builds("({} like {})".format, words(depth - 1), pattern),
        st.builds("contains({}, {})".format, words(depth - 1), WORD),
    )


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@given(table=a_table(), text=conditions(2) | numbers(2) | reals(2) | words(2))
def test_an_expression_gives_what_duckdb_gives(
    connection: duckdb.DuckDBPyConnection, table: pa.Table, text: str
) -> None:
    connection.register("rows", table)
    expected = connection.execute(f"select {text} from rows").fetchall()
    found = bind(text, SCHEMA).evaluate(table).to_pylist()
    assert [comparable(value) for value in found] == [comparable(value) for (value,) in expected]
