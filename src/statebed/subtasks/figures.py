"""What it took one subtask to do its share of an epoch: times, tables by tier, memory.

Measured, so another attempt at the subtask gives other figures. They must never lie in anything that is compared
between attempts: not in a report, not in rows that Spark shuffles, not in data files.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.operator import StepResult
from statebed.state.memory.controller import MemorySnapshot
from statebed.state.metrics import TableStatistics

T = TypeVar("T")
_NOTHING = TableStatistics(rows=0, memory_bytes=0, disk_bytes=0, store_bytes=0)


@dataclass(frozen=True)
class SubtaskFigures:
    """Of one attempt; picklable."""

    operator: pb.OperatorFigures
    merge_us: int
    """Opening the state and applying rows to it, without waiting for them."""
    write_us: int
    """Until outbox, data files and metadata were durable."""
    memory: pb.HostFigures = field(default_factory=pb.HostFigures)
    """Of the process, at its fullest."""


Measured = Callable[[SubtaskFigures], None]


@dataclass
class Waiting:
    """A clock that runs while somebody waits for the next of something."""

    seconds: float = 0.0

    def over(self, things: Iterable[T]) -> Iterator[T]:
        """The same things; the time that each of them lets us wait is counted."""
        given = iter(things)
        while True:
            start = time.perf_counter()
            try:
                one = next(given)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - start
            yield one


def table_figures(name: str, now: TableStatistics, before: TableStatistics = _NOTHING) -> pb.TableFigures:
    """A table as it is now; what it counts, since `before`."""
    return pb.TableFigures(
        table=name,
        rows=now.rows,
        memory_bytes=now.memory_bytes,
        disk_bytes=now.disk_bytes,
        store_bytes=now.store_bytes,
        files=sum(now.files.values()),
        tombstones=now.tombstones,
        spills=now.spills - before.spills,
        loads=now.loads - before.loads,
        hits=now.hits - before.hits,
        compaction_debt_bytes=now.compaction_debt_bytes,
    )


def operator_figures(
    operator_id: str,
    result: StepResult,
    tables: Mapping[str, TableStatistics],
    before: Mapping[str, TableStatistics] | None = None,
    *,
    bytes_written: int = 0,
    busy_us: int = 0,
) -> pb.OperatorFigures:
    """An operator's share of an epoch, of one subtask or of several together."""
    earlier = before or {}
    expired = (one.expired_rows - earlier.get(name, _NOTHING).expired_rows for name, one in tables.items())
    return pb.OperatorFigures(
        operator_id=operator_id,
        tables=[table_figures(name, one, earlier.get(name, _NOTHING)) for name, one in sorted(tables.items())],
        bytes_written=bytes_written,
        busy_us=busy_us,
        rows_expired=sum(expired),
        retractions_dropped=result.counts.get(UNKNOWN_RETRACTIONS, 0),
    )


def memory_figures(memory: MemorySnapshot, *, spilled_before: int = 0) -> pb.HostFigures:
    """Who held the memory of this process at its fullest; the host's name is for the caller to add."""
    held: dict[str, int] = {}
    for (owner, purpose), nbytes in memory.at_peak.items():
        # An owner is an operator, a table and a subtask; there may be many subtasks.
        name = f"{'.'.join(owner.split('-')[:2])} {purpose.value}"
        held[name] = held.get(name, 0) + nbytes
    return pb.HostFigures(
        budget_bytes=memory.budget,
        peak_bytes=memory.peak,
        holders=held,
        spilled_bytes=memory.events.get("spilled_bytes", 0) - spilled_before,
        shares=memory.guarantees,
        held={name: memory.held_at_peak.get(name, 0) for name in memory.guarantees},
    )


_TABLE_NUMBERS = tuple(one.name for one in pb.TableFigures.DESCRIPTOR.fields if one.name != "table")


def figures_together(operator_id: str, some: Sequence[pb.OperatorFigures]) -> pb.OperatorFigures:
    """The subtasks of an operator together: sums, and of times the longest."""
    tables: dict[str, pb.TableFigures] = {}
    for one in some:
        for table in one.tables:
            total = tables.setdefault(table.table, pb.TableFigures(table=table.table))
            for name in _TABLE_NUMBERS:
                setattr(total, name, getattr(total, name) + getattr(table, name))
    return pb.OperatorFigures(
        operator_id=operator_id,
        tables=[tables[name] for name in sorted(tables)],
        bytes_written=sum(one.bytes_written for one in some),
        busy_us=max((one.busy_us for one in some), default=0),
        rows_expired=sum(one.rows_expired for one in some),
        retractions_dropped=sum(one.retractions_dropped for one in some),
    )
