"""Lists and maps as flat columns: all elements in one array, the row of each, and the way back.

Functions of lists work on the elements of all rows at once. Elements are compared by their ranks, which are integers:
equal elements have equal ranks, and a smaller element has a smaller rank.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.arrays.nested import items_of
from statebed.arrays.nested_order import encoded
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.text_limits import check_size

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MAX_ELEMENTS = 1 << 26
"""Maximum number of list elements that one function returns for one batch."""


@dataclass(frozen=True)
class ListParts:
    """Lists taken apart. A null list has no elements."""

    valid: Flags
    lengths: Integers
    values: pa.Array

    @cached_property
    def starts(self) -> Integers:
        """Position of the first element of each list in `values`."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def rows(self) -> Integers:
        """Row of each element."""
        return np.repeat(np.arange(len(self.lengths), dtype=np.int64), self.lengths)

    @cached_property
    def positions(self) -> Integers:
        """Position of each element in its list, from 0."""
        return np.arange(len(self.values), dtype=np.int64) - self.starts[self.rows]

    def count(self, flags: Flags) -> Integers:
        """Count the elements of each row for which a flag is set."""
        return np.bincount(self.rows[flags], minlength=len(self.lengths)).astype(np.int64)

    def kept(self, flags: Flags) -> "ListParts":
        """Keep the elements for which a flag is set."""
        return ListParts(self.valid, self.count(flags), taken(self.values, np.flatnonzero(flags)))

    def first(self, flags: Flags) -> Integers:
        """Return the index of the first element of each row for which a flag is set, or -1."""
        firsts = np.full(len(self.lengths), -1, dtype=np.int64)
        places = np.flatnonzero(flags)[::-1]
        firsts[self.rows[places]] = places
        return firsts

    def with_valid(self, valid: Flags) -> "ListParts":
        """Return the same lists with more of them null."""
        if np.array_equal(valid, self.valid):
            return self
        parts = self.kept(valid[self.rows])
        return ListParts(valid, np.where(valid, parts.lengths, 0), parts.values)


def split_lists(array: pa.Array) -> ListParts:
    """Take lists or maps apart; the elements of a map are structs of key and value."""
    offsets, items = items_of(array)
    valid, lengths = validity(array), np.diff(offsets)
    if array.null_count and np.any(lengths[~valid]):
        inside = np.repeat(valid, lengths)
        items, lengths = taken(items, np.flatnonzero(inside)), np.where(valid, lengths, 0)
    return ListParts(valid, lengths, items)


def join_lists(kind: pa.DataType, parts: ListParts) -> pa.Array:
    """Build lists of `kind`, whose elements must have the element type of `kind`."""
    check_elements(len(parts.values), len(parts.lengths))
    return pa.Array.from_buffers(kind, len(parts.lengths), _buffers(parts), children=[parts.values])


def maps_of(kind: pa.DataType, parts: ListParts, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Build maps of `kind` from the keys and values of all rows; `parts` has their lengths."""
    check_elements(len(keys), len(parts.lengths))
    entries = pa.Array.from_buffers(
        pa.struct([kind.key_field, kind.item_field]), len(keys), [None], children=[keys, values]
    )
    return pa.Array.from_buffers(kind, len(parts.lengths), _buffers(parts), children=[entries])


def _buffers(parts: ListParts) -> list[pa.Buffer | None]:
    offsets = np.concatenate([[0], np.cumsum(parts.lengths)]).astype(np.int32)
    bitmap = None if parts.valid.all() else pa.py_buffer(np.packbits(parts.valid, bitorder="little"))
    return [bitmap, pa.py_buffer(offsets)]


def check_elements(count: int, rows: int) -> None:
    """Raise if a result has more than `MAX_ELEMENTS` elements."""
    if count > MAX_ELEMENTS:
        raise RowFailure(
            f"a result of {count:,} list elements for {rows:,} rows, above the limit of {MAX_ELEMENTS:,}",
            fix="make shorter lists, or leave rows out before with where(...)",
        )


def taken(array: pa.Array, places: npt.NDArray[np.integer], *, valid: Flags | None = None) -> pa.Array:
    """Take elements by position; null where `valid` is False."""
    return array.take(from_numpy(places.astype(np.int64), pa.int64(), valid=valid))


def taken_or_null(array: pa.Array, places: Integers, valid: Flags) -> pa.Array:
    """Take elements where `valid` is set, and nulls elsewhere; the array may be empty."""
    return taken(array, np.maximum(places, 0), valid=valid) if len(array) else pa.nulls(len(places), array.type)


def repeated(array: pa.Array, rows: Integers) -> pa.Array:
    """Take each element as often as `rows` names it, after checking the size of the result."""
    if array.type in (pa.string(), pa.binary()):
        lengths = fixed_width_values(pc.fill_null(pc.binary_length(array), 0), np.int32).astype(np.int64)
        check_size(int(lengths[rows].sum()), len(rows))
    elif pa.types.is_list(array.type) or pa.types.is_map(array.type):
        check_elements(int(np.diff(items_of(array)[0])[rows].sum()), len(rows))
    return taken(array, rows)


def ranks(*arrays: pa.Array) -> list[Integers]:
    """Rank the values of several arrays of one type together, from 0; a null has rank -1. NaN is equal to NaN and the
    largest number, and -0.0 is equal to 0.0.
    """
    together = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0]
    if pa.types.is_null(together.type):
        all_ranks = np.full(len(together), -1, dtype=np.int64)
    else:
        content = encoded(together)
        codes = content.dictionary_encode() if not pa.types.is_dictionary(content.type) else content
        order = fixed_width_values(pc.sort_indices(codes.dictionary), np.uint64).astype(np.int64)
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order), dtype=np.int64)
        indices = fixed_width_values(codes.indices, np.int32).astype(np.int64)
        valid = validity(together)
        all_ranks = np.full(len(together), -1, dtype=np.int64)
        all_ranks[valid] = rank[indices[valid]]
    ends = np.cumsum([len(array) for array in arrays])[:-1]
    return list(np.split(all_ranks, ends))
