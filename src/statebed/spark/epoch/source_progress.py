"""Progress of each source from Spark's own reports: offsets, lag if the source reports it, rates."""

import datetime as dt
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.sources import offsets_behind

_BEHIND = "maxOffsetsBehindLatest"
"""Metric of Kafka's source for the lag of its slowest partition."""
_DAY = 86_400
_MAX_OFFSET = 20_000
"""Maximum length of a stored offset in characters; with many partitions it is long."""


class SourceProgressBoard:
    """Newest progress of each source. Thread-safe: Spark's listener writes, heartbeats read."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._newest: tuple[pb.SourceProgress, ...] = ()
        self._started = 0.0
        """Start of the batch of the newest report, in seconds."""

    def take(self, report: Mapping[str, Any], scanned_rows: Sequence[int] = ()) -> None:
        """Store one of Spark's progress reports, as parsed from its JSON, and the rows that tasks scanned themselves,
        which Spark does not count.
        """
        progress = progress_of(report, self._names)
        started = _seconds(report.get("timestamp"))
        if scanned_rows:
            add_scanned(progress, self._names, scanned_rows, report, since_last=started - self._started)
        with self._lock:
            self._newest = progress
            self._started = started

    def newest(self) -> Sequence[pb.SourceProgress]:
        with self._lock:
            return self._newest


def progress_of(report: Mapping[str, Any], names: Sequence[str]) -> tuple[pb.SourceProgress, ...]:
    """Return the sources of a progress report; `names` are the job's names for them, in Spark's order."""
    sources = report.get("sources") or []
    progress = []
    for number, source in enumerate(sources):
        end, latest = _text(source.get("endOffset")), _text(source.get("latestOffset"))
        behind = offsets_behind(end, latest) if latest else None
        reported = (source.get("metrics") or {}).get(_BEHIND)
        if behind is None and reported is not None:
            behind = int(float(reported))
        progress.append(
            pb.SourceProgress(
                source=names[number] if number < len(names) else f"source {number + 1}",
                description=str(source.get("description") or "")[:_MAX_OFFSET],
                batch_id=int(report.get("batchId") or 0),
                rows=max(0, int(source.get("numInputRows") or 0)),
                end_offset=end[:_MAX_OFFSET],
                latest_offset=latest[:_MAX_OFFSET],
                offsets_behind=behind,
                input_rows_per_second=float(source.get("inputRowsPerSecond") or 0),
                processed_rows_per_second=float(source.get("processedRowsPerSecond") or 0),
            )
        )
    return tuple(progress)


def add_scanned(
    progress: Sequence[pb.SourceProgress],
    names: Sequence[str],
    scanned_rows: Sequence[int],
    report: Mapping[str, Any],
    *,
    since_last: float,
) -> None:
    """Set the rows and rates of sources that tasks have scanned; `scanned_rows` are in the order of `names`.

    A source that the job reads several times may have one entry: it then has all these rows.
    """
    by_source: dict[str, int] = {}
    for name, rows in zip(names, scanned_rows, strict=False):
        by_source[name] = by_source.get(name, 0) + rows
    seconds = int((report.get("durationMs") or {}).get("triggerExecution") or 0) / 1_000
    for place, source in enumerate(progress):
        source.rows = scanned_rows[place] if len(progress) == len(names) else by_source.pop(source.source, 0)
        source.processed_rows_per_second = source.rows / seconds if seconds > 0 else 0.0
        source.input_rows_per_second = source.rows / since_last if 0 < since_last < _DAY else 0.0


def _seconds(timestamp: object) -> float:
    """Return when a report's batch started, in seconds."""
    return dt.datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else 0.0


def _text(offset: object) -> str:
    """Return an offset in its source's format; Spark's report may contain it as JSON."""
    if offset is None:
        return ""
    return offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
