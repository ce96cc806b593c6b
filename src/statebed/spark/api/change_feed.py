"""Changes of a table of state as a stream: `spark.readStream.format("statebed").option("changes", "true")`.

An offset is the number of a record. A batch from one record to another has the changes between the two states, so it is
the same whenever it is computed, and Spark's checkpoint resumes the stream. The first batch has the rows of the newest
epoch as insertions, unless `startingEpoch` names an epoch whose changes come first. If an epoch in an offset was
cleaned up, the stream fails and says so.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from statebed.errors import EpochNotRetainedError, InputError
from statebed.inspect import diff_state, read_state
from statebed.inspect.tables.state_diff import CHANGE, INSERT
from statebed.spark.arrow_types import arrow_schema

EPOCH = "_epoch"
"""Column with the newest epoch of the batch that a change belongs to."""
_OFFSET = "epoch"


def feed_schema(rows: pa.Schema) -> pa.Schema:
    """Return the columns of changes: `change`, those of the rows, and `_epoch`."""
    return pa.schema(
        [
            pa.field(CHANGE, pa.string(), nullable=False),
            *(field.with_nullable(True) for field in rows),
            pa.field(EPOCH, pa.int64(), nullable=False),
        ]
    )


class ChangeFeedReader(DataSourceStreamReader):
    """Stream of the changes of one table."""

    def __init__(self, arguments: Mapping[str, Any], schema: StructType, *, starting_epoch: int | None) -> None:
        self._arguments = {name: value for name, value in arguments.items() if name not in {"epoch", "savepoint"}}
        self._target = arrow_schema(schema)
        self._starting_epoch = starting_epoch

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Return 0, from where the first batch is the whole state, or the epoch whose changes come first."""
        if self._starting_epoch is None:
            return {_OFFSET: 0}
        self._diff(self._starting_epoch, self._newest())  # raises if the epoch is no longer retained
        return {_OFFSET: self._starting_epoch}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's signature; 4.1 passes nothing
        return {_OFFSET: self._newest()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        since, until = start[_OFFSET], end[_OFFSET]
        if since == until:
            return [InputPartition(None)]
        if since > until:
            raise InputError(
                f"the stream is at epoch {since}, but the job's newest epoch is {until}: its state was replaced",
                where=str(self._arguments["url"]),
                fix="restore the state, or start the stream with a new checkpoint location",
            )
        if not since:
            table = read_state(**self._arguments, epoch=until)
            return [InputPartition((since, until, part)) for part in table.slices()] or [InputPartition(None)]
        ranges = range(self._diff(since, until).ranges)
        return [InputPartition((since, until, number)) for number in ranges] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        since, until, part = partition.value
        batches = self._diff(since, until).to_batches(only=part) if since else part.batches()
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            yield from self._shaped(rows, until).to_batches()

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: clean-up follows the job's retention, not its readers."""

    def _newest(self) -> int:
        return read_state(**self._arguments).record

    def _diff(self, since: int, until: int) -> Any:
        names = ("url", "job", "operator", "table", "results", "storage_options")
        arguments = {name: self._arguments[name] for name in names}
        try:
            return diff_state(**arguments, since=since, until=until)
        except EpochNotRetainedError as error:
            raise EpochNotRetainedError(
                f"the changes from epoch {since} to {until} cannot be read: {error.what}",
                where=error.where,
                fix="start the stream with a new checkpoint location, which begins with the rows of the newest epoch; "
                "to prevent this, let the job retain more epochs (retained_epochs) or run the stream more often",
            ) from error

    def _shaped(self, rows: pa.Table, until: int) -> pa.Table:
        """Return the rows with the columns of the stream, which were fixed at its start."""
        count, arrays = rows.num_rows, []
        for field in self._target:
            if field.name == EPOCH:
                arrays.append(pa.repeat(pa.scalar(until, pa.int64()), count))
            elif field.name == CHANGE and CHANGE not in rows.schema.names:
                arrays.append(pa.repeat(pa.scalar(INSERT), count))
            elif field.name in rows.schema.names:
                arrays.append(_signed(rows[field.name], field.type))
            else:
                raise InputError(
                    f"the table no longer has the column {field.name}, which the stream was started with",
                    fix="start the stream again; with the same checkpoint location it continues with the new columns",
                )
        return pa.Table.from_arrays(arrays, schema=self._target).combine_chunks()


def _signed(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == pa.uint64() and kind == pa.int64():
        return pa.chunked_array([chunk.view(pa.int64()) for chunk in column.chunks], pa.int64())
    return column if column.type == kind else column.cast(kind)
