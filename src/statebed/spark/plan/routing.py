"""Splits rows, where Spark reads them, into pieces for the subtasks that own them.

Keys are hashed with numpy and rows are grouped by owner before the shuffle, which was measured to take a third less
time than a shuffle of the rows themselves. The maximum event times of the sources are collected on the way.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.aggregates.accumulators import CODES, registers_of
from statebed.arrays.columns import boolean_array, from_numpy, int64_values, one_chunk, validity
from statebed.flow.steps import key_hashes
from statebed.format.schema import KEY_HASH, TIME
from statebed.format.stream_schema import WEIGHT, Input
from statebed.operators.input_rows import in_total_order
from statebed.spark.plan.pieces import BRANCH, SEEN, Piece, routed
from statebed.state.memory.pages import idle_pages

SOURCE = "_source"
ROWS_AT_ONCE = 1 << 17
OWN_ROWS_AT_ONCE = 1 << 14
BYTES_AT_ONCE = 16 << 20
"""Bytes of rows collected before they are split: small pieces cost time, large ones memory."""


@dataclass(frozen=True)
class Layout:
    """Position of a branch's rows in Spark's rows: the columns of its operator's input, in this order."""

    input: Input
    columns: tuple[str, ...]
    sources: tuple[str, ...]
    latest: str = TIME
    """Column with the maximum event time that a row represents."""
    time: str = TIME
    """Column with the time by which the operator processes rows."""

    def rows(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """Return the rows of this branch in the form of its operator's input."""
        table, schema = pa.Table.from_batches(batches), self.input.schema
        slots = dict(zip(self.input.columns.names, self.columns, strict=True)) | {TIME: self.time}
        by_name = {
            column.name: column_as(one_chunk(table[slots[column.name]]), column.type)
            for column in schema
            if column.name in slots
        }
        by_name[KEY_HASH] = from_numpy(
            key_hashes([by_name[key] for key in self.input.keys], table.num_rows), pa.int64()
        )
        if WEIGHT in schema.names:
            by_name[WEIGHT] = from_numpy(np.ones(table.num_rows, dtype=np.int64), pa.int64())
        return pa.Table.from_arrays([by_name[name] for name in schema.names], schema=schema)


def column_as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column to the operator's type; sketches to registers, which are bit-identical in every attempt."""
    sketches = kind == CODES and not pa.types.is_list(column.type)
    return registers_of(column) if sketches else column.cast(kind)


@dataclass
class MaxEventTimes:
    """Maximum event time of each source."""

    latest: dict[str, int] = field(default_factory=dict)

    def see(self, rows: pa.RecordBatch, layout: Layout, sources: Sequence[str]) -> None:
        """Add the times of rows; `sources` are listed by their positions in frames of several."""
        times, timed = int64_values(rows.column(layout.latest)), validity(rows.column(layout.latest))
        if len(layout.sources) == 1:
            self._add(layout.sources[0], times[timed])
            return
        origins = int64_values(rows.column(SOURCE).cast(pa.int64()))[timed]
        for position, source in enumerate(sources):
            self._add(source, times[timed][origins == position])

    def pieces(self) -> Iterator[Piece]:
        """Yield the piece that reports the times to the driver."""
        if self.latest:
            yield Piece(0, SEEN, msgspec.msgpack.encode(dict(sorted(self.latest.items()))))

    def _add(self, source: str, times: npt.NDArray[np.int64]) -> None:
        if len(times):
            self.latest[source] = max(int(times.max()), self.latest.get(source, int(times.max())))


@dataclass(frozen=True)
class RouteFunction:
    """Function of a task that routes the rows of a batch."""

    layouts: Mapping[int, Layout]
    sources: tuple[str, ...]
    """Sources by their positions in frames of several."""
    parallelism: int
    in_order: bool = False
    """Whether rows are sorted, because the next attempt may read them in another order."""

    def __call__(self, batches: Iterator[pa.RecordBatch], *, only: int | None = None) -> Iterator[Piece]:
        """Yield the rows of all batches in pieces, and the maximum event times; with `only`, those of that subtask."""
        with idle_pages.working():
            yield from self._routed(batches, only)

    def _routed(self, batches: Iterator[pa.RecordBatch], only: int | None) -> Iterator[Piece]:
        seen = MaxEventTimes()
        waiting: dict[int, list[pa.RecordBatch]] = {}
        # Rows that are not sent anywhere need not be collected first, which copies them.
        most_rows = ROWS_AT_ONCE if only is None else OWN_ROWS_AT_ONCE
        count = nbytes = 0
        for batch in batches:
            self._take(batch, waiting, seen)
            count, nbytes = count + batch.num_rows, nbytes + batch.nbytes
            if (count >= most_rows or nbytes >= BYTES_AT_ONCE) and not self.in_order:
                yield from self._pieces(waiting, only)
                waiting, count, nbytes = {}, 0, 0
        yield from self._pieces(waiting, only)
        yield from (piece for piece in seen.pieces() if only is None or piece.subtask == only)

    def _take(self, batch: pa.RecordBatch, waiting: dict[int, list[pa.RecordBatch]], seen: MaxEventTimes) -> None:
        several = len(self.layouts) > 1
        numbers = int64_values(batch.column(BRANCH).cast(pa.int64())) if several else np.empty(0, dtype=np.int64)
        for number, layout in self.layouts.items():
            mine = numbers == number
            if several and not mine.any():
                continue
            rows = batch if not several or mine.all() else batch.filter(boolean_array(mine))
            seen.see(rows, layout, self.sources)
            waiting.setdefault(number, []).append(rows)

    def _pieces(self, waiting: Mapping[int, list[pa.RecordBatch]], only: int | None) -> Iterator[Piece]:
        for number, batches in waiting.items():
            layout = self.layouts[number]
            rows = layout.rows(batches)
            yield from routed(
                in_total_order(rows) if self.in_order else rows,
                number,
                self.parallelism,
                broadcast=layout.input.broadcast,
                only=only,
            )


@dataclass(frozen=True)
class PlacedGroups:
    """Input of the first level if the JVM computes and places groups, instead of pieces."""

    layout: Layout
    sources: tuple[str, ...]
    """Sources as in RouteFunction."""
    present: str
    """Column that is null only in heartbeats."""

    def take(self, batches: Iterable[pa.RecordBatch], seen: MaxEventTimes) -> pa.Table:
        """Return all groups in a total order."""
        groups = [batch.filter(batch.column(self.present).is_valid()) for batch in batches]
        for batch in groups:
            seen.see(batch, self.layout, self.sources)
        return in_total_order(self.layout.rows(groups))
