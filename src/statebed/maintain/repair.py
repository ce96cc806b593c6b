"""Repair: which epoch a damaged job can go on from, what is lost by that, and the fork to it.

Everything is verified first, byte by byte: a run checks data files by their sizes alone when it opens. The plan says
what is lost and changes nothing; carrying it out is one record, a run_start that builds on the intact epoch. Input
after that epoch is read again, and sinks that remember what they have take back what came of it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from statebed.checkpoint import CheckpointLog, DamagePolicy, Origin, RollbackPolicy
from statebed.checkpoint.open_run import markers, markers_in_folder
from statebed.errors import NothingIntactError, ProtocolError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification import Finding, ObjectKind, Trouble, Verification
from statebed.inspect.verification.log_check import newest_record
from statebed.maintain.tool_runs import CommittedChange, Through, end_run, own_run
from statebed.protocol.records import data_epoch_of


@dataclass(frozen=True)
class RepairPlan:
    """What a repair would do."""

    needed: bool
    """False: the job goes on from its newest epoch as it is."""
    head: int
    """The newest record that could be read."""
    base: int = 0
    """The epoch to go on from."""
    savepoint: str | None = None
    """The base, where no epoch is whole but this savepoint is."""
    at_head: bool = False
    """The base is what the newest readable record shows."""
    lost: tuple[int, ...] = ()
    """Epochs whose work is done again from the input, as far as the source still has it."""
    lost_rows: int | None = 0
    """Rows that operators read in them, by their records; None: a record cannot be read."""
    published: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Of the lost epochs those that sinks have, with these sinks."""
    forgotten: tuple[int, ...] = ()
    """Epochs that can no longer be read as of then: the log has a gap above them."""
    remaining: tuple[Finding, ...] = ()
    """Damage that stays, because the job does not need what is damaged."""


def plan_repair(log: CheckpointLog, verification: Verification) -> RepairPlan:
    """What is to be done about what a verification of the whole job found."""
    records = {number: record for number in verification.epochs if (record := log.observe(number).record) is not None}
    if not records:
        raise _nothing_intact(log, verification)
    head = records[max(records)]
    gaps = [
        number
        for finding in verification.findings
        if finding.kind is ObjectKind.RECORD and finding.trouble is Trouble.MISSING
        for number in finding.epochs
    ]
    unpublished = _unpublishable(log, verification, records)
    for record in _candidates(records, head):
        troubles = [one for one in verification.troubles_of(record.epoch) if one.kind is not ObjectKind.OUTBOX]
        if troubles or any(number in unpublished for number in _chain(records, record)):
            continue
        return _plan_for(log, verification, records, record, gaps=gaps)
    for pin in sorted(head.pins, key=lambda one: -int(one.epoch)):
        if not verification.troubles_of_savepoint(pin.savepoint):
            base = log.savepoint(pin)
            return _plan_for(log, verification, records, base, gaps=gaps, savepoint=pin.savepoint)
    raise _nothing_intact(log, verification)


def repair(log: CheckpointLog, plan: RepairPlan) -> CommittedChange | None:
    """Fork to the base of the plan, and fence every run; None where there is nothing to do.

    Refused when the job has moved on since: newer epochs may need what is damaged no more.
    """
    if not plan.needed:
        return None
    newest = newest_record(log)
    if newest is not None and newest.epoch != plan.head:
        raise ProtocolError(
            f"the job has moved on from record {plan.head} to {newest.epoch} since it was verified",
            where=f"job {log.job_id}, {log.store.url}",
            fix="stop it (`statebed stop`), and repair it then",
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
        remaining=tuple(one for one in verification.findings if base.epoch not in one.epochs),
    )


def _candidates(
    records: Mapping[int, pb.CheckpointMetadata], head: pb.CheckpointMetadata
) -> Iterator[pb.CheckpointMetadata]:
    """Records to go on from, the best first: the head, what led to it, then others, its lineage first."""
    yield head
    chain = list(_chain(records, head))
    yield from (records[number] for number in chain if number != head.epoch)
    others = [
        one for number, one in records.items() if number not in chain and one is not head and one.kind == pb.EPOCH
    ]
    yield from sorted(others, key=lambda one: (one.lineage != head.lineage, -one.epoch))


def _chain(records: Mapping[int, pb.CheckpointMetadata], record: pb.CheckpointMetadata) -> Iterator[int]:
    """The data epochs that lead to a record, newest first."""
    epoch = data_epoch_of(record)
    while epoch in records:
        yield epoch
        epoch = records[epoch].base


def _unpublishable(
    log: CheckpointLog, verification: Verification, records: Mapping[int, pb.CheckpointMetadata]
) -> set[int]:
    """Epochs that a sink waits for, and whose output is damaged: it must be made again."""
    outbox = [one for one in verification.findings if one.kind is ObjectKind.OUTBOX]
    damaged = {number for one in outbox for number in one.epochs if number in records}
    return {
        number
        for number in damaged
        if {sink.sink_id for sink in records[number].sinks} - set(markers(log, records[number]))
    }


def _nothing_intact(log: CheckpointLog, verification: Verification) -> NothingIntactError:
    return NothingIntactError(
        f"no epoch and no savepoint of the job is whole: {len(verification.findings)} objects are damaged or missing",
        where=f"job {log.job_id}, {log.store.url}",
        fix="restore the objects that `statebed verify` names from a backup, or begin anew under another job name",
    )
