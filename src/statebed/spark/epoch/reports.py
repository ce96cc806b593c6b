"""Reports of subtasks, one each, and their totals for the record and for people."""

import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from statebed.errors import NondeterminismError, StatebedError, SubtaskError
from statebed.flow.clocks import SourceClock
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import Clock, Operator
from statebed.operators.joins.matches import added_up
from statebed.present import notebook, units
from statebed.spark.plan.pieces import FAILED, OBSERVED, REPORT, Piece
from statebed.subtasks import SubtaskReport

Reports = Mapping[str, Sequence[SubtaskReport]]
"""Reports by operator, in the order of subtasks."""


@dataclass(frozen=True)
class OperatorSummary:
    """Work of one operator in an epoch."""

    rows_in: int
    rows_late: int
    rows_out: int
    watermark_us: int | None
    state_rows: int
    state_bytes: int
    state_files: int


@dataclass(frozen=True)
class EpochSummary:
    """Work of one epoch, for people and progress bars.

    >>> from statebed.spark.epoch.reports import OperatorSummary
    >>> counts = OperatorSummary(100, 2, 7, None, state_rows=7, state_bytes=900, state_files=1)
    >>> summary = sb.EpochSummary(epoch=3, batch_id=1, operators={"per_minute": counts}, duration_us=250_000)
    >>> summary.rows_in, summary.rows_late
    (100, 2)
    """

    epoch: int
    batch_id: int | None
    """Batch of the epoch, or None for an epoch without a batch."""
    operators: Mapping[str, OperatorSummary]
    duration_us: int
    preaggregated: bool = False
    """Whether rows were pre-aggregated in the JVM."""
    phases_us: Mapping[str, int] = field(default_factory=dict)
    """Durations of the phases, in this order: planning, read, shuffle, merge, write, commit, publish."""
    figures: pb.EpochFigures = field(default_factory=pb.EpochFigures, repr=False)
    """Figures of its record: tables by tier, memory of hosts, compaction."""
    scanned_rows: tuple[int, ...] = ()
    """Rows of each stream that tasks have read without Spark; empty if Spark has read them."""

    @property
    def rows_in(self) -> int:
        return sum(operator.rows_in for operator in self.operators.values())

    @property
    def rows_late(self) -> int:
        return sum(operator.rows_late for operator in self.operators.values())

    @property
    def rows_out(self) -> int:
        return sum(operator.rows_out for operator in self.operators.values())

    @property
    def state_rows(self) -> int:
        return sum(operator.state_rows for operator in self.operators.values())

    @property
    def state_bytes(self) -> int:
        return sum(operator.state_bytes for operator in self.operators.values())

    @property
    def state_files(self) -> int:
        return sum(operator.state_files for operator in self.operators.values())

    @property
    def watermark_us(self) -> int | None:
        """Minimum watermark of all operators, or None while one has none."""
        marks = [operator.watermark_us for operator in self.operators.values()]
        known = [mark for mark in marks if mark is not None]
        return min(known) if known and len(known) == len(marks) else None

    def _repr_html_(self) -> str:
        batch = "no batch" if self.batch_id is None else f"batch {self.batch_id}"
        title = f"epoch {self.epoch}, {batch}, {units.duration(self.duration_us)}"
        rows = [
            (
                name,
                summary.rows_in,
                summary.rows_late,
                summary.rows_out,
                notebook.moment(summary.watermark_us),
                summary.state_rows,
                units.size(summary.state_bytes),
                summary.state_files,
            )
            for name, summary in self.operators.items()
        ]
        columns = ["operator", "rows in", "late", "out", "watermark", "state rows", "state", "files"]
        return notebook.block(title, notebook.phase_bar(self.phases_us), notebook.table(columns, rows))


@dataclass(frozen=True)
class AcceptedReports:
    """Reports of an epoch."""

    reports: Reports
    seen: Mapping[str, int]
    """Maximum event time of each source that had rows."""
    observed_ms: Mapping[str, int]
    """Greatest event time at each watermark of Spark's clock, if tasks have read the rows themselves."""


def accepted(pieces: Iterable[Piece], *, operators: Mapping[str, str], parallelism: int) -> AcceptedReports:
    """Collect exactly one report per operator and subtask, and raise what a subtask raised.

    `operators` has the label of each operator by its id.
    """
    by_subtask: dict[tuple[str, int], SubtaskReport] = {}
    seen: dict[str, int] = {}
    observed_ms: dict[str, int] = {}
    failures: list[StatebedError] = []
    for _, branch, data in pieces:
        payload = bytes(data)
        if branch == FAILED:
            failures.append(_shipped_error(payload))
        elif branch == REPORT:
            _take(by_subtask, SubtaskReport.from_bytes(payload), operators)
        else:
            times = observed_ms if branch == OBSERVED else seen
            for name, latest in msgspec.msgpack.decode(payload, type=dict[str, int]).items():
                times[name] = max(latest, times.get(name, latest))
    if failures:
        raise failures[0]
    wanted = {(name, index) for name in operators for index in range(parallelism)}
    missing, surplus = sorted(wanted - set(by_subtask)), sorted(set(by_subtask) - wanted)
    if missing or surplus:
        raise SubtaskError(
            f"of {len(wanted)} subtasks, {_listed(missing, operators)} did not report, and "
            f"{_listed(surplus, operators)} should not exist",
            where=", ".join(operators.values()),
            fix="start the job again; if the error returns, report it with the Spark version",
        )
    reports = {name: [by_subtask[name, index] for index in range(parallelism)] for name in operators}
    return AcceptedReports(reports, seen, observed_ms)


def _listed(subtasks: Sequence[tuple[str, int]], labels: Mapping[str, str]) -> str:
    return "; ".join(f"subtask {index} of {labels.get(name, name)}" for name, index in subtasks) or "none"


def _take(by_subtask: dict[tuple[str, int], SubtaskReport], report: SubtaskReport, labels: Mapping[str, str]) -> None:
    other = by_subtask.setdefault((report.operator_id, report.subtask_index), report)
    if other.reference != report.reference or other.outbox != report.outbox:
        raise NondeterminismError(
            f"two attempts at subtask {report.subtask_index} returned different results",
            where=f"{labels.get(report.operator_id, report.operator_id)}: "
            f"{other.reference.path} and {report.reference.path}",
            fix="look for functions that are not deterministic, such as a Python UDF that reads a clock",
        )


def operator_entry(record: pb.CheckpointMetadata, operator_id: str) -> pb.OperatorEntry:
    """Return the operator's entry in the record, or an empty one."""
    entries = [entry for entry in record.operators if entry.operator_id == operator_id]
    return entries[0] if entries else pb.OperatorEntry(operator_id=operator_id)


def watermarks_of(record: pb.CheckpointMetadata) -> dict[str, int | None]:
    """Return the watermark of each operator in the record's epoch."""
    marks: dict[str, int | None] = {}
    for entry in record.operators:
        known = [input_.watermark_us for input_ in entry.inputs if input_.HasField("watermark_us")]
        marks[entry.operator_id] = known[0] if known else None
    return marks


def source_clocks_of(record: pb.CheckpointMetadata) -> dict[str, SourceClock]:
    """Return the clock of each source in the record's epoch."""
    return {
        source.source: SourceClock(
            source.watermark_us if source.HasField("watermark_us") else None,
            source.max_event_time_us if source.HasField("max_event_time_us") else None,
            source.last_rows_us if source.HasField("last_rows_us") else None,
        )
        for source in record.sources
    }


def new_entry(
    operator: Operator,
    reports: Sequence[SubtaskReport],
    clock: Clock,
    *,
    origins: Sequence[Sequence[str]],
    parallelism: int,
    before: pb.OperatorEntry | None = None,
    drained: bool = False,
) -> pb.OperatorEntry:
    """Build the operator's entry in the epoch's record.

    `origins` are the names that each of its inputs reads; `before` is its entry in the previous record.
    """
    counted = [report.matches for report in reports if report.matches is not None]
    if counted and before is not None and before.HasField("matches"):
        counted.append(before.matches)
    mark = clock.watermark_us
    timers = [report.next_timer_us for report in reports if report.next_timer_us is not None]
    return pb.OperatorEntry(
        operator_id=operator.operator_id,
        fingerprint=operator.definition.fingerprint,
        definition=operator.definition.described,
        parallelism=parallelism,
        subtasks=[report.reference for report in reports],
        inputs=[
            pb.InputWatermark(input=input_.name, late_us=clock.late_us, watermark_us=mark, origins=names)
            for input_, names in zip(operator.inputs, origins, strict=True)
        ],
        output_watermark_us=None if mark is None else operator.output_watermark(mark),
        highest_closed_end_us=mark if drained else None,
        rows_in=sum(report.rows_in for report in reports),
        rows_late=sum(report.rows_late for report in reports),
        rows_out=sum(report.rows_out for report in reports),
        next_timer_us=min(timers, default=None),
        matches=added_up(counted),
    )


def timer_is_due(record: pb.CheckpointMetadata, now_us: int) -> bool:
    """Return whether a processing-time timer is due."""
    return any(
        entry.HasField("next_timer_us") and entry.next_timer_us <= now_us and not entry.retired
        for entry in record.operators
    )


def operator_summary(reports: Sequence[SubtaskReport], clock: Clock) -> OperatorSummary:
    """Summarise one operator."""
    return OperatorSummary(
        rows_in=sum(report.rows_in for report in reports),
        rows_late=sum(report.rows_late for report in reports),
        rows_out=sum(report.rows_out for report in reports),
        watermark_us=clock.watermark_us,
        state_rows=sum(report.state_rows for report in reports),
        state_bytes=sum(report.state_bytes for report in reports),
        state_files=sum(report.state_files for report in reports),
    )


def _shipped_error(data: bytes) -> StatebedError:
    error = pickle.loads(data)  # noqa: S301 - made by our own subtask, over Spark's own channel
    return error if isinstance(error, StatebedError) else SubtaskError(f"a subtask sent {error!r} instead of a report")
