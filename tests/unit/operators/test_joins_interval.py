"""The interval join against DuckDB's batch answer, whatever the epochs, restarts, rescales and budgets are."""

import collections
import operator as op
import pickle
import random
from typing import Any

import duck
import pyarrow as pa
import pytest
from effort import every_third, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.operators.join_driver import LEFT, RIGHT, YEAR_20000, Above, Driver, left, output_in_any_order, right, shown

from statebed.errors import InputError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.joins import IntervalJoin, JoinKind
from statebed.operators.operator import MAIN


def join(how: JoinKind = JoinKind.INNER, lower: int = -3, upper: int = 5, **more: Any) -> IntervalJoin:
    return IntervalJoin("j", LEFT, RIGHT, lower_us=lower, upper_us=upper, how=how, **more)


def in_batch(how: JoinKind, lower: int, upper: int, lefts: Any, rights: Any, *, condition: bool) -> Any:
    """DuckDB's answer over all rows: a multiset of results with their event times."""
    schema = [("t", pa.int64()), ("k", pa.int64()), ("p", pa.int64()), ("n", pa.int64())]
    tables = {
        "l": [{"t": row["_time"], "k": row["auction"], "p": row["price"], "n": n} for n, row in enumerate(lefts)],
        "r": [{"t": row["_time"], "k": row["id"], "p": row["price"], "n": n} for n, row in enumerate(rights)],
    }
    on = f"l.k = r.k and r.t - l.t between {lower} and {upper}" + (" and l.p > r.p" if condition else "")
    with duck.cursor() as db:
        for name, rows in tables.items():
            db.register(name, pa.Table.from_pylist(rows, schema=pa.schema(schema)))
        if how.gives_pairs:
            kind = {JoinKind.INNER: "join"}.get(how, f"{how.value} outer join")
            times = "case when l.n is null then r.t when r.n is null then l.t else greatest(l.t, r.t) end"
            query = f"select coalesce(l.k, r.k), l.p, r.p, {times} from l {kind} r on {on}"
        else:
            query = f"select l.k, l.p, l.t from l {how.value} join r on {on}"
        return collections.Counter(db.sql(query).fetchall())


# Times are counted from the watermark of the epoch before, which moves by little: rows wait for several epochs.
event = st.tuples(st.integers(-1, 14), st.sampled_from([1, 1, 1, 2, None]), st.sampled_from([0, 1, 2, None]))
events = st.lists(event, max_size=5)
epochs = st.lists(st.tuples(events, events, st.sampled_from([0, 1, 2, 3, 4, 7, 30])), min_size=2, max_size=9)


@pytest.mark.parametrize("how", JoinKind, ids=op.attrgetter("value"))
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), some=epochs, bounds=st.sampled_from([(-3, 5), (0, 10), (-9, -2), (2, 7), (0, 0)]))
def test_p6_every_kind_gives_the_batch_answer_over_the_admitted_rows(
    how: JoinKind, data: st.DataObject, some: Any, bounds: tuple[int, int]
) -> None:
    condition = data.draw(st.booleans())
    base = data.draw(st.sampled_from([0, YEAR_20000]))
    lower, upper = bounds
    driver = Driver(join(how, lower, upper, condition=Above() if condition else None), budget=1 << 20)
    admitted: list[list[dict[str, Any]]] = [[], []]
    late = 0
    at = base - 12
    for lefts, rights, advance in some:
        rows = [
            [left(at + time, key, price) for time, key, price in lefts],
            [right(at + time, key, price) for time, key, price in rights],
        ]
        before = driver.watermark
        for side in (0, 1):
            kept = [row for row in rows[side] if before is None or row["_time"] > before]
            late += len(rows[side]) - len(kept)
            admitted[side] += kept
        at += advance
        out = driver.epoch(*rows, watermark=at)
        if before is not None:
            promised = driver.operator.output_watermark(before)
            assert all(row["_time"] > promised for row in out)
        if data.draw(st.integers(0, 3)) == 0:
            driver.restart(data.draw(st.sampled_from([1, 3])))
    driver.epoch([], [], watermark=base + 1000)
    expected = in_batch(how, lower, upper, *admitted, condition=condition)
    assert shown(driver.rows(MAIN)) == expected
    assert len(driver.rows("late_bids")) + len(driver.rows("late_auctions")) == late
    assert sum(result.rows_late for step in driver.steps for result in step) == late
    assert driver.state_rows() == 0
    driver.close()


def test_pairs_are_given_in_the_epoch_in_which_the_second_row_comes() -> None:
    driver = Driver(join())
    assert driver.epoch([left(10, 1)], [right(7, 1, 7)], watermark=0) == [
        {"auction": 1, "price": 0, "price_right": 7, "_time": 10}
    ]
    assert driver.epoch([left(20, 1)], [], watermark=10) == []
    assert [row["_time"] for row in driver.epoch([], [right(25, 1), right(26, 1), right(17, 1)], watermark=20)] == [
        20,
        25,
    ]
    driver.close()


@pytest.mark.parametrize(("how", "due"), [(JoinKind.LEFT, 15), (JoinKind.ANTI, 15), (JoinKind.FULL, 15)])
def test_an_unmatched_left_row_is_given_by_the_first_watermark_that_lets_no_partner_come(
    how: JoinKind, due: int
) -> None:
    driver = Driver(join(how))
    assert driver.epoch([left(10, 1), left(10, None)], [], watermark=0) == []
    assert driver.epoch([], [], watermark=due - 1) == []
    assert {row["auction"] for row in driver.epoch([], [], watermark=due)} == {1, None}
    assert driver.epoch([], [], watermark=due + 100) == []
    driver.close()


def test_a_semi_join_gives_a_left_row_at_its_first_match_and_never_again() -> None:
    driver = Driver(join(JoinKind.SEMI))
    assert driver.epoch([left(10, 1), left(10, 1), left(11, 2)], [], watermark=0) == []
    assert driver.epoch([], [right(10, 1)], watermark=0) == [left(10, 1) | {"_time": 10}] * 2
    driver.restart(3)
    assert driver.epoch([], [right(12, 1), right(11, 1)], watermark=14) == []
    assert [row["auction"] for row in driver.epoch([], [right(15, 1), right(16, 2)], watermark=14)] == [2]
    driver.close()


def test_a_row_that_comes_when_no_partner_can_come_any_more_is_given_at_once_and_not_kept() -> None:
    driver = Driver(join(JoinKind.LEFT))
    found = driver.epoch([left(10, 1), left(11, 1), left(9, 1)], [], watermark=15)
    assert [row["_time"] for row in found] == [9, 10]
    assert driver.table_rows("left") == 1
    assert [row["_time"] for row in driver.epoch([], [], watermark=16)] == [11]
    driver.close()


def test_the_output_watermark_is_behind_by_what_rows_without_a_pair_wait() -> None:
    found = {how: join(how, -3, 5).output_watermark(100) for how in JoinKind}
    assert found == {
        JoinKind.INNER: 100,
        JoinKind.LEFT: 95,
        JoinKind.RIGHT: 97,
        JoinKind.FULL: 95,
        JoinKind.SEMI: 95,
        JoinKind.ANTI: 95,
    }
    assert join(JoinKind.LEFT, -9, -2).output_watermark(100) == 100
    assert [join(how).is_due(3, 4) for how in (JoinKind.INNER, JoinKind.LEFT)] == [False, True]


def test_of_a_key_with_many_rows_those_inside_the_bounds_are_partners_the_bounds_included() -> None:
    rows = [left(time, 1, time) for time in range(0, 300, 3)], [right(time, 1, time) for time in range(0, 300, 2)]
    for index, asked in ((rows[0], rows[1]), (rows[0][:2], rows[1]), (rows[0], rows[1][:2])):
        driver = Driver(join())
        driver.epoch(index, [], watermark=-1)
        driver.epoch([], asked, watermark=-1)
        assert shown(driver.rows(MAIN)) == in_batch(JoinKind.INNER, -3, 5, index, asked, condition=False)
        driver.close()


@pytest.mark.parametrize("how", [JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI, JoinKind.SEMI])
def test_a_partner_that_is_of_no_use_for_new_rows_still_counts_for_old_ones(how: JoinKind) -> None:
    driver = Driver(join(how))
    before = len(driver.epoch([left(10, 1)], [right(7, 1)], watermark=6))  # the least difference there is
    assert before == (0 if how is JoinKind.ANTI else 1)
    for watermark in (11, 12, 13, 14):  # no left row that comes now can be its partner
        assert driver.epoch([], [], watermark=watermark) == []
    assert driver.epoch([], [right(15, 1)], watermark=14) == (
        [] if how in {JoinKind.SEMI, JoinKind.ANTI} else driver.rows(MAIN)[-1:]
    )
    assert [row for row in driver.epoch([], [], watermark=100) if row.get("price_right", 1) is None] == []
    assert not (how is JoinKind.ANTI and driver.rows(MAIN))
    driver.close()


@pytest.mark.parametrize("how", [JoinKind.RIGHT, JoinKind.FULL])
def test_the_same_holds_with_the_sides_exchanged(how: JoinKind) -> None:
    driver = Driver(join(how))
    assert len(driver.epoch([left(5, 1)], [right(10, 1)], watermark=4)) == 1  # the greatest difference there is
    for watermark in (10, 11, 12):
        assert driver.epoch([], [], watermark=watermark) == []
    assert driver.epoch([], [], watermark=100) == []
    assert driver.state_rows() == 0
    driver.close()


def test_rows_that_no_watermark_needs_any_more_are_not_kept() -> None:
    driver = Driver(join(lower=0, upper=0))
    for minute in range(50):
        now = minute * 60_000_000
        rows = (
            [left(now + second, second) for second in range(20)],
            [right(now + second, second) for second in range(20)],
        )
        assert len(driver.epoch(*rows, watermark=now + 10)) == 20
        assert driver.state_rows() <= 2 * 10  # those after the watermark, and one microsecond more
    driver.close()


@pytest.mark.parametrize("how", every_third(JoinKind, 1))
def test_p6_the_same_rows_in_another_order_and_other_batches_give_the_same_bytes(how: JoinKind) -> None:
    chance = random.Random(5)
    rows = [
        [left(chance.randrange(30), chance.choice([1, 2, 3, None]), chance.randrange(3)) for _ in range(200)],
        [right(chance.randrange(30), chance.choice([1, 2, 3, None]), chance.randrange(3)) for _ in range(200)],
    ]
    first, second = (
        output_in_any_order(Driver(join(how), parallelism=2), rows, chance, epochs=4, span=8) for _ in range(2)
    )
    assert first == second


def test_without_keys_every_row_of_the_other_side_may_be_a_partner() -> None:
    lefts, rights = (Input(one.name, one.columns, ()) for one in (LEFT, RIGHT))
    driver = Driver(IntervalJoin("j", lefts, rights, lower_us=0, upper_us=1, how=JoinKind.FULL))
    driver.epoch([left(1, 1), left(5, None)], [right(2, 2)], watermark=0)
    driver.epoch([], [right(6, 3)], watermark=0)
    driver.epoch([], [right(9, 4)], watermark=20)
    found = [(row["auction"], row["id"]) for row in driver.rows(MAIN)]
    assert sorted(found, key=repr) == [(1, 2), (None, 3), (None, 4)]
    driver.close()


def test_bounds_and_times_at_the_ends_of_what_64_bits_hold_do_not_wrap() -> None:
    far = (1 << 63) - 10
    driver = Driver(join(JoinKind.LEFT, lower=-(1 << 60), upper=1 << 60))
    assert len(driver.epoch([left(far, 1), left(-(1 << 62), 1)], [right(far - 5, 1)], watermark=-(1 << 62) - 1)) == 1
    driver.close()


def test_a_key_with_many_rows_on_both_sides_is_joined_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statebed.operators.joins.join_index.expanded.__kwdefaults__", {"limit": 7})
    driver = Driver(join(lower=-100, upper=100))
    found = driver.epoch([left(n, 1, n) for n in range(40)], [right(n, 1, n) for n in range(30)], watermark=0)
    assert shown(found) == in_batch(
        JoinKind.INNER,
        -100,
        100,
        [left(n, 1, n) for n in range(40)],
        [right(n, 1, n) for n in range(30)],
        condition=False,
    )
    driver.close()


def test_definitions_that_make_no_sense_are_refused_when_they_are_made() -> None:
    text = Input("auctions", pa.schema([("id", pa.string()), ("price", pa.int64())]), ("id",))
    changing = Input("auctions", RIGHT.columns, ("id",), Changes.CHANGELOG)
    with pytest.raises(InputError, match="do not match"):
        IntervalJoin("j", LEFT, text, lower_us=0, upper_us=1)
    with pytest.raises(InputError, match="results are final"):
        IntervalJoin("j", LEFT, changing, lower_us=0, upper_us=1)
    with pytest.raises(InputError, match="is empty or longer"):
        join(lower=1, upper=0)
    with pytest.raises(InputError, match="twice"):
        join(suffixes=("", ""))
    with pytest.raises(InputError, match="both inputs"):
        IntervalJoin("j", LEFT, LEFT, lower_us=0, upper_us=1)
    not_boolean = Above()
    object.__setattr__(not_boolean, "type", pa.int64())
    with pytest.raises(InputError, match=r"must be boolean, got .* of type int64"):
        join(condition=not_boolean)


def test_the_fingerprint_tells_definitions_apart_and_not_names() -> None:
    prints = {join(how, lower, 9).definition.fingerprint for how in JoinKind for lower in (0, 1)}
    assert len(prints) == 2 * len(JoinKind)
    other = IntervalJoin("other", LEFT, RIGHT, lower_us=-3, upper_us=5)
    assert join().definition.fingerprint == other.definition.fingerprint
    assert join().definition.fingerprint != join(condition=Above()).definition.fingerprint


def test_an_operator_that_has_worked_holds_nothing_but_its_definition() -> None:
    operator = join()
    driver = Driver(operator)
    driver.epoch([left(1, 1)], [right(1, 1)], watermark=0)
    held = [type(value) for value in vars(operator).values()]
    assert not {pa.Table, pa.RecordBatch} & set(held)
    assert pickle.loads(pickle.dumps(operator)).definition.fingerprint == operator.definition.fingerprint  # noqa: S301 - our own bytes
    driver.close()
