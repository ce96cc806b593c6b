"""A batch of keys sorted by hash, and the handling of keys that repeat within it.

After sorting, rows with equal keys are neighbours, in the order in which they came. Equal hashes do not imply equal
keys, so the keys of neighbours with equal hashes are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import sort_indices
from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.compiled import loops_for
from statebed.arrays.hash_order import hash_order
from statebed.arrays.key_hash import Hashes, normalise_key
from statebed.arrays.mutable import Column, Mask, Rows, TextColumn, column_over, plain, taken
from statebed.arrays.packed_text import PackedText
from statebed.arrays.storable_values import check_values
from statebed.errors import InputError
from statebed.state.arguments import check_rows
from statebed.state.keyed.merge_functions import ColumnMerges

HashFunction = Callable[[Sequence[pa.Array | PackedText]], Hashes]
MergeFunction = Callable[[pa.Table, pa.Table], pa.Table]
"""Function of the old and the new rows of the same keys, both as value columns, that returns the rows to replace them.
"""


@dataclass(frozen=True)
class KeyBatch:
    """Keys sorted by hash."""

    hashes: Hashes
    columns: tuple[Column, ...]
    """Key columns, which may hold other keys too if `places` is set."""
    came_from: Rows | None = None
    """Original batch row of each row of `columns`, or None if the order is unchanged."""
    repeats: Mask | None = None
    """Mask of the keys that equal the key before them, or None if there are none."""
    places: Rows | None = None
    """Row in `columns` of each key, or None if `columns` holds exactly these keys in the order of their hashes."""

    @classmethod
    def of(
        cls, keys: pa.Table | pa.RecordBatch, schema: pa.Schema, hash_function: HashFunction, *, where: str
    ) -> "KeyBatch":
        arrays = [normalise_key(column) for column in table_columns(keys, schema, what="keys", where=where)]
        over = tuple(column_over(array) for array in arrays)
        # Packed text is hashed without conversion, so that its bytes are read only once.
        hashed = [
            column.packed if isinstance(column, TextColumn) else array
            for column, array in zip(over, arrays, strict=True)
        ]
        order, hashes = hash_order(hash_function(hashed))
        if loops_for(len(hashes)) is not None:
            # Compiled loops compare the keys without copying them.
            batch = cls(hashes, over, places=order)
        else:
            batch = cls(hashes, tuple(column.select(order) for column in over), came_from=order)
        same_hash = hashes[1:] == hashes[:-1]
        if not same_hash.any():
            return batch
        equal = batch._equal_neighbours(same_hash)
        if not np.array_equal(equal, same_hash):
            # Different keys share a hash: only sorting by the keys themselves makes equal ones neighbours.
            names = [str(index) for index in range(len(arrays) + 1)]
            table = pa.Table.from_arrays([from_numpy(hashes, pa.uint64()), *_take(arrays, order)], names=names)
            batch = cls(hashes, over, places=order[_rows_of(sort_indices(table, names))])
            equal = batch._equal_neighbours(same_hash)
        return replace(batch, repeats=np.append(False, equal)) if equal.any() else batch

    def __len__(self) -> int:
        return len(self.hashes)

    @cached_property
    def order(self) -> Rows:
        """Row of each key in the batch as it was passed in."""
        if self.places is None:
            assert self.came_from is not None
            return self.came_from
        return self.places if self.came_from is None else self.came_from.take(self.places)

    def taken(self, rows: Rows) -> tuple[Column, ...]:
        """Return a copy of the keys of `rows`."""
        places = self.place(rows)
        return tuple(column.select(places) for column in self.columns)

    def place(self, rows: Rows) -> Rows:
        """Return the positions in `columns` of the keys of `rows`."""
        return rows if self.places is None else self.places.take(rows)

    @property
    def every_place(self) -> Rows:
        """Positions of all keys in `columns`."""
        return np.arange(len(self), dtype=np.int64) if self.places is None else self.places

    def select(self, rows: Rows) -> "KeyBatch":
        """Return the batch of some of the rows; `rows` is ascending and selects no key twice."""
        if len(rows) == len(self):
            return self
        return KeyBatch(self.hashes.take(rows), self.columns, self.came_from, None, self.place(rows))

    def slice(self, start: int, end: int) -> "KeyBatch":
        if (start, end) == (0, len(self)):
            return self
        repeats = None if self.repeats is None else self.repeats[start:end]
        if self.places is not None:
            return KeyBatch(self.hashes[start:end], self.columns, self.came_from, repeats, self.places[start:end])
        columns = tuple(column.slice(start, end) for column in self.columns)
        return KeyBatch(self.hashes[start:end], columns, self.order[start:end], repeats)

    def _equal_neighbours(self, maybe: Mask) -> Mask:
        """Return a mask of the keys, from the second on, that equal the key before them; only those in `maybe` are
        compared.
        """
        for column in self.columns:
            if self.places is None:
                maybe = column.repeats(maybe)
            else:
                maybe = column.matches(self.places[:-1], column, self.places[1:], maybe)
        return maybe

    def starts(self) -> Rows:
        """Return the first row of each key."""
        repeats = self.repeats
        return np.arange(len(self), dtype=np.int64) if repeats is None else np.flatnonzero(~repeats)

    def ends(self) -> Rows:
        """Return the last row of each key."""
        return np.append(self.starts()[1:], len(self)) - 1 if len(self) else self.starts()


def last_of_each(batch: KeyBatch, values: pa.Table) -> tuple[KeyBatch, pa.Table]:
    """Reduce a batch to one row per key, with the values of the key's last row."""
    if batch.repeats is None:
        return batch, take_rows(values, batch.order)
    ends = batch.ends()
    return batch.select(ends), take_rows(values, batch.order[ends])


def folded(batch: KeyBatch, values: pa.Table, function: MergeFunction) -> tuple[KeyBatch, pa.Table]:
    """Reduce a batch to one row per key, folding its rows with the merge function, earlier row first."""
    if isinstance(function, ColumnMerges):
        function.check(values.schema)
    if batch.repeats is None:
        return batch, take_rows(values, batch.order)
    starts = batch.starts()
    unique = batch.select(starts)
    if isinstance(function, ColumnMerges) and (at_once := function.fold(values, batch.order, starts)) is not None:
        return unique, at_once
    values = take_rows(values, batch.order)
    counts = np.diff(starts, append=len(batch))
    several = np.flatnonzero(counts > 1)
    # Most keys usually occur only once, so only the others are folded.
    rows = np.flatnonzero(np.repeat(counts > 1, counts))
    pieces, places = _folded_groups(take_rows(values, rows), counts[several], function)
    source = starts.copy()
    source[several[places]] = values.num_rows + np.arange(len(several), dtype=np.int64)
    return unique, take_rows(pa.concat_tables([values, *pieces]), source)


def _folded_groups(values: pa.Table, counts: Rows, function: MergeFunction) -> tuple[list[pa.Table], Rows]:
    """Fold each group of `counts` neighbouring rows to one row.

    Return the resulting rows in pieces, and the number of the group of each row.
    """
    pieces = []
    places = []
    groups = np.arange(len(counts), dtype=np.int64)
    while len(groups):
        rank = np.arange(values.num_rows, dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        even = rank % 2 == 0
        left = np.flatnonzero(even & (rank + 1 < np.repeat(counts, counts)))
        merged = call_merge(function, take_rows(values, left), take_rows(values, left + 1))
        source = np.arange(values.num_rows, dtype=np.int64)
        source[left] += values.num_rows - left + np.arange(len(left), dtype=np.int64)
        source = source[even]
        values = pa.concat_tables([values, merged])
        counts = (counts + 1) // 2
        done = np.repeat(counts == 1, counts)
        pieces.append(take_rows(values, source[done]))
        places.append(groups[counts == 1])
        values, groups, counts = take_rows(values, source[~done]), groups[counts > 1], counts[counts > 1]
    return pieces, np.concatenate(places)


def latest_times(batch: KeyBatch, times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the latest time of each key; `times` is in the original order of the batch."""
    ordered = times[batch.order]
    return ordered if batch.repeats is None else np.maximum.reduceat(ordered, batch.starts())


def call_merge(function: MergeFunction, old: pa.Table, new: pa.Table) -> pa.Table:
    """Return the result of the merge function. Raise if its rows or columns do not match those of `new`."""
    merged = function(old, new)
    where = "merge function"
    check_rows(merged, "rows of the merge function", where=where)
    if merged.num_rows != new.num_rows:
        raise InputError(
            f"the merge function returned {merged.num_rows} rows for {new.num_rows}",
            where=where,
            fix="return one row for each input row, in the same order",
        )
    columns = table_columns(merged, new.schema, what="rows of the merge function", where=where)
    return pa.Table.from_arrays(columns, schema=new.schema)


def table_columns(table: pa.Table | pa.RecordBatch, schema: pa.Schema, *, what: str, where: str) -> list[pa.Array]:
    """Return the columns of the table as arrays, in the order of the schema. Raise if names, types or nulls do not
    match.
    """
    check_rows(table, what, where=where)
    if sorted(table.schema.names) != sorted(schema.names):
        raise InputError(
            f"the {what} have the columns {table.schema.names} instead of {schema.names}",
            where=where,
            fix="pass each of these columns once, and no others",
        )
    columns = []
    for field in schema:
        column_type = table.schema.field(field.name).type
        if column_type != field.type:
            raise InputError(
                f"the column {field.name!r} of the {what} has the type {column_type} instead of {field.type}",
                where=where,
                fix=f"cast the column to {field.type}",
            )
        column = plain(table[field.name], field.type)
        if column.null_count and not field.nullable:
            raise InputError(
                f"the column {field.name!r} of the {what} is not nullable, but holds nulls",
                where=where,
                fix="drop these rows, or fill the nulls",
            )
        check_values(column, field.name, where=where)
        columns.append(column)
    return columns


def _rows_of(indices: pa.Array) -> Rows:
    return np.frombuffer(indices.buffers()[1], dtype=np.uint64, count=len(indices)).astype(np.int64)


def _take(columns: Sequence[pa.Array], rows: Rows) -> tuple[pa.Array, ...]:
    return tuple(taken(column, rows) for column in columns)


def take_rows(table: pa.Table, rows: Rows) -> pa.Table:
    """Return the given rows of the table, in the order of `rows`."""
    # A column in several chunks is copied before it is taken, so one after the other.
    columns = [taken(one_chunk(column), rows) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def ascending_rows(table: pa.Table, rows: Rows) -> pa.Table:
    """Return the given rows of the table; `rows` is ascending and free of repeats."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return table.slice(int(rows[0]), len(rows))
    return take_rows(table, rows)
