"""Collecting garbage: what may be deleted, and in which order.

The licence is `min_epoch` of a committed record that is older than the readers' grace; everything that the records from
there on name, or that a pin in a record since the licence names, is protected. Records leave in ascending order, each
after its files; the head and its predecessor never. An object lies in the folder of the one epoch whose record can
introduce it, so once that record exists, an object that nothing protects is garbage. That holds for a superseded run's
view of the log too: what a newer run can name was either protected in this view or lies in a folder above its head.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.format import names

HEAD_MARGIN = 1
"""The head and this many records before it are never collected."""
RUNS_KEPT = 50
"""How many of the newest runs keep their end and heartbeat after their records have left."""


@dataclass(frozen=True)
class Licence:
    """What a committed record allows: records below `min_epoch` may go."""

    granted_by: int
    min_epoch: int


def find_licence(records: Sequence[pb.CheckpointMetadata], *, now_us: int, grace_us: int) -> Licence | None:
    """The newest committed record whose grace is over; `records` are this run's view, ascending."""
    for record in reversed(records):
        if record.finish_time_us + grace_us <= now_us:
            return Licence(granted_by=record.epoch, min_epoch=record.min_epoch)
    return None


def doomed_records(present: Collection[int], *, licence: Licence, head: int) -> list[int]:
    """The numbers whose records leave, in the order in which they leave."""
    limit = min(licence.min_epoch, head - HEAD_MARGIN)
    return sorted(number for number in present if number < limit)


def protecting_records(records: Iterable[pb.CheckpointMetadata], *, licence: Licence) -> list[pb.CheckpointMetadata]:
    """The records that stay: what any of them names is protected."""
    return [record for record in records if record.epoch >= licence.min_epoch]


def protecting_pins(records: Iterable[pb.CheckpointMetadata], *, licence: Licence) -> dict[str, pb.Pin]:
    """The savepoints that stay, by path: those of the licence and of every record since."""
    return {pin.path: pin for record in records if record.epoch >= licence.granted_by for pin in record.pins}


def is_garbage(path: str, *, protected: Collection[str], head: int, run: int, in_flight: Container[str] = ()) -> bool:
    """Whether a listed object may be deleted; records are not judged here, they leave in their own order."""
    if path in protected:
        return False
    epoch = names.epoch_of(path)
    if epoch is not None:
        return epoch <= head and path != names.record(epoch)
    writer = names.run_of_compaction(path)
    if writer is not None:
        return writer < run or (writer == run and path not in in_flight)
    return False


def doomed_runs(present: Collection[int], *, retained: Iterable[pb.CheckpointMetadata]) -> set[int]:
    """The runs whose end and heartbeat leave: older than every retained record's run, and not among the newest.

    The newest runs stay longer than their records, so that a short retention does not hide why a job failed yesterday.
    """
    oldest = min((record.run for record in retained), default=0)
    return {run for run in sorted(present)[:-RUNS_KEPT] if run < oldest}


def deletion_order(paths: Iterable[str], *, metadata: Mapping[str, object] | Collection[str]) -> list[str]:
    """Data before the metadata that names it, so that an interrupted collection still knows what is left."""
    return sorted(set(paths), key=lambda path: (path in metadata, path))
