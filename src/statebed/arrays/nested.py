"""Structs and lists taken apart and put together again, whole columns at a time."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import validity

Offsets = npt.NDArray[np.int64]

REMEMBERED_TYPES = 256
"""Of so many types it is remembered what follows from them: that is asked with every batch."""


def storage_of(kind: pa.DataType) -> pa.DataType:
    """The type, or what an extension type is stored as."""
    while isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a value of the type is a list of items, of any or of one length."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_list_view(kind: pa.DataType) -> bool:
    """Whether a value of the type is a list whose items may be anywhere."""
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def fields_of(array: pa.Array) -> list[pa.Array]:
    """The fields of structs, each with as many rows; what stands in them where a struct is null is arbitrary."""
    return [array.field(index) for index in range(array.type.num_fields)]


def items_of(array: pa.Array) -> tuple[Offsets, pa.Array]:
    """Where the items of each list begin in an array of them all, with the end of the last, and that array.

    A list that is null may have items there.
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
    """Structs, lists or maps with other fields or items, of the same number and type."""
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
    found = np.frombuffer(buffer, dtype=kind, count=len(array) + 1, offset=array.offset * kind.itemsize)
    return found.astype(np.int64)


def _offset_type(kind: pa.DataType) -> type[np.signedinteger]:
    return np.int64 if pa.types.is_large_list(kind) else np.int32


def _entries(kind: pa.DataType) -> pa.DataType:
    return pa.struct([kind.key_field, kind.item_field])
