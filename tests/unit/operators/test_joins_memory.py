"""P4: joins whose state or results are several times the budget of memory give the same results as any other."""

import gc
from typing import Any

import duck
import numpy as np
import pyarrow as pa
import pytest
from unit.operators.join_driver import LEFT, RIGHT, Driver, output_bytes

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.changelog import consolidated
from statebed.operators.external_sort import merged_pages
from statebed.operators.joins import AsOfJoin, IntervalJoin, JoinKind, UpdatingJoin, WindowJoin
from statebed.operators.joins.pairs import output_order
from statebed.operators.joins.sorted_results import SortedResults
from statebed.operators.operator import MAIN, Operator
from statebed.operators.window_definition import Window, WindowShape

SECOND = 1_000_000
EPOCHS, ROWS, KEYS = 5, 1_500, 1_125
BUDGET = 1 << 18
ROW_BYTES = 40
"""A key, a value, a time, a hash and a sequence."""
OPERATORS: dict[str, Operator] = {
    "interval": IntervalJoin("j", LEFT, RIGHT, lower_us=-2 * SECOND, upper_us=2 * SECOND, how=JoinKind.FULL),
    "window": WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 5 * SECOND, 5 * SECOND), JoinKind.FULL),
    "updating": UpdatingJoin("j", LEFT, RIGHT, JoinKind.FULL),
    "as of": AsOfJoin("j", LEFT, RIGHT, JoinKind.LEFT),
}
ANSWERS = {
    "interval": "l full join r on l.k = r.k and r.t - l.t between -2000000 and 2000000",
    "window": "l full join r on l.k = r.k and l.t // 5000000 = r.t // 5000000",
    "updating": "l full join r on l.k = r.k",
    "as of": "l asof left join r on l.k = r.k and l.t >= r.t",
}


def rows_of(one: Input, epoch: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    keys = from_numpy(chance.integers(0, KEYS, ROWS), pa.int64())
    # No time twice: which version wins a tie is another test's.
    times = epoch * SECOND + chance.choice(SECOND, ROWS, replace=False)
    values = from_numpy(chance.integers(0, 1 << 40, ROWS), pa.int64())
    hashes = from_numpy(hash_columns([keys]).view(np.int64), pa.int64())
    return pa.Table.from_arrays([hashes, from_numpy(times, TIMESTAMP), keys, values], schema=one.schema)


@pytest.mark.parametrize("name", OPERATORS)
def test_p4_state_of_several_times_the_budget_changes_no_result(name: str) -> None:
    driver = Driver(OPERATORS[name], parallelism=2, budget=BUDGET)
    sides = [
        [rows_of(one, epoch, 2 * epoch + side) for epoch in range(EPOCHS)] for side, one in enumerate((LEFT, RIGHT))
    ]
    for epoch in range(EPOCHS):
        driver.step(sides[0][epoch], sides[1][epoch], watermark=-1)
        assert driver.used_memory() <= BUDGET
        if epoch == EPOCHS // 2:
            driver.restart(1)
    assert 2 * EPOCHS * ROWS * ROW_BYTES > 2 * BUDGET  # all of which is kept
    driver.step([], [], watermark=EPOCHS * 100 * SECOND)
    outputs = [result.outputs[MAIN] for step in driver.steps for result in step]
    ours = pa.concat_tables(outputs)
    if name == "updating":
        ours = consolidated(ours)
        assert set(ours["_weight"].to_pylist()) == {1}
    driver.close()
    with duck.cursor() as db:
        for table, some in zip(("l", "r"), sides, strict=True):
            all_rows = pa.concat_tables(some)
            db.register(
                table, pa.table([all_rows["_time"].cast(pa.int64()), *all_rows.columns[2:4]], names=["t", "k", "p"])
            )
        query = f"select coalesce(l.k, r.k) k, l.p, r.p from {ANSWERS[name]} order by all"
        expected = db.sql(query).fetchall()
        db.register("ours", ours.select(["auction", "price", "price_right"]))
        found = db.sql("select * from ours order by all").fetchall()
    assert len(found) >= EPOCHS * ROWS
    assert found == expected


SLIDING = Window(WindowShape.SLIDING, 4 * SECOND, 2 * SECOND)
HOT_ROWS = 30_000
OF_ONE_KEY: dict[str, Operator] = {
    "interval": IntervalJoin("j", LEFT, RIGHT, lower_us=-2 * SECOND, upper_us=2 * SECOND),
    "window": WindowJoin("j", LEFT, RIGHT, Window(WindowShape.TUMBLING, 5 * SECOND, 5 * SECOND)),
}


def rows_of_one_key(one: Input, count: int) -> pa.Table:
    keys, values = pa.array(np.zeros(count, dtype=np.int64)), pa.array(np.arange(count))
    hashes = from_numpy(hash_columns([keys]).view(np.int64), pa.int64())
    times = from_numpy(np.arange(count) * (SECOND // HOT_ROWS), TIMESTAMP)
    return pa.Table.from_arrays([hashes, times, keys, values], schema=one.schema)


def watched_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the bytes that Arrow has allocated whenever results are added."""
    peaks: list[int] = []
    original = SortedResults.add

    def watched(self: Any, rows: pa.Table) -> None:
        original(self, rows)
        peaks.append(pa.total_allocated_bytes())

    monkeypatch.setattr(SortedResults, "add", watched)
    return peaks


@pytest.mark.parametrize("name", OF_ONE_KEY)
def test_p4_matches_of_a_few_rows_with_many_of_their_key_are_not_held_in_memory(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(OF_ONE_KEY[name], budget=4 << 20)
    driver.step(rows_of_one_key(LEFT, HOT_ROWS), [], watermark=-1)
    gc.collect()
    before, peaks = pa.total_allocated_bytes(), watched_memory(monkeypatch)
    driver.step([], rows_of_one_key(RIGHT, 10), watermark=9 * SECOND)
    ((step,),) = driver.steps[1:]
    output = step.outputs[MAIN]
    assert output.num_rows == 10 * HOT_ROWS
    assert output.nbytes > 9 << 20
    # A mapped file holds the results. What is in memory are rows of the state, and a chunk of results.
    assert max(peaks) - before < 8 << 20
    assert pa.total_allocated_bytes() - before < 2 << 20
    pairs = output["price"].to_numpy() * 10 + output["price_right"].to_numpy()
    assert np.array_equal(np.sort(pairs), np.arange(10 * HOT_ROWS))
    driver.close()


def test_p4_many_rows_that_become_due_at_once_are_not_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(AsOfJoin("j", LEFT, RIGHT, JoinKind.LEFT), budget=4 << 20)
    driver.step([], rows_of_one_key(RIGHT, 10), watermark=-1)
    for _ in range(10):
        driver.step(rows_of_one_key(LEFT, HOT_ROWS), [], watermark=-1)
    gc.collect()
    before, peaks = pa.total_allocated_bytes(), watched_memory(monkeypatch)
    driver.step([], [], watermark=9 * SECOND)
    ((step,),) = driver.steps[11:]
    output = step.outputs[MAIN]
    assert output.num_rows == 10 * HOT_ROWS
    assert output.nbytes > 9 << 20
    assert max(peaks) - before < 6 << 20
    assert pa.total_allocated_bytes() - before < 2 << 20
    driver.close()


@pytest.mark.parametrize(
    "operator",
    [
        IntervalJoin("j", LEFT, RIGHT, lower_us=-2 * SECOND, upper_us=SECOND, how=JoinKind.FULL),
        IntervalJoin("j", LEFT, RIGHT, lower_us=-2 * SECOND, upper_us=SECOND, how=JoinKind.SEMI),
        WindowJoin("j", LEFT, RIGHT, SLIDING, JoinKind.FULL),
        pytest.param(WindowJoin("j", LEFT, RIGHT, SLIDING, JoinKind.SEMI), marks=pytest.mark.long),
        pytest.param(WindowJoin("j", LEFT, RIGHT, SLIDING, JoinKind.ANTI), marks=pytest.mark.long),
        AsOfJoin("j", LEFT, RIGHT, JoinKind.LEFT),
    ],
    ids=lambda one: f"{type(one).__name__}-{one.how.value}",
)
def test_p6_the_output_has_the_same_bytes_whatever_fits_into_memory(operator: Operator) -> None:
    chance = np.random.default_rng(5)
    drivers = [Driver(operator, budget=budget) for budget in (1 << 18, 1 << 26)]
    for epoch, watermark in enumerate((-1, SECOND, 3 * SECOND, 100 * SECOND)):
        sides = [rows_of(one, epoch, 2 * epoch + side) for side, one in enumerate((LEFT, RIGHT))]
        outputs = []
        for driver in drivers:
            shuffled = [rows.take(pa.array(chance.permutation(rows.num_rows))) for rows in sides]
            driver.step(*(rows if epoch < 3 else rows.slice(0, 0) for rows in shuffled), watermark=watermark)
            (step,) = driver.steps[-1]
            outputs.append(output_bytes(step))
        assert outputs[0] == outputs[1]
    few = isinstance(operator, WindowJoin) and operator.how is JoinKind.ANTI  # most rows have a partner
    assert sum(step.outputs[MAIN].num_rows for (step,) in drivers[0].steps) > (200 if few else 2_000)
    for driver in drivers:
        driver.close()


def in_order(rows: pa.Table) -> pa.Table:
    return rows.take(from_numpy(output_order(rows, ["k"]), pa.int64()))


@pytest.mark.parametrize("times", [1, 3, 1 << 40], ids=["one time", "few times", "many times"])
@pytest.mark.parametrize("overlap", [False, True], ids=["disjoint", "overlapping"])
def test_merged_runs_are_in_the_order_of_all_their_rows(times: int, overlap: bool) -> None:
    chance = np.random.default_rng(7)
    count, runs = 2_000, 5
    rows = pa.table(
        {
            "k": chance.integers(0, 3, count),
            "v": chance.integers(0, 50, count),
            "note": pa.array([None if value < 2 else f"n{value}" for value in chance.integers(0, 9, count)]),
            "_time": from_numpy(chance.integers(0, times, count), TIMESTAMP),
        }
    )
    whole = in_order(rows)
    pieces = [(rows if overlap else whole).slice(first, count // runs) for first in range(0, count, count // runs)]
    ordered = [in_order(piece) for piece in reversed(pieces)]
    merged = merged_pages(ordered, lambda page: output_order(page, ["k"]), page_rows=37)
    assert pa.concat_tables(merged).equals(whole)
