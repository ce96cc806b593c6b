"""Common parts of all kinds of columns: rows by number, merging of sorted runs, comparison and update of arrays."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.canonical_order import sortable
from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, one_chunk, validity
from statebed.arrays.compiled import loops_for

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

N = TypeVar("N", bound=np.generic)

_BITS: dict[int, type[np.unsignedinteger[Any]]] = {32: np.uint32, 64: np.uint64}
_NONE: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
_AT_ONCE = 1 << 16
"""Number of rows of the largest run that are processed together, so that they stay in the processor's cache."""


class AnyColumn(Protocol):
    """Operations of every kind of column that other columns use."""

    def __len__(self) -> int: ...

    def take(self, rows: Rows) -> pa.Array:
        """Return the values in some rows."""

    def array(self) -> pa.Array:
        """Return all values, without a copy if possible; the column must not be written while they are used."""

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        """Return whether the value in each row equals the one in the array."""


def cuts_at(hashes: npt.NDArray[np.uint64], edges: npt.NDArray[np.uint64]) -> list[int]:
    """Return where sorted hashes are cut before each of the edges, including both ends."""
    return [0, *np.searchsorted(hashes, edges).tolist(), len(hashes)]


class Places:
    """Positions of the rows of sorted runs in their merged run."""

    def __init__(self, hashes: Sequence[npt.NDArray[np.uint64]]) -> None:
        """Compute the positions from the hashes of each run."""
        self._count = sum(len(run_hashes) for run_hashes in hashes)
        if (loops := loops_for(self._count)) is not None:
            self._at = [np.arange(len(run_hashes), dtype=np.int64) for run_hashes in hashes]
            for first, second in itertools.combinations(range(len(hashes)), 2):
                loops.make_room(hashes[first], hashes[second], self._at[first], self._at[second])
            return
        self._at = [np.empty(len(run_hashes), dtype=np.int64) for run_hashes in hashes]
        edges = max(hashes, key=len)[_AT_ONCE::_AT_ONCE]
        cuts = [cuts_at(run_hashes, edges) for run_hashes in hashes]
        for starts, ends in itertools.pairwise(zip(*cuts, strict=True)):
            parts = [slice(start, end) for start, end in zip(starts, ends, strict=True)]
            # A stable sort detects sorted parts and merges them.
            joined = np.concatenate([run_hashes[part] for run_hashes, part in zip(hashes, parts, strict=True)])
            order = np.argsort(joined, kind="stable")
            places = np.empty_like(order)
            places[order] = np.arange(sum(starts), sum(ends), dtype=np.int64)
            before = 0
            for at, part in zip(self._at, parts, strict=True):
                at[part] = places[before : before + part.stop - part.start]
                before += part.stop - part.start

    def merge(self, parts: Sequence[npt.NDArray[N]]) -> npt.NDArray[N]:
        """Merge an array per run into one."""
        merged, loops = np.empty(self._count, dtype=parts[0].dtype), loops_for(self._count)
        for at, part in zip(self._at, parts, strict=True):
            if loops is not None:
                # A part that repeats one element would be compiled separately.
                loops.scatter(np.ascontiguousarray(part), at, merged)
            else:
                merged[at] = part
        return merged


def equal_words(
    ours: tuple[npt.NDArray[Any], ...], rows: Rows, theirs: tuple[npt.NDArray[Any], ...], others: Rows, maybe: Mask
) -> Mask:
    """Return, where `maybe` is set, whether each row equals its counterpart in all arrays."""
    if (loops := loops_for(len(rows))) is not None:
        equal = maybe.copy()
        loops.compare(ours, rows, theirs, others, equal)
        return equal

    def same(rows: Rows, others: Rows) -> Mask:
        equal = np.ones(len(rows), dtype=np.bool_)
        for our_words, other in zip(ours, theirs, strict=True):
            equal &= our_words.take(rows) == other.take(others)
        return equal

    return equal_where(maybe, rows, others, same)


def equal_where(maybe: Mask, rows: Rows, others: Rows, equal: Callable[[Rows, Rows], Mask]) -> Mask:
    """Return `equal` of the rows where `maybe` is set, and False elsewhere; the other rows are not read."""
    candidates = np.flatnonzero(maybe)
    if len(candidates) == len(maybe):
        return equal(rows, others)
    result = maybe.copy()
    result[candidates] = equal(rows.take(candidates), others.take(candidates))
    return result


def equal_values(ours: pa.Array, theirs: pa.Array) -> Mask:
    """Return whether values are equal, one by one; null equals null."""
    ours, theirs = sortable(ours), sortable(theirs)
    if pa.types.is_null(ours.type):
        return np.ones(len(ours), dtype=np.bool_)
    equal = boolean_values(pc.equal(ours, theirs))
    if ours.null_count and theirs.null_count:
        equal |= ~validity(ours) & ~validity(theirs)
    return equal


def plain(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    """Return the column as a single array of exactly this type."""
    array = one_chunk(column)
    return array if array.type == kind else array.cast(kind)


def taken(array: pa.Array, rows: Rows, wanted: Mask | None = None) -> pa.Array:
    """Return some rows of an array, in the given order, and null where they are not wanted."""
    kind = array.type
    if len(array) and array.null_count == len(array):
        return pa.nulls(len(rows), kind)
    if len(array) and pa.types.is_primitive(kind) and (dtype := _BITS.get(kind.bit_width)) is not None:
        values = fixed_width_values(array, dtype)
        if wanted is None and not array.null_count:
            return from_numpy(values.take(rows), kind)
        if (loops := loops_for(len(rows))) is not None:
            bitmap = array.buffers()[0] if array.null_count else None
            bits = _NONE if bitmap is None else np.frombuffer(bitmap, dtype=np.uint8)
            flags = _NONE if wanted is None else wanted.view(np.uint8)
            result = np.empty(len(rows), dtype=dtype)
            valid, nulls = loops.take_bits(values, (bits, array.offset), rows, flags, result)
            return pa.Array.from_buffers(
                kind, len(rows), [pa.py_buffer(valid) if nulls else None, pa.py_buffer(result)], nulls
            )
    return array.take(from_numpy(rows, pa.int64(), valid=wanted))
