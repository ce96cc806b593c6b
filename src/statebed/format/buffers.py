"""Arrow arrays as numpy arrays, by their buffers: without a copy, whether or not there are nulls.

`Array.to_numpy` refuses nulls or turns numbers into floats, and imports pandas where that is installed.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def fixed_width_values(array: pa.Array, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    """The values of an array of fixed width, without a copy; slots of nulls hold anything."""
    width = np.dtype(dtype).itemsize
    data = array.buffers()[1]
    if data is None or not len(array):
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(data, dtype=dtype, count=len(array), offset=array.offset * width)


def flags(mask: pa.Array) -> npt.NDArray[np.bool_]:
    """A boolean array, one byte each; null counts as false."""
    bytes_ = mask.fill_null(fill_value=False).cast(pa.uint8())
    return fixed_width_values(bytes_, np.uint8).astype(np.bool_)


def validity(array: pa.Array) -> npt.NDArray[np.bool_]:
    """True where the array holds a value."""
    if not array.null_count:
        return np.ones(len(array), dtype=np.bool_)
    return flags(array.is_valid())


def int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """The other way round, for indices: `pyarrow.array` imports pandas too."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])
