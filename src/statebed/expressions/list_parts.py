"""Lists and maps as flat columns: all elements in one array, the row of each, and the way back.

Functions of lists work on the elements of all rows at once. Elements are compared by their ranks, which are integers:
equal elements have equal ranks, and a smaller element has a smaller rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.arrays.nested import fields_of, items_of
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
    check_repeated(array, rows)
    return taken(array, rows)


def check_repeated(array: pa.Array, rows: Integers) -> None:
    """Raise if the result of taking each element as often as `rows` names it is too large."""
    if not _has_variable_size(array.type):
        return
    nbytes, elements = sizes_of(array)
    check_size(int(nbytes[rows].sum()), len(rows))
    check_elements(int(elements[rows].sum()), len(rows))


def check_together(columns: Sequence[pa.Array]) -> None:
    """Raise if a result with all values of several columns is too large."""
    rows = max(map(len, columns), default=0)
    check_size(sum(map(content_bytes, columns)), rows)


def sizes_of(array: pa.Array) -> tuple[Integers, Integers]:
    """Return the bytes of text in each value, and the number of its list elements, those of inner lists included."""
    kind, none = array.type, np.zeros(len(array), dtype=np.int64)
    if kind in (pa.string(), pa.binary()):
        return np.diff(text_offsets(array)), none
    if pa.types.is_struct(kind):
        parts = [sizes_of(field) for field in fields_of(array)]
        return sum((nbytes for nbytes, _ in parts), none), sum((elements for _, elements in parts), none)
    if not (pa.types.is_list(kind) or pa.types.is_map(kind)):
        return none, none
    offsets, items = items_of(array)
    lengths = np.diff(offsets)
    if not _has_variable_size(items.type):
        return none, lengths
    nbytes, elements = (np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) for sizes in sizes_of(items))
    return np.diff(nbytes[offsets]), lengths + np.diff(elements[offsets])


def content_bytes(array: pa.Array) -> int:
    """Return the number of bytes of all texts in an array, also of those in lists and structs."""
    kind = array.type
    if kind in (pa.string(), pa.binary()):
        offsets = text_offsets(array)
        return int(offsets[-1] - offsets[0])
    if pa.types.is_struct(kind):
        return sum(map(content_bytes, fields_of(array)))
    return content_bytes(items_of(array)[1]) if pa.types.is_list(kind) or pa.types.is_map(kind) else 0


def content_of(datum: pa.Array | pa.Scalar, rows: int) -> int:
    """Return the number of bytes of all texts in `rows` values; a scalar is repeated for each of them."""
    if isinstance(datum, pa.Scalar):
        return rows * content_bytes(pa.repeat(datum, 1)) if datum.is_valid else 0
    return content_bytes(datum)


def text_offsets(texts: pa.Array) -> Integers:
    """Return where each text begins in the bytes of all texts, and where the last one ends."""
    buffer = texts.buffers()[1]
    if not len(texts) or buffer is None:
        return np.zeros(len(texts) + 1, dtype=np.int64)
    return np.frombuffer(buffer, dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)


def _has_variable_size(kind: pa.DataType) -> bool:
    """Return whether a value has texts or lists in it."""
    if pa.types.is_struct(kind):
        return any(_has_variable_size(field.type) for field in kind)
    return bool(kind in (pa.string(), pa.binary()) or pa.types.is_list(kind) or pa.types.is_map(kind))


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
