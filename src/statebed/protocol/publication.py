"""Publication decisions: what a sink does with an epoch, decided in the same transaction that writes.

A sink that keeps its position (the newest run that opened it, the newest epoch it has) is exactly once: it ignores
epochs that it has and refuses those of a superseded run. A marker per sink and epoch then tells later runs what was
published.
"""

import enum
from collections.abc import Collection, Mapping
from dataclasses import dataclass


class Guarantee(enum.Enum):
    """Delivery guarantee of a sink.

    >>> sb.MemorySink("out").guarantee is sb.Guarantee.EXACTLY_ONCE
    True
    """

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class PublishStep(enum.Enum):
    """Decision about an epoch that is offered to a sink."""

    WRITE = "write"
    SKIP = "skip"
    REFUSE = "refuse"


@dataclass(frozen=True)
class SinkPosition:
    """Position that a sink stores, updated in the transaction that writes."""

    run: int
    epoch: int


def decide_delivery(position: SinkPosition | None, *, run: int, epoch: int) -> PublishStep:
    """Decide whether to write the epoch, skip it if the sink has it, or refuse it if the run is superseded."""
    if position is None:
        return PublishStep.WRITE
    if run < position.run:
        return PublishStep.REFUSE
    return PublishStep.SKIP if epoch <= position.epoch else PublishStep.WRITE


def common_epoch(position: SinkPosition, *, held: Collection[int], lineage: Collection[int]) -> int:
    """Return the newest epoch that the sink and the current lineage share; later epochs must be offered to the sink.

    `held` are the data epochs that lead to the sink's newest epoch, `lineage` those that lead to the epoch of the run,
    both as far back as records are retained. Older epochs were part of the lineage when the sink got them.
    """
    shared = set(held) & set(lineage)
    return max(shared) if shared else min(position.epoch, *held, min(lineage, default=0))


def pending_sinks(wanted: Collection[str], markers: Collection[str]) -> list[str]:
    """Return the sinks that an epoch has not been published to yet."""
    return [sink for sink in wanted if sink not in markers]


def oldest_unpublished(pending: Mapping[int, Collection[str]]) -> int | None:
    """Return the oldest epoch with a pending sink, or None. Retention must not drop it."""
    return min((epoch for epoch, sinks in pending.items() if sinks), default=None)
