"""Choice of the base of a new run: the head of the log, the epoch to build on, and what was skipped and why.

The caller reads the facts (which numbers have a folder, what their records contain) and passes them in; nothing here
does I/O. Damage is never skipped silently: a run does not open on an unreadable head unless falling back was requested,
and then it is a fork like any other.
"""

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from statebed.errors import (
    BrokenLogError,
    CorruptRecordError,
    EpochNotRetainedError,
    JobNotFoundError,
    RollbackError,
    SavepointError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.records import data_epoch_of


class LogSlot(enum.Enum):
    """State of one number of the log."""

    RECORD = "record"
    NOTHING = "nothing"
    DAMAGE = "damage"
    LOST = "lost"
    """There is no record, but an object exists that is only written after the record was committed."""


@dataclass(frozen=True)
class Observation:
    """One number of the log, as read from the store."""

    epoch: int
    slot: LogSlot
    record: pb.CheckpointMetadata | None = None
    problem: str = ""


@dataclass(frozen=True)
class SkippedRecord:
    """A number that recovery skipped, and why."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Recovery:
    """End of the log: its last number, the newest readable record, and the numbers skipped above it."""

    last_number: int
    head: pb.CheckpointMetadata | None
    skipped: tuple[SkippedRecord, ...]
    lost: tuple[int, ...] = ()
    """Numbers above the head whose committed records are missing, ascending."""

    @property
    def next_number(self) -> int:
        """Number of the next run_start. Lost numbers are used first, so that no later start finds a gap."""
        return self.lost[0] if self.lost else self.last_number + 1

    @property
    def min_epoch(self) -> int:
        return self.head.min_epoch if self.head else 1

    @property
    def damaged(self) -> bool:
        """Whether the record at the last number is unreadable or lost."""
        return self.last_number > 0 and (self.head is None or self.head.epoch != self.last_number)


class DamagePolicy(enum.Enum):
    """Whether to refuse or to fall back when a run opens and the newest epoch is damaged.

    >>> sb.RunOptions(damage=sb.DamagePolicy.FALL_BACK).damage.value
    'fall back'
    """

    REFUSE = "refuse"
    FALL_BACK = "fall back"


class RollbackPolicy(enum.Enum):
    """Whether to refuse or to allow a fork that abandons epochs which sinks already have.

    >>> sb.RunOptions(rollback=sb.RollbackPolicy.ALLOW).rollback.value
    'allow'
    """

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True)
class Origin:
    """Starting point of a run: a retained epoch, a savepoint, or the head if neither is set.

    >>> sb.Origin(savepoint="before-upgrade").is_head
    False
    """

    epoch: int | None = None
    savepoint: str | None = None

    @property
    def is_head(self) -> bool:
        return self.epoch is None and self.savepoint is None


def recover(observations: Sequence[Observation]) -> Recovery:
    """Return the head of the log. `observations` are in descending order and end at the first readable record."""
    skipped: list[SkippedRecord] = []
    lost: list[int] = []
    last_number = 0
    for observation in observations:
        if observation.slot is LogSlot.NOTHING:
            skipped.append(SkippedRecord(observation.epoch, "no record: an epoch that was started and never committed"))
            continue
        last_number = last_number or observation.epoch
        if observation.slot is LogSlot.RECORD:
            return Recovery(last_number, observation.record, tuple(skipped), tuple(reversed(lost)))
        if observation.slot is LogSlot.LOST:
            lost.append(observation.epoch)
        skipped.append(SkippedRecord(observation.epoch, observation.problem))
    return Recovery(last_number, None, tuple(skipped), tuple(reversed(lost)))


def check_readable(recovery: Recovery, *, job_id: str, policy: DamagePolicy) -> None:
    """Raise CorruptRecordError if the head is damaged, unless the policy is to fall back and an older record is
    readable.
    """
    if not recovery.damaged:
        return
    reasons = "; ".join(f"{skip.epoch}: {skip.reason}" for skip in recovery.skipped)
    if recovery.head is None:
        raise CorruptRecordError(
            "no record of this job can be read",
            where=f"job {job_id}: {reasons}",
            fix="restore the records from a backup",
        )
    if policy is DamagePolicy.REFUSE:
        trouble = "was committed but is missing" if recovery.last_number in recovery.lost else "cannot be read"
        raise CorruptRecordError(
            f"the newest record, {recovery.last_number}, {trouble}",
            where=f"job {job_id}: {reasons}",
            fix=f"restore it from a backup, or fall back to an older intact epoch (a fork; the work after epoch "
            f"{data_epoch_of(recovery.head)} is lost): `statebed repair`, or RunOptions(damage=DamagePolicy.FALL_BACK)",
        )


def check_unbroken(head: pb.CheckpointMetadata, *, previous_exists: bool, last_look: bool) -> bool:
    """Return whether the head's predecessor exists; raise BrokenLogError if it does not and `last_look` is set.

    Clean-up never deletes the head's predecessor, so if it is missing, something other than statebed removed it.
    """
    if not previous_exists and last_look:
        raise BrokenLogError(
            f"record {head.epoch - 1}, the one before the head, is missing",
            where=f"job {head.job_id}, head {head.epoch}",
            fix="it was removed by something other than statebed; restore it from a backup, or see `statebed repair`",
        )
    return previous_exists


def resolve_epoch(recovery: Recovery, epoch: int, *, job_id: str) -> int:
    """Return `epoch` if it can be restored; raise otherwise."""
    if recovery.head is None:
        raise JobNotFoundError(f"job {job_id} has no epoch to restore", fix="start it without an epoch")
    lowest = recovery.head.min_epoch
    if not lowest <= epoch <= recovery.last_number:
        raise EpochNotRetainedError(
            f"epoch {epoch} cannot be restored: the retained epochs are {lowest} to {recovery.last_number}",
            where=f"job {job_id}",
            fix="choose one of these (`statebed ls` lists them), or a savepoint",
        )
    return epoch


def resolve_savepoint(recovery: Recovery, name: str, *, job_id: str) -> pb.Pin:
    """Return the pin of the savepoint `name` from the head; raise SavepointError if there is none."""
    pins = recovery.head.pins if recovery.head else ()
    for pin in pins:
        if pin.savepoint == name:
            return pin
    known = ", ".join(sorted(pin.savepoint for pin in pins)) or "none"
    raise SavepointError(f"there is no savepoint {name!r}", where=f"job {job_id}; savepoints: {known}")


def abandoned_epochs(chain: Collection[int], *, kept: Collection[int]) -> list[int]:
    """Return the data epochs of the current lineage that a fork abandons, oldest first.

    `kept` are the epochs that lead to the base of the fork. Comparing numbers is not enough: a fork back to an
    abandoned epoch also abandons older epochs.
    """
    return sorted(set(chain) - set(kept))


def check_rollback(published: Mapping[int, Collection[str]], *, base: int, job_id: str, policy: RollbackPolicy) -> None:
    """Raise RollbackError if a fork abandons epochs that a sink already has, unless the policy allows it."""
    delivered = {epoch: sinks for epoch, sinks in published.items() if sinks}
    if not delivered or policy is RollbackPolicy.ALLOW:
        return
    sinks = sorted({sink for names in delivered.values() for sink in names})
    raise RollbackError(
        f"going back to epoch {base} would abandon epochs {min(delivered)} to {max(delivered)}, which were published",
        where=f"job {job_id}, sinks: {', '.join(sinks)}",
        fix="restart from a later epoch, or allow the rollback (rollback=RollbackPolicy.ALLOW) and correct the sinks: "
        "sinks that cannot retract rows keep those of the abandoned epochs",
    )
