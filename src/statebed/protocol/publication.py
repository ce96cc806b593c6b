"""Publication: what a sink does with an epoch, decided in the same transaction that writes.

A sink that keeps its position (the newest run that opened it, the newest epoch it has) is exactly once: it ignores what
it has and refuses what comes from a superseded run. A marker per sink and epoch then tells later runs what is done.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class Guarantee(enum.Enum):
    """What a sink promises about an epoch's rows."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class PublishStep(enum.Enum):
    """What to do with an epoch that is offered to a sink."""

    WRITE = "write"
    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True)
class SinkPosition:
    """What a sink remembers, changed in the transaction that writes."""

    run: int
    epoch: int


def decide_delivery(position: SinkPosition | None, *, run: int, epoch: int) -> PublishStep:
    """Write the epoch, skip it because it is there, or refuse it because the run is superseded."""
    if position is None:
        return PublishStep.WRITE
    if run < position.run:
        return PublishStep.REFUSE
    return PublishStep.SKIP if epoch <= position.epoch else PublishStep.WRITE


def common_epoch(position: SinkPosition, *, held: Collection[int], lineage: Collection[int]) -> int:
    """The newest epoch that the sink and the present lineage share; everything later must be offered to the sink.

    `held` are the data epochs that lead to the sink's newest, `lineage` those that lead to the run's, each as far back
    as records are retained. What is older than all of these was in the lineage when the sink got it.
    """
    shared = set(held) & set(lineage)
    return max(shared) if shared else min(position.epoch, *held, min(lineage, default=0))


def pending_sinks(wanted: Collection[str], markers: Collection[str]) -> list[str]:
    """The sinks that an epoch must still be published to."""
    return [sink for sink in wanted if sink not in markers]


def oldest_unpublished(pending: Mapping[int, Collection[str]]) -> int | None:
    """The oldest epoch that some sink still waits for; retention must not pass it."""
    return min((epoch for epoch, sinks in pending.items() if sinks), default=None)
