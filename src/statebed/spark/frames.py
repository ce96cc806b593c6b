"""From the user's streaming DataFrame to the rows that subtasks receive.

Everything that Spark can compute is added to the streaming DataFrame, before foreachBatch, where it is still pushed
down: key columns, `_key_hash`, `_time`, one column per aggregate input, the owning subtask. Inside foreachBatch only
heartbeat rows are united with it, one per subtask, because the optimiser drops a subtask that provably has no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from statebed.errors import InputError
from statebed.format.keyhash import HASH_SEED
from statebed.format.ranges import check_parallelism
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.operators import Aggregate, Function
from statebed.operators import EventTime as EventTimeInput

SUBTASK = "_subtask"
IS_ROW = "_row"
"""True for a row of the user's, false for a heartbeat."""
_BINARY_COLLATION = StringType().collation


@dataclass(frozen=True)
class EventTime:
    """The event-time column of a DataFrame and how late its rows may be."""

    column: str
    delay_us: int


def event_time_of(df: DataFrame, *, where: str) -> EventTime:
    """The column that withWatermark marked; the mark travels with the column through select and rename."""
    marked = [field for field in df.schema.fields if _WATERMARK_KEY in (field.metadata or {})]
    if len(marked) != 1:
        found = ", ".join(field.name for field in marked) or "none"
        raise InputError(
            f"a window needs one event-time column with a watermark; found: {found}",
            where=where,
            fix="give job.source(df, watermark=('ts', '10 minutes')), or df.withWatermark(...), and keep the column",
        )
    field = marked[0]
    if [name.lower() for name in df.columns].count(field.name.lower()) > 1:
        raise InputError(
            f"two columns are called {field.name!r} (upper and lower case are not told apart)",
            where=where,
            fix="rename or drop the one that is not the event time",
        )
    return EventTime(field.name, int(field.metadata[_WATERMARK_KEY]) * 1_000)


_WATERMARK_KEY = "spark.watermarkDelayMs"


def analysed(df: DataFrame, columns: Sequence[Column], *, where: str) -> DataFrame:
    """`df.select(columns)`, with Spark's complaint turned into one that says where."""
    try:
        return df.select(*columns)
    except AnalysisException as error:
        raise input_error(error, df, where=where) from error


def input_error(error: AnalysisException, df: DataFrame, *, where: str) -> InputError:
    """What Spark found wrong, with the columns that there are."""
    text = str(error).splitlines()[0]
    return InputError(text, where=where, fix=f"columns there are: {', '.join(df.columns)}")


def as_column(df: DataFrame, value: str | Column, *, where: str) -> Column:
    """A column by name, else SQL text, else as it is."""
    if isinstance(value, Column):
        return value
    if not isinstance(value, str):
        raise InputError(
            f"{value!r} is neither a column name, nor SQL text, nor a Column",
            where=where,
            fix="write 'fare' or F.col('fare')",
        )
    return named_column(value) if value in df.columns else F.expr(value)


def named_column(name: str) -> Column:
    """The column of exactly this name, whatever characters are in it."""
    return F.col(f"`{name.replace('`', '``')}`")


def aggregate_inputs(df: DataFrame, aggregate: Aggregate, time: Column, *, where: str) -> list[Column]:
    """The columns that an aggregate reads: null where its condition does not hold."""
    values = [time if isinstance(one, EventTimeInput) else as_column(df, one, where=where) for one in aggregate.inputs]
    if aggregate.function is Function.COUNT:
        values = [F.lit(True) if not values else F.when(values[0].isNotNull(), True)]
    if aggregate.where is None:
        return values
    condition = as_column(df, aggregate.where, where=where)
    return [F.when(condition, value) for value in values]


def arrow_field(field: StructField, *, where: str) -> pa.Field:
    """The Arrow field that a subtask sees; instants are UTC whatever the session's time zone."""
    if isinstance(field.dataType, TimestampType):
        return pa.field(field.name, TIMESTAMP)
    try:
        kind = to_arrow_type(field.dataType)
    except Exception as error:
        raise InputError(
            f"the column {field.name!r} has the type {field.dataType.simpleString()}, which Arrow cannot carry",
            where=where,
            fix="cast it to a number, string, date or timestamp",
        ) from error
    return pa.field(field.name, kind)


def check_key(field: StructField, *, inputs: Sequence[str], where: str) -> None:
    """Refuse a key that is called like a column of ours, or whose equal values have different bytes."""
    ours = {IS_ROW, SUBTASK, *inputs}
    if field.name.lower() in ours:
        raise InputError(
            f"the key name {field.name!r} is reserved",
            where=where,
            fix=f"rename the key with .alias(); reserved here, in any case, are {', '.join(sorted(ours))}",
        )
    if isinstance(field.dataType, StringType) and field.dataType.collation != _BINARY_COLLATION:
        raise InputError(
            f"the key {field.name!r} has the type {field.dataType.simpleString()}: keys are grouped by their bytes",
            where=where,
            fix="group by a form that is equal for equal keys, such as lower(key) collate utf8_binary",
        )


def prepare(
    df: DataFrame,
    *,
    keys: Sequence[Column],
    time: Column,
    inputs: Sequence[Column],
    parallelism: int,
    where: str,
) -> DataFrame:
    """The streaming DataFrame that subtasks are fed from; `inputs` are named by `input_column`."""
    columns = [
        # Without keys all rows have one owner: the hash of nothing is its seed.
        (F.xxhash64(*keys) if keys else F.lit(HASH_SEED)).cast("bigint").alias(KEY_HASH),
        *keys,
        time.alias(TIME),
        *inputs,
    ]
    high = F.shiftrightunsigned(F.col(KEY_HASH), 32)
    owner = F.shiftrightunsigned(high * F.lit(check_parallelism(parallelism)).cast("bigint"), 32).cast("int")
    return analysed(df, columns, where=where).select("*", F.lit(True).alias(IS_ROW), owner.alias(SUBTASK))


def heartbeats(session: SparkSession, schema: StructType, parallelism: int) -> DataFrame:
    """One row per subtask, null but for its owner."""
    nulls = [F.lit(None).cast(f.dataType).alias(f.name) for f in schema.fields if f.name not in {IS_ROW, SUBTASK}]
    owner = F.col("id").cast("int").alias(SUBTASK)
    return session.range(0, parallelism, 1, 1).select(*nulls, F.lit(False).alias(IS_ROW), owner)
