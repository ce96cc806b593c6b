"""Decomposition of structs and lists into columns, and the reverse."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import validity

Offsets = npt.NDArray[np.int64]

REMEMBERED_TYPES = 256
"""Number of types whose derived properties are cached, since every batch needs them."""


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return the type, or the storage type of an extension type."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Return whether a value of the type is a list, of variable or fixed length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_list_view(kind: pa.DataType) -> bool:
    """Return whether the type is a list view, whose items may be in any order."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def fields_of(array: pa.Array) -> list[pa.Array]:
    """Return the fields of structs, with the same number of rows; arbitrary where a struct is null."""
    return [array.field(index) for index in range(array.type.num_fields)]


def items_of(array: pa.Array) -> tuple[Offsets, pa.Array]:
    """Return the start of each list in the array of all items, with the end of the last, and that array.

    A null list may have items there.
    """
    kind = array.type
    if pa.types.is_fixed_size_list(kind):
        offsets = np.arange(len(array) + 1, dtype=np.int64) * kind.list_size
        return offsets, array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
    offsets = _offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    if pa.types.is_map(kind):
        parts = [array.keys.slice(first, last - first), array.items.slice(first, last - first)]
        return offsets - first, pa.Array.from_buffers(_entries(kind), last - first, [None], children=parts)
    return offsets - first, array.values.slice(first, last - first)


def with_parts(array: pa.Array, changed: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return structs, lists or maps with other fields or items of the same number and type."""
    kind = array.type
    bitmap = pa.py_buffer(np.packbits(validity(array), bitorder="little")) if array.null_count else None
    if pa.types.is_struct(kind):
        return pa.Array.from_buffers(
            kind, len(array), [bitmap], array.null_count, children=[changed(part) for part in fields_of(array)]
        )
    offsets, items = items_of(array)
    if pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, len(array), [bitmap], array.null_count, children=[changed(items)])
    stored = pa.py_buffer(offsets.astype(_offset_type(kind)))
    return pa.Array.from_buffers(kind, len(array), [bitmap, stored], array.null_count, children=[changed(items)])


def _offsets(array: pa.Array) -> Offsets:
    kind = np.dtype(_offset_type(array.type))
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1, dtype=np.int64)
    offsets = np.frombuffer(buffer, dtype=kind, count=len(array) + 1, offset=array.offset * kind.itemsize)
    return offsets.astype(np.int64)


def _offset_type(kind: pa.DataType) -> type[np.signedinteger]:
    return np.int64 if pa.types.is_large_list(kind) else np.int32


def _entries(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field])
