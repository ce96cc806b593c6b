"""Positions of a job's sources and sinks, as tables.

Each record has them, so they are read at any epoch that is retained, like state, and they always fit the state of that
epoch.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import TIMESTAMP
from statebed.inspect.contents import sink_of
from statebed.inspect.given_up import given_up_rows
from statebed.inspect.sources import SourceState, partition_lags, sources_of
from statebed.inspect.tables.pinned import find_location, pin

SOURCE_COLUMNS = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("position", pa.string()),
        pa.field("watermark", TIMESTAMP),
        pa.field("newest_event_time", TIMESTAMP),
    ]
)
SINK_COLUMNS = pa.schema(
    [
        pa.field("sink", pa.string(), nullable=False),
        pa.field("operator", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("target", pa.string()),
        pa.field("last_output", pa.int64()),
        pa.field("published", pa.int64()),
        pa.field("absent_since", pa.int64()),
        pa.field("epochs_given_up", pa.int64(), nullable=False),
        pa.field("rows_given_up", pa.int64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class Positions:
    """Positions of a job's sources and sinks at an epoch.

    >>> sb.testing.write_example("state")
    >>> positions = sb.read_positions("state", job="rides")
    >>> positions.epoch, positions.sinks.num_rows
    (3, 0)
    """

    epoch: int
    sources: pa.Table
    """One row per source, or per partition of a Kafka topic: `position` is the next offset to read, in the source's own
    format.
    """
    sinks: pa.Table
    """One row per sink: `last_output` is the newest epoch with rows for it, `published` the newest that it is known to
    have, and `absent_since` the first epoch that was committed without the sink. All three are null if there is none.
    `rows_given_up` are those of
    `epochs_given_up` epochs that a start left out of the sink with `skip=`.
    """


def read_positions(
    url: str | Path,
    *,
    job: str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Positions:
    """Return the positions of a job's sources and sinks at an epoch; without `epoch` and `savepoint`, at the newest.

    >>> sb.testing.write_example("state")
    >>> sb.read_positions("state", job="rides").sources["source"].to_pylist()
    ['rides']
    """
    location = find_location(url, job, storage_options=storage_options)
    return positions_of(location.log, pin(location, epoch=epoch, savepoint=savepoint))


def positions_of(log: CheckpointLog, record: pb.CheckpointMetadata) -> Positions:
    """Return the positions that a record has."""
    sources = [row for source in sources_of(record) for row in _source_rows(source)]
    return Positions(
        record.epoch,
        pa.Table.from_pylist(sources, schema=SOURCE_COLUMNS),
        pa.Table.from_pylist(list(_sink_rows(log, record)), schema=SINK_COLUMNS),
    )


def _source_rows(source: SourceState) -> Iterator[dict[str, object]]:
    row: dict[str, object] = {
        "source": source.source,
        "position": source.offset or None,
        "watermark": source.watermark_us,
        "newest_event_time": source.newest_event_time_us,
    }
    partitions = partition_lags(source.offset, source.offset)
    if not partitions:
        yield row
    for read_to in partitions:
        yield row | {"topic": read_to.topic, "partition": read_to.partition, "position": str(read_to.offset)}


def _sink_rows(log: CheckpointLog, record: pb.CheckpointMetadata) -> Iterator[dict[str, object]]:
    present = {entry.sink_id: sink_of(log, record, entry) for entry in record.sinks}
    histories = {history.sink_id: history for history in record.sink_histories}
    given_up = given_up_rows(log, record)
    for name in sorted({*present, *histories}):
        sink, history = present.get(name), histories.get(name, pb.SinkHistory())
        has_rows, has_epoch = sink is not None and sink.rows > 0, sink is not None and sink.published
        yield {
            "sink": name,
            "operator": (sink.operator if sink is not None else history.operator_id) or None,
            "kind": history.kind or None,
            "target": history.target or None,
            "last_output": (record.epoch if has_rows else history.last_output) or None,
            "published": (record.epoch if has_epoch else history.published) or None,
            "absent_since": history.absent_since or None,
            "epochs_given_up": given_up[name].epochs if name in given_up else 0,
            "rows_given_up": given_up[name].rows if name in given_up else 0,
        }
