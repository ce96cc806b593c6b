"""Repair of a damaged job: finds the epoch from which it can resume, reports what is lost, and forks to that epoch.

The whole job is verified first, byte by byte; a run checks only the sizes of data files when it opens. Making the plan
changes nothing. Carrying it out commits one record: a run_start that builds on the intact epoch. Input after that epoch
is read again, and sinks that store their position roll back the lost epochs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statebed.checkpoint import CheckpointLog, DamagePolicy, Origin, RollbackPolicy
from statebed.checkpoint.open_run import markers, markers_in_folder
from statebed.errors import NothingIntactError, ProtocolError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification import DamageKind, Finding, ObjectKind, Verification
from statebed.inspect.verification.log_check import newest_record
from statebed.maintain.tool_runs import CommittedChange, Through, end_run, own_run
from statebed.protocol.records import data_epoch_of


@dataclass(frozen=True)
class RepairPlan:
    """Effects of a repair."""

    needed: bool
    """Whether a repair is needed; if not, the job can resume from its newest epoch."""
    head: int
    """Newest readable record."""
    base: int = 0
    """Epoch to resume from."""
    savepoint: str | None = None
    """Savepoint to resume from if no epoch is intact, else None."""
    at_head: bool = False
    """Whether the base is the state of the newest readable record."""
    lost: tuple[int, ...] = ()
    """Epochs that are lost and processed again from the input, if the source still has it."""
    lost_rows: int | None = 0
    """Rows that operators read in the lost epochs, or None if one of their records cannot be read."""
    published: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Lost epochs that were already published, with their sinks."""
    forgotten: tuple[int, ...] = ()
    """Epochs that can no longer be read because they are older than a gap in the log."""
    remaining: tuple[Finding, ...] = ()
    """Damage that is left alone because the job does not need the damaged objects."""


def plan_repair(log: CheckpointLog, verification: Verification) -> RepairPlan:
    """Plan the repair of what a verification of the whole job found."""
    records = {number: record for number in verification.epochs if (record := log.observe(number).record) is not None}
    if not records:
        raise _nothing_intact(log, verification)
    head = records[max(records)]
    gaps = [
        number
        for finding in verification.findings
        if finding.kind is ObjectKind.RECORD and finding.trouble is DamageKind.MISSING
        for number in finding.epochs
    ]
    unpublished = _unpublishable(log, verification, records)
    for record in _candidates(records, head):
        troubles = [
            finding for finding in verification.findings_of(record.epoch) if finding.kind is not ObjectKind.OUTBOX
        ]
        if troubles or any(number in unpublished for number in _chain(records, record)):
            continue
        return _plan_for(log, verification, records, record, gaps=gaps)
    for pin in sorted(head.pins, key=lambda savepoint: -int(savepoint.epoch)):
        if not verification.findings_of_savepoint(pin.savepoint):
            base = log.savepoint(pin)
            return _plan_for(log, verification, records, base, gaps=gaps, savepoint=pin.savepoint)
    raise _nothing_intact(log, verification)


def repair(log: CheckpointLog, plan: RepairPlan) -> CommittedChange | None:
    """Fork to the base of the plan and fence every run. Return None if there is nothing to do.

    Raise ProtocolError if the job has committed since it was verified: newer epochs may no longer need the damaged
    objects.
    """
    if not plan.needed:
        return None
    newest = newest_record(log)
    if newest is not None and newest.epoch != plan.head:
        raise ProtocolError(
            f"the job has advanced from record {plan.head} to {newest.epoch} since it was verified",
            where=f"job {log.job_id}, {log.store.url}",
            fix="stop the job (`statebed stop`), then repair it",
        )
    origin = Origin(savepoint=plan.savepoint, epoch=None if plan.savepoint or plan.at_head else plan.base)
    run = own_run(log, origin=origin, damage=DamagePolicy.FALL_BACK, rollback=RollbackPolicy.ALLOW)
    end_run(run)
    return CommittedChange(run.number, run.number, Through.OWN_RUN)


def _plan_for(
    log: CheckpointLog,
    verification: Verification,
    records: Mapping[int, pb.CheckpointMetadata],
    base: pb.CheckpointMetadata,
    *,
    gaps: list[int],
    savepoint: str | None = None,
) -> RepairPlan:
    head = records[max(records)]
    newer = [number for finding in verification.findings for number in finding.epochs if number > head.epoch]
    unreadable = sorted({number for number in newer if number not in records})
    abandoned = [number for number in _chain(records, head) if number not in set(_chain(records, base))]
    damaged = [
        number
        for finding in verification.findings
        if finding.kind is ObjectKind.RECORD
        for number in finding.epochs
        if data_epoch_of(base) < number < head.epoch
    ]
    at_head = base is head
    lost = tuple(sorted({*unreadable, *(() if at_head else (*abandoned, *damaged))}))
    published = {
        number: tuple(markers(log, records[number]) if number in records else markers_in_folder(log, number))
        for number in lost
    }
    rows = sum(operator.rows_in for number in lost if number in records for operator in records[number].operators)
    return RepairPlan(
        needed=not at_head or bool(lost) or bool(gaps),
        head=int(head.epoch),
        base=data_epoch_of(base),
        savepoint=savepoint,
        at_head=at_head,
        lost=lost,
        lost_rows=None if any(number not in records for number in lost) else rows,
        published={number: sinks for number, sinks in published.items() if sinks},
        forgotten=tuple(number for number in sorted(records) if gaps and number < max(gaps)),
        remaining=tuple(finding for finding in verification.findings if base.epoch not in finding.epochs),
    )


def _candidates(
    records: Mapping[int, pb.CheckpointMetadata], head: pb.CheckpointMetadata
) -> Iterator[pb.CheckpointMetadata]:
    """Yield the records to resume from, the best first: the head, its ancestors, then others, its lineage first."""
    yield head
    chain = list(_chain(records, head))
    yield from (records[number] for number in chain if number != head.epoch)
    others = [
        record
        for number, record in records.items()
        if number not in chain and record is not head and record.kind == pb.EPOCH
    ]
    yield from sorted(others, key=lambda record: (record.lineage != head.lineage, -record.epoch))


def _chain(records: Mapping[int, pb.CheckpointMetadata], record: pb.CheckpointMetadata) -> Iterator[int]:
    """Yield the data epochs that lead to a record, newest first."""
    epoch = data_epoch_of(record)
    while epoch in records:
        yield epoch
        epoch = records[epoch].base


def _unpublishable(
    log: CheckpointLog, verification: Verification, records: Mapping[int, pb.CheckpointMetadata]
) -> set[int]:
    """Return the epochs that a sink has not published yet and whose output is damaged. They must be processed again."""
    outbox = [finding for finding in verification.findings if finding.kind is ObjectKind.OUTBOX]
    damaged = {number for finding in outbox for number in finding.epochs if number in records}
    return {
        number
        for number in damaged
        if {sink.sink_id for sink in records[number].sinks} - set(markers(log, records[number]))
    }


def _nothing_intact(log: CheckpointLog, verification: Verification) -> NothingIntactError:
    return NothingIntactError(
        f"no epoch and no savepoint of the job is intact: {len(verification.findings)} objects are damaged or missing",
        where=f"job {log.job_id}, {log.store.url}",
        fix="restore the objects listed by `statebed verify` from a backup, or start again under another job name",
    )
