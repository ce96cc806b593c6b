"""Contents of each page: read through a `StateLocation`, converted by the pure modules of this package."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from statebed.errors import EpochNotRetainedError, FormatError, JobNotFoundError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.chain import chain_of
from statebed.inspect.contents import SinkSummary, SubtaskSummary, sink_of, subtasks_in
from statebed.inspect.figures import Figures, figures_of
from statebed.inspect.given_up import given_up_lines
from statebed.inspect.jobs import check_location
from statebed.inspect.lineages import LineageSummary, RunSummary, lineages_behind, runs_behind, with_reports
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import ABANDONED
from statebed.inspect.run_states import RunReport
from statebed.inspect.savepoints import SavepointSummary, summarise_savepoints
from statebed.inspect.sources import SourceState, sources_of
from statebed.operators.labels import stored_label
from statebed.protocol.records import data_epoch_of
from statebed.ui import addresses, overview
from statebed.ui.charts import Chart
from statebed.ui.history import History
from statebed.ui.job_graph import JobGraph, graph_of
from statebed.ui.location import JobReader, StateLocation
from statebed.ui.points import Memory, Point, StateTotals, memory, phases, totals, with_abandoned
from statebed.ui.table_views import TableFilesChange, TableView, changes, tables_of, totals_of

PLOTTED = 200
"""Number of epochs in the charts of a job."""
LISTED = 100
"""Number of epochs on one page of the log."""
NEWEST = 12
"""Number of epochs listed on a job's page."""
RUNS = 40


@dataclass(frozen=True)
class JobLine:
    """A job in the list of jobs."""

    job: str
    point: Point
    """Newest point."""
    state: StateTotals | None
    liveness: str
    run: RunReport | None = None
    """Report of its newest run."""


@dataclass(frozen=True)
class Jobs:
    """Jobs of a location."""

    jobs: tuple[JobLine, ...]
    others: tuple[str, ...]
    """Folders that are not jobs."""


def jobs_view(location: StateLocation, *, now_us: int) -> Jobs:
    """Return all jobs, sorted by name. A job that cannot be read does not hide the others."""
    folders = location.folders()

    def line(folder: str) -> JobLine | None:
        try:
            reader = location.job(folder)
            point = reader.point(reader.head())
        except JobNotFoundError:
            return None
        run = reader.run(now_us=now_us) if point.is_readable else None
        return JobLine(folder, point, totals(point.figures), overview.liveness([point], run, now_us=now_us), run)

    lines = dict(zip(folders, location.gather(line, folders), strict=True))
    readable = tuple(line for line in lines.values() if line is not None)
    if not readable:
        check_location(location.store)
    return Jobs(readable, tuple(folder for folder, line in lines.items() if line is None))


@dataclass(frozen=True)
class JobView:
    """One job."""

    record: pb.CheckpointMetadata
    """Newest readable record."""
    liveness: str
    tiles: tuple[overview.Tile, ...]
    graph: JobGraph
    charts: tuple[Chart, ...]
    memory: Memory | None
    figures: Figures | None
    newest: tuple[Point, ...]
    """Newest points, in descending order."""
    damaged: tuple[Point, ...]
    tables: tuple[TableView, ...]
    state: Mapping[str, StateTotals]
    problem: str
    """Reason why the tables are not shown; empty if they are."""
    run: RunReport
    """State of the newest run."""
    heartbeat: pb.RunHeartbeat | None
    """Newest heartbeat with the settings of the run's process, or None if there is none."""
    sources: tuple[SourceState, ...]
    given_up: tuple[str, ...] = ()
    """Rows that sinks did not get at the user's request, described by sink."""


def job_view(reader: JobReader, *, now_us: int) -> JobView:
    """Return the newest epochs of a job and its newest state."""
    head = reader.head()
    points = _judged(reader, reader.points(PLOTTED))
    if not points:
        points = [reader.point(head)]
    record = reader.newest()
    run, heartbeat = reader.run(now_us=now_us), reader.status().heartbeat
    readable = [point for point in points if point.is_readable]
    tables, problem = _tables(reader, record)
    figures = record.figures if record.HasField("figures") else None
    state = {
        entry.operator_id: totals(figures, entry.operator_id)
        or totals_of(table for table in tables if table.operator == entry.operator_id)
        for entry in record.operators
    }
    whole = totals(figures) or (totals_of(tables) if tables else None)
    operators = addresses.page_path(addresses.OPERATORS, job=record.job_id)
    return JobView(
        record=record,
        liveness=overview.liveness(points, run, now_us=now_us),
        tiles=tuple(overview.tiles(readable, whole, now_us=now_us)),
        graph=graph_of(record, state, operators, published=_with_sinks(reader, points)),
        charts=tuple(overview.charts(points, OperatorNames.of(record))),
        memory=memory(figures),
        figures=figures_of(record),
        newest=tuple(reversed(points[-NEWEST:])),
        damaged=tuple(point for point in points if not point.is_readable),
        tables=tuple(tables),
        state=state,
        problem=problem,
        run=run,
        heartbeat=heartbeat,
        sources=tuple(sources_of(record, heartbeat)),
        given_up=tuple(given_up_lines(reader.log, record)),
    )


def _with_sinks(reader: JobReader, points: Sequence[Point]) -> pb.CheckpointMetadata | None:
    """Return the newest record with sinks that the newest state builds on, among the points of a page."""
    epochs = [point.epoch for point in points if point.has_sinks and point.summary.status != ABANDONED]
    return reader.readable(epochs[-1]) if epochs else None


def _tables(reader: JobReader, record: pb.CheckpointMetadata) -> tuple[list[TableView], str]:
    try:
        return [table for entry in record.operators for table in operator_tables(reader, entry)], ""
    except FormatError as error:
        return [], str(error)


def operator_tables(reader: JobReader, entry: pb.OperatorEntry) -> list[TableView]:
    return tables_of(entry, reader.subtasks(entry))


def _judged(reader: JobReader, points: Sequence[Point]) -> list[Point]:
    """Return the points, with abandoned ones marked."""
    if not any(point.is_readable for point in points):
        return list(points)
    return with_abandoned(points, chain_of(reader.newest(), reader.readable, down_to=points[0].epoch))


@dataclass(frozen=True)
class EpochsView:
    """A page of the log."""

    points: tuple[Point, ...]
    """Points in descending order."""
    phases: Mapping[int, dict[str, int]]
    first: int
    last: int
    older: int | None
    """Record number before which the next page begins, or None on the last page."""
    newer: int | None
    total: int


def epochs_view(reader: JobReader, *, before: int | None) -> EpochsView:
    """Return one page of the log, newest first."""
    reader.head()
    points = _judged(reader, reader.points(LISTED, before=before))
    numbers = reader.numbers()
    first = points[0].epoch if points else 0
    newer = None
    if before is not None and numbers and before <= numbers[-1]:
        newer = before + LISTED
    return EpochsView(
        points=tuple(reversed(points)),
        phases={point.epoch: parts for point, parts in zip(points, phases(points), strict=True)},
        first=first,
        last=points[-1].epoch if points else 0,
        older=first if points and first > numbers[0] else None,
        newer=newer,
        total=len(numbers),
    )


@dataclass(frozen=True)
class EpochView:
    """One epoch."""

    record: pb.CheckpointMetadata
    point: Point
    phases: tuple[tuple[str, int, int], ...]
    figures: Figures | None
    sinks: tuple[SinkSummary, ...]
    changes: tuple[TableFilesChange, ...]
    compared_with: int | None
    """Epoch that the changes are relative to, or None if there is none or it cannot be read."""
    why_not: str
    previous: int | None
    following: int | None


def epoch_view(reader: JobReader, epoch: int) -> EpochView:
    """Return one record and its changes."""
    head = reader.head()
    record = reader.record(epoch)
    after = reader.point(epoch + 1) if epoch < head else None
    around = [reader.point(epoch), *([after] if after is not None and after.is_readable else [])]
    base = record.base if record.kind == pb.EPOCH else None
    differing: list[TableFilesChange] = []
    why_not = "" if base else "This record builds on no epoch." if record.kind == pb.EPOCH else "It changes no state."
    if base:
        try:
            differing = changes(_by_name(reader, reader.record(base)), _by_name(reader, record))
        except (FormatError, EpochNotRetainedError) as error:
            base, why_not = None, error.what
    return EpochView(
        record=record,
        point=_judged(reader, [around[0]])[0],
        phases=tuple(overview.phase_bar(phases(around)[0])),
        figures=figures_of(record),
        sinks=tuple(reader.gather(lambda entry: sink_of(reader.log, record, entry), record.sinks)),
        changes=tuple(differing),
        compared_with=base,
        why_not=why_not,
        previous=epoch - 1 if epoch > 1 and reader.log.exists(epoch - 1) else None,
        following=epoch + 1 if epoch < head else None,
    )


def _by_name(reader: JobReader, record: pb.CheckpointMetadata) -> dict[tuple[str, str], TableView]:
    tables = [table for entry in record.operators for table in operator_tables(reader, entry)]
    return {(table.operator, table.name): table for table in tables}


@dataclass(frozen=True)
class OperatorView:
    """One operator at one epoch."""

    record: pb.CheckpointMetadata
    entry: pb.OperatorEntry
    tables: tuple[TableView, ...]
    state: StateTotals | None
    subtasks: tuple[SubtaskSummary, ...] = ()

    @property
    def skew(self) -> float | None:
        """Rows of the fullest subtask divided by the mean; 1 if rows are evenly distributed."""
        rows = [subtask.rows for subtask in self.subtasks]
        return max(rows) * len(rows) / sum(rows) if sum(rows) else None


def operator_view(reader: JobReader, operator_id: str, *, epoch: int | None) -> OperatorView:
    """Return an operator at an epoch, by default the newest."""
    record = _record(reader, epoch)
    entry = next((operator for operator in record.operators if operator.operator_id == operator_id), None)
    if entry is None:
        known = list(OperatorNames.of(record).by_id.values())
        raise _unknown(reader, f"epoch {record.epoch} has no operator {operator_id[:200]!r}", "operators", known)
    figures = record.figures if record.HasField("figures") else None
    metadata = reader.subtasks(entry)
    return OperatorView(
        record,
        entry,
        tuple(tables_of(entry, metadata)),
        totals(figures, operator_id),
        tuple(subtasks_in({operator_id: metadata})),
    )


def _record(reader: JobReader, epoch: int | None) -> pb.CheckpointMetadata:
    return reader.newest() if epoch is None else reader.record(epoch)


def table_view(reader: JobReader, operator_id: str, table: str, *, epoch: int | None) -> tuple[OperatorView, TableView]:
    """Return one table of an operator."""
    operator = operator_view(reader, operator_id, epoch=epoch)
    shown = next((view for view in operator.tables if view.name == table), None)
    if shown is None:
        known = [view.name for view in operator.tables]
        raise _unknown(
            reader,
            f"{stored_label(operator_id, operator.entry.definition)} has no table {table[:200]!r}",
            "tables",
            known,
        )
    return operator, shown


def _unknown(reader: JobReader, what: str, kind: str, known: Sequence[str]) -> UnknownTableError:
    return UnknownTableError(
        what, where=reader.log.store.url, fix=f"available {kind}: {', '.join(known) if known else 'none'}"
    )


def shown_epoch(record: pb.CheckpointMetadata) -> int:
    """Return the epoch whose state a record shows."""
    return data_epoch_of(record)


@dataclass(frozen=True)
class HistoryView:
    """Runs, lineages and savepoints of a job."""

    history: History
    runs: tuple[RunSummary, ...]
    """Descending."""
    lineages: tuple[LineageSummary, ...]
    savepoints: tuple[SavepointSummary, ...]


def history_view(reader: JobReader, *, now_us: int) -> HistoryView:
    """Return the newest runs, their lineages and the savepoints."""
    head = reader.newest()
    runs = runs_behind(head, reader.readable, limit=RUNS)
    lineages = lineages_behind(head, reader.readable, runs)
    savepoints = summarise_savepoints(reader.log, head)
    link = addresses.page_path(addresses.EPOCHS, job=reader.log.job_id)
    history = History(tuple(runs), tuple(lineages), tuple(savepoints), link)
    runs = with_reports(runs, reader.runs(now_us=now_us, limit=RUNS))
    return HistoryView(history, tuple(reversed(runs)), tuple(lineages), tuple(savepoints))
