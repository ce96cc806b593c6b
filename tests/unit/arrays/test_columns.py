"""Arrow columns as numpy and back."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.columns import boolean_values, from_numpy, int64_values, one_chunk, uint64_values, validity


@settings(deadline=None)
@given(
    values=st.lists(st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1)), max_size=40), cut=st.integers(0, 20)
)
def test_values_and_nulls_survive_the_way_through_numpy_even_of_a_slice(values: list[int | None], cut: int) -> None:
    array = pa.array(values, pa.int64()).slice(cut)
    back = from_numpy(int64_values(array), pa.int64(), valid=validity(array))
    back.validate(full=True)
    assert back.to_pylist() == values[cut:]


@settings(deadline=None)
@given(values=st.lists(st.sampled_from([True, False, None]), max_size=40), cut=st.integers(0, 20))
def test_boolean_values_are_false_at_nulls(values: list[bool | None], cut: int) -> None:
    array = pa.array(values, pa.bool_()).slice(cut)
    assert boolean_values(array).tolist() == [value is True for value in values[cut:]]


def test_signed_hashes_are_read_as_unsigned() -> None:
    assert uint64_values(pa.array([-1, 0], pa.int64())).tolist() == [(1 << 64) - 1, 0]


def test_chunks_become_one_array() -> None:
    assert one_chunk(pa.chunked_array([[1], [2, 3]])).to_pylist() == [1, 2, 3]
    assert one_chunk(pa.chunked_array([], pa.string())).type == pa.string()


def test_another_width_is_refused() -> None:
    with pytest.raises(TypeError, match="64 bits"):
        int64_values(pa.array([1], pa.int32()))


def test_bits_of_another_width_than_the_type_are_refused() -> None:
    for dtype in (np.int8, np.int64):
        with pytest.raises(AssertionError, match="not as wide as int32"):
            from_numpy(np.zeros(2, dtype=dtype), pa.int32())


def test_equal_columns_have_equal_bytes_whatever_stood_under_their_nulls() -> None:
    valid = np.array([True, False])
    one, other = (from_numpy(np.array([1, hidden]), pa.int64(), valid=valid) for hidden in (7, 8))
    assert one.buffers()[1].to_pybytes() == other.buffers()[1].to_pybytes()


def test_columns_do_not_import_pandas() -> None:
    program = (
        "import sys, numpy as np, pyarrow as pa;"
        "from statebed.arrays.columns import from_numpy, int64_values, validity;"
        "a = from_numpy(np.arange(3), pa.int64()); int64_values(a); validity(a);"
        "sys.exit('pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
