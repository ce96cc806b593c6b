"""Opening a run: find the head of the log, choose the base, and say what was skipped and why.

The caller reads facts (which numbers have a folder, what their records say) and hands them in; nothing here does I/O.
Damage is never stepped over in silence: an unreadable head refuses to open unless falling back was asked for, and then
the run is a fork like any other.
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
    """What stands at one number of the log."""

    RECORD = "record"
    NOTHING = "nothing"
    DAMAGE = "damage"
    LOST = "lost"
    """No record, though an object exists that is only written after the record was committed."""


@dataclass(frozen=True)
class Observation:
    """One number of the log, as read."""

    epoch: int
    found: LogSlot
    record: pb.CheckpointMetadata | None = None
    problem: str = ""


@dataclass(frozen=True)
class Skipped:
    """A number that recovery passed over, and why."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Recovery:
    """The end of the log: its last number, the newest readable record, what was skipped on the way."""

    last_number: int
    head: pb.CheckpointMetadata | None
    skipped: tuple[Skipped, ...]
    lost: tuple[int, ...] = ()
    """Numbers above the head whose records were committed and are gone, ascending."""

    @property
    def next_number(self) -> int:
        """Number of the next run_start; lost numbers are filled first, so that no later start finds a hole."""
        return self.lost[0] if self.lost else self.last_number + 1

    @property
    def min_epoch(self) -> int:
        return self.head.min_epoch if self.head else 1

    @property
    def damaged(self) -> bool:
        """Whether the record at the last number is unreadable or lost."""
        return self.last_number > 0 and (self.head is None or self.head.epoch != self.last_number)


class DamagePolicy(enum.Enum):
    """What opening does when the newest epoch is damaged."""

    REFUSE = "refuse"
    FALL_BACK = "fall back"


class RollbackPolicy(enum.Enum):
    """What opening does when a fork would abandon epochs that sinks already have."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True)
class Origin:
    """Where a run starts from: the head (neither given), a retained epoch, or a savepoint."""

    epoch: int | None = None
    savepoint: str | None = None

    @property
    def is_head(self) -> bool:
        return self.epoch is None and self.savepoint is None


def recover(observations: Sequence[Observation]) -> Recovery:
    """The head of the log, from observations in descending order that end at the first readable record."""
    skipped: list[Skipped] = []
    lost: list[int] = []
    last_number = 0
    for observation in observations:
        if observation.found is LogSlot.NOTHING:
            skipped.append(Skipped(observation.epoch, "no record: an epoch that was begun and never committed"))
            continue
        last_number = last_number or observation.epoch
        if observation.found is LogSlot.RECORD:
            return Recovery(last_number, observation.record, tuple(skipped), tuple(reversed(lost)))
        if observation.found is LogSlot.LOST:
            lost.append(observation.epoch)
        skipped.append(Skipped(observation.epoch, observation.problem))
    return Recovery(last_number, None, tuple(skipped), tuple(reversed(lost)))


def check_readable(recovery: Recovery, *, job_id: str, policy: DamagePolicy) -> None:
    """Refuse a damaged head, unless falling back was asked for and there is something to fall back to."""
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
        trouble = "was committed and is gone" if recovery.last_number in recovery.lost else "cannot be read"
        raise CorruptRecordError(
            f"the newest record, {recovery.last_number}, {trouble}",
            where=f"job {job_id}: {reasons}",
            fix=f"restore it from a backup, or fall back to an older intact epoch (a fork; the work after epoch "
            f"{data_epoch_of(recovery.head)} is lost): `statebed repair`, or RunOptions(damage=DamagePolicy.FALL_BACK)",
        )


def check_unbroken(head: pb.CheckpointMetadata, *, previous_exists: bool, last_look: bool) -> bool:
    """The head's predecessor is never collected, so its absence means that somebody removed it."""
    if not previous_exists and last_look:
        raise BrokenLogError(
            f"record {head.epoch - 1}, the one before the head, is not there",
            where=f"job {head.job_id}, head {head.epoch}",
            fix="something outside statebed removed it; restore it from a backup, or see `statebed repair`",
        )
    return previous_exists


def resolve_epoch(recovery: Recovery, epoch: int, *, job_id: str) -> int:
    """Check that `epoch` can be restored, and give it back."""
    if recovery.head is None:
        raise JobNotFoundError(f"job {job_id} has no epoch to restore", fix="start it without naming an epoch")
    lowest = recovery.head.min_epoch
    if not lowest <= epoch <= recovery.last_number:
        raise EpochNotRetainedError(
            f"epoch {epoch} cannot be restored: the retained epochs are {lowest} to {recovery.last_number}",
            where=f"job {job_id}",
            fix="choose one of these (`statebed ls` lists them), or a savepoint",
        )
    return epoch


def resolve_savepoint(recovery: Recovery, name: str, *, job_id: str) -> pb.Pin:
    """The pin of a savepoint, as the head names it."""
    pins = recovery.head.pins if recovery.head else ()
    for pin in pins:
        if pin.savepoint == name:
            return pin
    known = ", ".join(sorted(pin.savepoint for pin in pins)) or "none"
    raise SavepointError(f"there is no savepoint {name!r}", where=f"job {job_id}; savepoints: {known}")


def abandoned_epochs(chain: Collection[int], *, kept: Collection[int]) -> list[int]:
    """The data epochs of the present lineage that a fork leaves behind, oldest first; `kept` leads to its base.

    Not by comparing numbers: a fork back to an abandoned epoch leaves older ones behind.
    """
    return sorted(set(chain) - set(kept))


def check_rollback(published: Mapping[int, Collection[str]], *, base: int, job_id: str, policy: RollbackPolicy) -> None:
    """Refuse a fork that abandons epochs which a sink already has, unless it was asked for."""
    delivered = {epoch: sinks for epoch, sinks in published.items() if sinks}
    if not delivered or policy is RollbackPolicy.ALLOW:
        return
    sinks = sorted({sink for names in delivered.values() for sink in names})
    raise RollbackError(
        f"going back to epoch {base} would abandon epochs {min(delivered)} to {max(delivered)}, which were published",
        where=f"job {job_id}, sinks: {', '.join(sinks)}",
        fix="restart from a later epoch, or ask for it (rollback=RollbackPolicy.ALLOW) and correct the sinks: rows of "
        "these epochs stay in sinks that cannot take them back",
    )
