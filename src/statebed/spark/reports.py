"""What subtasks report, and what an epoch makes of it: one report each, summed for the record and for people."""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from statebed.errors import NondeterminismError, StatebedError, SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.operators import SubtaskReport
from statebed.spark.plan import JobPlan
from statebed.spark.watermark import Watermark


@dataclass(frozen=True)
class EpochSummary:
    """What one epoch did, for people and progress bars."""

    epoch: int
    batch_id: int | None
    """None: an epoch without a batch."""
    rows_in: int
    rows_late: int
    rows_out: int
    watermark_us: int | None
    state_rows: int
    state_bytes: int
    state_files: int
    duration_us: int


def accepted(rows: Iterable[Any], *, operator_id: str, parallelism: int) -> list[SubtaskReport]:
    """Exactly one report per subtask, in their order; what a subtask raised is raised here."""
    found: dict[int, SubtaskReport] = {}
    for row in rows:
        if row["error"] is not None:
            raise _shipped_error(bytes(row["error"]))
        report = SubtaskReport.from_bytes(bytes(row["report"]))
        other = found.setdefault(report.subtask_index, report)
        if other.reference != report.reference or other.outbox != report.outbox:
            raise NondeterminismError(
                f"two attempts at subtask {report.subtask_index} gave different results",
                where=f"operator {operator_id}: {other.reference.path} and {report.reference.path}",
                fix="look for functions that are not deterministic, such as a Python UDF that reads a clock",
            )
    missing = sorted(set(range(parallelism)) - set(found))
    surplus = sorted(set(found) - set(range(parallelism)))
    if missing or surplus:
        raise SubtaskError(
            f"of {parallelism} subtasks, {missing or 'none'} did not report, and {surplus or 'none'} should not exist",
            where=f"operator {operator_id}",
            fix="start the job again; if it happens again, report it with the Spark version",
        )
    return [found[index] for index in range(parallelism)]


def operator_entry(record: pb.CheckpointMetadata, operator_id: str) -> pb.OperatorEntry:
    """The operator's entry in the record; an empty one where the record has none."""
    found = [entry for entry in record.operators if entry.operator_id == operator_id]
    return found[0] if found else pb.OperatorEntry(operator_id=operator_id)


def watermark_of(entry: pb.OperatorEntry) -> Watermark:
    """The operator's watermark; it has one input."""
    return Watermark.of(entry.inputs[0]) if entry.inputs else Watermark()


def new_entry(
    plan: JobPlan, reports: Sequence[SubtaskReport], mark: Watermark, *, drained: bool = False
) -> pb.OperatorEntry:
    """The operator's entry in the epoch's record."""
    output_watermark_us = None
    if mark.watermark_us is not None:
        output_watermark_us = plan.operator.output_watermark(mark.watermark_us)
    return pb.OperatorEntry(
        operator_id=plan.operator.operator_id,
        fingerprint=plan.operator.fingerprint,
        parallelism=plan.parallelism,
        subtasks=[report.reference for report in reports],
        inputs=[mark.entry(plan.source)],
        output_watermark_us=output_watermark_us,
        highest_closed_end_us=mark.watermark_us if drained else None,
        rows_in=sum(report.rows_in for report in reports),
        rows_late=sum(report.rows_late for report in reports),
        rows_out=sum(report.rows_out for report in reports),
    )


def summary(
    record: pb.CheckpointMetadata,
    *,
    batch_id: int | None,
    reports: Sequence[SubtaskReport],
    mark: Watermark,
    duration_us: int,
) -> EpochSummary:
    """The epoch in figures."""
    return EpochSummary(
        epoch=record.epoch,
        batch_id=batch_id,
        rows_in=sum(report.rows_in for report in reports),
        rows_late=sum(report.rows_late for report in reports),
        rows_out=sum(report.rows_out for report in reports),
        watermark_us=mark.watermark_us,
        state_rows=sum(report.state_rows for report in reports),
        state_bytes=sum(report.state_bytes for report in reports),
        state_files=sum(report.state_files for report in reports),
        duration_us=duration_us,
    )


def _shipped_error(data: bytes) -> StatebedError:
    error = pickle.loads(data)  # noqa: S301 - made by our own subtask, over Spark's own channel
    return error if isinstance(error, StatebedError) else SubtaskError(f"a subtask sent {error!r} instead of a report")
