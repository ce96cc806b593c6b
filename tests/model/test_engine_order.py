"""The bytes that the engine stores depend on what came in, not on the order inside a batch, nor on what was spilled."""

import random
from collections.abc import Sequence

from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model.engine_model import KEYED, TABLES, TIMED, Row
from model.engine_world import BUDGET, World

from statebed.state import DeleteKey, DeleteTimeKey, DeleteValue

OPERATIONS = (DeleteKey(), DeleteTimeKey(), DeleteValue())
rows = st.builds(
    Row,
    key=st.none() | st.integers(0, 8),
    time=st.integers(-20, 60),
    number=st.integers(0, 3),
    text=st.sampled_from([None, "", "a"]),
    extra=st.none(),
)
# Of equal keys (and times, where rows have them) in one batch the last one counts: that order is part of the input.
batches = st.lists(rows, min_size=1, max_size=12, unique_by=lambda row: row.key)


steps = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(TABLES), batches),
    st.tuples(st.just("merge"), st.sampled_from(KEYED), st.lists(rows, min_size=1, max_size=12)),
    st.tuples(st.just("write much"), st.sampled_from(TABLES), st.integers(0, 3)),
    st.tuples(st.just("delete"), st.sampled_from(TIMED), batches),
    st.tuples(st.just("delete times"), st.sampled_from(TIMED), st.integers(-20, 60)),
    st.tuples(st.just("advance"), st.just(""), st.integers(0, 90)),
    st.tuples(st.just("compact"), st.just(""), st.none()),
    st.tuples(st.just("checkpoint"), st.just(""), st.none()),
    st.tuples(st.just("restart"), st.just(""), st.integers(1, 3)),
)
scripts = st.lists(steps, min_size=2, max_size=14)
Step = tuple[str, str, object]


def many_rows(number: int) -> list[Row]:
    """Enough rows for a small budget to spill."""
    keys = random.Random(number).sample(range(3000), 1000)
    return [Row(key, key % 50, number, f"{key:>30}") for key in keys]


def played(world: World, script: Sequence[Step]) -> list[list[str]]:
    """The names of everything stored after each epoch."""
    stored = []
    for number, (verb, table, what) in enumerate([*script, ("checkpoint", "", None)]):
        rows = what if isinstance(what, list) else many_rows(number)
        batch = [row if table in TIMED else row._replace(time=0) for row in rows]
        if verb in {"write", "write much"}:
            world.send(table, batch)
        elif verb == "merge":
            world.merge(table, batch)
        elif verb == "delete":
            world.send(table, batch, OPERATIONS[number % 3])
        elif verb == "compact":
            world.compact(wait=True)  # which deletions a merge sees is a matter of time
        elif isinstance(what, int):
            if verb == "delete times":
                world.send_range(table, what, what + 15)
            elif verb == "advance":
                world.advance(max(what, world.model.watermark_us or 0))
            else:
                world.commit()
                world.process.end()
                world.start(what)
        else:
            world.commit()
        stored.append(world.stored())
    return stored


def check_in_another_order(script: list[Step], seed: int, *, pressure: int) -> None:
    """The same files, whether rows of a batch come in this order or that, and whatever takes the memory beside them."""

    def shuffled(batch: Sequence[Row]) -> list[Row]:
        return random.Random(seed).sample(list(batch), len(batch))

    one, other = World(2), World(2, pressure=pressure, arrival=shuffled)
    try:
        for before, after in zip(played(one, script), played(other, script), strict=True):
            assert before == after
    finally:
        one.end()
        other.end()


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(script=scripts, seed=st.integers(0, 99))
def test_p6_the_order_inside_a_batch_does_not_change_the_bytes(script: list[Step], seed: int) -> None:
    check_in_another_order(script, seed, pressure=0)


@settings(max_examples=examples(8), suppress_health_check=list(HealthCheck))
@given(script=scripts, seed=st.integers(0, 99))
def test_p6_spilling_does_not_change_the_bytes(script: list[Step], seed: int) -> None:
    check_in_another_order(script, seed, pressure=BUDGET * 9 // 10)
