"""Spark's sinks for trying out a query: `console`, which prints each batch, and `memory`, which is a temporary view."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, Row

from statebed.errors import InputError

BatchFunction = Callable[[DataFrame, int], object]
_LINE = "-" * 43


def console_function(options: dict[str, Any]) -> BatchFunction:
    """Return a function that prints batches as Spark does; take its options `numRows` and `truncate`."""
    rows_shown = int(options.pop("numRows", 20))
    truncate = str(options.pop("truncate", True)).lower() == "true"

    def show(rows: DataFrame, epoch: int) -> None:
        print(f"{_LINE}\nBatch: {epoch}\n{_LINE}")  # noqa: T201 - what the sink is for
        rows.show(rows_shown, truncate=truncate)

    return show


def memory_function(df: DataFrame, name: str | None, *, is_whole: bool) -> BatchFunction:
    """Return a function that keeps rows in the temporary view `name`: all rows so far, or those of the last batch."""
    if name is None:
        raise InputError(
            "format('memory') keeps the rows in a temporary view, which needs a name",
            fix="add queryName('name'), and read the rows with spark.table('name')",
        )
    session, schema = df.sparkSession, df.schema
    batches: dict[int, list[Row]] = {}
    session.createDataFrame([], schema).createOrReplaceTempView(name)

    def keep(rows: DataFrame, epoch: int) -> None:
        if is_whole:
            batches.clear()
        batches[epoch] = rows.collect()
        every = [row for batch in batches.values() for row in batch]
        session.createDataFrame(every, schema).createOrReplaceTempView(name)

    return keep
