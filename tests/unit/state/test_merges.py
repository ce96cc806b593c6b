"""Declared merges: folding all rows of a key at once gives what folding two and two gives."""

import datetime as dt
from decimal import Decimal
from functools import reduce
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import InputError
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.storage import MemoryStore

BIG = (1 << 63) - 1
BERLIN = ZoneInfo("Europe/Berlin")


def view_of(kind: pa.DataType) -> KeyedView:
    config = keyed_table_config("rides", "", ["driver"], pa.schema([("driver", pa.int64()), ("value", kind)]))
    return KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("merges"))


def add(view: KeyedView, rows: list[tuple[int, Any]], kind: pa.DataType, merge: Merge) -> None:
    keys = pa.table({"driver": pa.array([key for key, _ in rows], pa.int64())})
    values = pa.table({"value": pa.array([value for _, value in rows], kind)})
    view.merge(keys, values, merge_columns(value=merge))


def content(view: KeyedView) -> dict[int, Any]:
    return {row["driver"]: row["value"] for part in view.scan() for row in part.to_pylist()}


def plainly(merge: Merge, old: Any, new: Any) -> Any:
    if merge in (Merge.FIRST, Merge.LAST):
        return old if merge is Merge.FIRST else new
    if old is None or new is None:
        return new if old is None else old
    if merge is Merge.SUM:
        return old + new
    return min(old, new) if merge is Merge.MIN else max(old, new)


@given(
    merge=st.sampled_from(Merge),
    batches=st.lists(
        st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(-1000, 1000))), max_size=40), max_size=4
    ),
    wide=st.booleans(),
)
def test_merged_columns_are_what_a_loop_over_rows_makes(
    merge: Merge, batches: list[list[tuple[int, int | None]]], wide: bool
) -> None:
    kind = pa.int64() if wide else pa.float64()
    view = view_of(kind)
    expected: dict[int, list[int | None]] = {}
    for rows in batches:
        add(view, rows, kind, merge)
        for key, value in rows:
            expected.setdefault(key, []).append(value)
    assert content(view) == {
        key: reduce(lambda old, new: plainly(merge, old, new), values) for key, values in expected.items()
    }


@pytest.mark.parametrize("merge", [Merge.MIN, Merge.MAX, Merge.FIRST, Merge.LAST])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["b", "ab", "c", "aa"]),
        (pa.timestamp("us"), [dt.datetime(2024, 1, day) for day in (3, 1, 4, 2)]),  # noqa: DTZ001  # a column without a zone
        (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, day, tzinfo=dt.UTC) for day in (3, 1, 4, 2)]),
        (pa.timestamp("ms", "Europe/Berlin"), [dt.datetime(2024, 1, day, tzinfo=BERLIN) for day in (3, 1, 4, 2)]),
        (pa.time32("s"), [dt.time(hour) for hour in (3, 1, 4, 2)]),
        (pa.time64("us"), [dt.time(hour) for hour in (3, 1, 4, 2)]),
        (pa.duration("s"), [dt.timedelta(seconds=count) for count in (3, -1, 4, 2)]),
        (pa.date64(), [dt.date(1969, 12, day) for day in (3, 1, 4, 2)]),
        (pa.date32(), [dt.date(1969, 12, day) for day in (3, 1, 4, 2)]),
        (pa.decimal128(9, 2), [Decimal(number) / 4 for number in (3, 1, 5, 2)]),
        (pa.uint8(), [3, 1, 255, 2]),
    ],
)
def test_other_types_have_least_greatest_first_and_last_values(
    merge: Merge, kind: pa.DataType, values: list[Any]
) -> None:
    view = view_of(kind)
    add(view, [(1, value) for value in values[:3]], kind, merge)
    add(view, [(1, values[3]), (2, values[0])], kind, merge)
    assert content(view) == {1: reduce(lambda old, new: plainly(merge, old, new), values), 2: values[0]}


@pytest.mark.parametrize("merge", [Merge.MIN, Merge.MAX])
def test_times_with_a_zone_are_compared_where_some_are_null(merge: Merge) -> None:
    kind = pa.timestamp("us", "UTC")
    early, late = (dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2))
    view = view_of(kind)
    add(view, [(1, None), (1, late), (2, None), (3, early)], kind, merge)
    add(view, [(1, None), (2, None), (3, late), (3, None)], kind, merge)
    assert content(view) == {1: late, 2: None, 3: plainly(merge, early, late)}


@pytest.mark.parametrize("merge", [Merge.MIN, Merge.MAX])
@pytest.mark.parametrize(
    "kind",
    [pa.bool_(), pa.float16(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])],
    ids=str,
)
def test_values_without_an_order_are_refused_at_once(merge: Merge, kind: pa.DataType) -> None:
    view = view_of(kind)
    with pytest.raises(InputError, match=f"cannot be merged by {merge.value}"):
        add(view, [(1, None)], kind, merge)
    assert content(view) == {}


def test_nan_is_least_or_greatest_only_when_alone() -> None:
    nan = float("nan")
    for merge, expected in ((Merge.MIN, 1.0), (Merge.MAX, 2.0)):
        view = view_of(pa.float64())
        add(view, [(1, nan), (1, 2.0), (1, 1.0), (1, nan), (2, nan), (2, nan)], pa.float64(), merge)
        add(view, [(1, nan)], pa.float64(), merge)
        assert content(view)[1] == expected
        assert np.isnan(content(view)[2])


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (pa.int64(), [(1, BIG), (1, 1)]),
        (pa.int64(), [(1, -BIG), (1, -BIG)]),
        (pa.int8(), [(1, 100), (1, 27), (1, 1)]),
        (pa.uint8(), [(1, 100), (1, 100), (1, 56)]),
    ],
)
def test_a_sum_that_leaves_its_type_is_refused_and_changes_nothing(
    kind: pa.DataType, rows: list[tuple[int, int]]
) -> None:
    view = view_of(kind)
    add(view, [(1, 0), (2, 5)], kind, Merge.SUM)
    with pytest.raises(InputError, match="cannot be merged by sum"):
        add(view, rows, kind, Merge.SUM)
    assert content(view) == {1: 0, 2: 5}


def test_large_numbers_whose_sums_fit_are_summed() -> None:
    view = view_of(pa.int64())
    add(view, [(1, BIG), (1, -BIG), (1, 7), (2, BIG - 1), (2, 1)], pa.int64(), Merge.SUM)
    assert content(view) == {1: 7, 2: BIG}


_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", [*_INTEGERS, pa.float32(), pa.float64()], ids=str)
@pytest.mark.parametrize("nulls", [False, True])
def test_keys_that_repeat_have_the_sums_that_arrow_finds(kind: pa.DataType, nulls: bool) -> None:
    random = np.random.default_rng(5)
    numbers = random.integers(0, 5, 80) if str(kind).startswith("u") else random.integers(-4, 5, 80)
    values = pa.array(numbers.tolist(), mask=random.random(80) < 0.4 if nulls else None).cast(kind)
    rows = pa.table({"driver": random.integers(0, 20, 80), "value": values})
    view = view_of(kind)
    view.merge(rows.select(["driver"]), rows.select(["value"]), merge_columns(value=Merge.SUM))
    sums = rows.group_by("driver").aggregate([("value", "sum")])
    assert content(view) == dict(zip(sums["driver"].to_pylist(), sums["value_sum"].to_pylist(), strict=True))


@pytest.mark.parametrize("kind", [pa.string(), pa.bool_(), pa.timestamp("us"), pa.decimal128(10, 2)])
def test_values_without_a_sum_are_refused(kind: pa.DataType) -> None:
    view = view_of(kind)
    with pytest.raises(InputError, match="have no sum"):
        add(view, [(1, None)], kind, Merge.SUM)


def test_every_value_column_has_to_be_named() -> None:
    view = view_of(pa.int64())
    keys, values = pa.table({"driver": [1]}), pa.table({"value": [1]})
    for merges in (merge_columns(), merge_columns(value=Merge.SUM, other=Merge.SUM)):
        with pytest.raises(InputError, match="one merge rule for each value column"):
            view.merge(keys, values, merges)
    assert content(view) == {}


def test_a_function_of_its_own_folds_groups_of_any_size_in_order() -> None:
    view = view_of(pa.string())
    random = np.random.default_rng(9)
    drivers = np.minimum(random.zipf(1.3, 3000), 400).astype(np.int64)
    letters = [chr(97 + int(number)) for number in random.integers(0, 26, 3000)]

    def joined(old: pa.Table, new: pa.Table) -> pa.Table:
        pairs = zip(old["value"].to_pylist(), new["value"].to_pylist(), strict=True)
        return pa.table({"value": pa.array([before + after for before, after in pairs], pa.string())})

    expected: dict[int, str] = {}
    for start in (0, 1500):
        part = slice(start, start + 1500)
        view.merge(pa.table({"driver": pa.array(drivers[part])}), pa.table({"value": letters[part]}), joined)
    for driver, letter in zip(drivers.tolist(), letters, strict=True):
        expected[driver] = expected.get(driver, "") + letter
    assert content(view) == expected


def test_a_merge_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"(?s)got str.*'value'.*Merge.SUM, Merge.MIN"):
        merge_columns(value="sum")  # type: ignore[arg-type]
