"""Text of dates and timestamps, in years that Python's datetime and Arrow's casts do not have."""

import numpy as np
import pyarrow as pa
import pytest

from statebed.format.time_texts import iso_texts, sql_texts

DAY_US = 86_400_000_000
YEARS = [-290_000, -32_769, -768, -1, 0, 1, 1970, 9999, 10_000, 32_768, 290_000]


def day_of(year: int) -> int:
    return int((np.datetime64(0, "Y") + (year - 1970)).astype("datetime64[D]").astype(np.int64))


@pytest.mark.parametrize("year", YEARS)
def test_dates_and_timestamps_have_their_own_year(year: int) -> None:
    written = f"{'-' if year < 0 else ''}{abs(year):04}-01-01"
    days, moments = [day_of(year), None], [day_of(year) * DAY_US + 1, None]
    assert iso_texts(pa.array(days, pa.date32())) == [written, None]
    assert sql_texts(pa.array(days, pa.date32())).to_pylist() == [written, None]
    assert iso_texts(pa.array(moments, pa.timestamp("us"))) == [f"{written}T00:00:00.000001", None]
    for zone in ("UTC", "Europe/Berlin"):
        array = pa.array(moments, pa.timestamp("us", zone))
        assert iso_texts(array) == [f"{written}T00:00:00.000001Z", None]
        assert sql_texts(array).to_pylist() == [f"{written} 00:00:00.000001Z", None]


@pytest.mark.parametrize(("unit", "digits"), [("s", ""), ("ms", ".000"), ("us", ".000000"), ("ns", ".000000000")])
def test_all_digits_of_the_unit_are_written(unit: str, digits: str) -> None:
    array = pa.array([0], pa.timestamp(unit, "UTC"))
    assert iso_texts(array) == [f"1970-01-01T00:00:00{digits}Z"]
    assert sql_texts(array).to_pylist() == [f"1970-01-01 00:00:00{digits}Z"]


def test_no_times_are_no_texts() -> None:
    assert sql_texts(pa.array([], pa.timestamp("us", "UTC"))).to_pylist() == []
    assert sql_texts(pa.array([None], pa.date32())).to_pylist() == [None]
