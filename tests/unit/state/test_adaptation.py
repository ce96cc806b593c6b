"""Rows of older files as rows of the present schema."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from statebed.errors import IncompatibleSchemaError
from statebed.format.schema import DELETED, assign_field_ids, reserved_field, with_field_id
from statebed.state.evolution.adaptation import adapt

OLD = assign_field_ids(pa.schema([("rider", pa.int64()), ("trips", pa.int32()), ("city", pa.string())]))
ROWS = pa.table({"rider": [1, 2], "trips": pa.array([10, None], pa.int32()), "city": ["Ulm", "Bonn"]})


def present(*fields: tuple[Any, int]) -> pa.Schema:
    return pa.schema([with_field_id(pa.field(*field), number) for field, number in fields])


def test_columns_are_found_by_their_ids() -> None:
    current = present((("town", pa.string()), 18), (("passenger", pa.int64()), 16))
    adapted = adapt(ROWS, OLD, current, {})
    assert adapted.schema == current
    assert adapted.to_pydict() == {"town": ["Ulm", "Bonn"], "passenger": [1, 2]}


def test_a_column_of_the_same_name_and_another_id_is_another_column() -> None:
    assert adapt(ROWS, OLD, present((("city", pa.string()), 19)), {})["city"].to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (7, pa.int8()),
        ("none", pa.string()),
        (Decimal("1.50"), pa.decimal128(9, 2)),
        ([1, 2], pa.list_(pa.int64())),
        ({"a": None}, pa.struct([("a", pa.int32())])),
        (dt.datetime(2024, 2, 29, tzinfo=dt.UTC), pa.timestamp("us", "UTC")),
        (None, pa.binary()),
    ],
)
def test_an_added_column_has_its_default(value: Any, kind: pa.DataType) -> None:
    adapted = adapt(ROWS, OLD, present((("more", kind), 20)), {"more": pa.scalar(value, kind)})
    assert adapted["more"].to_pylist() == [value, value]
    assert adapted["more"].type == kind


def test_rows_that_are_deletions_have_no_default() -> None:
    old = pa.schema([*OLD, reserved_field(DELETED)])
    rows = ROWS.append_column(DELETED, pa.array([False, True]))
    adapted = adapt(rows, old, present((("more", pa.int8()), 20)), {"more": pa.scalar(7, pa.int8())})
    assert adapted["more"].to_pylist() == [7, None]


@pytest.mark.parametrize(
    ("values", "narrow", "wide"),
    [
        ([-128, 127, None], pa.int8(), pa.int64()),
        ([0, 255], pa.uint8(), pa.int16()),
        ([1.5, float("inf")], pa.float32(), pa.float64()),
        ([Decimal("-9.99")], pa.decimal128(3, 2), pa.decimal128(20, 5)),
        ([dt.date(1, 1, 1), dt.date(9999, 12, 31)], pa.date32(), pa.date64()),
        ([dt.time(23, 59, 59)], pa.time32("s"), pa.time64("ns")),
        (["ä", ""], pa.string(), pa.large_string()),
    ],
)
def test_narrower_values_are_read_as_wider_ones(values: list[Any], narrow: pa.DataType, wide: pa.DataType) -> None:
    old = assign_field_ids(pa.schema([("v", narrow)]))
    adapted = adapt(pa.table({"v": pa.array(values, narrow)}), old, present((("v", wide), 16)), {})
    assert (adapted["v"].type, adapted["v"].to_pylist()) == (wide, values)


def test_dates_become_times_at_midnight() -> None:
    old = assign_field_ids(pa.schema([("v", pa.date32())]))
    rows = pa.table({"v": pa.array([dt.date(2024, 2, 29)])})
    adapted = adapt(rows, old, present((("v", pa.timestamp("ms")), 16)), {})
    assert adapted["v"].to_pylist() == [dt.datetime(2024, 2, 29)]  # noqa: DTZ001 - the column has no zone


def test_a_column_of_a_narrower_type_is_not_read() -> None:
    with pytest.raises(IncompatibleSchemaError, match="int32, which cannot be read as int16"):
        adapt(ROWS, OLD, present((("trips", pa.int16()), 17)), {})
