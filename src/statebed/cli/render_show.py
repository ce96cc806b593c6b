"""Rendering of `statebed show`: one epoch with its operators, tables, files and sinks, and its time and memory."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from statebed.cli.output import age, caution, line, problem, status, table
from statebed.cli.render import failure, state_table
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.contents import Contents, OperatorContents, SinkSummary, SubtaskSummary
from statebed.inspect.figures import Figures, HostMemory, OperatorWork, TierSizes
from statebed.inspect.files import FileSummary, Referrers, ranges
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import LogEntry
from statebed.inspect.run_states import RunReport
from statebed.inspect.schemas import SchemaSummary
from statebed.inspect.sources import SourceState
from statebed.operators.joins.matches import entry_warning
from statebed.present.units import NOTHING, duration, number, precise, rate, size

_HASHES = 1 << 64
_MAX_PARTITIONS = 50
EXPENDABLE_COLUMNS = (
    *("output watermark (UTC)", "schema", "sequences", "subtasks", "event times (UTC)", "key hashes"),
    *("hits", "loads", "tombstones", "spills", "by level", "tier", "cache limit", "spilled"),
)
"""Columns to drop on a narrow screen, the least important first."""


@dataclass(frozen=True)
class Epoch:
    """Parts of one epoch to show; files and schemas only if requested."""

    record: pb.CheckpointMetadata
    summary: LogEntry
    contents: Contents
    figures: Figures | None
    files: Sequence[FileSummary] = ()
    referrers: Referrers | None = None
    """References to the files, or None if they were not requested."""
    schemas: Sequence[SchemaSummary] = ()
    subtasks: Sequence[SubtaskSummary] = ()
    sources: Sequence[SourceState] = ()
    given_up: Sequence[str] = ()
    """Rows that sinks did not get at the user's request, until now; set only if the newest epoch is shown."""
    report: RunReport | None = None
    """State of the newest run, set only if the newest epoch is shown."""


def render_epoch(shown: Epoch) -> Iterator[Table | Text]:
    """Render the parts of an epoch one after the other."""
    names = OperatorNames.of(shown.record)
    yield from _heading(shown)
    yield from _source_tables(shown.sources)
    if shown.contents.operators:
        yield _operators_table(shown, names)
        yield from _cautions(shown.record, names)
    if shown.contents.tables:
        yield state_table(shown.contents.tables, title="state", names=names)
    if shown.subtasks:
        yield _subtasks_table(shown.subtasks, names)
    for schema in shown.schemas:
        yield from _schema(schema, names)
    if shown.files:
        yield files_table(shown.files, title="files, relative to the job's folder", names=names)
        if shown.referrers is not None and not shown.referrers.complete:
            looked = shown.referrers.looked_at
            yield line(f"references were searched in epochs {ranges(looked)} and all savepoints; not in older epochs")
    if shown.contents.sinks:
        yield _sinks_table(shown.contents.sinks, names)
    for given_up in shown.given_up:
        yield caution(given_up)
    if shown.figures is not None:
        yield from _figures(shown.figures, names)


def _cautions(record: pb.CheckpointMetadata, names: OperatorNames) -> Iterator[Text]:
    for entry in record.operators:
        if (warning := entry_warning(entry)) is not None:
            yield caution(f"{names(entry.operator_id)}: {warning}")


def _heading(shown: Epoch) -> Iterator[Text]:
    record, summary, contents = shown.record, shown.summary, shown.contents
    what = f"{summary.kind}, {summary.status}, by {record.written_by}"
    yield line(f"Epoch {summary.epoch} of job {record.job_id!r} ({what})")
    if shown.report is not None and shown.report.is_problem:
        yield problem(failure(shown.report))
    elif shown.report is not None:
        state, since = shown.report.state.value, shown.report.end_time_us
        heard = f", last heartbeat {age(since)} ago" if since is not None else ""
        yield Text.assemble(f"  run {shown.report.run}: ", status(state), heard)
    base = f"builds on epoch {summary.base}" if summary.base else "builds on nothing"
    yield line(f"  log: run {summary.run}, lineage {summary.lineage}, {base}, min_epoch {record.min_epoch}")
    yield line(f"  finished {precise(summary.finish_time_us)} UTC after {duration(summary.duration_us)}")
    if summary.phases_us:
        phases = ", ".join(f"{phase} {duration(took)}" for phase, took in summary.phases_us.items())
        yield line(f"  phases: {phases}")
    if contents.source_kind:
        batch = NOTHING if contents.source_batch is None else contents.source_batch
        yield line(f"  source: {contents.source_kind}, query {contents.source_query or NOTHING}, batch {batch}")
    if contents.savepoints:
        pins = ", ".join(f"{name} (epoch {epoch})" for name, epoch in contents.savepoints.items())
        yield line(f"  savepoints: {pins}")


def _source_tables(sources: Sequence[SourceState]) -> Iterator[Table]:
    if sources:
        yield _sources_table(sources)
    if any(source.partitions for source in sources):
        yield partitions_table(sources)


def _sources_table(sources: Iterable[SourceState]) -> Table:
    return table(
        "sources",
        ["source", "committed offset", "behind", "newest event (UTC)", "watermark (UTC)", "arriving", "processed"],
        [
            (
                source.source,
                source.offset or NOTHING,
                number(source.offsets_behind),
                precise(source.newest_event_time_us),
                precise(source.watermark_us),
                rate(source.input_rows_per_second),
                rate(source.processed_rows_per_second),
            )
            for source in sources
        ],
        right=["behind", "arriving", "processed"],
    )


def partitions_table(sources: Iterable[SourceState]) -> Table:
    """Return the partitions of Kafka sources, those that are furthest behind first."""
    lags = [(source.source, lag) for source in sources for lag in source.partitions]
    lags.sort(key=lambda pair: -pair[1].behind)
    left = len(lags) - _MAX_PARTITIONS
    return table(
        "partitions" if left <= 0 else f"partitions; {left} with a smaller lag are not shown",
        ["source", "topic", "partition", "offset", "latest", "behind"],
        [
            (source, lag.topic, str(lag.partition), number(lag.offset), number(lag.latest), number(lag.behind))
            for source, lag in lags[:_MAX_PARTITIONS]
        ],
        right=["partition", "offset", "latest", "behind"],
    )


def _operators_table(shown: Epoch, names: OperatorNames) -> Table:
    operators: Iterable[OperatorContents] = shown.contents.operators
    is_epoch = shown.summary.kind == "epoch"
    return table(
        "operators" if is_epoch else f"operators, as epoch {shown.summary.base} left them",
        ["operator", "reads", "subtasks", "in", "late", "out", "watermark (UTC)", "output watermark (UTC)"],
        [
            (
                names(o.operator),
                names.listed(o.reads) or NOTHING,
                o.parallelism,
                *map(number, (o.rows_in, o.rows_late, o.rows_out)),
                precise(o.watermark_us),
                precise(o.output_watermark_us),
            )
            for o in operators
        ],
        right=["subtasks", "in", "late", "out"],
    )


def _subtasks_table(subtasks: Iterable[SubtaskSummary], names: OperatorNames) -> Table:
    return table(
        "subtasks",
        ["operator", "subtask", "key hashes", "share", "files", "rows", "size", "tombstones"],
        [
            (
                names(s.operator),
                s.subtask,
                f"{s.owned_first:016x}-{s.owned_last:016x}",
                f"{(s.owned_last - s.owned_first + 1) / _HASHES:.1%}",
                s.files,
                number(s.rows),
                size(s.bytes),
                s.tombstones,
            )
            for s in subtasks
        ],
        right=["subtask", "share", "files", "rows", "size", "tombstones"],
    )


def _sinks_table(sinks: Iterable[SinkSummary], names: OperatorNames) -> Table:
    return table(
        "sinks",
        ["sink", "from", "files", "rows", "size", "published"],
        [
            (
                s.sink,
                names(f"{s.operator}.{s.stream}" if s.stream else s.operator),
                s.files,
                number(s.rows),
                size(s.bytes),
                s.delivery,
            )
            for s in sinks
        ],
        right=["files", "rows", "size"],
    )


def _schema(schema: SchemaSummary, names: OperatorNames) -> Iterator[Table | Text]:
    yield table(
        f"columns of {names(schema.operator)}.{schema.table}",
        ["column", "type", "key", "null", "id"],
        [
            (c.column, c.type, "yes" if c.key else "", "yes" if c.nullable else "", c.field_id or NOTHING)
            for c in schema.columns
        ],
        right=["id"],
    )
    parts = [f"{schema.kind}", schema.description]
    if schema.bin_us is not None:
        parts.append(f"in bins of {duration(schema.bin_us)}")
    if schema.retention_us is not None:
        parts.append(f"kept for {duration(schema.retention_us)} behind the watermark")
    if schema.time_to_live_us is not None:
        parts.append(f"expires {duration(schema.time_to_live_us)} after its {schema.time_to_live_clock}")
    if schema.state_version:
        parts.append(f"version {schema.state_version}")
    parts.append(f"schema ids in files: {ranges(schema.schema_ids) or NOTHING}")
    yield line("  " + ", ".join(part for part in parts if part))


def files_table(files: Sequence[FileSummary], *, title: str, names: OperatorNames) -> Table:
    """Build the table of data files, with the epochs that need each if they were requested."""
    needed = any(file.epochs or file.savepoints for file in files)
    timed = any(file.min_event_time_us is not None for file in files)
    columns = ["operator", "table", "level", "rows", "size", "subtasks", "key hashes", "sequences", "schema"]
    return table(
        title,
        [*columns, *(["event times (UTC)"] if timed else []), *(["needed by"] if needed else []), "path"],
        [
            (
                names(f.operator),
                f.table,
                f.level,
                number(f.rows),
                size(f.bytes),
                ranges(f.subtasks),
                f"{f.min_key_hash:016x}-{f.max_key_hash:016x}",
                f"{f.min_sequence}-{f.max_sequence}",
                f.schema_id,
                *([_times(f)] if timed else []),
                *([_needed_by(f)] if needed else []),
                f.path,
            )
            for f in files
        ],
        right=["level", "rows", "size"],
    )


def _times(file: FileSummary) -> str:
    if file.min_event_time_us is None:
        return NOTHING
    return f"{precise(file.min_event_time_us)} to {precise(file.max_event_time_us)}"


def _needed_by(file: FileSummary) -> str:
    word = "epoch" if len(file.epochs) == 1 else "epochs"
    named = [f"{word} {ranges(file.epochs)}"] if file.epochs else []
    return "; ".join([*named, *(f"savepoint {name}" for name in file.savepoints)])


def _figures(figures: Figures, names: OperatorNames) -> Iterator[Table | Text]:
    if figures.tables:
        yield tiers_table(figures.tables, title="state by tier at the end of the epoch", names=names)
    if figures.operators:
        yield _work_table(figures.operators, names)
    if figures.hosts:
        yield memory_table(figures.hosts, names)
    if figures.compaction is not None:
        totals = figures.compaction
        yield line(
            f"compaction since the run began: {totals.rounds} rounds, {totals.merges} merges, "
            f"{size(totals.read_bytes)} read, {size(totals.written_bytes)} written, {totals.failures} failures"
        )
    if figures.preaggregated:
        yield line("rows were pre-aggregated in the JVM")


def tiers_table(tables: Iterable[TierSizes], *, title: str, names: OperatorNames) -> Table:
    """Build the table of state by operator, table and tier."""
    numbers = [
        "rows",
        "memory",
        "local disk",
        "store",
        "files",
        "tombstones",
        "spills",
        "loads",
        "hits",
        "compaction debt",
    ]
    return table(
        title,
        ["operator", "table", *numbers],
        [
            (
                names(t.operator),
                t.table,
                number(t.rows),
                *map(size, (t.memory_bytes, t.disk_bytes, t.store_bytes)),
                *map(number, (t.files, t.tombstones, t.spills, t.loads, t.hits)),
                size(t.compaction_debt_bytes),
            )
            for t in tables
        ],
        right=numbers,
    )


def _work_table(operators: Iterable[OperatorWork], names: OperatorNames) -> Table:
    return table(
        "work per operator",
        ["operator", "slowest subtask", "written", "expired", "retractions dropped"],
        [
            (
                names(o.operator),
                duration(o.busy_us),
                size(o.bytes_written),
                *map(number, (o.rows_expired, o.retractions_dropped)),
            )
            for o in operators
        ],
        right=["slowest subtask", "written", "expired", "retractions dropped"],
    )


def memory_table(hosts: Iterable[HostMemory], names: OperatorNames) -> Table:
    """Build the table of memory use by worker and operator."""
    return table(
        "peak memory of workers",
        ["host", "peak", "budget", "held by", "shares", "host cache", "cache limit", "spilled"],
        [
            (
                h.host,
                size(h.peak_bytes),
                size(h.budget_bytes),
                ", ".join(f"{names(name)} {size(held)}" for name, held in h.holders.items()) or NOTHING,
                ", ".join(f"{names(name)} {size(h.held[name])} of {size(part)}" for name, part in h.shares.items())
                or NOTHING,
                size(h.cache_bytes),
                size(h.cache_limit_bytes),
                size(h.spilled_bytes),
            )
            for h in hosts
        ],
        right=["peak", "budget", "host cache", "cache limit", "spilled"],
    )
