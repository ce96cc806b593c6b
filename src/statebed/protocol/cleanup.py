"""Clean-up decisions: what may be deleted, and in which order.

The licence is `min_epoch` of a committed record that is older than the readers' grace period. Everything referred to by
a record from `min_epoch` on, or by a pin in a record since the licence, is protected. Records are deleted in ascending
order, each after its files; the head and its predecessor are never deleted. An object is stored in the folder of the
only epoch whose record can introduce it, so once that record exists, an unprotected object is garbage. This also holds
for the view that a superseded run has of the log: whatever a newer run can refer to is either protected in this view or
stored in a folder above its head.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names

HEAD_MARGIN = 1
"""Number of records before the head that are never deleted, in addition to the head."""
RUNS_KEPT = 50
"""Number of newest runs whose end and heartbeat objects outlive their records."""


@dataclass(frozen=True)
class Licence:
    """Permission granted by a committed record: records below `min_epoch` may be deleted."""

    granted_by: int
    min_epoch: int


def find_licence(records: Sequence[pb.CheckpointMetadata], *, now_us: int, grace_us: int) -> Licence | None:
    """Return the licence of the newest record whose grace period is over, or None.

    `records` are the records this run sees, ascending.
    """
    for record in reversed(records):
        if record.finish_time_us + grace_us <= now_us:
            return Licence(granted_by=record.epoch, min_epoch=record.min_epoch)
    return None


def records_to_delete(present: Collection[int], *, licence: Licence, head: int) -> list[int]:
    """Return the numbers of the records to delete, in the order of deletion."""
    limit = min(licence.min_epoch, head - HEAD_MARGIN)
    return sorted(number for number in present if number < limit)


def protecting_records(records: Iterable[pb.CheckpointMetadata], *, licence: Licence) -> list[pb.CheckpointMetadata]:
    """Return the records that stay; everything they refer to is protected."""
    return [record for record in records if record.epoch >= licence.min_epoch]


def protecting_pins(records: Iterable[pb.CheckpointMetadata], *, licence: Licence) -> dict[str, pb.Pin]:
    """Return the savepoints that stay, by path: the pins of the licence's record and of every record since."""
    return {pin.path: pin for record in records if record.epoch >= licence.granted_by for pin in record.pins}


def is_garbage(path: str, *, protected: Collection[str], head: int, run: int, in_flight: Container[str] = ()) -> bool:
    """Return whether a listed object may be deleted. Always false for records: `records_to_delete` decides on them."""
    if path in protected:
        return False
    epoch = names.epoch_of(path)
    if epoch is not None:
        return epoch <= head and path != names.record(epoch)
    writer = names.run_of_compaction(path)
    if writer is not None:
        return writer < run or (writer == run and path not in in_flight)
    return False


def runs_to_delete(present: Collection[int], *, retained: Iterable[pb.CheckpointMetadata]) -> set[int]:
    """Return the runs whose end and heartbeat objects to delete.

    These are older than the run of every retained record and not among the newest `RUNS_KEPT`. The newest runs outlive
    their records, so that a short retention does not hide why a job failed yesterday.
    """
    oldest = min((record.run for record in retained), default=0)
    return {run for run in sorted(present)[:-RUNS_KEPT] if run < oldest}


def deletion_order(paths: Iterable[str], *, metadata: Mapping[str, object] | Collection[str]) -> list[str]:
    """Sort paths so that data comes before the metadata that refers to it.

    An interrupted clean-up then still finds what is left to delete.
    """
    return sorted(set(paths), key=lambda path: (path in metadata, path))
