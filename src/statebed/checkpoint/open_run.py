"""Preparation of a run: reads the end of the log and its retained records, chooses the base and checks that it is
intact.

Nothing is written here. Everything that can prevent a run from opening is detected here, before the first write.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import check_present
from statebed.checkpoint.references import References
from statebed.errors import BrokenLogError, FormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.protocol.base_choice import (
    DamagePolicy,
    LogSlot,
    Origin,
    Recovery,
    RollbackPolicy,
    SkippedRecord,
    abandoned_epochs,
    check_readable,
    check_rollback,
    resolve_epoch,
    resolve_savepoint,
)
from statebed.protocol.records import data_epoch_of
from statebed.protocol.retention import Retention


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: what it starts from and what it retains.

    >>> sb.RunOptions(retention=sb.Retention(epochs=100)).retention.epochs
    100
    """

    origin: Origin = field(default_factory=Origin)
    retention: Retention = field(default_factory=Retention)
    damage: DamagePolicy = DamagePolicy.REFUSE
    rollback: RollbackPolicy = RollbackPolicy.REFUSE
    only_after: int | None = None
    """Open only if this is the number of the newest record, so that a run started since is not fenced."""


@dataclass(frozen=True)
class Opening:
    """Facts from which a run_start record is built."""

    recovery: Recovery
    base: pb.CheckpointMetadata | None
    fork: bool
    view: dict[int, pb.CheckpointMetadata]
    """Existing records by number: the retained ones, and older ones that are not cleaned up yet."""
    damaged: frozenset[int]
    """Numbers of unreadable records."""
    min_epoch: int = 1
    """First retained number: after a fall-back, the one above the missing record."""


def prepare_opening(log: CheckpointLog, references: References, options: RunOptions) -> Opening:
    """Read the log and choose the base."""
    recovery = log.recover(options.damage, proofs=True)
    check_readable(recovery, job_id=log.job_id, policy=options.damage)
    view, damaged, gap = _read_view(log, recovery, options.damage)
    base, skipped = _choose_base(log, references, recovery, view, options)
    recovery = replace(recovery, skipped=recovery.skipped + skipped)
    fork = _is_fork(recovery, base)
    if fork and recovery.head is not None and base is not None:
        kept = {data_epoch_of(base), *walk_chain(view, base)}
        abandoned = abandoned_epochs(list(walk_chain(view, recovery.head)), kept=kept)
        published = {epoch: markers(log, view[epoch]) for epoch in abandoned}
        for number in range(recovery.head.epoch + 1, recovery.last_number + 1):
            published[number] = markers_in_folder(log, number)
        check_rollback(published, base=data_epoch_of(base), job_id=log.job_id, policy=options.rollback)
    return Opening(recovery, base, fork, view, damaged, min_epoch=gap + 1)


def _read_view(
    log: CheckpointLog, recovery: Recovery, damage: DamagePolicy
) -> tuple[dict[int, pb.CheckpointMetadata], frozenset[int], int]:
    """Return the existing records, the unreadable numbers, and the highest retained number without a record (0 if
    none).

    Older records that readers may still use are included. A gap is an error unless the policy is to fall back.
    """
    if recovery.head is None:
        return {}, frozenset(), 0
    view = {recovery.head.epoch: recovery.head}
    damaged = set(range(recovery.head.epoch + 1, recovery.last_number + 1)) - set(recovery.lost)
    gap = 0
    for number in range(recovery.head.epoch - 1, 0, -1):
        observation = log.observe(number)
        if observation.slot is LogSlot.NOTHING:
            if number < recovery.head.min_epoch:
                break
            gap = gap or number
        elif observation.record is None:
            damaged.add(number)
        else:
            view[number] = observation.record
    # If the log has advanced since, retained records may be missing; this opening then finds its number taken.
    moved = gap and (log.exists(recovery.last_number + 1) or not log.exists(recovery.last_number))
    if gap and not moved and damage is DamagePolicy.REFUSE:
        raise BrokenLogError(
            f"record {gap} is missing, although it is retained",
            where=f"job {log.job_id}, {log.store.url}/{names.record(gap)}",
            fix="it was removed by something other than statebed; restore it from a backup, or see `statebed repair`",
        )
    return view, frozenset(damaged), 0 if moved else gap


def walk_chain(view: dict[int, pb.CheckpointMetadata], record: pb.CheckpointMetadata | None) -> Iterator[int]:
    """Yield the data epochs in view that lead to `record`, newest first."""
    epoch = data_epoch_of(record) if record else 0
    while epoch in view:
        yield epoch
        epoch = view[epoch].base


def markers(log: CheckpointLog, record: pb.CheckpointMetadata) -> list[str]:
    """Return the sinks that have a published marker for the record's epoch."""
    sinks = [entry.sink_id for entry in record.sinks]
    return [sink for sink in sinks if log.store.head(names.published(record.epoch, sink)) is not None]


def markers_in_folder(log: CheckpointLog, epoch: int) -> list[str]:
    """Return the sinks with a published marker for an epoch whose record cannot be read."""
    listed = log.store.list_level(names.epoch_folder(epoch)).objects
    return [sink for info in listed if (sink := names.sink_of_marker(info.path)) is not None]


def check_intact(log: CheckpointLog, references: References, record: pb.CheckpointMetadata) -> None:
    """Check that everything the record refers to exists. Metadata is read and verified, files are checked by size."""
    _check_intact(log, references, record, passed_over=frozenset())


def _check_base(log: CheckpointLog, references: References, record: pb.CheckpointMetadata) -> None:
    """Check a base in the same way, except for output that all its sinks already have."""
    wanted = {sink.sink_id for sink in record.sinks}
    published = bool(wanted) and wanted <= set(markers(log, record))
    passed_over = frozenset(file.path for file in record.outbox) if published else frozenset()
    _check_intact(log, references, record, passed_over=passed_over)


def _check_intact(
    log: CheckpointLog, references: References, record: pb.CheckpointMetadata, *, passed_over: frozenset[str]
) -> None:
    references.prefetch([record])
    named = references.of(record)
    done = named.metadata | passed_over
    check_present(log.store, [(path, size) for path, size in named.sizes.items() if path not in done])


def _choose_base(
    log: CheckpointLog,
    references: References,
    recovery: Recovery,
    view: dict[int, pb.CheckpointMetadata],
    options: RunOptions,
) -> tuple[pb.CheckpointMetadata | None, tuple[SkippedRecord, ...]]:
    wanted = _wanted_base(log, recovery, options.origin)
    if wanted is None:
        return None, ()
    try:
        _check_base(log, references, wanted)
    except FormatError as error:
        if options.damage is DamagePolicy.REFUSE or options.origin.savepoint:
            raise
        retained = {number: record for number, record in view.items() if number >= recovery.min_epoch}
        return _fall_back(log, references, retained, wanted, error)
    return wanted, ()


def _wanted_base(log: CheckpointLog, recovery: Recovery, origin: Origin) -> pb.CheckpointMetadata | None:
    if origin.savepoint is not None:
        return log.savepoint(resolve_savepoint(recovery, origin.savepoint, job_id=log.job_id))
    if origin.epoch is not None:
        return log.read(resolve_epoch(recovery, origin.epoch, job_id=log.job_id))
    return recovery.head


def _fall_back(
    log: CheckpointLog,
    references: References,
    view: dict[int, pb.CheckpointMetadata],
    wanted: pb.CheckpointMetadata,
    error: FormatError,
) -> tuple[pb.CheckpointMetadata, tuple[SkippedRecord, ...]]:
    skipped = [SkippedRecord(wanted.epoch, f"{error.what} ({error.where})")]
    candidates: Collection[int] = [epoch for epoch in walk_chain(view, wanted) if epoch != wanted.epoch]
    for epoch in candidates:
        try:
            _check_base(log, references, view[epoch])
        except FormatError as problem:
            skipped.append(SkippedRecord(epoch, f"{problem.what} ({problem.where})"))
            continue
        return view[epoch], tuple(skipped)
    raise error


def _is_fork(recovery: Recovery, base: pb.CheckpointMetadata | None) -> bool:
    head = recovery.head
    if head is None or base is None:
        return False
    return recovery.damaged or data_epoch_of(base) != data_epoch_of(head)
