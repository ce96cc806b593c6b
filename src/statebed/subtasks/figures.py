"""Measurements of one subtask's share of an epoch: times, tables by tier, memory.

Figures differ between attempts at a subtask, so they must never be part of anything that is compared between attempts:
neither of reports, nor of rows that Spark shuffles, nor of data files.
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
    """Measurements of one attempt; picklable."""

    operator: pb.OperatorFigures
    merge_us: int
    """Time to open the state and apply rows to it, without waiting for them."""
    write_us: int
    """Time until outbox, data files and metadata were durable."""
    memory: pb.HostFigures = field(default_factory=pb.HostFigures)
    """Memory of the process at its peak."""


Measured = Callable[[SubtaskFigures], None]


@dataclass
class WaitTimer:
    """Measures the time spent waiting for the next item of an iterable."""

    seconds: float = 0.0

    def over(self, things: Iterable[T]) -> Iterator[T]:
        """Yield the same items, and add up the time spent waiting for them."""
        iterator = iter(things)
        while True:
            start = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.seconds += time.perf_counter() - start
            yield item


def table_figures(name: str, now: TableStatistics, before: TableStatistics = _NOTHING) -> pb.TableFigures:
    """Return the current figures of a table; counters are relative to `before`."""
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
    """Return an operator's share of an epoch, for one subtask or several together."""
    earlier = before or {}
    expired = (
        statistics.expired_rows - earlier.get(name, _NOTHING).expired_rows for name, statistics in tables.items()
    )
    return pb.OperatorFigures(
        operator_id=operator_id,
        tables=[
            table_figures(name, statistics, earlier.get(name, _NOTHING)) for name, statistics in sorted(tables.items())
        ],
        bytes_written=bytes_written,
        busy_us=busy_us,
        rows_expired=sum(expired),
        retractions_dropped=result.counts.get(UNKNOWN_RETRACTIONS, 0),
    )


def memory_figures(memory: MemorySnapshot, *, spilled_before: int = 0) -> pb.HostFigures:
    """Return the holders of this process's memory at its peak; the caller adds the host name."""
    held: dict[str, int] = {}
    for (owner, purpose), nbytes in memory.at_peak.items():
        # An owner is an operator, a table and a subtask; there may be many subtasks, so they are added up.
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


_TABLE_NUMBERS = tuple(column.name for column in pb.TableFigures.DESCRIPTOR.fields if column.name != "table")


def figures_together(operator_id: str, of_subtasks: Sequence[pb.OperatorFigures]) -> pb.OperatorFigures:
    """Combine the figures of an operator's subtasks: sums, and the maximum of times."""
    tables: dict[str, pb.TableFigures] = {}
    for figures_of_subtask in of_subtasks:
        for table in figures_of_subtask.tables:
            total = tables.setdefault(table.table, pb.TableFigures(table=table.table))
            for name in _TABLE_NUMBERS:
                setattr(total, name, getattr(total, name) + getattr(table, name))
    return pb.OperatorFigures(
        operator_id=operator_id,
        tables=[tables[name] for name in sorted(tables)],
        bytes_written=sum(figures.bytes_written for figures in of_subtasks),
        busy_us=max((figures.busy_us for figures in of_subtasks), default=0),
        rows_expired=sum(figures.rows_expired for figures in of_subtasks),
        retractions_dropped=sum(figures.retractions_dropped for figures in of_subtasks),
    )
