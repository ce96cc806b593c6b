"""Rows sorted by whole numbers, and decimals as such."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.sort_order import codes, sorted_by, unscaled

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
KEY = st.sampled_from([INT64, st.integers(-2, 2), st.just(7), st.sampled_from([-(1 << 63), 0, (1 << 63) - 1])])


@settings(deadline=None)
@given(count=st.integers(0, 40), kinds=st.lists(KEY, min_size=1, max_size=7), data=st.data())
def test_rows_are_sorted_by_key_after_key_and_ties_stay_in_their_order(
    count: int, kinds: list[st.SearchStrategy[int]], data: st.DataObject
) -> None:
    columns = [data.draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds]
    found = sorted_by([np.array(column, dtype=np.int64) for column in columns])
    assert found.tolist() == sorted(range(count), key=lambda row: [column[row] for column in columns])


def test_many_rows_with_wide_keys_are_sorted_as_numpy_sorts_them() -> None:
    random = np.random.default_rng(2)
    keys = [random.integers(0, 70_000, 100_000), random.standard_normal(100_000).view(np.int64)]
    assert (sorted_by(keys) == np.lexsort((keys[1], keys[0]))).all()


@pytest.mark.parametrize("digits", [18, 19, 30])
def test_decimals_compare_as_their_codes_do(digits: int) -> None:
    values = [Decimal(10**digits - 1), Decimal(-(10**digits) + 1), Decimal(0), None, Decimal(5), Decimal(-5)]
    array = pa.array(values, pa.decimal128(38, 0))
    some = [place for place, value in enumerate(values) if value is not None]
    found = codes(array)
    by_value = {place: Decimal(values[place] or 0) for place in some}
    by_code = dict(enumerate(found.tolist()))
    assert sorted(some, key=by_value.__getitem__) == sorted(some, key=by_code.__getitem__)
    small = unscaled(array)
    assert (small is None) == (digits > 18)
    assert small is None or [int(small[place]) for place in some] == [int(values[place] or 0) for place in some]
