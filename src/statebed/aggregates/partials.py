"""Partials of all aggregates of an operator: fold rows to partials, merge partials, and finish them to results.

Every partial is exact (`accumulators`), so nothing depends on the order of rows. For a changelog, the number of rows is
kept as well: a group whose rows were all retracted no longer exists.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.aggregates.aggregate import BoundAggregate
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.grouping import Grouping, Integers, group_rows
from statebed.format.schema import KEY_HASH
from statebed.format.stream_schema import Changes, weights_of

ROWS = "_rows"
"""Number of rows of a group in a changelog."""
MAX_BYTES = 16 << 20
PIECE_BYTES = 8 << 20
"""Rows of more than `MAX_BYTES` are processed in pieces of `PIECE_BYTES`."""
LISTS_BYTES = 1 << 20
"""Partials that list values are merged in pieces of this size: sorting the values takes several times their size."""


def input_column(position: int, part: int = 0) -> str:
    """Return the name of the column for an input of the aggregate at this position; most have one input."""
    return f"_a{position}_{part}" if part else f"_a{position}"


@dataclass(frozen=True)
class Partials:
    """Aggregates the groups of one operator."""

    keys: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    changes: Changes = Changes.APPEND
    """Whether input rows are appended or a changelog."""

    @cached_property
    def input_fields(self) -> tuple[pa.Field, ...]:
        """Inputs of the aggregates: `_a0`, `_a1`, ... by position."""
        return tuple(
            pa.field(input_column(position, part), kind)
            for position, aggregate in enumerate(self.aggregates)
            for part, kind in enumerate(aggregate.input_types)
        )

    @cached_property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of partials."""
        counted = (pa.field(ROWS, pa.int64(), nullable=False),) if self.changes is Changes.CHANGELOG else ()
        return (*counted, *(field for aggregate in self.aggregates for field in aggregate.accumulator.partial_fields))

    @cached_property
    def output_fields(self) -> tuple[pa.Field, ...]:
        return tuple(aggregate.output_field for aggregate in self.aggregates)

    def described(self) -> list[list[float | str]]:
        """Return the descriptions of all aggregates, for fingerprints."""
        return [list(aggregate.description) for aggregate in self.aggregates]

    def grouping(self, rows: pa.Table, bins: Integers) -> Grouping:
        """Group rows by bin and key."""
        return group_rows(bins, uint64_values(rows[KEY_HASH]), [one_chunk(rows[key.name]) for key in self.keys])

    def fold(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        """Fold groups of rows to partials."""
        return _in_pieces(self._fold, rows, grouping, max_bytes=MAX_BYTES, piece=PIECE_BYTES)

    def merge(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        """Merge groups of partials."""
        max_bytes, piece = (LISTS_BYTES, LISTS_BYTES) if self._lists else (MAX_BYTES, PIECE_BYTES)
        return _in_pieces(self._merge, rows, grouping, max_bytes=max_bytes, piece=piece)

    @cached_property
    def _lists(self) -> bool:
        """Whether partials list values."""
        return any(pa.types.is_list(field.type) for field in self.fields)

    def _fold(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        weights = weights_of(rows) if self.changes is Changes.CHANGELOG else None
        counted = [] if weights is None else [from_numpy(grouping.add(weights), pa.int64())]
        folded = [
            column
            for position, aggregate in enumerate(self.aggregates)
            for column in aggregate.accumulator.fold(
                [one_chunk(rows[input_column(position, part)]) for part in range(len(aggregate.input_types))],
                grouping,
                weights,
            )
        ]
        return counted + folded

    def _merge(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        counted = []
        if self.changes is Changes.CHANGELOG:
            counted = [from_numpy(grouping.add(int64_values(rows[ROWS])), pa.int64())]
        merged = [
            column
            for aggregate, columns in self._columns(rows)
            for column in aggregate.accumulator.merge(columns, grouping)
        ]
        return counted + merged

    def finish(self, partials: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the results of partials, which are in the order of `fields`."""
        rest = list(partials[len(self.fields) - sum(map(_width, self.aggregates)) :])
        results = []
        for aggregate in self.aggregates:
            results.append(aggregate.accumulator.finish(rest[: _width(aggregate)]))
            rest = rest[_width(aggregate) :]
        return results

    def present(self, partials: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return a mask of the groups that still have rows."""
        if self.changes is Changes.APPEND:
            return np.ones(len(partials[0]) if partials else 0, dtype=np.bool_)
        return int64_values(partials[0]) > 0

    def _columns(self, rows: pa.Table) -> Iterable[tuple[BoundAggregate, list[pa.Array]]]:
        for aggregate in self.aggregates:
            yield aggregate, [one_chunk(rows[field.name]) for field in aggregate.accumulator.partial_fields]


def _in_pieces(
    work: Callable[[pa.Table, Grouping], list[pa.Array]],
    rows: pa.Table,
    grouping: Grouping,
    *,
    max_bytes: int,
    piece: int,
) -> list[pa.Array]:
    """Return what `work` returns for all rows; process more than `max_bytes` some groups at a time, because each row is
    copied often.
    """
    nbytes = rows.nbytes
    if nbytes <= max_bytes:
        return work(rows, grouping)
    count = max(1, rows.num_rows * piece // nbytes)
    pieces = [work(rows.take(from_numpy(at, pa.int64())), groups) for at, groups in grouping.pieces(count)]
    return [pa.concat_arrays(list(column)) for column in zip(*pieces, strict=True)]


def latest_of_each(times: pa.ChunkedArray, grouping: Grouping) -> pa.Array:
    """Return the latest time of each group, or null if none is known."""
    if times.null_count == len(times):
        return pa.nulls(grouping.groups, times.type)
    known, valid = int64_values(times), None
    if times.null_count:
        valid = validity(times)
        known = np.where(valid, known, np.iinfo(np.int64).min)
    return from_numpy(grouping.greatest(known), times.type, valid=None if valid is None else grouping.any(valid))


def _width(aggregate: BoundAggregate) -> int:
    return len(aggregate.accumulator.partial_fields)
