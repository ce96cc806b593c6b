"""Type of columns and conditions in public signatures."""

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa


class SparkColumn(Protocol):
    """A `pyspark.sql.Column`, described by two of its methods, so that nothing here imports Spark."""

    def cast(self, kind: Any, /) -> Any:
        """Convert the column to another type."""

    def over(self, window: Any, /) -> Any:
        """Evaluate the column over a window."""


ColumnLike = str | SparkColumn | Callable[[pa.RecordBatch], pa.Array]
"""A column name, SQL text over the columns of a row, a Spark Column, or a function that returns one value
for each row of a batch.

Spark evaluates expressions before the first operator of a job: it accepts text and Columns. Everywhere else, statebed
evaluates them: it accepts text and functions, and in a job those Columns that can be written as text.
"""
