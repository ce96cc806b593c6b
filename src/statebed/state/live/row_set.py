"""A set of rows with vectorized lookups: by hash first, then by comparing columns.

Nulls equal nulls, NaN equals NaN, and -0.0 equals 0.0, in nested values, too. Each row of the set is identified by its
position, so a lookup returns pairs of equal rows.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import sortable
from statebed.arrays.columns import from_numpy, one_chunk, uint64_values
from statebed.arrays.key_hash import check_key_type, hash_columns, normalise_key
from statebed.arrays.mutable import Column, column_of
from statebed.errors import InputError
from statebed.format.schema import KEY_HASH
from statebed.state.tiers.selection import among

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

N = TypeVar("N", np.int64, np.uint64)

_MIX = np.uint64(0x9E3779B97F4A7C15)


class RowSet:
    """Rows with `_key_hash`, the key columns, and optionally more columns (`_time`, values) that must be equal, too."""

    def __init__(self, rows: pa.Table, *, keys: Sequence[str]) -> None:
        rows = _comparable(rows)
        self._more = [name for name in rows.column_names if name not in {KEY_HASH, *keys}]
        # A key may have many rows here, each with its own time or values, so these are part of the hash.
        self._hashed = [name for name in self._more if _is_hashable(rows.schema.field(name))]
        self.key_hashes = ascending(uint64_values(rows[KEY_HASH]))
        mixed = _mixed(uint64_values(rows[KEY_HASH]), rows, self._hashed)
        self._order = np.argsort(mixed)
        self._hashes = mixed[self._order]
        self._columns: dict[str, Column] = {name: column_of(one_chunk(rows[name])) for name in (*keys, *self._more)}
        self.nbytes = self._order.nbytes + self._hashes.nbytes + self.key_hashes.nbytes + int(rows.nbytes)

    def pairs(self, rows: pa.Table) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield positions in `rows` and of equal rows in the set; a row is in each result at most once."""
        candidates = np.flatnonzero(among(uint64_values(rows[KEY_HASH]), self.key_hashes))
        if not len(candidates):
            return
        needed = [KEY_HASH, *self._columns]
        candidate_rows = _comparable(rows.select(needed).take(from_numpy(candidates, pa.int64())))
        mixed = _mixed(uint64_values(candidate_rows[KEY_HASH]), candidate_rows, self._hashed)
        first = np.searchsorted(self._hashes, mixed, side="left")
        behind = np.searchsorted(self._hashes, mixed, side="right")
        while len(open_rows := np.flatnonzero(first < behind)):
            ours = self._order[first[open_rows]]
            equal = np.ones(len(open_rows), dtype=np.bool_)
            taken = (
                candidate_rows
                if len(open_rows) == candidate_rows.num_rows
                else candidate_rows.take(from_numpy(open_rows, pa.int64()))
            )
            for name, column in self._columns.items():
                equal &= column.equals(ours, one_chunk(taken[name]))
            if equal.any():
                yield candidates[open_rows[equal]], ours[equal]
            first[open_rows] += 1

    def contains(self, rows: pa.Table) -> Mask:
        """Return a mask of the rows that are in the set."""
        contained = np.zeros(rows.num_rows, dtype=np.bool_)
        for theirs, _ in self.pairs(rows):
            contained[theirs] = True
        return contained

    def repeated(self, rows: pa.Table) -> Mask:
        """Return a mask of rows that equal an earlier one with the same hash; `rows` are the rows of the set."""
        starts = np.flatnonzero(np.append(True, self._hashes[1:] != self._hashes[:-1]))
        lengths = np.diff(np.append(starts, len(self._hashes)))
        maybe = np.flatnonzero(np.repeat(lengths > 1, lengths))
        repeated = np.zeros(rows.num_rows, dtype=np.bool_)
        if len(maybe):
            first = np.repeat(np.minimum.reduceat(self._order, starts), lengths)[maybe]
            mine = self._order[maybe]
            equal = mine != first
            my_rows = _comparable(rows.take(from_numpy(mine, pa.int64())))
            for name, column in self._columns.items():
                equal &= column.equals(first, one_chunk(my_rows[name]))
            repeated[mine] = equal
        return repeated


def ascending(values: npt.NDArray[N]) -> npt.NDArray[N]:
    """Return the distinct values in ascending order. `np.unique` uses a hash table, which takes 30 times as long."""
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])] if len(ordered) else ordered


def distinct(rows: pa.Table, *, keys: Sequence[str]) -> pa.Table:
    """Return the first of each set of equal rows."""
    if rows.num_rows <= 1:
        return rows
    repeated = RowSet(rows, keys=keys).repeated(rows)
    return rows.take(from_numpy(np.flatnonzero(~repeated), pa.int64())) if repeated.any() else rows


def _comparable(rows: pa.Table) -> pa.Table:
    """Convert values so that equal values have equal bits, in types that can be hashed."""
    columns = [normalise_key(sortable(one_chunk(column))) for column in rows.columns]
    return pa.Table.from_arrays(columns, names=rows.column_names)


def _mixed(key_hashes: Hashes, rows: pa.Table, names: Sequence[str]) -> Hashes:
    """Return a hash of the key and of these columns."""
    if not names:
        return key_hashes
    more = hash_columns([one_chunk(rows[name]) for name in names])
    with np.errstate(over="ignore"):
        return np.asarray((key_hashes ^ (more >> np.uint64(31))) * _MIX + more)


def _is_hashable(field: pa.Field) -> bool:
    try:
        check_key_type(field)
    except InputError:
        return False
    return True
