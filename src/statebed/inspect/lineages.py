"""Runs and lineages of a job: when each started, from which epoch, and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from statebed.checkpoint.log import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.chain import Chain, Reader, chain_of, runs_of
from statebed.inspect.records import ABANDONED, STATUSES, newest_readable, readable, slowest_watermark
from statebed.inspect.run_states import RunReport

CURRENT = "current"


@dataclass(frozen=True)
class RunSummary:
    """One start of the job."""

    run: int
    lineage: str
    base: int
    """Epoch whose state it resumed from; 0 if none."""
    first_epoch: int | None
    last_epoch: int | None
    start_time_us: int
    finish_time_us: int
    """Finish time of its last record."""
    status: str
    """Status of its last record."""
    watermark_us: int | None
    report: RunReport | None = None
    """State of the run, or None if it recorded none."""


@dataclass(frozen=True)
class LineageSummary:
    """An unbroken sequence of epochs."""

    lineage: str
    status: str
    """'current' for the newest lineage, 'abandoned' if a later one forked from an older epoch."""
    base: int
    """Epoch from which it forked; 0 if it started without state."""
    kept_until: int | None
    """Newest of its epochs that the newest state builds on."""
    runs: int
    first_epoch: int | None
    last_epoch: int | None
    start_time_us: int
    finish_time_us: int
    watermark_us: int | None


def summarise_runs(log: CheckpointLog, *, limit: int | None = None) -> list[RunSummary]:
    """Return the newest runs in ascending order. Two records per run are read, regardless of its number of epochs."""
    return runs_behind(newest_readable(log), lambda number: readable(log, number), limit=limit)


def with_reports(runs: Sequence[RunSummary], reports: Sequence[RunReport]) -> list[RunSummary]:
    """Return the runs, each with its report."""
    by_run = {report.run: report for report in reports}
    return [replace(run, report=by_run.get(run.run)) for run in runs]


def summarise_lineages(log: CheckpointLog, *, limit: int | None = None) -> list[LineageSummary]:
    """Return the lineages of the newest runs, in the order in which they began."""
    head = newest_readable(log)
    runs = runs_behind(head, lambda number: readable(log, number), limit=limit)
    return lineages_behind(head, lambda number: readable(log, number), runs)


def runs_behind(head: pb.CheckpointMetadata | None, read: Reader, *, limit: int | None = None) -> list[RunSummary]:
    """Return the newest runs up to the record `head`, in ascending order."""
    newest_first: list[RunSummary] = []
    for start, last_number in runs_of(head, read):
        if limit is not None and len(newest_first) >= limit:
            break
        last = start if last_number == start.epoch else read(last_number) or start
        newest_first.append(_run(start, last))
    return newest_first[::-1]


def lineages_behind(
    head: pb.CheckpointMetadata | None, read: Reader, runs: Sequence[RunSummary]
) -> list[LineageSummary]:
    """Return the lineages of these runs, in the order in which they began."""
    if not runs:
        return []
    chain = chain_of(head, read, down_to=runs[0].run)
    grouped: dict[str, list[RunSummary]] = {}
    for run in runs:
        grouped.setdefault(run.lineage, []).append(run)
    return [_lineage(name, members, chain, current=name == runs[-1].lineage) for name, members in grouped.items()]


def _run(start: pb.CheckpointMetadata, last: pb.CheckpointMetadata) -> RunSummary:
    has_epochs = last.epoch > start.epoch
    return RunSummary(
        run=start.epoch,
        lineage=start.lineage,
        base=start.base,
        first_epoch=start.epoch + 1 if has_epochs else None,
        last_epoch=last.epoch if has_epochs else None,
        start_time_us=start.start_time_us,
        finish_time_us=last.finish_time_us,
        status=STATUSES.get(last.status, "unknown"),
        watermark_us=slowest_watermark(last),
    )


def _lineage(name: str, runs: list[RunSummary], chain: Chain, *, current: bool) -> LineageSummary:
    starts = {run.run for run in runs}
    return LineageSummary(
        lineage=name,
        status=CURRENT if current else ABANDONED,
        base=runs[0].base,
        kept_until=max((last for run, last in chain.stretches if run in starts), default=None),
        runs=len(runs),
        first_epoch=min((run.first_epoch for run in runs if run.first_epoch is not None), default=None),
        last_epoch=max((run.last_epoch for run in runs if run.last_epoch is not None), default=None),
        start_time_us=runs[0].start_time_us,
        finish_time_us=runs[-1].finish_time_us,
        watermark_us=runs[-1].watermark_us,
    )
