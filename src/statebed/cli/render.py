"""The tables that people see: jobs, epochs, one epoch, checks of the doctor."""

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table
from rich.text import Text

from statebed.cli.doctor import Check, Verdict
from statebed.cli.output import NOTHING, instant, number, second, seconds, size, table
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.contents import Contents, SinkSummary, TableSummary
from statebed.inspect.jobs import JobSummary
from statebed.inspect.records import EpochSummary

_STYLES = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "bold red"}


def jobs_table(jobs: Iterable[JobSummary], *, where: str) -> Table:
    return table(
        f"jobs at {where}",
        ["job", "records", "newest", "lineage", "status", "finished (UTC)"],
        [(j.job, number(j.records), j.head, j.lineage, j.status, instant(j.finish_time_us)) for j in jobs],
        right=["records", "newest"],
    )


def problems(summaries: Iterable[JobSummary | EpochSummary]) -> Iterator[str]:
    """What is wrong with the rows of a table, below it: in a cell it would squeeze the other columns."""
    for summary in summaries:
        if summary.problem:
            name = f"job {summary.job}" if isinstance(summary, JobSummary) else f"epoch {summary.epoch}"
            yield f"{name}: {summary.problem}"


LEAST_OF_EPOCHS = ("lineage", "batch", "base", "took", "size")
"""Columns of the epochs that a narrow screen can do without, the least needed first."""


def epochs_table(epochs: Iterable[EpochSummary], *, title: str) -> Table:
    """The log: where each record stands and what it did."""
    return table(
        title,
        ["epoch", "record", "lineage", "base", "finished (UTC)", "batch", "in", "late", "out", "took", "size"],
        [
            (
                e.epoch,
                e.kind if e.status == "complete" else e.status,
                e.lineage or NOTHING,
                e.base or NOTHING,
                second(e.finish_time_us),
                *_work(e),
                NOTHING if e.problem else seconds(e.duration_us),
                size(e.bytes),
            )
            for e in epochs
        ],
        right=["epoch", "base", "batch", "in", "late", "out", "took", "size"],
    )


def work_table(epochs: Iterable[EpochSummary], *, title: str) -> Table:
    """What each epoch did, in 80 columns."""
    return table(
        title,
        ["epoch", "kind", "batch", "in", "late", "out", "watermark", "took", "size"],
        [
            (e.epoch, e.kind, *_work(e), instant(e.watermark_us)[11:] or NOTHING, seconds(e.duration_us), size(e.bytes))
            for e in epochs
        ],
        right=["epoch", "batch", "in", "late", "out", "took", "size"],
    )


def _work(epoch: EpochSummary) -> Sequence[object]:
    if epoch.kind != "epoch":
        return [NOTHING] * 4
    return [epoch.batch, number(epoch.rows_in), number(epoch.rows_late), number(epoch.rows_out)]


def state_table(tables: Iterable[TableSummary], *, title: str) -> Table:
    return table(
        title,
        ["operator", "table", "kind", "tier", "files", "rows", "size"],
        [(t.operator, t.table, t.kind, t.tier, t.files, number(t.rows), size(t.bytes)) for t in tables],
        right=["files", "rows", "size"],
    )


def _sinks_table(sinks: Iterable[SinkSummary]) -> Table:
    return table(
        "sinks",
        ["sink", "from", "files", "rows", "size", "published"],
        [
            (
                s.sink,
                f"{s.operator}.{s.stream}" if s.stream else s.operator,
                s.files,
                number(s.rows),
                size(s.bytes),
                "yes" if s.published else "not yet",
            )
            for s in sinks
        ],
        right=["files", "rows", "size"],
    )


def one_epoch(record: pb.CheckpointMetadata, summary: EpochSummary, contents: Contents) -> Iterator[Table | str]:
    """A record in words."""
    what = f"{summary.kind}, {summary.status}, by {record.written_by}"
    yield f"Epoch {summary.epoch} of job {record.job_id!r} ({what})"
    base = f"builds on epoch {summary.base}" if summary.base else "builds on nothing"
    yield f"  log: run {summary.run}, lineage {summary.lineage}, {base}, min_epoch {record.min_epoch}"
    yield f"  finished {instant(summary.finish_time_us)} UTC after {seconds(summary.duration_us)}"
    if contents.source_kind:
        batch = NOTHING if contents.source_batch is None else contents.source_batch
        yield f"  source: {contents.source_kind}, query {contents.source_query or NOTHING}, batch {batch}"
    if contents.savepoints:
        pins = ", ".join(f"{name} (epoch {epoch})" for name, epoch in contents.savepoints.items())
        yield f"  savepoints: {pins}"
    if contents.operators:
        yield table(
            "operators" if summary.kind == "epoch" else f"operators, as epoch {summary.base} left them",
            ["operator", "subtasks", "in", "late", "out", "watermark (UTC)", "of its output (UTC)"],
            [
                (
                    o.operator,
                    o.parallelism,
                    *map(number, (o.rows_in, o.rows_late, o.rows_out)),
                    instant(o.watermark_us),
                    instant(o.output_watermark_us),
                )
                for o in contents.operators
            ],
            right=["subtasks", "in", "late", "out"],
        )
    if contents.tables:
        yield state_table(contents.tables, title="state")
    if contents.sinks:
        yield _sinks_table(contents.sinks)


def check_line(check: Check) -> Text:
    line = Text.assemble((f"{check.verdict.value:>5}", _STYLES[check.verdict]), f"  {check.name:<14}  {check.found}")
    if check.fix and check.verdict is not Verdict.OK:
        line.append(f"\n{'':>5}  {'':<14}  what to do: {check.fix}")
    return line
