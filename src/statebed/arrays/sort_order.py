"""Order of rows: by columns that the user names, then the total order that breaks every tie.

Every column becomes 64-bit integers that compare as its values do, so that sorting, finding ties and numbering rows is
arithmetic. In the user's order, NaN is the greatest number and -0.0 equals 0.0. The total order distinguishes even
those, and compares nested values item by item: rows that are equal in it are equal byte by byte.
"""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.canonical_order import sortable
from statebed.arrays.columns import boolean_values, fixed_width_values, int64_values, one_chunk, validity
from statebed.arrays.key_hash import normalise_key
from statebed.errors import InputError

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_GREATEST = np.int64(np.iinfo(np.int64).max)
_SIGN = np.uint64(1 << 63)
_WORD = 64
_FIRST_WORDS = 2
_TERM = re.compile(r"\s*(?P<column>.*?)(\s+(?P<way>asc|desc))?(\s+nulls\s+(?P<nulls>first|last))?\s*", re.IGNORECASE)


class SortDirection(enum.Enum):
    """Direction in which a column is sorted."""

    ASCENDING = "asc"
    DESCENDING = "desc"


class Nulls(enum.Enum):
    """Position of nulls."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class OrderBy:
    """One column of an order."""

    column: str
    way: SortDirection = SortDirection.ASCENDING
    nulls: Nulls = Nulls.FIRST

    @property
    def text(self) -> str:
        return f"{self.column} {self.way.value} nulls {self.nulls.value}"


def order_by(*terms: str | OrderBy) -> tuple[OrderBy, ...]:
    """Parse an order from texts such as 'price desc', 'at', 'name asc nulls last'.

    As in Spark, nulls come first in ascending order and last in descending order unless the text says otherwise.

    >>> order_by("price desc")[0].text
    'price desc nulls last'
    """
    return tuple(term if isinstance(term, OrderBy) else _parsed(term) for term in terms)


def _parsed(text: str) -> OrderBy:
    match = _TERM.fullmatch(text)
    if match is None or not match["column"]:
        raise InputError(
            f"{text!r} is not an order", fix="write a column, then asc or desc, then nulls first or nulls last"
        )
    way = SortDirection((match["way"] or "asc").lower())
    usual = "first" if way is SortDirection.ASCENDING else "last"
    return OrderBy(match["column"], way, Nulls((match["nulls"] or usual).lower()))


def check_order(terms: Sequence[OrderBy], columns: pa.Schema, *, where: str) -> None:
    """Raise InputError for an order by columns that are missing, repeated, or cannot be ordered."""
    names = [term.column for term in terms]
    if not names or len(set(names)) != len(names):
        raise InputError(
            f"the order must name at least one column, and each once, got {names}",
            where=where,
            fix="name each column once",
        )
    for name in names:
        if name not in columns.names:
            raise InputError(f"there is no column {name!r} to order by", where=where, fix=f"use one of {columns.names}")
        if pa.types.is_nested(columns.field(name).type):
            raise InputError(
                f"the column {name!r} of the type {columns.field(name).type} cannot be ordered by",
                where=where,
                fix="order by a plain column, for example a field of the struct",
            )


def user_keys(rows: pa.Table, terms: Sequence[OrderBy]) -> list[Integers]:
    """Return integers whose order is the user's order of rows, the most significant first."""
    keys = []
    for term in terms:
        array = normalise_key(one_chunk(rows[term.column]))
        values = codes(array)
        if term.way is SortDirection.DESCENDING:
            values = ~values
        if array.null_count:
            valid = validity(array)
            keys.append((valid if term.nulls is Nulls.FIRST else ~valid).astype(np.int64))
            values = np.where(valid, values, 0)
        keys.append(values)
    return keys


def total_keys(rows: pa.Table, columns: Sequence[str]) -> list[Integers]:
    """Return integers whose order is the total order of rows, nulls last."""
    return [key for name in columns for key in _keys(one_chunk(rows[name]))]


def sorted_by(keys: Sequence[Integers]) -> Integers:
    """Return row numbers in the order of the keys, the most significant first; the sort is stable.

    Keys are packed into as few words as their ranges allow, together with the row number: sorting numbers is several
    times faster than an argsort. Later words sort only the rows that tie in the first ones.
    """
    count = len(keys[0])
    row_bits = max(count - 1, 1).bit_length()
    words = _words(keys, _WORD - row_bits)
    # Looking for ties costs as much as sorting by one more word.
    first = words if len(words) <= _FIRST_WORDS + 1 else words[:_FIRST_WORDS]
    later = words[len(first) :]
    order = _sorted_by_words(first, count, row_bits)
    if later:
        begins = changes(first, order)
        tied = np.flatnonzero(~begins | ~np.append(begins[1:], True))
        runs = np.cumsum(begins, dtype=np.int64)[tied]
        rows = order[tied]
        order[tied] = rows[sorted_by([runs, *(word[rows].view(np.int64) for word in later)])]
    return order


def _sorted_by_words(words: Sequence[Words], count: int, row_bits: int) -> Integers:
    numbers = np.arange(count, dtype=np.uint64)
    order: Integers | None = None
    for word in reversed(words):
        packed = ((word if order is None else word[order]) << np.uint64(row_bits)) | numbers
        packed.sort()
        places = (packed & np.uint64((1 << row_bits) - 1)).astype(np.int64)
        order = places if order is None else order[places]
    return numbers.astype(np.int64) if order is None else order


def _words(keys: Sequence[Integers], room: int) -> list[Words]:
    """Return the keys as words of at most `room` bits, several in one if they fit, split if one does not."""
    words: list[tuple[Words, int]] = []
    for key in keys:
        lowest = int(key.min(initial=_GREATEST))
        bits = max(int(key.max(initial=lowest)) - lowest, 0).bit_length()
        # Differences of 64-bit numbers are correct modulo 2**64.
        value = key.view(np.uint64) - np.uint64(lowest % (1 << _WORD))
        pieces = [(value, bits)]
        if bits > room:
            pieces = [(value >> np.uint64(room), bits - room), (value & np.uint64((1 << room) - 1), room)]
        for piece, width in pieces:
            if words and words[-1][1] + width <= room:
                earlier, taken = words.pop()
                words.append(((earlier << np.uint64(width)) | piece, taken + width))
            elif width:
                words.append((piece, width))
    return [word for word, _ in words]


def total_order(keys: Sequence[Integers], columns: Sequence[pa.Array]) -> tuple[Integers, Flags]:
    """Return row numbers in the order of the keys and then of one or more columns, and whether each row in this order
    differs from the one before it.

    The sort is stable. A column is looked at only for the rows that are equal in all before it: comparing text takes
    several times as long as comparing numbers.
    """
    column, *rest = columns
    keys = [*keys, *_keys(column)]
    order = sorted_by(keys)
    begins = changes(keys, order)
    tied = np.flatnonzero(~begins | ~np.append(begins[1:], True)) if rest else ()
    if len(tied):
        rows, runs = order[tied], np.cumsum(begins, dtype=np.int64)[tied]
        at = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
        within, begins[tied] = total_order([runs], [column.take(at) for column in rest])
        order[tied] = rows[within]
    return order, begins


def changes(keys: Sequence[Integers | Words], order: Integers) -> Flags:
    """Return whether each row, in this order, differs from the one before it; the first always does."""
    differs = np.zeros(len(order), dtype=np.bool_)
    differs[:1] = True
    for key in keys:
        ordered = key[order]
        differs[1:] |= ordered[1:] != ordered[:-1]
    return differs


def codes(array: pa.Array) -> Integers:
    """Return integers that compare as the values do; arbitrary at nulls."""
    return _nested_codes(array) if pa.types.is_nested(array.type) else _plain_codes(sortable(array))


def _plain_codes(array: pa.Array) -> Integers:
    kind = array.type
    if pa.types.is_boolean(kind):
        return boolean_values(array).astype(np.int64)
    if pa.types.is_floating(kind):
        bits = int64_values(array.cast(pa.float64()))
        return bits ^ ((bits >> np.int64(63)) & _GREATEST)
    if _is_stored_as_integer(kind):
        return fixed_width_values(array, np.dtype(f"i{kind.bit_width // 8}")).astype(np.int64)
    if pa.types.is_unsigned_integer(kind):
        values = fixed_width_values(array, np.dtype(f"u{kind.bit_width // 8}")).astype(np.uint64)
        return (values ^ _SIGN).view(np.int64)
    if pa.types.is_decimal128(kind) and (small := unscaled(array)) is not None:
        return small
    return _places_in_dictionary(array)


def _is_stored_as_integer(kind: pa.DataType) -> bool:
    short = pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind)
    return short or pa.types.is_signed_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))


def unscaled(array: pa.Array) -> Integers | None:
    """Return decimals as unscaled integers, or None if one exceeds 64 bits; arbitrary at nulls."""
    words = fixed_width_values(array, np.dtype(("<i8", (2,)))).astype(np.int64, copy=False)
    low, high = words[:, 0], words[:, 1]
    fits = (high == low >> np.int64(63)) | ~validity(array)
    return np.ascontiguousarray(low) if bool(fits.all()) else None


def _keys(array: pa.Array) -> list[Integers]:
    values = codes(array)
    if not array.null_count:
        return [values]
    valid = validity(array)
    return [(~valid).astype(np.int64), np.where(valid, values, 0)]


def _places_in_dictionary(array: pa.Array) -> Integers:
    """Return the position of each value among the sorted distinct values."""
    if pa.types.is_null(array.type):
        return np.zeros(len(array), dtype=np.int64)
    try:
        encoded = array.dictionary_encode()
        order = pc.sort_indices(encoded.dictionary)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise InputError(f"values of the type {array.type} cannot be ordered", fix="cast the column") from error
    ranks = np.zeros(max(len(order), 1), dtype=np.int64)
    ranks[fixed_width_values(order, np.uint64).astype(np.int64)] = np.arange(len(order), dtype=np.int64)
    places = fixed_width_values(encoded.indices, np.int32).astype(np.int64)
    return ranks[np.where(validity(encoded.indices), places, 0)]


def _nested_codes(array: pa.Array) -> Integers:
    if pa.types.is_struct(array.type):
        return _dense([key for child in array.flatten() for key in _keys(child)], len(array))
    if pa.types.is_map(array.type):
        array = array.cast(pa.list_(pa.struct([array.type.key_field, array.type.item_field])))
    lengths = np.where(validity(array), _lengths(array), 0)
    items = array.flatten()
    keys = _keys(items)
    item_codes = keys[0] if len(keys) == 1 else _dense(keys, len(items))
    # Unsigned big-endian numbers compare as their bytes do, and shorter lists come before longer ones with the same
    # start.
    content = (item_codes.view(np.uint64) ^ _SIGN).astype(">u8")
    ends = np.concatenate(([0], np.cumsum(lengths * content.itemsize))).astype(np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
    return _places_in_dictionary(pa.Array.from_buffers(pa.large_binary(), len(array), buffers))


def _lengths(array: pa.Array) -> Integers:
    if pa.types.is_fixed_size_list(array.type):
        return np.full(len(array), array.type.list_size, dtype=np.int64)
    lengths = pc.list_value_length(array).cast(pa.int64())
    return fixed_width_values(lengths, np.int64).astype(np.int64)


def _dense(keys: Sequence[Integers], count: int) -> Integers:
    """Return the position of each row among the distinct rows."""
    if not keys or not count:
        return np.zeros(count, dtype=np.int64)
    order = sorted_by(keys)
    places = np.empty(count, dtype=np.int64)
    places[order] = np.cumsum(changes(keys, order)) - 1
    return places
