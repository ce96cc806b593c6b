"""Progress of each source from Spark's own reports: offsets, lag if the source reports it, rates."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.sources import offsets_behind

_BEHIND = "maxOffsetsBehindLatest"
"""Metric of Kafka's source for the lag of its slowest partition."""
_MOST_OFFSET = 20_000
"""Maximum length of a stored offset in characters; with many partitions it is long."""


class SourceProgressBoard:
    """Newest progress of each source. Thread-safe: Spark's listener writes, heartbeats read."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._lock = threading.Lock()
        self._newest: tuple[pb.SourceProgress, ...] = ()

    def take(self, report: Mapping[str, Any]) -> None:
        """Store one of Spark's progress reports, as parsed from its JSON."""
        progress = progress_of(report, self._names)
        with self._lock:
            self._newest = progress

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
                description=str(source.get("description") or "")[:_MOST_OFFSET],
                batch_id=int(report.get("batchId") or 0),
                rows=max(0, int(source.get("numInputRows") or 0)),
                end_offset=end[:_MOST_OFFSET],
                latest_offset=latest[:_MOST_OFFSET],
                offsets_behind=behind,
                input_rows_per_second=float(source.get("inputRowsPerSecond") or 0),
                processed_rows_per_second=float(source.get("processedRowsPerSecond") or 0),
            )
        )
    return tuple(progress)


def _text(offset: object) -> str:
    """Return an offset in its source's format; Spark's report may contain it as JSON."""
    if offset is None:
        return ""
    return offset if isinstance(offset, str) else json.dumps(offset, separators=(",", ":"))
