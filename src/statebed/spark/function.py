"""What a Spark task runs: one subtask, from Arrow batches to one row that carries its report.

The function travels to the executor by pickle: it holds the URL of the store, never a store. An error that a
repetition cannot mend travels back in band and is raised on the driver as what it is; others fail the task, so that
Spark repeats it.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from statebed.errors import StatebedError, StorageError, SubtaskError
from statebed.format import names
from statebed.operators import SubtaskTask, WindowAggregate, run_subtask
from statebed.spark.frames import IS_ROW, SUBTASK
from statebed.storage import ScopedStore, get_storage_provider

REPORT_SCHEMA = "operator_id string, subtask_index int, report binary, error binary"
_REPORT = pa.schema(
    [("operator_id", pa.string()), ("subtask_index", pa.int32()), ("report", pa.binary()), ("error", pa.binary())]
)


@dataclass(frozen=True)
class SubtaskFunction:
    """For mapInArrow: every partition is one subtask of the operator."""

    state_url: str
    job_id: str
    epoch: int
    operator: WindowAggregate
    parallelism: int
    base: tuple[bytes, ...]
    """Serialised SubtaskReferences of the operator at the base epoch; each subtask takes what overlaps it."""
    late_us: int | None
    watermark_us: int | None
    epoch_time_us: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise SubtaskError("a subtask runs outside of a Spark task")
        index = context.partitionId()
        report, error = None, None
        try:
            report = self._run(index, batches)
        except StorageError:
            raise
        except StatebedError as failure:
            error = pickle.dumps(failure)
        row = {"operator_id": self.operator.operator_id, "subtask_index": index, "report": report, "error": error}
        yield pa.RecordBatch.from_pylist([row], schema=_REPORT)

    def _run(self, index: int, batches: Iterator[pa.RecordBatch]) -> bytes:
        task = SubtaskTask(
            job_id=self.job_id,
            epoch=self.epoch,
            operator=self.operator,
            subtask_index=index,
            parallelism=self.parallelism,
            base=self.base,
            late_us=self.late_us,
            watermark_us=self.watermark_us,
            epoch_time_us=self.epoch_time_us,
        )
        store = ScopedStore(get_storage_provider(self.state_url), names.job_folder(self.job_id))
        rows = (user_rows(batch, self.operator.inputs[0].schema, subtask_index=index) for batch in batches)
        return run_subtask(task, store, rows).to_bytes()


def user_rows(batch: pa.RecordBatch, schema: pa.Schema, *, subtask_index: int) -> pa.RecordBatch:
    """The batch without heartbeats and routing columns, in the operator's own types."""
    if batch.num_rows and pc.min_max(batch.column(SUBTASK)).as_py() != {"min": subtask_index, "max": subtask_index}:
        raise SubtaskError(
            f"rows of another subtask arrived at subtask {subtask_index}",
            fix="this Spark does not place rows by repartitionById as it should; report it with its version",
        )
    rows = batch.filter(batch.column(IS_ROW))
    return pa.RecordBatch.from_arrays([rows.column(field.name).cast(field.type) for field in schema], schema=schema)
