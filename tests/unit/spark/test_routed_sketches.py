"""Groups that Spark has made a sketch of, cut into pieces: the same bytes in whatever order they come."""

import itertools

import pyarrow as pa

import statebed as sb
from statebed.aggregates import Aggregate
from statebed.aggregates.preaggregation import LATEST, ROW_COUNT
from statebed.flow.graph import OperatorNode
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.windows.aggregate import WindowAggregate
from statebed.spark.epoch.preaggregation import Preaggregation
from statebed.spark.plan.routing import SOURCE, Layout, PlacedGroups, RouteFunction

SOURCES = ("left", "right")


def layout() -> Layout:
    flow = sb.Flow("rows")
    rows = flow.source("rows", "k string, v string, ts timestamp", watermark=("ts", "0s"))
    rows.group_by("k", sb.tumbling("1 minute"), name="op").agg(d=sb.approx_count_distinct("v", precision=4))
    node = flow.graph.nodes[-1]
    assert isinstance(node, OperatorNode)
    assert isinstance(node.operator, WindowAggregate)
    groups = node.operator.preaggregated
    assert groups is not None
    columns = tuple(f"g{place}" for place in range(len(groups.columns)))
    return Layout(groups, columns, SOURCES, latest=columns[groups.columns.names.index(LATEST)])


def sketch(register: int, value: int) -> bytes:
    """A sketch of the library in its mode for few values, of one."""
    coupon = (value << 26) | register
    return bytes([2, 1, 7, 4, 3, 0, 1, 2 << 2]) + coupon.to_bytes(4, "little") + bytes(28)


def test_p6_groups_that_differ_in_their_sketches_alone_are_routed_in_one_order() -> None:
    groups = layout()
    given = {
        "k": pa.array(["a"] * 3),
        ROW_COUNT: pa.array([1] * 3, pa.int64()),
        LATEST: pa.array([7] * 3, TIMESTAMP),
    }
    sketches = pa.array([sketch(3, 1), sketch(5, 2), sketch(3, 2)])
    made = {
        slot: given.get(name, sketches) for slot, name in zip(groups.columns, groups.input.columns.names, strict=True)
    }
    made |= {TIME: pa.array([0] * 3, TIMESTAMP), SOURCE: pa.array([0, 1, 1], pa.int32())}
    batch = pa.RecordBatch.from_pydict(made)
    route = RouteFunction({0: groups}, SOURCES, 2, in_order=True)
    found = {
        tuple(bytes(piece.payload) for piece in route(iter([batch.take(pa.array(order))])))
        for order in itertools.permutations(range(3))
    }
    assert len(found) == 1


def test_groups_with_a_sketch_are_cut_into_pieces_and_others_go_to_their_subtasks() -> None:
    def placed(**aggregates: Aggregate) -> PlacedGroups | None:
        flow = sb.Flow("rows")
        rows = flow.source("rows", "k string, v string, ts timestamp", watermark=("ts", "0s"))
        rows.group_by("k", sb.tumbling("1 minute"), name="op").agg(**aggregates)
        node = flow.graph.nodes[-1]
        assert isinstance(node, OperatorNode)
        assert isinstance(node.operator, WindowAggregate)
        names = tuple(node.operator.inputs[0].columns.names)
        layout_of_rows = Layout(node.operator.inputs[0], names, ("rows",))
        return Preaggregation(0, node.operator, layout_of_rows, ("rows",), 2).placed

    assert placed(n=sb.count()) is not None
    assert placed(n=sb.count(), d=sb.approx_count_distinct("v", precision=4)) is None
