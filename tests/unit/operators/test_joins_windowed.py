"""The window join against a short model, whatever the epochs, restarts, rescales and budgets are."""

import collections
import itertools
import random
from typing import Any

import pytest
from effort import diagonals, every_third, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.operators.join_driver import LEFT, RIGHT, YEAR_20000, Above, Driver, left, output_in_any_order, right, shown

from statebed.errors import InputError
from statebed.operators import Window
from statebed.operators.joins import JoinKind, WindowJoin
from statebed.operators.operator import MAIN
from statebed.operators.window_definition import WindowShape

WINDOWS = {
    "tumbling": Window(WindowShape.TUMBLING, 10, 10, 3),
    "sliding": Window(WindowShape.SLIDING, 10, 4),
    "cumulative": Window(WindowShape.CUMULATIVE, 12, 4, 1),
}


def windows_of(window: Window, time: int) -> list[tuple[int, int]]:
    """Start and end of every window that holds a time."""
    if window.shape is WindowShape.CUMULATIVE:
        start = time - (time - window.offset_us) % window.width_us
        return [(start, end) for end in range(start + 4, start + 13, 4) if time < end]
    last = time - (time - window.offset_us) % window.slide_us
    return [(start, start + window.width_us) for start in range(last, time - window.width_us, -window.slide_us)]


def model(how: JoinKind, lefts: Any, rights: Any, *, condition: bool) -> "collections.Counter[tuple[Any, ...]]":
    """Rows with their windows, joined one by one."""

    def is_pair(one: Any, other: Any) -> bool:
        (window, a), (their_window, b) = one, other
        if window != their_window or a["auction"] is None or a["auction"] != b["id"]:
            return False
        return not condition or (a["price"] is not None and b["price"] is not None and a["price"] > b["price"])

    found: collections.Counter[tuple[Any, ...]] = collections.Counter()
    pairs = [(one, other) for one, other in itertools.product(lefts, rights) if is_pair(one, other)]
    matched = {id(one[1]): set[Any]() for one in (*lefts, *rights)}
    for (window, a), (_, b) in pairs:
        matched[id(a)].add(window)
        matched[id(b)].add(window)
        if how.gives_pairs:
            found[a["auction"], *window, a["price"], b["price"], window[1] - 1] += 1
    nothing = [None] if how.gives_pairs else []
    for window, row in lefts:
        if how in {JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI, JoinKind.SEMI} and (
            (window in matched[id(row)]) is (how is JoinKind.SEMI)
        ):
            found[row["auction"], *window, row["price"], *nothing, window[1] - 1] += 1
    for window, row in rights:
        if how in {JoinKind.RIGHT, JoinKind.FULL} and window not in matched[id(row)]:
            found[row["id"], *window, None, row["price"], window[1] - 1] += 1
    return found


# Times are counted from the watermark of the epoch before, which moves by little.
event = st.tuples(st.integers(-14, 25), st.sampled_from([1, 1, 1, 2, None]), st.sampled_from([0, 1, 2, None]))
events = st.lists(event, max_size=5)
epochs = st.lists(st.tuples(events, events, st.sampled_from([0, 1, 2, 3, 5, 9, 40])), min_size=2, max_size=8)


@pytest.mark.parametrize(("how", "shape"), diagonals(JoinKind, WINDOWS))
@settings(max_examples=examples(5), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), some=epochs)
def test_p6_every_kind_gives_the_pairs_of_each_window(
    how: JoinKind, shape: str, data: st.DataObject, some: Any
) -> None:
    window, condition = WINDOWS[shape], data.draw(st.booleans())
    base = data.draw(st.sampled_from([0, YEAR_20000]))
    driver = Driver(WindowJoin("j", LEFT, RIGHT, window, how, Above() if condition else None), budget=1 << 20)
    counted: list[list[Any]] = [[], []]
    late = 0
    at = base - 12
    for lefts, rights, advance in some:
        rows = [
            [left(at + time, key, price) for time, key, price in lefts],
            [right(at + time, key, price) for time, key, price in rights],
        ]
        before = driver.watermark
        for side, row in [*((0, row) for row in rows[0]), *((1, row) for row in rows[1])]:
            still_open = [one for one in windows_of(window, row["_time"]) if before is None or one[1] > before]
            late += not still_open
            counted[side] += [(one, row) for one in still_open]
        at += advance
        out = driver.epoch(*rows, watermark=at)
        assert before is None or all(row["_time"] > driver.operator.output_watermark(before) for row in out)
        if data.draw(st.integers(0, 3)) == 0:
            driver.restart(data.draw(st.sampled_from([1, 3])))
    driver.epoch([], [], watermark=base + 1000)
    assert shown(driver.rows(MAIN)) == model(how, *counted, condition=condition)
    assert len(driver.rows("late_bids")) + len(driver.rows("late_auctions")) == late
    assert driver.state_rows() == 0
    driver.close()


def test_results_come_when_the_watermark_reaches_the_end_of_the_window() -> None:
    driver = Driver(WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 10, 10), JoinKind.FULL))
    assert driver.epoch([left(1, 1, 5)], [right(9, 1, 6), right(9, 2, 7)], watermark=9) == []
    assert driver.epoch([], [right(9, 1, 8)], watermark=9) == []  # late by its time, but its window is open
    found = driver.epoch([], [], watermark=10)
    window = {"window_start": 0, "window_end": 10}
    assert sorted(found, key=repr) == [
        {"auction": 1, **window, "price": 5, "price_right": 6, "_time": 9},
        {"auction": 1, **window, "price": 5, "price_right": 8, "_time": 9},
        {"auction": 2, **window, "price": None, "price_right": 7, "_time": 9},
    ]
    driver.epoch([left(9, 1)], [], watermark=10)
    assert [row["late_by"] for row in driver.rows("late_bids")] == [1]
    driver.close()


def test_a_row_counts_in_its_windows_that_are_open_and_not_in_those_that_were_closed() -> None:
    driver = Driver(WindowJoin("j", LEFT, RIGHT, Window(WindowShape.SLIDING, 10, 5), JoinKind.LEFT))
    assert [row["window_end"] for row in driver.epoch([left(7, 1)], [], watermark=10)] == [10]
    assert driver.epoch([left(8, 2)], [], watermark=10) == []
    assert sorted((row["auction"], row["window_end"]) for row in driver.epoch([], [], watermark=15)) == [
        (1, 15),
        (2, 15),
    ]
    driver.close()


def test_rows_leave_with_their_last_window() -> None:
    driver = Driver(WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 10, 10)))
    driver.epoch([left(9, 1), left(10, 1)], [right(9, 2)], watermark=9)
    assert driver.state_rows() == 3
    driver.epoch([], [], watermark=10)
    assert driver.state_rows() == 1
    driver.close()


def test_the_state_holds_open_windows_only_over_a_thousand_of_them() -> None:
    driver = Driver(WindowJoin("j", LEFT, RIGHT, Window(WindowShape.SLIDING, 20, 10), JoinKind.LEFT))
    for step in range(25):
        now = step * 400
        rows = [left(now + n, n % 7) for n in range(0, 400, 5)], [right(now + n, n % 5) for n in range(0, 400, 5)]
        driver.epoch(*rows, watermark=now + 395)
        assert driver.state_rows() <= 2 * 4
    assert len({row["window_end"] for row in driver.rows(MAIN)}) >= 990
    driver.close()


@pytest.mark.parametrize("how", every_third(JoinKind))
def test_p6_the_same_rows_in_another_order_give_the_same_bytes(how: JoinKind) -> None:
    chance = random.Random(5)
    rows = [
        [make(chance.randrange(60), chance.choice([1, 2, None]), chance.randrange(3)) for _ in range(150)]
        for make in (left, right)
    ]
    first, second = (
        output_in_any_order(
            Driver(WindowJoin("j", LEFT, RIGHT, WINDOWS["sliding"], how), parallelism=2),
            rows,
            chance,
            epochs=3,
            span=40,
        )
        for _ in range(2)
    )
    assert first == second


def test_many_windows_are_joined_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebed.operators.joins.windowed.ROWS_AT_ONCE", 3)
    driver = Driver(WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 10, 10)))
    driver.epoch([left(n, 1, n) for n in range(100)], [right(n, 1, n) for n in range(0, 100, 5)], watermark=0)
    assert len(driver.epoch([], [], watermark=100)) == 100 * 2
    driver.close()


def test_a_condition_on_the_window_itself_is_refused() -> None:
    condition = Above()
    object.__setattr__(condition, "columns", frozenset({"window_start"}))
    with pytest.raises(InputError, match="refers to the window"):
        WindowJoin("j", LEFT, RIGHT, WINDOWS["tumbling"], condition=condition)


def test_it_is_due_when_a_window_closes_and_windows_are_part_of_the_fingerprint() -> None:
    join = WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 10, 10))
    assert [join.is_due(before, after) for before, after in ((None, 3), (3, 9), (3, 10), (10, 19), (10, 30))] == [
        True,
        False,
        True,
        False,
        True,
    ]
    prints = {WindowJoin("j", LEFT, RIGHT, window).definition.fingerprint for window in WINDOWS.values()}
    assert len(prints) == len(WINDOWS)
