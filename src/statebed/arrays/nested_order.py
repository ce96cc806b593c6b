"""Encoding of nested values as bytes that are equal if the values are, and compare as the values do.

Arrow neither compares nor sorts structs, lists and maps, but it does so with binary columns. In this encoding null
equals null, NaN equals NaN, and -0.0 equals 0.0. Values are ordered part by part: numbers by size with NaN as the
greatest, text by its bytes, a list before a longer one with the same start, and nulls after values. A map is the list
of its entries, in their order.

A part is a byte, 1 for a value and 2 for null, followed by the value:

- numbers, times, decimals: big endian with the sign inverted, so that bytes ascend as numbers do;
- text and binary: the bytes, with FF after each 00, and 00 00 after the last; fixed-size binary: unchanged;
- structs: their fields, as parts; lists: their items, as parts, and 00 after the last.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, fixed_width_values, validity
from statebed.arrays.nested import REMEMBERED_TYPES, Offsets, fields_of, is_list, is_list_view, items_of
from statebed.arrays.packed_text import OFFSET_TYPES, byte_offsets

_BINARY = pa.large_binary()
_VALUE, _NULL, _END, _END_OF_TEXT, _NOTHING = (
    # `pa.scalar` would import pandas.
    pa.Array.from_buffers(_BINARY, 1, [None, pa.py_buffer(np.array([0, len(data)])), pa.py_buffer(data)])[0]
    for data in (b"\x01", b"\x02", b"\x00", b"\x00\x00", b"")
)
_SIGN = np.uint8(0x80)


@lru_cache(maxsize=REMEMBERED_TYPES)
def is_encodable(kind: pa.DataType) -> bool:
    """Return whether values of a type can be encoded."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_encodable(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return is_encodable(kind.value_type)
    if pa.types.is_struct(kind):
        return all(is_encodable(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_map(kind):
        return is_encodable(kind.key_type) and is_encodable(kind.item_type)
    if is_list(kind) or is_list_view(kind):
        return is_encodable(kind.value_type)
    return kind in OFFSET_TYPES or pa.types.is_null(kind) or _is_fixed(kind)


def encoded(column: pa.Array | pa.ChunkedArray, *, exact: bool = False) -> pa.Array | pa.ChunkedArray:
    """Return the values of a nested column as bytes; nulls stay null.

    With `exact`, zeros and NaN that differ in their bits have different bytes.
    """
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([encoded(chunk, exact=exact) for chunk in column.chunks], _BINARY)
    content = _content(column, exact)
    if not column.null_count:
        return content
    bitmap = pa.py_buffer(np.packbits(validity(column), bitorder="little"))
    return pa.Array.from_buffers(_BINARY, len(column), [bitmap, *content.buffers()[1:]], column.null_count)


def _part(array: pa.Array, exact: bool) -> pa.Array:
    """Return each value preceded by the byte that tells whether it is null."""
    while isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return pa.repeat(_NULL, len(array))
    if _is_fixed(array.type):
        return _fixed_part(_fixed_content(array, exact), validity(array) if array.null_count else None)
    marked = pc.binary_join_element_wise(_VALUE, _content(array, exact), _NOTHING)
    return pc.if_else(array.is_valid(), marked, _NULL) if array.null_count else marked


def _fixed_part(content: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Return the same as `_part` for rows of bytes, several times faster than joining values one by one."""
    count, width = content.shape
    marked = np.empty((count, width + 1), dtype=np.uint8)
    marked[:, 0] = 1
    marked[:, 1:] = content
    if valid is None:
        return _over(marked)
    marked[:, 0] += ~valid
    kept = np.ones(marked.shape, dtype=np.bool_)
    kept[~valid, 1:] = False
    offsets = np.concatenate(([0], np.cumsum(np.where(valid, width + 1, 1)))).astype(np.int64)
    return pa.Array.from_buffers(_BINARY, count, [None, pa.py_buffer(offsets), pa.py_buffer(marked[kept])])


def _content(array: pa.Array, exact: bool) -> pa.Array:
    """Return the encoding of each value without its null byte; arbitrary at nulls."""
    kind = array.type
    if pa.types.is_struct(kind):
        return _joined([_part(field, exact) for field in fields_of(array)], len(array))
    if is_list(kind) or is_list_view(kind) or pa.types.is_map(kind):
        return _list_content(array, exact)
    if kind in OFFSET_TYPES:
        return _text_content(array)
    return _over(np.ascontiguousarray(_fixed_content(array, exact)))


def _joined(parts: list[pa.Array], count: int) -> pa.Array:
    return pc.binary_join_element_wise(*parts, _NOTHING) if parts else pa.repeat(_NOTHING, count)


def _list_content(array: pa.Array, exact: bool) -> pa.Array:
    offsets, items = _items_of_views(array) if is_list_view(array.type) else items_of(array)
    parts = _part(items, exact)
    # The items of a list are adjacent, and so are their bytes.
    ends = byte_offsets(parts)[offsets]
    joined = pa.Array.from_buffers(_BINARY, len(array), [None, pa.py_buffer(ends), parts.buffers()[2]])
    return pc.binary_join_element_wise(joined, _END, _NOTHING)


def _items_of_views(array: pa.Array) -> tuple[Offsets, pa.Array]:
    """Return the same as `items_of` for list views, whose items may be in any order."""
    lengths = fixed_width_values(pc.list_value_length(array).cast(pa.int64()), np.int64)
    offsets = np.concatenate(([0], np.cumsum(np.where(validity(array), lengths, 0)))).astype(np.int64)
    return offsets, array.flatten()


def _text_content(array: pa.Array) -> pa.Array:
    # Null lists may have items.
    text = pc.fill_null(array.cast(_BINARY), _NOTHING) if array.null_count else array.cast(_BINARY)
    offsets = byte_offsets(text)
    data = np.frombuffer(text.buffers()[2] or b"", dtype=np.uint8)[int(offsets[0]) : int(offsets[-1])]
    if not data.all():
        text = pc.replace_substring(text, pattern=b"\x00", replacement=b"\x00\xff")
    return pc.binary_join_element_wise(text, _END_OF_TEXT, _NOTHING)


def _fixed_content(array: pa.Array, exact: bool) -> npt.NDArray[np.uint8]:
    """Return the bytes of each value, as rows."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return boolean_values(array).astype(np.uint8)[:, np.newaxis]
    width = kind.bit_width // 8
    if not width:
        return np.zeros((len(array), 0), dtype=np.uint8)
    stored = fixed_width_values(array, np.dtype((np.uint8, (width,)))).reshape(len(array), width)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return stored.view(np.uint8)
    if pa.types.is_floating(kind):
        return _ascending_floats(fixed_width_values(array, np.dtype(f"f{width}")), width, exact)
    flipped = stored[:, ::-1].astype(np.uint8)
    if not pa.types.is_unsigned_integer(kind):
        flipped[:, 0] ^= _SIGN
    return flipped


def _ascending_floats(values: npt.NDArray[np.generic], width: int, exact: bool) -> npt.NDArray[np.uint8]:
    plain = np.asarray(values, dtype=f"f{width}")
    if not exact:
        # Adding 0.0 turns -0.0 into 0.0 and nothing else.
        plain = plain + np.dtype(f"f{width}").type(0.0)
        plain[np.isnan(plain)] = np.nan
    big_endian = plain.view(f"u{width}").astype(f">u{width}")
    turned: npt.NDArray[np.uint8] = big_endian.view(np.uint8).reshape(len(values), width)
    negative = (turned[:, :1] & _SIGN) != 0
    turned ^= np.where(negative, np.uint8(0xFF), np.uint8(0))
    turned[:, :1] ^= np.where(negative, np.uint8(0), _SIGN)
    return turned


def _over(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Return the bytes of each row as binary."""
    offsets = np.arange(len(rows) + 1, dtype=np.int64) * rows.shape[1]
    return pa.Array.from_buffers(_BINARY, len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(rows.reshape(-1))])


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_boolean(kind)
        or (pa.types.is_primitive(kind) and not pa.types.is_interval(kind))
        or pa.types.is_decimal(kind)
        or pa.types.is_fixed_size_binary(kind)
    )
