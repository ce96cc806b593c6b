"""Programs: the steps from the columns of a file to the rows of branches, evaluated a batch at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import BoundExpression, filter_rows
from statebed.spark.scan.kafka_reader import KafkaClient
from statebed.spark.scan.parquet_reader import FileColumn

_MILLISECOND_US = 1_000


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


@dataclass(frozen=True)
class ScanWatermark:
    """Observes the event times of the rows that reach a watermark of Spark's clock."""

    node_id: str
    """Id of the watermark node in Spark's plan."""
    column: str

    def observe(self, batch: pa.RecordBatch, latest_ms: dict[str, int]) -> None:
        """Note the greatest event time; as in Spark, a row without one counts as 1970."""
        if batch.num_rows:
            times = pc.fill_null(batch.column(self.column).cast(pa.int64()), 0)
            latest = pc.max(times).as_py() // _MILLISECOND_US
            latest_ms[self.node_id] = max(latest, latest_ms.get(self.node_id, latest))


Step = ScanFilter | ScanProjection | ScanWatermark


@dataclass(frozen=True)
class BranchSteps:
    """Rows of one branch, made of the rows behind the shared steps."""

    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """Steps of a scan of one stream, from columns of its files or messages to rows of branches."""

    columns: tuple[FileColumn, ...]
    steps: tuple[Step, ...]
    outputs: tuple[BranchSteps, ...] = (BranchSteps(()),)
    client: KafkaClient | None = None
    """Client that reads the messages of the stream; None if it is made of files."""

    def rows(self, batch: pa.RecordBatch, latest_ms: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of each branch that a batch of these columns becomes; note the greatest event time at each
        watermark in `latest_ms`.
        """
        shared = _after(self.steps, batch, latest_ms)
        for output in self.outputs:
            yield _after(output.steps, shared, latest_ms)


def _after(steps: tuple[Step, ...], batch: pa.RecordBatch, latest_ms: dict[str, int]) -> pa.RecordBatch:
    for step in steps:
        if isinstance(step, ScanWatermark):
            step.observe(batch, latest_ms)
        else:
            batch = step.apply(batch)
    return batch
