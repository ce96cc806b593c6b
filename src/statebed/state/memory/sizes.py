"""Size of the memory that Arrow data keeps alive, which is neither the size of its values nor what pyarrow's pool
counts.

A slice keeps all of its parent alive, columns share buffers, and arrays over numpy memory do not count in the pool.
Bytes are therefore counted by root buffers: each buffer is traced to the allocation that it is part of, and every byte
counts once, however many tables refer to it. Memory behind a buffer of another library (a numpy view of a larger array,
once wrapped) is invisible.
"""

from collections.abc import Iterable, Iterator
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.arrays.nested import is_list

ArrowRows: TypeAlias = pa.RecordBatch | pa.Table
Held: TypeAlias = pa.RecordBatch | pa.Table | pa.Array | pa.ChunkedArray | pa.Buffer | npt.NDArray[np.generic]
Root: TypeAlias = tuple[int, int]
"""Address and size of an allocation."""
R = TypeVar("R", pa.RecordBatch, pa.Table)

WASTE_FACTOR = 1.25
"""Rows that keep more than this many times their own bytes alive are copied."""


def root_buffers(*data: Held) -> frozenset[Root]:
    """Return the allocations that `data` keeps alive."""
    roots: set[Root] = set()
    for held in data:
        _add_roots(held, roots)
    return frozenset(roots)


def held_bytes(*data: Held) -> int:
    """Return the bytes that would be freed if all of `data` were released. Shared bytes count once."""
    return _union(root_buffers(*data))


def shown_bytes(data: ArrowRows) -> int:
    """Return the bytes of the rows themselves, which is the size of a copy of them."""
    return int(data.nbytes)


def compacted(data: R) -> R:
    """Return the same rows, copied if they keep much more memory alive than they need."""
    if held_bytes(data) <= WASTE_FACTOR * shown_bytes(data):
        return data
    return copied(data)


def copied(data: R) -> R:
    """Return a copy of the rows, with one chunk per column."""
    return data.take(from_numpy(np.arange(data.num_rows, dtype=np.int64), pa.int64()))


def pieces(data: R, *, limit: int) -> Iterator[R]:
    """Yield the rows in order, in pieces of at most `limit` bytes (or one row) each, copied if needed, one at a
    time.
    """
    if data.num_rows <= 1 or shown_bytes(data) <= limit:
        yield compacted(data)
        return
    # Rows differ in size, so each piece is measured rather than calculated.
    half = data.num_rows // 2
    yield from pieces(data.slice(0, half), limit=limit)
    yield from pieces(data.slice(half), limit=limit)


def _add_roots(data: Held, roots: set[Root]) -> None:
    if isinstance(data, pa.RecordBatch | pa.Table):
        for column in data.columns:
            _add_roots(column, roots)
    elif isinstance(data, pa.ChunkedArray):
        for chunk in data.chunks:
            _add_roots_of_array(chunk, roots)
    elif isinstance(data, pa.Array):
        _add_roots_of_array(data, roots)
    elif isinstance(data, pa.Buffer):
        roots.add(_root(data))
    else:
        roots.add(_numpy_root(data))


def _add_roots_of_array(array: pa.Array, roots: set[Root]) -> None:
    for buffer in array.buffers():
        if buffer is not None and buffer.size:
            roots.add(_root(buffer))
    if _may_hold_dictionaries(array.type):
        for dictionary in _dictionaries(array):
            _add_roots_of_array(dictionary, roots)


def _may_hold_dictionaries(kind: pa.DataType) -> bool:
    return bool(kind.num_fields) or isinstance(kind, pa.DictionaryType | pa.BaseExtensionType)


def _dictionaries(array: pa.Array) -> Iterator[pa.Array]:
    """Yield dictionaries at any depth, which `buffers` leaves out."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        yield array.dictionary
    elif isinstance(array, pa.ExtensionArray):
        yield from _dictionaries(array.storage)
    elif pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _dictionaries(array.field(index))
    elif pa.types.is_map(kind):
        yield from _dictionaries(array.keys)
        yield from _dictionaries(array.items)
    elif is_list(kind):
        yield from _dictionaries(array.values)


def _root(buffer: pa.Buffer) -> Root:
    parent = buffer.parent
    while parent is not None:
        buffer, parent = parent, parent.parent
    return (buffer.address, buffer.size)


def _numpy_root(array: npt.NDArray[np.generic]) -> Root:
    while isinstance(array.base, np.ndarray):
        array = array.base
    if isinstance(array.base, pa.Buffer):
        return _root(array.base)
    return (array.__array_interface__["data"][0], array.nbytes)


def _union(roots: Iterable[Root]) -> int:
    """Return the number of bytes in the union of the allocations."""
    total = end = 0
    for address, size in sorted(roots):
        total += max(0, address + size - max(address, end))
        end = max(end, address + size)
    return total
