"""Groups that Spark made and placed, as the first level takes them."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import statebed as sb
from statebed.aggregates.preaggregation import LATEST, ROW_COUNT
from statebed.errors import SubtaskError
from statebed.flow.graph import OperatorNode
from statebed.flow.steps import key_hashes
from statebed.format.ranges import subtask_of
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.spark.epoch.level_task import LevelOperator, StageFunction
from statebed.spark.plan.pieces import SEEN, SUBTASK, Piece
from statebed.spark.plan.routing import SOURCE, Layout, PlacedGroups
from statebed.subtasks import SubtaskTask

KEYS = pa.array(["a", "b", "c", "d", "e", "f"])
OWNERS = subtask_of(key_hashes([KEYS], len(KEYS)).view(np.uint64), 2)


def stage(*sources: str) -> StageFunction:
    flow = sb.Flow("rows")
    rows = flow.source("rows", "k string, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="op").agg(ttl="1 hour", n=sb.count())
    node = flow.graph.nodes[-1]
    assert isinstance(node, OperatorNode)
    operator = node.operator
    assert isinstance(operator, UpdatingAggregate)
    assert operator.preaggregated is not None
    names = operator.preaggregated.columns.names
    columns = [f"g{place}" for place in range(len(names))]
    layout = Layout(operator.preaggregated, tuple(columns), sources, latest=columns[names.index(LATEST)])
    task = SubtaskTask(
        job_id="job",
        epoch=1,
        operator=operator,
        subtask_index=0,
        parallelism=2,
        base=(),
        late_us=None,
        watermark_us=None,
        epoch_time_us=1,
    )
    groups = PlacedGroups(layout, sources, columns[names.index(ROW_COUNT)])
    return StageFunction("memory", (LevelOperator(task, ((), (0,)), ()),), groups=groups)


def batch(one: StageFunction, index: int, keys: Sequence[str | None], latest: Sequence[int | None]) -> pa.RecordBatch:
    """Return a batch as it comes from Spark; a group without a key and a time is a heartbeat."""
    assert one.groups is not None
    fields = one.groups.layout.input.columns
    times = pa.array(latest, TIMESTAMP)
    given = {
        "k": pa.array(keys, pa.string()),
        ROW_COUNT: pa.array([None if k is None else 3 for k in keys]),
        LATEST: times,
    }
    made = {
        slot: given.get(field.name, pa.array([None if k is None else 3 for k in keys], pa.int64())).cast(field.type)
        for slot, field in zip(one.groups.layout.columns, fields, strict=True)
    }
    made |= {SUBTASK: pa.array([index] * len(keys), pa.int32()), TIME: times}
    if len(one.groups.sources) > 1:
        made[SOURCE] = pa.array([place % 2 for place in range(len(keys))], pa.int32())
    return pa.RecordBatch.from_pydict(made)


def mine(index: int) -> list[str | None]:
    return [key for key, owner in zip(KEYS.to_pylist(), OWNERS.tolist(), strict=True) if owner == index]


@pytest.mark.parametrize("index", [0, 1])
def test_groups_are_taken_in_an_order_of_their_own_without_heartbeats(index: int) -> None:
    one, keys = stage("rows"), mine(index)
    assert one.groups is not None
    assert len(keys) > 1
    origins = []
    for some in (keys, keys[::-1]):
        passing: list[Piece] = []
        times = [ord(str(key)) for key in some]
        given = [batch(one, index, [None], [None]), batch(one, index, some, times)]
        origins.append(list(one._taken(one.groups, iter(given), passing, index)))
        (told,) = passing
        assert told.branch == SEEN
        assert msgspec.msgpack.decode(told.payload) == {"rows": max(times)}
    assert origins[0] == origins[1]
    assert sorted(key for some in origins[0] for key in some["k"].to_pylist()) == keys


def test_each_of_several_sources_is_seen() -> None:
    one, keys = stage("left", "right"), mine(0)
    assert one.groups is not None
    passing: list[Piece] = []
    list(one._taken(one.groups, iter([batch(one, 0, keys[:2], [7, 5])]), passing, 0))
    assert msgspec.msgpack.decode(passing[0].payload) == {"left": 7, "right": 5}


def test_a_hash_that_is_not_ours_is_refused() -> None:
    one = stage("rows")
    assert one.groups is not None
    with pytest.raises(SubtaskError, match="hashes the keys of operator 'op' differently"):
        list(one._taken(one.groups, iter([batch(one, 0, mine(1), [1] * len(mine(1)))]), [], 0))
