"""Progress of a job's sources: committed offsets from the record, and lag as last reported by Spark."""

import json
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb

_HEADER_LINES = 2
"""Number of lines before the offsets in a file of Spark's offset log: its version, and metadata."""


@dataclass(frozen=True)
class PartitionLag:
    """Position in one partition of a Kafka topic."""

    topic: str
    partition: int
    offset: int
    """Next offset to read."""
    latest: int
    """Next offset that the topic will assign."""

    @property
    def behind(self) -> int:
        return max(0, self.latest - self.offset)


@dataclass(frozen=True)
class SourceState:
    """One source of a job."""

    source: str
    offset: str
    """Offset committed with the record, in the source's own format; empty if unknown."""
    watermark_us: int | None
    newest_event_time_us: int | None
    latest_offset: str = ""
    """Newest offset available in the source; empty if it does not report it."""
    offsets_behind: int | None = None
    """Number of offsets not read yet after the newest batch, or None if the source does not report it."""
    input_rows_per_second: float | None = None
    """Input rate, as Spark reports it for the newest batch."""
    processed_rows_per_second: float | None = None
    partitions: tuple[PartitionLag, ...] = ()
    """Partitions of a Kafka source after the newest batch; empty for other sources."""


def sources_of(record: pb.CheckpointMetadata, heartbeat: pb.RunHeartbeat | None = None) -> list[SourceState]:
    """Return the sources of a record, sorted by name; `heartbeat` is the newest one of the run that wrote it."""
    offsets = committed_offsets(record.source_position)
    marks = {source.source: source for source in record.sources}
    progress = {source.source: source for source in heartbeat.sources} if heartbeat is not None else {}
    return [
        _source(name, offsets.get(name, ""), marks.get(name), progress.get(name)) for name in sorted({*offsets, *marks})
    ]


def committed_offsets(position: pb.SourcePosition) -> dict[str, str]:
    r"""Return the offsets that a record committed, by source.

    >>> entry = pb.LogEntry(name="7", content=b'v1\n{}\n{"logOffset":3}\n-')
    >>> committed_offsets(pb.SourcePosition(offsets=[entry], sources=["rides", "cars"]))
    {'rides': '{"logOffset":3}'}
    """
    if not position.offsets:
        return {}
    newest = max(position.offsets, key=lambda entry: int(entry.name) if entry.name.isdigit() else -1)
    lines = newest.content.decode(errors="replace").splitlines()[_HEADER_LINES:]
    names = list(position.sources) or [f"source {number + 1}" for number in range(len(lines))]
    # A source that a job reads through several readers has a line for each of them.
    lines_by_source: dict[str, list[str]] = {}
    for name, line in zip(names, lines, strict=False):
        if line != "-":
            lines_by_source.setdefault(name, []).append(line)
    return {name: ", ".join(lines) for name, lines in lines_by_source.items()}


def offsets_behind(end: str, latest: str) -> int | None:
    """Return the number of offsets between two positions of a source, or None if they do not count offsets.

    >>> offsets_behind('{"topic":{"0":5,"1":7}}', '{"topic":{"0":9,"1":7}}')
    4
    """
    try:
        return _difference(json.loads(end), json.loads(latest))
    except ValueError:
        return None


def partition_lags(end: str, latest: str) -> tuple[PartitionLag, ...]:
    """Return the partitions of a Kafka source from its offsets, sorted; empty if they are not those of Kafka.

    >>> [lag.behind for lag in partition_lags('{"topic":{"0":5,"1":7}}', '{"topic":{"0":9,"1":7}}')]
    [4, 0]
    """
    try:
        known, newest = json.loads(end), json.loads(latest)
        lags = [
            PartitionLag(topic, int(number), int(known.get(topic, {}).get(number, 0)), int(offset))
            for topic, own in newest.items()
            for number, offset in own.items()
        ]
    except (ValueError, AttributeError, TypeError):
        return ()
    return tuple(sorted(lags, key=lambda lag: (lag.topic, lag.partition)))


def _difference(end: object, latest: object) -> int | None:
    if isinstance(end, bool) or isinstance(latest, bool):
        return None
    if isinstance(end, int) and isinstance(latest, int):
        return max(0, latest - end)
    if isinstance(end, dict) and isinstance(latest, dict) and latest:
        parts = [_difference(end.get(name, 0), value) for name, value in latest.items()]
        return None if None in parts else sum(part for part in parts if part is not None)
    return None


def _source(name: str, offset: str, mark: pb.SourceWatermark | None, progress: pb.SourceProgress | None) -> SourceState:
    return SourceState(
        source=name,
        offset=offset,
        watermark_us=mark.watermark_us if mark is not None and mark.HasField("watermark_us") else None,
        newest_event_time_us=mark.max_event_time_us
        if mark is not None and mark.HasField("max_event_time_us")
        else None,
        latest_offset=progress.latest_offset if progress is not None else "",
        offsets_behind=progress.offsets_behind
        if progress is not None and progress.HasField("offsets_behind")
        else None,
        input_rows_per_second=progress.input_rows_per_second if progress is not None else None,
        processed_rows_per_second=progress.processed_rows_per_second if progress is not None else None,
        partitions=partition_lags(progress.end_offset, progress.latest_offset) if progress is not None else (),
    )
