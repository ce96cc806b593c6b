"""Tables of a location and of a log: jobs, epochs, runs, lineages, savepoints; and results of checks."""

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from statebed.cli.doctor import Check, Verdict
from statebed.cli.output import age, status, table
from statebed.inspect.contents import TableSummary
from statebed.inspect.jobs import JobSummary
from statebed.inspect.lineages import LineageSummary, RunSummary
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import LogEntry
from statebed.inspect.run_states import RunReport, problem_lines
from statebed.inspect.savepoints import SavepointSummary
from statebed.present.colours import TERMINAL_STYLES, Tone
from statebed.present.units import NOTHING, duration, instant, number, precise, size

_TONES = {Verdict.OK: Tone.GOOD, Verdict.WARN: Tone.WARN, Verdict.FAIL: Tone.BAD}


EXPENDABLE_JOB_COLUMNS = ("lineage", "finished (UTC)", "took", "savepoints", "records")
"""Columns to drop on a narrow screen, the least important first."""


def jobs_table(jobs: Iterable[JobSummary], *, where: str) -> Table:
    """Build the table of the jobs of a location with their status and newest epoch."""
    return table(
        f"jobs at {where}",
        [
            "job",
            "records",
            "newest",
            "lineage",
            "status",
            "finished (UTC)",
            "age",
            "took",
            "watermark (UTC)",
            "state",
            "savepoints",
        ],
        [
            (
                j.job,
                number(j.records),
                j.head,
                j.lineage,
                status(j.status),
                instant(j.finish_time_us),
                age(j.finish_time_us),
                duration(j.duration_us),
                instant(j.watermark_us),
                size(j.bytes),
                j.savepoints or NOTHING,
            )
            for j in jobs
        ],
        right=["records", "newest", "age", "took", "state", "savepoints"],
    )


def problems(summaries: Iterable[JobSummary | LogEntry | SavepointSummary]) -> Iterator[str]:
    """Yield the problems of table rows. They are printed below the table, because in a cell they would squeeze the
    other columns.
    """
    for summary in summaries:
        if isinstance(summary, JobSummary) and summary.run is not None and summary.run.is_problem:
            yield f"job {summary.job}: {failure(summary.run)}"
        elif summary.problem:
            yield f"{_name(summary)}: {summary.problem}"


def _name(summary: JobSummary | LogEntry | SavepointSummary) -> str:
    if isinstance(summary, JobSummary):
        return f"job {summary.job}"
    return f"epoch {summary.epoch}" if isinstance(summary, LogEntry) else f"savepoint {summary.savepoint}"


def failure(report: RunReport) -> str:
    """Describe a run that did not end cleanly: when, why, which sinks are blocked, what to do, and where user code
    raised the error.
    """
    lines = list(problem_lines(report))
    lines.insert(1, f"  when: {instant(report.end_time_us)} UTC, {age(report.end_time_us)} ago")
    if report.traceback:
        lines += ["  traceback:", textwrap.indent(report.traceback, "    ")]
    return "\n".join(lines)


EXPENDABLE_EPOCH_COLUMNS = ("lineage", "batch", "base", "watermark (UTC)", "age", "took", "size")


def epochs_table(epochs: Sequence[LogEntry], *, title: str) -> Table:
    """Build the table of the log: the status and the work of each record."""
    pinned = any(epoch.savepoints for epoch in epochs)
    columns = ["epoch", "record", "lineage", "base", "finished (UTC)", "age", "batch", "in", "late", "out"]
    return table(
        title,
        [*columns, "watermark (UTC)", "took", "size", *(["savepoint"] if pinned else [])],
        [
            (
                e.epoch,
                status(e.kind if e.status == "complete" else e.status),
                e.lineage or NOTHING,
                e.base or NOTHING,
                instant(e.finish_time_us),
                age(e.finish_time_us),
                *_work(e),
                instant(e.watermark_us),
                NOTHING if e.problem else duration(e.duration_us),
                size(e.bytes),
                *([", ".join(e.savepoints)] if pinned else []),
            )
            for e in epochs
        ],
        right=["epoch", "base", "age", "batch", "in", "late", "out", "took", "size"],
    )


EXPENDABLE_RUN_COLUMNS = ("finished (UTC)", "watermark (UTC)", "base")


def runs_table(runs: Iterable[RunSummary], *, title: str) -> Table:
    return table(
        title,
        [
            *("run", "lineage", "base", "epochs", "state", "last record"),
            *("began (UTC)", "finished (UTC)", "age", "watermark (UTC)"),
        ],
        [
            (
                r.run,
                r.lineage,
                r.base or NOTHING,
                _from_to(r.first_epoch, r.last_epoch),
                NOTHING if r.report is None else status(r.report.state.value),
                r.status,
                *_times(r),
                instant(r.watermark_us),
            )
            for r in runs
        ],
        right=["run", "base", "age"],
    )


def lineages_table(lineages: Iterable[LineageSummary], *, title: str) -> Table:
    return table(
        title,
        ["lineage", "status", "from epoch", "epochs", "kept until", "runs", "began (UTC)", "finished (UTC)", "age"],
        [
            (
                lineage.lineage,
                lineage.status,
                lineage.base or NOTHING,
                _from_to(lineage.first_epoch, lineage.last_epoch),
                lineage.kept_until,
                lineage.runs,
                *_times(lineage),
            )
            for lineage in lineages
        ],
        right=["from epoch", "kept until", "runs", "age"],
    )


def savepoints_table(savepoints: Iterable[SavepointSummary], *, title: str) -> Table:
    return table(
        title,
        ["savepoint", "epoch", "lineage", "finished (UTC)", "age", "watermark (UTC)", "state"],
        [
            (
                savepoint.savepoint,
                savepoint.epoch,
                savepoint.lineage or NOTHING,
                instant(savepoint.finish_time_us),
                age(savepoint.finish_time_us),
                instant(savepoint.watermark_us),
                size(savepoint.bytes),
            )
            for savepoint in savepoints
        ],
        right=["epoch", "age", "state"],
    )


def _levels(summary: TableSummary) -> str:
    return ", ".join(f"L{level} {files}" for level, files in summary.levels.items()) or NOTHING


def _times(summary: RunSummary | LineageSummary) -> tuple[str, str, str]:
    return instant(summary.start_time_us), instant(summary.finish_time_us), age(summary.finish_time_us)


def _from_to(first: int | None, last: int | None) -> str:
    if first is None or last is None:
        return NOTHING
    return str(first) if first == last else f"{first}-{last}"


def work_table(epochs: Iterable[LogEntry], *, title: str) -> Table:
    """Build a table of each epoch's work that fits 80 columns."""
    return table(
        title,
        ["epoch", "kind", "batch", "in", "late", "out", "watermark", "took", "size"],
        [
            (
                e.epoch,
                e.kind,
                *_work(e),
                precise(e.watermark_us)[11:] or NOTHING,
                duration(e.duration_us),
                size(e.bytes),
            )
            for e in epochs
        ],
        right=["epoch", "batch", "in", "late", "out", "took", "size"],
    )


def _work(epoch: LogEntry) -> Sequence[object]:
    if epoch.kind != "epoch":
        return [NOTHING] * 4
    return [epoch.batch, number(epoch.rows_in), number(epoch.rows_late), number(epoch.rows_out)]


def state_table(tables: Iterable[TableSummary], *, title: str, names: OperatorNames) -> Table:
    return table(
        title,
        ["operator", "table", "kind", "tier", "files", "by level", "rows", "size"],
        [
            (names(t.operator), t.table, t.kind, t.tier, t.files, _levels(t), number(t.rows), size(t.bytes))
            for t in tables
        ],
        right=["files", "rows", "size"],
    )


def check_line(check: Check) -> Text:
    style = TERMINAL_STYLES[_TONES[check.verdict]]
    line = Text.assemble((f"{check.verdict.value:>5}", style), f"  {check.name:<14}  {check.found}")
    if check.fix and check.verdict is not Verdict.OK:
        line.append(f"\n{'':>5}  {'':<14}  what to do: {check.fix}")
    return line
