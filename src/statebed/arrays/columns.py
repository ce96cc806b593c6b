"""Conversion between Arrow columns and numpy arrays, without a copy where the layout allows.

`pyarrow.Array.to_numpy` and `pyarrow.array` import pandas on first use, which takes a fresh worker more than a second;
buffers do not.
"""

from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

N = TypeVar("N", np.int64, np.uint64, np.float64)
DType = np.dtype[Any] | type[Any] | str
"""Arguments of `numpy.dtype` that are used here; it takes more, and mypy tries each in turn."""
_WIDTH = 64


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return the column as a single array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def fixed_width_values(array: pa.Array, dtype: DType) -> npt.NDArray[np.generic]:
    """Return the values of an array of any fixed width; arbitrary at nulls."""
    width = np.dtype(dtype).itemsize
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(array), offset=array.offset * width)


def int64_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the 64-bit values of an integer or timestamp column; arbitrary at nulls."""
    return _wide_values(one_chunk(column), np.int64)


def uint64_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.uint64]:
    """Return the 64 bits of each value as an unsigned integer."""
    return _wide_values(one_chunk(column), np.uint64)


def float64_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return the values of a double column; arbitrary at nulls."""
    return _wide_values(one_chunk(column), np.float64)


def validity(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return whether each value is not null."""
    array = one_chunk(column)
    bitmap = array.buffers()[0] if array.null_count else None
    if bitmap is None:
        return np.full(len(array), not pa.types.is_null(array.type), dtype=np.bool_)
    return _bits(bitmap, offset=array.offset, length=len(array))


def boolean_values(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return the values of a boolean column, False at nulls."""
    array = one_chunk(column)
    if len(array) == 0:
        return np.zeros(0, dtype=np.bool_)
    values = _bits(array.buffers()[1], offset=array.offset, length=len(array))
    return values & validity(array) if array.null_count else values


def boolean_array(flags: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a boolean column without nulls."""
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, pa.py_buffer(np.packbits(flags, bitorder="little"))], 0)


def from_numpy(
    values: npt.NDArray[np.generic], kind: pa.DataType, *, valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Return an Arrow array of fixed-width `kind` over the bits of `values`, null where `valid` is False."""
    assert 8 * values.itemsize == kind.bit_width, f"values of {values.dtype} are not as wide as {kind}"
    nulls = 0 if valid is None else int(len(valid) - np.count_nonzero(valid))
    if valid is None or nulls == 0:
        bitmap = None
    else:
        # Zero under a null, so that equal columns have equal bytes.
        values = np.where(valid, values, np.zeros(1, dtype=values.dtype))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))], nulls)


def _wide_values(array: pa.Array, dtype: type[N]) -> npt.NDArray[N]:
    if array.type.bit_width != _WIDTH:
        raise TypeError(f"{array.type} is not 64 bits wide")
    return cast("npt.NDArray[N]", fixed_width_values(array, dtype))


def _bits(bitmap: pa.Buffer, *, offset: int, length: int) -> npt.NDArray[np.bool_]:
    first = offset // 8
    raw = np.frombuffer(bitmap, dtype=np.uint8)[first : (offset + length + 7) // 8]
    return np.unpackbits(raw, bitorder="little")[offset - 8 * first :][:length].astype(np.bool_)
