"""Expressions against Spark's own answer over the same rows: values, nulls and types."""

from typing import Any

import effort
import pyarrow.parquet as pq
import pytest
from expression_cases import EXPRESSIONS, REFUSED, ROWS
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from statebed.errors import ExpressionError, InputError
from statebed.expressions import bind

NEAR = ("exp(", "ln(", "log10(", "pow(", "power(")
"""Functions whose last digit depends on the library."""


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """The rows in a session whose times are UTC, as ours are."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    # Spark would take `1 / i` out of several expressions, and divide by zero where none of them does.
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(ROWS, path)
    return session.read.parquet(str(path))


def comparable(value: Any, expression: str) -> str:
    """Equal for equal values; NaN is equal to NaN, and 0.0 is not -0.0."""
    if isinstance(value, float) and expression.startswith(NEAR):
        return f"{value:.14g}"
    return repr(value)


def test_values_and_types_are_sparks(rows: DataFrame) -> None:
    native = rows.selectExpr(*(f"{text} as e{number}" for number, text in enumerate(EXPRESSIONS))).toArrow()
    different = []
    for number, text in enumerate(EXPRESSIONS):
        bound = bind(text, ROWS.schema)
        ours, theirs = bound.evaluate(ROWS), native.column(number).combine_chunks()
        assert ours.type == bound.type
        assert bound.nullable or not ours.null_count, text
        found = [comparable(value, text) for value in ours.to_pylist()]
        wanted = [comparable(value, text) for value in theirs.to_pylist()]
        if str(ours.type) != str(theirs.type) or found != wanted:
            different.append(f"{text}\n  spark {theirs.type} {wanted}\n  ours  {ours.type} {found}")
    assert len(EXPRESSIONS) > 500
    assert not different, "\n".join(different)


@pytest.mark.parametrize("text", effort.every_third(REFUSED))
def test_what_spark_refuses_is_refused(rows: DataFrame, text: str) -> None:
    with pytest.raises(PySparkException):
        rows.selectExpr(f"{text} as e").toArrow()
    with pytest.raises((ExpressionError, InputError)):
        bind(text, ROWS.schema).evaluate(ROWS)
