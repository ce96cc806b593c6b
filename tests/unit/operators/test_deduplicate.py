"""One row of each key, the first or the last, against a few lines of Python."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.operators.operator_epochs import Epochs, plain, rows_of

from statebed.arrays.sort_order import order_by
from statebed.errors import InputError
from statebed.format.stream_schema import Changes, Input
from statebed.operators.operator import LATE, MAIN
from statebed.operators.time_to_live import time_to_live
from statebed.operators.updating.deduplicate import SEEN, Deduplicate, Keep
from statebed.state import MemoryController, Tiers

COLUMNS = pa.schema([("k", pa.float64()), ("name", pa.string()), ("n", pa.int64())])
CLICKS = Input("clicks", COLUMNS, ("k", "name"))
FAR = 569_000_000_000_000_000  # the year 20000

KEYS = st.tuples(st.sampled_from([0.0, -0.0, math.nan, None]), st.sampled_from(["a", "", None]))
EVENTS = st.lists(
    st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 3)), st.one_of(st.none(), st.integers(-30, 30), st.just(FAR))),
    max_size=14,
)
EPOCHS = st.lists(st.tuples(EVENTS, st.integers(0, 12), st.sampled_from([None, None, 1, 3])), min_size=1, max_size=6)
"""Events, how far the watermark advances, and the parallelism to restart with."""


def event(one: tuple[Any, Any, Any]) -> dict[str, Any]:
    (k, name), n, _ = one
    return {"k": k, "name": name, "n": n}


def same(key: tuple[Any, Any]) -> tuple[Any, Any]:
    number = "NaN" if isinstance(key[0], float) and math.isnan(key[0]) else key[0] if key[0] is None else key[0] + 0.0
    return number, key[1]


def rank(one: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    """Event time, then the other column, nulls last."""
    _, n, time = one
    return time is None, time or 0, n is None, n or 0


def run(operator: Deduplicate, epochs: Any, *, seed: int = 0, tiers: Tiers | None = None) -> list[Any]:
    found = []
    watermark = -40
    with Epochs(operator, chance=random.Random(seed), tiers=tiers) as stream:
        for events, step, restart in epochs:
            if restart is not None:
                stream.restart(restart)
            watermark += step
            rows = rows_of(operator.input, [event(one) for one in events], [one[2] for one in events])
            outputs = stream.feed(rows, watermark_us=watermark)
            assert sum(one.rows_in for one in stream.results) == len(events)
            assert sum(one.rows_late for one in stream.results) == outputs[LATE].num_rows
            for one in stream.results if operator.keep is Keep.LAST else []:
                weights = one.outputs[MAIN]["_weight"].to_pylist()
                assert weights == sorted(weights), "retractions come first"
            found.append((plain(outputs[MAIN]), plain(outputs[LATE]), stream.record))
    return found


def keyed(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr((*same((row["k"], row["name"])), row["n"], row["_time"])) for row in rows)


@settings(max_examples=examples(15), deadline=None)
@given(EPOCHS, st.sampled_from([None, 1, 7, 25]))
def test_p6_the_first_row_of_a_key_is_put_out_once_until_the_key_is_forgotten(epochs: Any, ttl: int | None) -> None:
    operator = Deduplicate("first", CLICKS, ttl=time_to_live(None if ttl is None else f"{ttl} us"))
    known: dict[Any, int] = {}
    late = None
    watermark = -40
    for (events, step, _), (out, _, _) in zip(epochs, run(operator, epochs), strict=True):
        watermark += step
        expected = []
        admitted = [
            one
            for one in events
            if (one[2] is None and ttl is None) or (one[2] is not None and (late is None or one[2] > late))
        ]
        for one in sorted(admitted, key=rank):
            if same(one[0]) not in known:
                known[same(one[0])] = one[2]
                expected.append({**event(one), "_time": one[2]})
        assert keyed(out) == keyed(expected)
        late = watermark
        if ttl is not None:
            known = {key: time for key, time in known.items() if time + ttl > watermark}


@settings(max_examples=examples(15), deadline=None)
@given(EPOCHS)
def test_p6_folding_the_changes_gives_the_last_row_of_each_key(epochs: Any) -> None:
    operator = Deduplicate("last", CLICKS, keep=Keep.LAST)
    best: dict[Any, Any] = {}
    folded: dict[str, int] = {}
    for (events, _, _), (out, late_out, _) in zip(epochs, run(operator, epochs), strict=True):
        admitted = [one for one in events if one[2] is not None]
        assert len(late_out) == len(events) - len(admitted), "only rows without event time"
        for one in admitted:
            old = best.get(same(one[0]))
            best[same(one[0])] = one if old is None else max(old, one, key=rank)
        for row in out:
            text = repr((*same((row["k"], row["name"])), row["n"], row["_time"]))
            folded[text] = folded.get(text, 0) + row["_weight"]
        expected = {repr((*key, *one[1:])): 1 for key, one in best.items()}
        assert {text: weight for text, weight in folded.items() if weight} == expected


@pytest.mark.parametrize("keep", list(Keep))
@settings(max_examples=examples(8), deadline=None)
@given(epochs=EPOCHS)
def test_p6_output_and_state_have_the_same_bytes_in_any_order_of_arrival(keep: Keep, epochs: Any) -> None:
    operator = Deduplicate("same", CLICKS, keep=keep)
    first, second = run(operator, epochs, seed=1), run(operator, epochs, seed=2)
    assert [repr(one) for one in first] == [repr(one) for one in second]


def test_a_memory_budget_smaller_than_the_state_changes_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    epochs = [
        ([((float(chance.randrange(9_000)), "x" * 20), chance.randrange(9), chance.randrange(9)) for _ in range(1500)],
         0, None)
        for _ in range(6)
    ]  # fmt: skip
    operator = Deduplicate("large", CLICKS, keep=Keep.LAST)
    tiers = Tiers(MemoryController(3 << 16), folder=tmp_path)
    try:
        small = run(operator, epochs, tiers=tiers)
        assert tiers.memory.snapshot().events["spilled_bytes"]
    finally:
        tiers.close()
    assert [one[:2] for one in small] == [one[:2] for one in run(operator, epochs)]


def test_keys_that_are_forgotten_leave_the_state() -> None:
    operator = Deduplicate("first", CLICKS, ttl=time_to_live("10 us"))
    with Epochs(operator) as stream:
        for start in range(0, 300, 10):
            rows = [{"k": float(start + one), "name": "a", "n": 1} for one in range(10)]
            stream.feed(rows_of(CLICKS, rows, [start + one for one in range(10)]), watermark_us=start + 5)
            assert stream.state_rows(SEEN) <= 25


def test_a_time_to_live_by_epoch_time_counts_from_the_epoch_in_which_a_key_came() -> None:
    operator = Deduplicate("first", CLICKS, ttl=time_to_live("10 us", "epoch_time"))
    row = {"k": 1.0, "name": "a", "n": 1}
    with Epochs(operator) as stream:
        out = [
            stream.feed(rows_of(CLICKS, [row], [None]), epoch_time_us=100 + time)[MAIN].num_rows
            for time in (0, 5, 9, 10, 19, 20)
        ]
    assert out == [1, 0, 0, 1, 0, 1]


def test_definitions_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InputError, match="without keys"):
        Deduplicate("d", Input("clicks", COLUMNS, ()))
    with pytest.raises(InputError, match="must be distinct columns"):
        Deduplicate("d", Input("clicks", COLUMNS, ("nothing",)))
    with pytest.raises(InputError, match="changelog"):
        Deduplicate("d", Input("clicks", COLUMNS, ("k",), Changes.CHANGELOG))
    with pytest.raises(InputError, match="`ttl_clock` must be one of"):
        time_to_live("1 day", "wall")
    with pytest.raises(InputError, match="`ttl` must be positive"):
        time_to_live("0 s")


def test_the_operator_holds_its_definition_alone_and_tells_definitions_apart() -> None:
    first, last = Deduplicate("d", CLICKS), Deduplicate("d", CLICKS, keep=Keep.LAST)
    assert first.definition.fingerprint != last.definition.fingerprint
    assert first.definition.fingerprint == Deduplicate("other", CLICKS).definition.fingerprint
    assert first.output_watermark(5) == 5
    assert not first.is_due(None, 10)


# ---- an order of the user's ------------------------------------------------------------------------------------------

CHANGES = Input("changes", pa.schema([("id", pa.int64()), ("email", pa.string()), ("lsn", pa.int64())]), ("id",))


def kept(keep: Keep, order: str, epochs: Sequence[Sequence[tuple[int, str, int | None, int | None]]], seed: int) -> Any:
    """The rows that stand in the end, for changes (id, email, lsn, event time) in any order."""
    operator = Deduplicate("op", CHANGES, keep, order=order_by(order))
    standing: Counter[tuple[int, str]] = Counter()
    chance = random.Random(seed)
    with Epochs(operator, chance=chance) as stream:
        for number, events in enumerate(epochs):
            if number % 3 == 2:
                stream.restart(chance.choice([1, 2, 3]))
            some = chance.sample(events, len(events))
            rows = rows_of(CHANGES, [{"id": i, "email": e, "lsn": n} for i, e, n, _ in some], [one[3] for one in some])
            for row in stream.feed(rows, watermark_us=0)[MAIN].to_pylist():
                standing[row["id"], row["email"]] += row.get("_weight", 1)
    return sorted(+standing)


@pytest.mark.parametrize("seed", range(3))
def test_of_changes_that_are_tied_in_event_time_the_last_by_the_log_stays(seed: int) -> None:
    chance = random.Random(seed)
    # Values go down while the log goes up, so that no other column tells the order.
    changes = [(n % 7, f"{999 - n}@x", n, 5) for n in range(300)]
    expected = sorted({one[0]: (one[0], one[1]) for one in changes}.values())
    cuts = sorted(chance.sample(range(300), 5))
    epochs = [changes[a:b] for a, b in zip([0, *cuts], [*cuts, 300], strict=True)]
    assert kept(Keep.LAST, "lsn", epochs, seed) == expected
    # Also when they come the other way round, and without an event time at all.
    assert kept(Keep.LAST, "lsn", epochs[::-1], seed) == expected
    assert kept(Keep.LAST, "lsn", [[(*one[:3], None) for one in some] for some in epochs], seed) == expected


def test_the_order_comes_before_the_event_time() -> None:
    later_but_smaller = [[(1, "a", 2, 10)], [(1, "b", 1, 20)]]
    assert kept(Keep.LAST, "lsn", later_but_smaller, 0) == [(1, "a")]
    assert kept(Keep.LAST, "lsn desc", later_but_smaller, 0) == [(1, "b")]


def test_nulls_of_the_order_are_where_it_says() -> None:
    events = [[(1, "null", None, 5), (1, "some", 3, 5)]]
    assert kept(Keep.LAST, "lsn", events, 0) == [(1, "some")]
    assert kept(Keep.LAST, "lsn asc nulls last", events, 0) == [(1, "null")]


def test_keeping_the_first_goes_by_the_order_inside_an_epoch() -> None:
    assert kept(Keep.FIRST, "lsn", [[(1, "a", 9, 1), (1, "b", 2, 5)], [(1, "c", 1, 0)]], 0) == [(1, "b")]


def test_without_an_order_the_definition_is_the_one_that_older_states_have() -> None:
    assert "order" not in Deduplicate("op", CHANGES).definition.described
    ordered = Deduplicate("op", CHANGES, order=order_by("lsn"))
    assert ordered.definition.changes_from(Deduplicate("op", CHANGES).definition.described) == {
        "order": (None, ["lsn asc nulls first"])
    }


def test_an_order_by_a_column_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="'lsm'"):
        Deduplicate("op", CHANGES, order=order_by("lsm"))
