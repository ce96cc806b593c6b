"""P4: joins whose state is several times the budget of memory give the same results as any other."""

import duck
import numpy as np
import pyarrow as pa
import pytest
from unit.operators.join_driver import LEFT, RIGHT, Driver

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.changelog import consolidated
from statebed.operators.joins import AsOfJoin, IntervalJoin, JoinKind, UpdatingJoin, WindowJoin
from statebed.operators.operator import MAIN, Operator
from statebed.operators.window_definition import Window, WindowShape

SECOND = 1_000_000
EPOCHS, ROWS, KEYS = 5, 12_000, 9_000
BUDGET = 1 << 20
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
    times = epoch * SECOND + chance.permutation(SECOND)[:ROWS]
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
        driver.epoch(sides[0][epoch], sides[1][epoch], watermark=-1)
        assert driver.used_memory() <= BUDGET
        if epoch == EPOCHS // 2:
            driver.restart(1)
    assert 2 * EPOCHS * ROWS * ROW_BYTES > 4 * BUDGET  # all of which is kept
    driver.epoch([], [], watermark=EPOCHS * 100 * SECOND)
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
        query = f"select coalesce(l.k, r.k) k, l.p, r.p from {ANSWERS[name]} order by all"  # noqa: S608 - of this test
        expected = db.sql(query).fetchall()
        db.register("ours", ours.select(["auction", "price", "price_right"]))
        found = db.sql("select * from ours order by all").fetchall()
    assert len(found) >= EPOCHS * ROWS
    assert found == expected
