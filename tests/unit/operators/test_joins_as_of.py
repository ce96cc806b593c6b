"""The as-of join against a short model: the newest version that is not after the row."""

import operator as op
import random
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.operators.join_driver import LEFT, YEAR_20000, Driver, left, output_in_any_order, shown

from statebed.errors import InputError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.joins import AsOfJoin, JoinKind
from statebed.operators.operator import MAIN

VERSIONS = Input("rates", pa.schema([("key", pa.int64()), ("rate", pa.int64()), ("is_deleted", pa.bool_())]), ("key",))


def version(time: int, key: int | None, rate: int | None = 0, deleted: bool | None = False) -> dict[str, Any]:
    return {"_time": time, "key": key, "rate": rate, "is_deleted": deleted}


def join(**more: Any) -> AsOfJoin:
    return AsOfJoin("j", LEFT, VERSIONS, deleted="is_deleted", **more)


def place(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return the sort key of a row: by time, then by columns, nulls last."""
    values = (row["rate"], row["is_deleted"])
    return row["_time"], *((value is None, value or 0) for value in values)


def model(how: JoinKind, tolerance: int | None, lefts: Any, versions: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for row in lefts:
        known = [
            one
            for one in versions
            if one["key"] is not None and one["key"] == row["auction"] and one["_time"] <= row["_time"]
        ]
        best = max(known, key=place, default=None)
        valid = best is not None and not best["is_deleted"]
        if best is not None and tolerance is not None:
            valid = valid and row["_time"] - best["_time"] <= tolerance
        if best is not None and valid:
            found.append((row["auction"], row["price"], best["rate"], row["_time"]))
        elif how is JoinKind.LEFT:
            found.append((row["auction"], row["price"], None, row["_time"]))
    return found


# Times are counted from the watermark of the epoch before, which moves by little.
row = st.tuples(st.integers(-1, 14), st.sampled_from([1, 1, 1, 2, None]), st.sampled_from([0, 1, None]))
versions_of_epoch = st.lists(st.tuples(row, st.sampled_from([False, False, None, True])), max_size=5)
advances = st.sampled_from([0, 1, 2, 3, 4, 7, 30])
epochs = st.lists(st.tuples(st.lists(row, max_size=5), versions_of_epoch, advances), min_size=2, max_size=9)


@pytest.mark.parametrize("how", [JoinKind.LEFT, JoinKind.INNER], ids=op.attrgetter("value"))
@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), some=epochs, tolerance=st.sampled_from([None, 1, 12]))
def test_p6_every_row_gets_the_newest_version_that_is_not_after_it(
    how: JoinKind, data: st.DataObject, some: Any, tolerance: int | None
) -> None:
    base = data.draw(st.sampled_from([0, YEAR_20000]))
    driver = Driver(join(how=how, tolerance_us=tolerance), budget=1 << 20)
    admitted: list[list[dict[str, Any]]] = [[], []]
    late = 0
    at = base - 12
    for lefts, versions, advance in some:
        rows = [
            [left(at + time, key, price) for time, key, price in lefts],
            [version(at + time, key, rate, deleted) for (time, key, rate), deleted in versions],
        ]
        before = driver.watermark
        for side in (0, 1):
            kept = [one for one in rows[side] if before is None or one["_time"] > before]
            late += len(rows[side]) - len(kept)
            admitted[side] += kept
        at += advance
        out = driver.epoch(*rows, watermark=at)
        assert before is None or all(one["_time"] > before for one in out)
        if data.draw(st.integers(0, 3)) == 0:
            driver.restart(data.draw(st.sampled_from([1, 3])))
    driver.epoch([], [], watermark=base + 1000)
    assert sorted(shown(driver.rows(MAIN)).elements(), key=repr) == sorted(model(how, tolerance, *admitted), key=repr)
    assert len(driver.rows("late_bids")) + len(driver.rows("late_rates")) == late
    assert (driver.table_rows("waiting"), driver.table_rows("pending")) == (0, 0)
    assert driver.table_rows("current") <= (3 if tolerance is None else 0)
    driver.close()


def test_a_row_waits_until_the_watermark_passes_its_time_so_that_late_versions_are_seen() -> None:
    driver = Driver(join())
    assert driver.epoch([left(10, 1, 5)], [version(2, 1, 20)], watermark=9) == []
    assert driver.epoch([], [version(10, 1, 21), version(11, 1, 22)], watermark=9) == []
    assert driver.epoch([], [], watermark=10) == [{"auction": 1, "price": 5, "rate": 21, "_time": 10}]
    assert [one["rate"] for one in driver.epoch([left(11, 1), left(12, 1)], [], watermark=12)] == [22, 22]
    driver.close()


def test_a_deleted_key_has_no_version_until_the_next_one_and_leaves_the_state() -> None:
    driver = Driver(join())
    driver.epoch([], [version(1, 1, 20)], watermark=5)
    assert driver.table_rows("current") == 1
    out = driver.epoch([left(6, 1), left(7, 1), left(9, 1)], [version(7, 1, 0, True), version(9, 1, 30)], watermark=9)
    assert [one["rate"] for one in out] == [20, None, 30]
    driver.epoch([], [version(10, 1, 0, True)], watermark=10)
    assert driver.table_rows("current") == 0
    driver.close()


def test_of_versions_with_one_time_the_last_in_total_order_wins_in_whatever_epoch_it_came() -> None:
    for order in ([1, 3, 2], [3, 2, 1], [2, 1, 3]):
        driver = Driver(join())
        for rate in order:
            driver.epoch([], [version(5, 1, rate)], watermark=4)
        assert [one["rate"] for one in driver.epoch([left(5, 1)], [], watermark=5)] == [3]
        driver.close()


def test_a_version_that_is_older_than_the_tolerance_is_forgotten_whatever_the_watermarks_were() -> None:
    for watermarks in ([20], [5, 11, 15, 20], [11, 20]):
        driver = Driver(join(tolerance_us=10))
        driver.epoch([left(11, 1), left(10, 1)], [version(0, 1, 7)], watermark=-1)
        for watermark in watermarks:
            driver.epoch([], [], watermark=watermark)
        assert [(one["_time"], one["rate"]) for one in driver.rows(MAIN)] == [(10, 7), (11, None)]
        assert driver.state_rows() == 0
        driver.close()


def test_without_keys_the_versions_are_those_of_everything() -> None:
    rates = Input("rates", pa.schema([("rate", pa.int64())]), ())
    bids = Input("bids", LEFT.columns, ())
    driver = Driver(AsOfJoin("j", bids, rates))
    driver.epoch([left(3, 1), left(5, None)], [{"_time": 4, "rate": 9}], watermark=4)
    driver.restart(1)
    driver.epoch([left(7, 2)], [], watermark=9)
    assert [(one["_time"], one["rate"]) for one in driver.rows(MAIN)] == [(3, None), (5, 9), (7, 9)]
    driver.close()


def test_p6_the_same_rows_in_another_order_give_the_same_bytes() -> None:
    chance = random.Random(5)
    rows = [
        [left(chance.randrange(60), chance.choice([1, 2, None]), chance.randrange(3)) for _ in range(150)],
        [version(chance.randrange(60), chance.choice([1, 2, None]), chance.randrange(3)) for _ in range(150)],
    ]
    first, second = (
        output_in_any_order(Driver(join(), parallelism=2), rows, chance, epochs=3, span=40) for _ in range(2)
    )
    assert first == second


def test_definitions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="must be 'left' or 'inner', got 'full'"):
        join(how=JoinKind.FULL)
    with pytest.raises(InputError, match="`tolerance` must be positive, got '0 seconds'"):
        join(tolerance_us=0)
    with pytest.raises(InputError, match="must be a boolean non-key column"):
        AsOfJoin("j", LEFT, VERSIONS, deleted="rate")
    with pytest.raises(InputError, match="results are final"):
        AsOfJoin("j", LEFT, Input("rates", VERSIONS.columns, ("key",), Changes.CHANGELOG))
    assert join().definition.fingerprint != join(tolerance_us=5).definition.fingerprint
