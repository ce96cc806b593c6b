"""Expressions before the first operator. Spark analyses and computes them, so any function of Spark can be used.

If statebed's own expressions support the same, they are bound as well, so that the job also runs in `statebed.testing`
without Spark.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    SpatialType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from statebed.argument_checks import misplaced
from statebed.errors import InputError, StatebedError
from statebed.expressions import BoundExpression, bind
from statebed.expressions.column_like import ColumnLike
from statebed.expressions.column_names import advice
from statebed.flow.steps import AggregateValue, EventTimeValue, Value
from statebed.format.schema import TIME, TIMESTAMP
from statebed.spark.arrow_types import arrow_type
from statebed.spark.plan.column_text import column_text
from statebed.spark.plan.routing import SOURCE

_BINARY_COLLATION = StringType().collation


@dataclass(frozen=True, eq=False)
class FrameExpression:
    """A value computed from each row of a DataFrame."""

    column: Column
    name: str
    type: pa.DataType
    spark_type: DataType
    nullable: bool
    text: str
    where: str
    own: BoundExpression | None
    """Equivalent in statebed's own expressions, or None if they do not support it."""

    @property
    def plain_column(self) -> str | None:
        """Name of the column if it is one unchanged, or None if it is computed."""
        return None if self.own is None else self.own.plain_column

    def evaluate(self, batch: pa.Table) -> pa.Array:
        """Compute the values without Spark, for tests."""
        if self.own is None:
            raise InputError(
                f"only Spark can compute {self.text!r}",
                where=self.where,
                fix="write it as SQL text with functions of docs/reference/expressions.md, or test the job on Spark",
            )
        return self.own.evaluate(batch)


def frame_expression(df: DataFrame, value: ColumnLike, columns: pa.Schema, *, where: str) -> FrameExpression:
    """Build an expression from a column name, else SQL text, else a Column; Spark analyses it at once."""
    column = as_column(df, value, where=where)
    fields = analysed(df, [column], where=where).schema.fields
    if len(fields) != 1:
        raise InputError(
            f"{value!r} must be one column, but makes {len(fields)}",
            where=where,
            fix="use transform(lambda df: df.select(...)) before the first operator",
        )
    field = fields[0]
    kind = arrow_field(field, where=where)
    text = value if isinstance(value, str) else _shown(value)
    own = _own(value, columns, kind.type, where=where)
    return FrameExpression(column, field.name, kind.type, field.dataType, field.nullable, text, where, own)


def _shown(column: Any) -> str:
    """Return a Column as Spark shows it; the definition of an operator stores this text."""
    try:
        return str(column._jc.node().sql())  # noqa: SLF001 - no public way
    except (AttributeError, TypeError, Py4JError):
        return str(column)


def _own(value: Any, columns: pa.Schema, kind: pa.DataType, *, where: str) -> BoundExpression | None:
    """Return the equivalent in statebed's own expressions, or None."""
    try:
        bound = bind(value if isinstance(value, str) else column_text(value, where=where), columns)
    except StatebedError:
        return None
    return bound if bound.type == kind else None


def column_of(value: Value) -> Column:
    """Return the input of an operator as a column of the frame."""
    if isinstance(value, FrameExpression):
        return value.column
    if isinstance(value, EventTimeValue):
        return F.col(TIME)
    assert isinstance(value, AggregateValue)
    columns = [column_of(value_) for value_ in value.values]
    if value.aggregate.function.counts_rows:
        columns = [F.lit(True) if not columns else F.when(columns[0].isNotNull(), True)]
    column = columns[value.part]
    return column if value.condition is None else F.when(column_of(value.condition), column)


def analysed(df: DataFrame, columns: list[Column], *, where: str) -> DataFrame:
    """Return `df.select(columns)`; convert Spark's errors to an InputError with the location."""
    try:
        return df.select(*columns)
    except PySparkException as error:
        raise input_error(error, df, where=where) from error


def input_error(error: PySparkException, df: DataFrame, *, where: str, fix: str | None = None) -> InputError:
    """Convert an error of Spark; `fix` is advice on errors other than unknown columns and wrong event times."""
    condition, parameters = error.getCondition() or "", error.getMessageParameters() or {}
    columns = [name for name in df.columns if name not in (TIME, SOURCE)]
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters["objectName"].replace("`", "")
        return InputError(f"there is no column {name!r}", where=where, fix=advice(columns, name, kind="column"))
    if condition == "EVENT_TIME_IS_NOT_ON_TIMESTAMP_TYPE":
        name, kind = parameters["eventName"].replace("`", ""), parameters["eventType"].strip('"').lower()
        return InputError(
            f"event times must be of the type timestamp, and the column {name!r} is of the type {kind}",
            where=where,
            fix=f"convert it before the source: df.withColumn({name!r}, F.col({name!r}).cast('timestamp'))",
        )
    text = str(error).splitlines()[0]
    return InputError(text, where=where, fix=fix or f"correct the expression; the columns are {', '.join(columns)}")


def as_column(df: DataFrame, value: ColumnLike, *, where: str) -> Column:
    """Return a column by name, else from SQL text, else unchanged."""
    if isinstance(value, Column):
        return value
    if not isinstance(value, str):
        raise InputError(
            f"expected a column name, SQL text or a Column, got {value!r}",
            where=where,
            fix=misplaced(value) or "write 'fare' or F.col('fare')",
        )
    try:
        return named_column(value) if value in df.columns else F.expr(value)
    except PySparkException as error:
        raise input_error(error, df, where=where) from error


def named_column(name: str) -> Column:
    """Return the column with exactly this name, whatever characters it contains."""
    return F.col(f"`{name.replace('`', '``')}`")


def arrow_field(field: StructField, *, where: str) -> pa.Field:
    """Return the Arrow field that a subtask sees; instants are UTC regardless of the session's time zone."""
    if isinstance(field.dataType, TimestampType):
        return pa.field(field.name, TIMESTAMP)
    try:
        kind = arrow_type(field.dataType)
    except Exception as error:
        raise InputError(
            f"the column {field.name!r} has the type {field.dataType.simpleString()}, which Arrow does not support",
            where=where,
            fix="cast it to a number, string, date or timestamp, or drop it before job.source",
        ) from error
    return pa.field(field.name, kind)


def check_key(key: FrameExpression, *, where: str) -> None:
    """Raise InputError for a key whose equal values have different bytes, or that Spark does not compare."""
    parts = list(_parts(key.spark_type))
    kind = key.spark_type.simpleString()
    if any(isinstance(part, StringType) and part.collation != _BINARY_COLLATION for part in parts):
        raise InputError(
            f"the key {key.name!r} has the type {kind}, but keys are grouped by their bytes",
            where=where,
            fix="group by a form that is equal for equal keys, such as lower(key) collate utf8_binary",
        )
    if any(isinstance(part, VariantType | SpatialType) for part in parts):
        raise InputError(
            f"the key {key.name!r} has the type {kind}, whose values cannot be compared",
            where=where,
            fix="group by a part of it, for example variant_get(key, '$.id', 'bigint')",
        )


def _parts(kind: DataType) -> Iterator[DataType]:
    """Yield the type, and those of its fields or items at any depth."""
    yield kind
    children: list[DataType] = []
    if isinstance(kind, ArrayType):
        children = [kind.elementType]
    elif isinstance(kind, StructType):
        children = [field.dataType for field in kind.fields]
    for child in children:
        yield from _parts(child)
