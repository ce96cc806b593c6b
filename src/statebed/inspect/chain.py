"""The chain of epochs that the newest state builds on, found by hopping from run to run without reading the records in
between.

Within a run, every epoch builds on the previous one, so all epochs from the start of a run to the base of the next one
belong to the chain. The cost is two records per run, regardless of its number of epochs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.records import data_epoch_of

Reader = Callable[[int], pb.CheckpointMetadata | None]
"""Returns the record with a number, or None if it cannot be read."""


@dataclass(frozen=True)
class Chain:
    """Stretches of epochs that make up the newest state, newest first."""

    stretches: tuple[tuple[int, int], ...]
    floor: int
    """Highest number about which nothing is known: records up to it are removed, damaged or were not requested."""

    def abandons(self, record: pb.CheckpointMetadata) -> bool:
        """Return whether a fork abandoned this epoch, so that the newest state does not build on it."""
        if record.kind != pb.EPOCH or record.epoch <= self.floor:
            return False
        return not any(first <= record.epoch <= last for first, last in self.stretches)


def chain_of(head: pb.CheckpointMetadata | None, read: Reader, *, down_to: int = 1) -> Chain:
    """Follow the newest state back to the number `down_to`."""
    stretches: list[tuple[int, int]] = []
    top = data_epoch_of(head) if head else 0
    while top >= down_to:
        record = read(top)
        if record is None:
            return Chain(tuple(stretches), floor=top)
        stretches.append((record.run, top))
        start = read(record.run)
        if start is None:
            return Chain(tuple(stretches), floor=record.run)
        top = start.base
    return Chain(tuple(stretches), floor=min(top, down_to - 1))


def runs_of(head: pb.CheckpointMetadata | None, read: Reader) -> Iterator[tuple[pb.CheckpointMetadata, int]]:
    """Yield the records that opened the runs of the log, newest first, each with the last number of its run."""
    last = head
    while last is not None:
        start = last if last.epoch == last.run else read(last.run)
        if start is None:
            return
        yield start, last.epoch
        last = read(start.epoch - 1) if start.epoch > 1 else None
