"""Programs: the steps from the columns of a file to the rows of branches, evaluated a batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from statebed.expressions import BoundExpression, filter_rows
from statebed.spark.scan.parquet_reader import FileColumn


@dataclass(frozen=True)
class ScanFilter:
    """Keeps the rows for which a condition is true."""

    condition: BoundExpression

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return filter_rows(self.condition, batch)


@dataclass(frozen=True)
class ScanProjection:
    """Computes the columns of the next step."""

    names: tuple[str, ...]
    columns: tuple[BoundExpression, ...]

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [column.evaluate(batch) for column in self.columns]
        schema = pa.schema([pa.field(name, column.type) for name, column in zip(self.names, self.columns, strict=True)])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


Step = ScanFilter | ScanProjection


@dataclass(frozen=True)
class BranchSteps:
    """Rows of one branch, made of the rows behind the shared steps."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """Steps of a scan of one stream, from columns of its files to rows of branches."""

    columns: tuple[FileColumn, ...]
    steps: tuple[Step, ...]
    outputs: tuple[BranchSteps, ...] = (BranchSteps(()),)

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each branch that a batch of file columns becomes."""
        for step in self.steps:
            batch = step.apply(batch)
        for output in self.outputs:
            rows = batch
            for step in output.steps:
                rows = step.apply(rows)
            yield rows
