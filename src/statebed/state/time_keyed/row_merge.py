"""K-way merge of sorted sources into one sorted stream, with about one piece of each open source in memory.

Each step emits the rows up to the smallest of the last rows of all open pieces: no later row can precede them. A source
is opened only when the stream reaches its first bin, so sources that follow one another in time are open one at a time.
Rows that are equal in all columns of the table's order are ordered by their values, so the result does not depend on
the order of arrival.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import exact, is_sortable, sort_indices, sort_ties, sortable
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.mutable import column_of
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME
from statebed.format.segment import SegmentSpec
from statebed.format.segment_writer import row_bytes

Mask = npt.NDArray[np.bool_]
Place = tuple[tuple[int, Any], ...]
"""Values of a row in the columns of the order, comparable with those of another row."""

Combine = Callable[[pa.Table], pa.Table]
"""Reduces the rows of each key and time. Receives all columns of files, whole groups in order, and returns rows in
order; if several rows of a group remain, they are ordered by their values, too (as by `ordered`). The sequence of a
returned row is the greatest of its inputs.
"""

_MAX_HELD_BYTES = 8 << 20
"""Size of the rows of one key and time from which they are not combined, unless that makes them small."""
_NAN, _NULL = 1, 2
_WHOLE = {32: pa.int32(), 64: pa.int64()}


@dataclass(frozen=True)
class SortedSource:
    """Sorted rows in pieces, none of which is in a bin before `first_bin`."""

    first_bin: int
    pieces: Iterator[pa.Table]
    in_memory: bool = False
    """Whether its rows are in memory already."""


def ordered(rows: pa.Table, spec: SegmentSpec) -> pa.Table:
    """Sort rows in the order of the table, and rows that are equal in it by their values."""
    # Sorting and taking from one chunk is faster than from many.
    rows = rows.combine_chunks()
    if _is_strictly_ordered(rows):
        return rows
    rows = rows.take(sort_indices(rows, spec.sort_columns)).combine_chunks()
    return sort_ties(rows, spec.sort_columns, _values(spec)) if _may_repeat(rows) else rows


def ordered_parts(rows: pa.Table, spec: SegmentSpec, *, limit: int) -> Iterator[pa.Table]:
    """Yield the rows in the order of the table, in lazily built parts of about `limit` bytes.

    The boundaries depend on the set of rows alone, not on their order.
    """
    order = np.asarray(sort_indices(rows, spec.sort_columns))
    sizes = np.cumsum(row_bytes(rows)[order])
    ends = _ends_of_equal_rows(rows, order, spec)
    start, spent = 0, 0.0
    while start < len(order):
        within = int(np.searchsorted(sizes, spent + limit, side="right"))
        last = int(np.searchsorted(ends, within, side="right")) - 1
        # Rows that are equal in the columns of the order stay together, so that their values decide where a part ends.
        end = int(ends[last]) if last >= 0 and ends[last] > start else int(ends[last + 1])
        part = ordered(rows.take(from_numpy(order[start:end], pa.int64())), spec)
        yield from cut(part, limit=limit) if sizes[end - 1] - spent > limit else (part,)
        start, spent = end, float(sizes[end - 1])


def cut(rows: pa.Table, *, limit: int) -> Iterator[pa.Table]:
    """Yield the rows in parts of at most `limit` bytes by their values, or of one row."""
    sizes = np.cumsum(row_bytes(rows))
    start, spent = 0, 0.0
    while start < rows.num_rows:
        end = max(int(np.searchsorted(sizes, spent + limit, side="right")), start + 1)
        yield rows.slice(start, end - start)
        start, spent = end, float(sizes[end - 1])


def repeats(rows: pa.Table, keys: Sequence[str]) -> bool:
    """Return whether two of the sorted rows have the same key and time."""
    return bool(_same_as_next(rows, keys).any())


def newest(pieces: Iterable[pa.Table], keys: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the last of sorted rows with one key and time: the one with the greatest sequence."""
    held: pa.Table | None = None
    for piece in pieces:
        if not piece.num_rows:
            continue
        rows = piece if held is None else pa.concat_tables([held, piece])
        kept = np.flatnonzero(~_same_as_next(rows, keys))
        # The last row may be followed by a newer one in the next piece.
        held = rows.slice(rows.num_rows - 1)
        if len(kept) > 1:
            yield rows.take(from_numpy(kept[:-1], pa.int64()))
    if held is not None:
        yield held


def combined(pieces: Iterable[pa.Table], keys: Sequence[str], combine: Combine) -> Iterator[pa.Table]:
    """Yield sorted rows, with those of each key and time reduced by `combine`.

    Rows of one key and time that are still large when they are combined are left as they are, because all of them would
    have to be in memory at once.
    """
    held: pa.Table | None = None
    passed: pa.Table | None = None
    for piece in pieces:
        more = 0 if passed is None else _same_at_start(passed, piece, keys)
        if more:
            yield piece.slice(0, more)
        if more == piece.num_rows:
            continue
        passed = None
        rows = piece.slice(more) if held is None else pa.concat_tables([held, piece])
        same = _same_as_next(rows, keys)
        different = np.flatnonzero(~same)
        # The last key and time may continue in the next piece.
        whole = 0 if len(different) < 2 else int(different[-2]) + 1  # noqa: PLR2004 - the last row always differs
        held = rows.slice(whole)
        if whole:
            settled = rows.slice(0, whole)
            yield combine(settled.combine_chunks()) if same[:whole].any() else settled
        if held.num_rows > 1 and held.nbytes > _MAX_HELD_BYTES:
            reduced = combine(held.combine_chunks())
            if reduced.nbytes <= _MAX_HELD_BYTES // 2:
                held = reduced
            else:
                yield held
                passed = held.slice(held.num_rows - 1)
                held = None
    if held is not None:
        yield combine(held.combine_chunks())


def _same_at_start(row: pa.Table, rows: pa.Table, keys: Sequence[str]) -> int:
    """Return how many of the first rows have the same key and time as a row before them."""
    same = _same_as_next(pa.concat_tables([row, rows]).combine_chunks(), keys)
    return int(np.argmin(same))  # the last row has no next one


def merged(sources: Iterable[SortedSource], spec: SegmentSpec) -> Iterator[pa.Table]:
    """Yield all rows in order."""
    waiting = sorted(sources, key=lambda source: source.first_bin, reverse=True)
    heads: list[_SourceHead] = []
    while waiting or heads:
        if not heads:
            _open(waiting.pop(), heads)
            continue
        until = min(heads, key=lambda head: head.last_place(spec))
        last_bin, last_hash, place = until.last_bin, until.last_hash, until.last_place(spec)
        if waiting and waiting[-1].first_bin <= last_bin:
            _open(waiting.pop(), heads)
            continue
        parts = [head.take_until(last_bin, last_hash, place, spec) for head in heads]
        heads = [head for head in heads if head.advance()]
        parts = [part for part in parts if part.num_rows]
        yield parts[0] if len(parts) == 1 else ordered(pa.concat_tables(parts), spec)


def _open(source: SortedSource, heads: "list[_SourceHead]") -> None:
    head = _SourceHead(source.pieces)
    if head.advance():
        heads.append(head)


class _SourceHead:
    """Open piece of one source."""

    def __init__(self, pieces: Iterator[pa.Table]) -> None:
        self._pieces = pieces
        self._rows = pa.table({})
        self._place: Place | None = None
        self.last_bin = 0
        self.last_hash = 0

    def advance(self) -> bool:
        """Load the next rows if there are none; return False at the end."""
        while not self._rows.num_rows:
            self._rows = pa.table({})  # before the next piece is read, so that only one is in memory
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rows = piece.combine_chunks()
            self._place = None
        if self._place is None:
            self.last_bin = int(int64_values(self._rows[BIN])[-1])
            self.last_hash = int(uint64_values(self._rows[KEY_HASH])[-1])
        return True

    def last_place(self, spec: SegmentSpec) -> Place:
        if self._place is None:
            self._place = _place(self._rows, self._rows.num_rows - 1, spec)
        return self._place

    def take_until(self, last_bin: int, last_hash: int, place: Place, spec: SegmentSpec) -> pa.Table:
        """Take the rows up to and including a place."""
        rows = self._rows
        bins, hashes = int64_values(rows[BIN]), uint64_values(rows[KEY_HASH])
        first, behind = (int(np.searchsorted(bins, last_bin, side=side)) for side in ("left", "right"))
        wanted = np.uint64(last_hash)
        low, high = (
            first + int(np.searchsorted(hashes[first:behind], wanted, side=side)) for side in ("left", "right")
        )
        # Only rows with the same bin and hash need to be compared column by column.
        while low < high:
            middle = (low + high) // 2
            if _place(rows, middle, spec) <= place:
                low = middle + 1
            else:
                high = middle
        self._rows = rows.slice(low)
        return rows.slice(0, low)


def _place(rows: pa.Table, row: int, spec: SegmentSpec) -> Place:
    place = [sortable(rows[name].slice(row, 1)) for name in spec.sort_columns]
    values = [exact(rows[name].slice(row, 1)) for name in _values(spec)]
    return tuple(_comparable(one_chunk(column)) for column in (*place, *values))


def _values(spec: SegmentSpec) -> list[str]:
    """Return the columns that distinguish rows which are equal in the columns of the order."""
    return [field.name for field in spec.schema if field.name not in spec.sort_columns and is_sortable(field.type)]


def _comparable(scalar_array: pa.Array) -> tuple[int, Any]:
    kind = scalar_array.type
    if pa.types.is_temporal(kind) and (whole := _WHOLE.get(kind.bit_width)) is not None:
        # The range of Python's datetime is too small.
        scalar_array = scalar_array.view(whole)
    value = scalar_array[0].as_py()
    if value is None:
        return _NULL, 0
    return (_NAN, 0) if isinstance(value, float) and np.isnan(value) else (0, value)


def _may_repeat(rows: pa.Table) -> bool:
    """Return whether sorted rows may be equal in the columns of the order; numeric columns rule out most of them
    quickly.
    """
    same = np.ones(max(rows.num_rows - 1, 0), dtype=np.bool_)
    for name in (BIN, KEY_HASH, TIME, SEQUENCE):
        values = uint64_values(rows[name])
        same &= values[:-1] == values[1:]
    return bool(same.any())


def _ends_of_equal_rows(rows: pa.Table, order: npt.NDArray[np.int64], spec: SegmentSpec) -> npt.NDArray[np.int64]:
    """Return the ends of the runs of rows that are equal in the columns of the order, ascending."""
    same = np.ones(len(order) - 1, dtype=np.bool_)
    for name in (BIN, KEY_HASH, TIME, SEQUENCE):
        values = uint64_values(rows[name])[order]
        same &= values[:-1] == values[1:]
    maybe = np.flatnonzero(same)
    if len(maybe):
        first, second = (from_numpy(order[maybe + behind], pa.int64()) for behind in (0, 1))
        for name in spec.key_columns:
            column = column_of(one_chunk(rows[name].take(first)))
            same[maybe] &= column.equals(np.arange(len(maybe)), one_chunk(rows[name].take(second)))
    return np.append(np.flatnonzero(~same) + 1, len(order))


def _is_strictly_ordered(rows: pa.Table) -> bool:
    """Return whether bins and hashes alone show that the rows are in order, as for most rows that operators write."""
    bins, hashes = int64_values(rows[BIN]), uint64_values(rows[KEY_HASH])
    later = (bins[1:] > bins[:-1]) | ((bins[1:] == bins[:-1]) & (hashes[1:] > hashes[:-1]))
    return bool(later.all())


def _same_as_next(rows: pa.Table, keys: Sequence[str]) -> Mask:
    """Return a mask of the rows with the same key and time as the next row."""
    hashes, times = uint64_values(rows[KEY_HASH]), int64_values(rows[TIME])
    same = np.zeros(rows.num_rows, dtype=np.bool_)
    same[:-1] = (hashes[:-1] == hashes[1:]) & (times[:-1] == times[1:])
    maybe = np.flatnonzero(same)
    following = from_numpy(maybe + 1, pa.int64())
    for name in keys if len(maybe) else ():
        column = one_chunk(rows[name])
        same[maybe] &= column_of(column).equals(maybe, column.take(following))
    return same
