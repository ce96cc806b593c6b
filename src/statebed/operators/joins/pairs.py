"""Pairs of rows of two tables: equal keys, bounds on the difference of a number, and a condition.

One table is indexed, and others are probed against it one after the other: the rows of the epoch, and pieces of the
state. The number is what the kind of join compares in addition to the keys: event times or windows.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_values, from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.key_hash import hash_columns
from statebed.arrays.sort_order import changes, sorted_by, total_keys
from statebed.format.schema import KEY_HASH, TIME
from statebed.operators.joins.join_columns import JoinColumns, PairCondition
from statebed.operators.joins.join_index import JoinIndex
from statebed.operators.joins.join_type import JoinSide
from statebed.operators.keyed_rows import taken

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_ALL_BITS = np.uint64((1 << 64) - 1)
_LEAST, _GREATEST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)


@dataclass(frozen=True)
class SideRows:
    """Rows of one side: the columns of its input, and a number for each row."""

    side: JoinSide
    table: pa.Table
    numbers: Integers

    @classmethod
    def timed(cls, side: JoinSide, table: pa.Table) -> "SideRows":
        """Return rows whose number is their event time."""
        return cls(side, table, int64_values(table[TIME]))

    def __len__(self) -> int:
        return int(self.table.num_rows)


@dataclass(frozen=True)
class Pairs:
    """Pairs, as row positions in two tables."""

    left: pa.Table
    left_at: Integers
    right: pa.Table
    right_at: Integers


@dataclass(frozen=True)
class PairRule:
    """Rule for pairs of a left and a right row: lower <= right number - left number <= upper, and the condition."""

    columns: JoinColumns
    lower: int = 0
    upper: int = 0
    condition: PairCondition | None = None

    def index(self, rows: SideRows) -> "IndexedSide":
        """Build an index over rows of one side."""
        return IndexedSide(self, rows)

    def hashes_and_keys(self, rows: SideRows) -> tuple[npt.NDArray[np.uint64], list[pa.Array]]:
        keys = [one_chunk(rows.table[name]) for name in self.columns.side(rows.side).keys]
        if not keys:
            return np.zeros(len(rows), dtype=np.uint64), keys
        if KEY_HASH in rows.table.schema.names:
            return uint64_values(rows.table[KEY_HASH]), keys
        return hash_columns(keys), keys

    def partners(self, rows: SideRows) -> tuple[Integers, Integers]:
        """Return the least and the greatest number that a partner of each row can have."""
        if rows.side is JoinSide.LEFT:
            return shifted(rows.numbers, self.lower), shifted(rows.numbers, self.upper)
        return shifted(rows.numbers, -self.upper), shifted(rows.numbers, -self.lower)


class IndexedSide:
    """IndexedSide rows of one side, against which rows of the other side are probed."""

    def __init__(self, matching: PairRule, rows: SideRows) -> None:
        self.rows = rows
        self._matching = matching
        hashes, keys = matching.hashes_and_keys(rows)
        self._index = JoinIndex(hashes, keys, rows.numbers)
        self.matched = np.zeros(len(rows), dtype=np.bool_)
        """Flags of the indexed rows that were in a pair with any probed row."""

    @property
    def keys(self) -> list[pa.Array]:
        """Return the distinct keys of the indexed rows, without keys that contain nulls."""
        return self._index.keys

    def pairs(self, others: SideRows) -> Iterator[tuple[Pairs, Integers]]:
        """Yield the pairs with rows of the other side, in chunks, and the rows of the other side in each chunk."""
        if not len(others) or not len(self.rows):
            return
        hashes, keys = self._matching.hashes_and_keys(others)
        for ours, theirs in self._index.pairs(hashes, keys, *self._matching.partners(others)):
            met, at = self._meeting(others, ours, theirs)
            if len(at[0]):
                self.matched[at[0]] = True
                yield met, at[1]

    def mark_matches(self, others: SideRows) -> None:
        """Update `matched` with rows of the other side, without building pairs."""
        for _ in self.pairs(others):
            pass

    def _meeting(self, others: SideRows, ours: Integers, theirs: Integers) -> tuple[Pairs, tuple[Integers, Integers]]:
        condition = self._matching.condition
        pairs = self._oriented(others, ours, theirs)
        if condition is None:
            return pairs, (ours, theirs)
        batch = self._matching.columns.paired(
            pairs.left, pairs.left_at, pairs.right, pairs.right_at, only=condition.columns
        )
        kept = boolean_values(condition.evaluate(batch))
        ours, theirs = ours[kept], theirs[kept]
        return self._oriented(others, ours, theirs), (ours, theirs)

    def _oriented(self, others: SideRows, ours: Integers, theirs: Integers) -> Pairs:
        if self.rows.side is JoinSide.LEFT:
            return Pairs(self.rows.table, ours, others.table, theirs)
        return Pairs(others.table, theirs, self.rows.table, ours)


def together(pieces: Iterable[pa.Table], *, max_bytes: int) -> Iterator[pa.Table]:
    """Combine pieces of the state into tables of about `max_bytes`."""
    held: list[pa.Table] = []
    nbytes = 0
    for piece in pieces:
        held.append(piece)
        nbytes += piece.nbytes
        if nbytes >= max_bytes:
            yield pa.concat_tables(held).combine_chunks()
            held, nbytes = [], 0
    if held:
        yield pa.concat_tables(held).combine_chunks()


def shifted(numbers: Integers, by: int) -> Integers:
    """Add `by` to the numbers, saturating at the limits of 64 bits."""
    if by >= 0:
        room = max(_GREATEST - by, _LEAST)
        return np.where(numbers > room, _GREATEST, np.minimum(numbers, room) + np.int64(min(by, _GREATEST)))
    room = min(_LEAST - by, _GREATEST)
    return np.where(numbers < room, _LEAST, np.maximum(numbers, room) + np.int64(max(by, _LEAST)))


def output_order(rows: pa.Table, keys: Sequence[str]) -> Integers:
    """Return the positions of rows sorted by event time, then by the hash of their key, then by all columns, so that
    the order of arrival does not matter.
    """
    times = int64_values(rows[TIME])
    order = np.argsort(times)
    runs = np.cumsum(changes([times], order), dtype=np.int64)
    bits = np.uint64(int(runs[-1]).bit_length())
    # Most rows differ after each step: only ties are compared further.
    hashes = np.zeros(len(order), dtype=np.uint64)
    if keys and (tied := _tied(runs)).any():
        tied_at = order[tied]
        hashes[tied_at] = hash_columns([one_chunk(rows[key]).take(from_numpy(tied_at, pa.int64())) for key in keys])
        numbers = (runs[tied].view(np.uint64) << (np.uint64(64) - bits)) | (hashes[tied_at] >> bits)
        runs = _refine(order, tied, [numbers], np.argsort(numbers))
    if (tied := _tied(runs)).any():
        run_of_rows, last_bits = runs[tied], (hashes[order[tied]] & ~(_ALL_BITS << bits)).view(np.int64)
        # Different keys with the same first bits are rare, but the order must not depend on the number of bits.
        differ = ((run_of_rows[1:] == run_of_rows[:-1]) & (last_bits[1:] != last_bits[:-1])).any()
        others = total_keys(taken(rows, order[tied]), rows.column_names)
        keys_of_rows = [run_of_rows, *([last_bits] if differ else []), *others]
        _refine(order, tied, keys_of_rows, sorted_by(keys_of_rows))
    return order


def _tied(runs: Integers) -> Flags:
    """Return which rows have the same run number as a neighbour."""
    tied = np.zeros(len(runs), dtype=np.bool_)
    tied[1:] = runs[1:] == runs[:-1]
    tied[:-1] |= tied[1:]
    return tied


def _refine(order: Integers, tied: Flags, numbers: Sequence[npt.NDArray[Any]], inside: Integers) -> Integers:
    """Sort tied rows by `numbers`; return the runs of rows that are still equal."""
    order[tied] = order[tied][inside]
    new = np.ones(len(order), dtype=np.bool_)
    new[tied] = changes(numbers, inside)
    return np.cumsum(new, dtype=np.int64)
