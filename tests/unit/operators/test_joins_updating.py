"""The updating join against a short model: at every moment the result is the join of the rows that are there."""

import collections
import gc
import itertools
import operator as op
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import diagonals, every_third, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.operators.join_driver import LEFT, RIGHT, Above, Driver, left, output_bytes, right

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input
from statebed.operators import changelog_spool
from statebed.operators.joins import JoinKind, UpdatingJoin
from statebed.operators.operator import MAIN
from statebed.operators.time_to_live import TimeToLive
from statebed.state import TimeToLiveClock

LEFTS = Input(LEFT.name, LEFT.columns, LEFT.keys, Changes.CHANGELOG)
RIGHTS = Input(RIGHT.name, RIGHT.columns, RIGHT.keys, Changes.CHANGELOG)
Rows = collections.Counter[tuple[Any, ...]]


def latest(*times: int | None) -> int | None:
    return max((time for time in times if time is not None), default=None)


def model(how: JoinKind, lefts: Rows, rights: Rows, *, condition: bool) -> Rows:
    """The join of two multisets of (time, key, price)."""

    def is_pair(a: Any, b: Any) -> bool:
        if a[1] is None or a[1] != b[1]:
            return False
        return not condition or (a[2] is not None and b[2] is not None and a[2] > b[2])

    found: Rows = collections.Counter()
    pairs = [(a, b) for a, b in itertools.product(lefts, rights) if is_pair(a, b)]
    for a, b in pairs if how.gives_pairs else ():
        found[a[1], a[2], b[2], latest(a[0], b[0])] += lefts[a] * rights[b]
    with_partner = [{a for a, _ in pairs}, {b for _, b in pairs}]
    nothing = [None] if how.gives_pairs else []
    for a, weight in lefts.items():
        if how in {JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI, JoinKind.SEMI} and (
            (a in with_partner[0]) is (how is JoinKind.SEMI)
        ):
            found[a[1], a[2], *nothing, a[0]] += weight
    for b, weight in rights.items():
        if how in {JoinKind.RIGHT, JoinKind.FULL} and b not in with_partner[1]:
            found[b[1], None, b[2], b[0]] += weight
    return found


def applied(state: Rows, changes: list[tuple[Any, int]]) -> int:
    """Add the net weights of an epoch; gives how many retractions found nothing."""
    net: Rows = collections.Counter()
    for row, weight in changes:
        net[row] += weight
    dropped = 0
    for row, weight in net.items():
        if row[1] is None:
            state[row] += weight  # without a key nothing is kept that a retraction could miss
            continue
        dropped += max(0, -(state[row] + weight))
        state[row] = max(0, state[row] + weight)
    for row in [row for row, weight in state.items() if weight == 0]:
        del state[row]
    return dropped


change = st.tuples(
    st.tuples(st.sampled_from([None, 5, 7]), st.sampled_from([1, 1, 2, 3, None]), st.sampled_from([0, 1, None])),
    st.sampled_from([1, 1, 2, -1, -2]),
)
epochs = st.lists(st.tuples(st.lists(change, max_size=8), st.lists(change, max_size=8)), min_size=1, max_size=7)


@pytest.mark.parametrize("how", JoinKind, ids=op.attrgetter("value"))
@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), some=epochs)
def test_p6_after_every_epoch_the_changelog_comes_to_the_join_of_what_is_there(
    how: JoinKind, data: st.DataObject, some: Any
) -> None:
    condition = data.draw(st.booleans())
    driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, how, Above() if condition else None), budget=1 << 20)
    sides: list[Rows] = [collections.Counter(), collections.Counter()]
    result: Rows = collections.Counter()
    for changes in some:
        rows = [
            [make(time, key, price, _weight=weight) for (time, key, price), weight in side]
            for make, side in zip((left, right), changes, strict=True)
        ]
        dropped = sum(applied(side, list(one)) for side, one in zip(sides, changes, strict=True))
        out = driver.epoch(*rows)
        assert sum(step.counts["unknown_retractions"] for step in driver.steps[-1]) == dropped
        weights = [row["_weight"] for row in out]
        assert 0 not in weights
        plain = [tuple(row.values())[:-1] for row in out]
        assert len(set(plain)) == len(plain)  # consolidated
        for step in driver.steps[-1]:
            signs = [weight > 0 for weight in step.outputs[MAIN]["_weight"].to_pylist()]
            assert signs == sorted(signs)  # retractions first
        for row, weight in zip(plain, weights, strict=True):
            result[row] += weight
        kept = {row: weight for row, weight in result.items() if weight}
        assert kept == {row: weight for row, weight in model(how, *sides, condition=condition).items() if weight}
        if data.draw(st.integers(0, 3)) == 0:
            driver.restart(data.draw(st.sampled_from([1, 3])))
    keyed = [[row for row in side if row[1] is not None] for side in sides]
    assert driver.state_rows() == len(keyed[0]) + len(keyed[1])
    driver.close()


def test_an_unmatched_row_is_taken_back_when_its_first_partner_comes_and_given_again_when_the_last_goes() -> None:
    driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, JoinKind.LEFT))
    alone = {"auction": 1, "price": 0, "price_right": None, "_time": 3}
    pair = {"auction": 1, "price": 0, "price_right": 9, "_time": 4}
    assert driver.epoch([left(3, 1)], []) == [alone | {"_weight": 1}]
    assert driver.epoch([], [right(4, 1, 9)]) == [alone | {"_weight": -1}, pair | {"_weight": 1}]
    assert driver.epoch([], [right(4, 1, 9, _weight=2)]) == [pair | {"_weight": 2}]
    assert driver.epoch([], [right(4, 1, 9, _weight=-3)]) == [pair | {"_weight": -3}, alone | {"_weight": 1}]
    assert driver.epoch([left(3, 1, _weight=-1)], []) == [alone | {"_weight": -1}]
    assert driver.state_rows() == 0
    driver.close()


def test_rows_that_cancel_inside_an_epoch_leave_no_trace() -> None:
    driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, JoinKind.FULL))
    assert driver.epoch([left(3, 1), left(3, 1, _weight=-1)], [right(3, 2, _weight=-1), right(3, 2)]) == []
    assert driver.state_rows() == 0
    assert driver.steps[-1][0].counts == {"unknown_retractions": 0}
    driver.close()


def test_a_retraction_that_comes_before_its_row_is_dropped_and_not_remembered() -> None:
    driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, JoinKind.LEFT))
    assert driver.epoch([left(3, 1, _weight=-2)], []) == []
    assert driver.steps[-1][0].counts == {"unknown_retractions": 2}
    assert [row["_weight"] for row in driver.epoch([left(3, 1)], [])] == [1]
    driver.close()


def test_streams_that_only_add_are_joined_for_ever() -> None:
    driver = Driver(UpdatingJoin("j", LEFT, RIGHT))
    driver.epoch([left(1, 1, 5)], [], watermark=1000)
    out = driver.epoch([], [right(2, 1, 6)], watermark=2000)  # old, but never late
    assert [(row["price"], row["price_right"], row["_weight"]) for row in out] == [(5, 6, 1)]
    assert driver.operator.output_watermark(7) == 7
    assert UpdatingJoin("j", LEFT, RIGHT, JoinKind.LEFT).output_watermark(7) == -(1 << 63)
    driver.close()


def test_rows_expire_by_event_time_silently_and_come_late_after_that() -> None:
    driver = Driver(UpdatingJoin("j", LEFT, RIGHT, ttl=TimeToLive(10)))
    driver.epoch([left(0, 1), left(5, 1)], [], watermark=0)
    assert len(driver.epoch([], [right(4, 1)], watermark=10)) == 2
    assert [row["_time"] for row in driver.epoch([], [right(6, 1)], watermark=11)] == [6]  # the row of time 0 is gone
    driver.restart(3)
    assert driver.epoch([left(1, 1), left(None, 1)], [], watermark=30) == []
    assert len(driver.rows("late_bids")) == 2
    assert driver.state_rows() == 0
    assert driver.operator.output_watermark(30) == 30
    driver.close()


def test_rows_expire_by_epoch_time_and_adding_one_again_renews_it() -> None:
    life = TimeToLive(10, TimeToLiveClock.EPOCH_TIME)
    driver = Driver(UpdatingJoin("j", LEFT, RIGHT, ttl=life))
    driver.epoch([left(None, 1, 1), left(None, 1, 2)], [], time=100)
    driver.epoch([left(None, 1, 1)], [], time=105)
    out = driver.epoch([], [right(None, 1)], time=112)
    assert [(row["price"], row["_weight"]) for row in out] == [(1, 2)]  # the other one was not renewed
    driver.restart(2)
    assert driver.epoch([], [right(None, 1, 9)], time=115) == []
    driver.epoch([], [], time=200)
    assert driver.state_rows() == 0
    driver.close()


def test_a_retraction_of_an_expired_row_is_counted_and_dropped() -> None:
    driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, ttl=TimeToLive(10, TimeToLiveClock.EPOCH_TIME)))
    driver.epoch([left(1, 1)], [right(1, 1)], time=100)
    assert driver.epoch([left(1, 1, _weight=-1)], [], time=111) == []
    assert driver.steps[-1][0].counts == {"unknown_retractions": 1}
    driver.close()


def test_nested_and_floating_values_are_rows_like_all_others() -> None:
    nested = pa.schema([("auction", pa.int64()), ("tags", pa.list_(pa.string())), ("ratio", pa.float64())])
    lefts = Input("bids", nested, ("auction",), Changes.CHANGELOG)
    driver = Driver(UpdatingJoin("j", lefts, RIGHTS, JoinKind.LEFT))
    row = {"_time": 1, "auction": 1, "tags": ["a", None], "ratio": float("nan")}
    driver.epoch([row, {**row, "tags": ["a"], "ratio": -0.0}], [])
    out = driver.epoch([{**row, "_weight": -1}, {**row, "tags": ["a"], "ratio": 0.0, "_weight": -1}], [])
    assert [one["_weight"] for one in out] == [-1, -1]
    assert driver.state_rows() == 0
    driver.close()


def test_without_keys_all_rows_are_pairs() -> None:
    lefts, rights = (Input(one.name, one.columns, (), Changes.CHANGELOG) for one in (LEFT, RIGHT))
    driver = Driver(UpdatingJoin("j", lefts, rights, JoinKind.SEMI))
    assert driver.epoch([left(1, 1), left(1, None)], []) == []
    assert [row["_weight"] for row in driver.epoch([], [right(2, 5)])] == [1, 1]
    assert [row["_weight"] for row in driver.epoch([], [right(2, 5, _weight=-1)])] == [-1, -1]
    driver.close()


@pytest.mark.parametrize("how", every_third(JoinKind, 2))
def test_p6_the_same_rows_in_another_order_give_the_same_bytes_of_output(how: JoinKind) -> None:
    chance = random.Random(5)
    rows = [
        [make(chance.randrange(3), chance.choice([1, 2, None]), chance.randrange(9)) for _ in range(150)]
        for make in (left, right)
    ]
    found = []
    for _ in range(2):
        driver = Driver(UpdatingJoin("j", LEFTS, RIGHTS, how), parallelism=2)
        for part in range(3):
            some = [side[part * 50 : part * 50 + 50] for side in rows]
            for side in some:
                chance.shuffle(side)
            driver.epoch(*some)
        found.append([output_bytes(result) for step in driver.steps for result in step])
        driver.close()
    assert found[0] == found[1]


@pytest.mark.parametrize(("how", "condition"), diagonals([JoinKind.INNER, JoinKind.FULL, JoinKind.SEMI], [False, True]))
def test_p6_results_of_many_chunks_come_to_the_same_join_in_every_attempt(
    how: JoinKind, condition: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changelog_spool, "SAMPLE_ROWS", 8)
    monkeypatch.setattr(changelog_spool, "MAX_ROWS", 16)
    draw = random.Random(3)
    join = UpdatingJoin("j", LEFTS, RIGHTS, how, Above() if condition else None)
    # The same rows in another order, with other pages of the state: the output has to be the same bytes.
    drivers = [Driver(join, budget=1 << 20), Driver(join, budget=1 << 26)]
    sides: list[Rows] = [collections.Counter(), collections.Counter()]
    result: Rows = collections.Counter()
    largest = 0
    for epoch in range(6):
        changes = [
            [((draw.randrange(3), draw.randrange(2), draw.randrange(9)), draw.choice([1, 1, 2, -1])) for _ in range(15)]
            for _ in range(2)
        ]
        for side, some in zip(sides, changes, strict=True):
            applied(side, list(some))
        outputs = []
        for driver in drivers:
            shuffled = [draw.sample(some, len(some)) for some in changes]
            rows = [
                [make(time, key, price, _weight=weight) for (time, key, price), weight in some]
                for make, some in zip((left, right), shuffled, strict=True)
            ]
            shown = driver.epoch(*rows)
            (step,) = driver.steps[-1]
            outputs.append(output_bytes(step))
        assert outputs[0] == outputs[1]
        signs = [row["_weight"] > 0 for row in shown]
        assert signs == sorted(signs)  # retractions first
        largest = max(largest, len(shown))
        for row in shown:
            *values, weight = row.values()
            result[tuple(values)] += weight
        kept = {row: weight for row, weight in result.items() if weight}
        assert kept == {row: weight for row, weight in model(how, *sides, condition=condition).items() if weight}
        if epoch == 4:
            drivers[0].restart(1)
    assert largest > 16 or how is JoinKind.SEMI
    for driver in drivers:
        driver.close()


def test_p4_matches_of_one_row_with_many_are_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelog_spool, "MAX_ROWS", 1 << 12)
    driver = Driver(UpdatingJoin("j", LEFT, RIGHT, JoinKind.INNER), budget=4 << 20)
    keys, prices = pa.array(np.zeros(30_000, dtype=np.int64)), pa.array(np.arange(30_000))
    hashes = from_numpy(hash_columns([keys]).view(np.int64), pa.int64())
    times = pa.array(np.zeros(30_000, dtype=np.int64)).cast(TIMESTAMP)
    driver.epoch(pa.Table.from_arrays([hashes, times, keys, prices], schema=LEFT.schema), [])
    gc.collect()
    before, peaks = pa.total_allocated_bytes(), []
    original = changelog_spool.ChangelogSpool.add

    def watched(self: Any, rows: pa.Table) -> None:
        original(self, rows)
        peaks.append(pa.total_allocated_bytes())

    monkeypatch.setattr(changelog_spool.ChangelogSpool, "add", watched)
    driver.epoch([], [right(1, 0, price) for price in range(10)])
    (step,) = driver.steps[-1]
    output = step.outputs[MAIN]
    assert output.num_rows == 300_000
    assert output.nbytes > 9 << 20
    # A mapped file holds the pairs. What is in memory are a page of the state, and chunks of pairs.
    assert max(peaks) - before < 6 << 20
    assert pa.total_allocated_bytes() - before < 2 << 20
    driver.close()
