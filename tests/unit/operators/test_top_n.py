"""The first n rows of each key, kept up to date, against a few lines of Python over all rows."""

import math
import random
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from effort import every_third, examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.arrays.row_numbers import Numbering
from statebed.arrays.sort_order import order_by
from statebed.errors import InputError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.operator import LATE, MAIN
from statebed.operators.time_to_live import time_to_live
from statebed.operators.updating import top_n_rest
from statebed.operators.updating.top_n import REST, STANDING, TopN

COLUMNS = pa.schema([("k", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.int64())), ("n", pa.int64())])
BIDS = Input("bids", COLUMNS, ("k",))
ALL_BIDS = Input("bids", COLUMNS, ())
CHANGES = Input("bids", COLUMNS, ("k",), Changes.CHANGELOG)
ORDER = order_by("price desc nulls first", "n")

ROWS = st.tuples(
    st.sampled_from(["a", "b", "", None]),
    st.sampled_from([1.0, 2.0, math.nan, None]),
    st.sampled_from([(), (1,), (1, 2), None]),
    st.sampled_from([1, 2, None]),
    st.one_of(st.none(), st.integers(-20, 20)),
)
"""The columns, and the event time."""
EPOCHS = st.lists(
    st.tuples(
        st.lists(st.tuples(ROWS, st.sampled_from([1, 1, 2, -1, -3])), max_size=12),
        st.integers(0, 9),
        st.sampled_from([None, None, 1, 3]),
    ),
    min_size=1,
    max_size=5,
)
"""Rows and their weights, how far the watermark advances, and the parallelism to restart with."""


def nulls_last(value: Any) -> tuple[Any, ...]:
    return (True,) if value is None else (False, value)


def user_rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sort key: by price, the greatest first and nulls before all; then by n, nulls first."""
    _, price, _, n, _ = row
    number = math.inf if price is not None and math.isnan(price) else price
    return price is not None, 0 if number is None else -number, n is not None, n or 0


def full_rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The total order: then by all columns and the event time."""
    k, _, tags, _, time = row
    return user_rank(row), nulls_last(k), nulls_last(tags), nulls_last(time)


def first_rows(standing: Counter[Any], n: int, numbering: Numbering, *, keyed: bool) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for key in {row[0] for row in standing} if keyed else {None}:
        rows = sorted((row for row in standing.elements() if not keyed or row[0] == key), key=full_rank)
        ranks = [user_rank(row) for row in rows]
        for place, row in enumerate(rows):
            number = {
                Numbering.ROW_NUMBER: place + 1,
                Numbering.RANK: ranks.index(ranks[place]) + 1,
                Numbering.DENSE_RANK: len(set(ranks[: place + 1])),
            }[numbering]
            if number <= n:
                found[repr((*row, number))] += 1
    return found


def run(operator: TopN, epochs: Any, *, seed: int = 0) -> Any:
    watermark = -15
    with Epochs(operator, chance=random.Random(seed)) as stream:
        for events, step, restart in epochs:
            if restart is not None:
                stream.restart(restart)
            watermark += step
            rows = [{**dict(zip(COLUMNS.names, row, strict=False)), "_weight": weight} for row, weight in events]
            outputs = stream.feed(rows_of(operator.input, rows, [row[-1] for row, _ in events]), watermark_us=watermark)
            unknown = sum(one.counts[UNKNOWN_RETRACTIONS] for one in stream.results)
            yield outputs, unknown, stream


def fold(folded: Counter[str], outputs: dict[str, pa.Table]) -> Counter[str]:
    """Return the rows after these changes."""
    for row in plain(outputs[MAIN]):
        assert row["_weight"] != 0
        tags = None if row["tags"] is None else tuple(row["tags"])
        folded[repr((row["k"], row["price"], tags, row["n"], row["_time"], row["number"]))] += row["_weight"]
    return Counter({text: weight for text, weight in folded.items() if weight})


@pytest.mark.parametrize("numbering", list(Numbering))
@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, n=st.integers(1, 3), keyed=st.booleans())
def test_p6_folding_the_changes_gives_the_first_rows_of_all_that_came(
    numbering: Numbering, epochs: Any, n: int, keyed: bool
) -> None:
    operator = TopN("top", BIDS if keyed else ALL_BIDS, n, ORDER, numbering, number="number")
    standing: Counter[Any] = Counter()
    folded: Counter[str] = Counter()
    for (events, _, _), (outputs, _, _) in zip(epochs, run(operator, epochs), strict=True):
        assert outputs[LATE].num_rows == 0, "no window closes, so no row is too late"
        standing.update(row for row, _ in events)
        folded = fold(folded, outputs)
        assert folded == first_rows(standing, n, numbering, keyed=keyed)


@pytest.mark.parametrize("numbering", list(Numbering))
@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS, n=st.integers(1, 3))
def test_p6_rows_that_are_taken_away_make_room_for_those_after_them(numbering: Numbering, epochs: Any, n: int) -> None:
    operator = TopN("top", CHANGES, n, ORDER, numbering, number="number")
    standing: Counter[Any] = Counter()
    folded: Counter[str] = Counter()
    for (events, _, _), (outputs, unknown, _) in zip(epochs, run(operator, epochs), strict=True):
        assert outputs[LATE].num_rows == 0, "rows of a changelog are never late"
        for row, weight in events:
            standing[row] += weight
        assert unknown == -sum(min(weight, 0) for weight in standing.values())
        standing = +standing
        folded = fold(folded, outputs)
        assert folded == first_rows(standing, n, numbering, keyed=True)


@pytest.mark.parametrize("numbering", every_third(Numbering, 1))
@settings(max_examples=examples(8), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(epochs=EPOCHS, n=st.integers(1, 3))
def test_p6_rows_beyond_the_list_of_a_key_take_the_place_of_those_that_go(
    numbering: Numbering, epochs: Any, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_n_rest, "_SPARE", 0)
    monkeypatch.setattr(top_n_rest, "_length", lambda n: n)
    test_p6_rows_that_are_taken_away_make_room_for_those_after_them.hypothesis.inner_test(numbering, epochs, n)


@pytest.mark.parametrize("numbering", every_third(Numbering, 2))
def test_a_long_history_of_changes_gives_the_first_rows(numbering: Numbering) -> None:
    chance, standing, folded = random.Random(11), Counter[Any](), Counter[str]()
    epochs, beyond = [], 0
    for epoch in range(24):
        count = 0 if epoch % 4 == 3 else 80
        add = [("a", float(chance.randrange(400)), None, chance.randrange(2), None) for _ in range(count)]
        known = sorted(standing.elements(), key=full_rank)
        gone = known[:150] if epoch % 4 == 3 else chance.sample(known, min(len(known), 10))
        standing.update(add)
        standing.subtract(gone)
        epochs.append(([*((row, 1) for row in add), *((row, -1) for row in gone)], 0, chance.choice([None, 1, 2])))
    operator = TopN("top", CHANGES, 3, ORDER, numbering, number="number")
    standing.clear()
    for (events, _, _), (outputs, unknown, stream) in zip(epochs, run(operator, epochs), strict=True):
        for row, weight in events:
            standing[row] += weight
        assert unknown == 0
        folded = fold(folded, outputs)
        assert folded == first_rows(+standing, 3, numbering, keyed=True)
        assert stream.state_rows(STANDING) <= 1
        beyond += stream.state_rows(REST)
    assert beyond, "the history has rows beyond the list"


def test_one_more_row_of_a_hot_key_writes_what_one_more_of_a_small_key_does() -> None:
    def written(before: int) -> int:
        operator = TopN("top", CHANGES, 3, order_by("price"))
        with Epochs(operator) as stream:
            rows = [{"k": "a", "price": float(price)} for price in range(before + 3)]
            for part in (rows[:before], rows[before : before + 1], rows[before + 1 : before + 2]):  # merged by then
                stream.feed(rows_of(CHANGES, part, [None] * len(part)))
            stored = {info.path for info in stream.store.list("")}
            stream.feed(rows_of(CHANGES, rows[-1:], [None]))
            return sum(info.size for info in stream.store.list("") if info.path not in stored)

    assert written(100_000) < 3 * written(2)


@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS)
def test_p6_the_first_rows_have_the_same_bytes_in_any_order_of_arrival(epochs: Any) -> None:
    operator = TopN("top", BIDS, 2, ORDER, number="number")
    first, second = (
        [
            repr((plain(outs[MAIN]), plain(outs[LATE]), stream.record))
            for outs, _, stream in run(operator, epochs, seed=one)
        ]
        for one in (1, 2)
    )
    assert first == second


def test_an_input_that_only_adds_leaves_n_rows_of_each_key_in_the_state() -> None:
    operator = TopN("top", BIDS, 3, order_by("price desc"))
    chance = random.Random(3)
    with Epochs(operator, parallelism=2) as stream:
        for _ in range(5):
            rows = [{"k": str(chance.randrange(20)), "price": chance.random()} for _ in range(400)]
            stream.feed(rows_of(BIDS, rows, [None] * len(rows)))
        assert stream.state_rows(STANDING) == 20
        kept = [
            len(row["_rows"])
            for manager in stream.managers
            for piece in manager.get_keyed(STANDING).scan()
            for row in piece.select(["_rows"]).to_pylist()
        ]
        assert kept == [3] * 20


def test_a_key_whose_last_row_is_taken_away_leaves_the_state() -> None:
    operator = TopN("top", CHANGES, 3, order_by("price"))
    with Epochs(operator) as stream:
        stream.feed(rows_of(CHANGES, [{"k": "a", "price": 1.0}, {"k": "b", "price": 1.0}], [1, 1]))
        stream.feed(rows_of(CHANGES, [{"k": "a", "price": 1.0, "_weight": -1}], [1]))
        assert stream.state_rows(STANDING) == 1


def test_a_key_is_forgotten_when_no_row_of_it_came_for_its_time_to_live() -> None:
    operator = TopN("top", BIDS, 1, order_by("price desc"), ttl=time_to_live("10 us"))
    with Epochs(operator) as stream:
        stream.feed(rows_of(BIDS, [{"k": "a", "price": 5.0}], [0]), watermark_us=0)
        stream.feed(rows_of(BIDS, [{"k": "a", "price": 1.0}], [8]), watermark_us=12)
        assert stream.state_rows(STANDING) == 1, "its last row, which changed nothing, came at 8"
        out = stream.feed(rows_of(BIDS, [{"k": "a", "price": 9.0}] * 3, [2, 3, None]), watermark_us=18)
        assert out[LATE].num_rows == 2, "at 12 the state of a row at 2 is gone, that of one at 3 is not"
        assert stream.state_rows(STANDING) == 0


def test_definitions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="`n` must be a whole number of at least 1, got 0"):
        TopN("top", BIDS, 0, ORDER)
    with pytest.raises(InputError, match="two columns"):
        TopN("top", BIDS, 1, ORDER, number="price")
    for match, order in {
        "no column 'nothing'": order_by("nothing"),
        "cannot be ordered": order_by("tags"),
        "each once": order_by("price", "price desc"),
        "must name at least one column": (),
    }.items():
        with pytest.raises(InputError, match=match):
            TopN("top", BIDS, 1, order)
    with pytest.raises(InputError, match="is not an order"):
        order_by(" ")
