"""Levels of operators, the ways of rows between them, and what sinks get."""

import pytest

import statebed as sb
from statebed.flow.graph import Edge, Graph
from statebed.format.names import outbox_file
from statebed.operators.aggregation import Aggregation
from statebed.operators.operator import LATE
from statebed.spark.plan.topology import SinkStream, Topology, stream_for, topology

MINUTE = sb.tumbling("1 minute")


def rides() -> tuple[Graph, dict[str, Edge]]:
    """Two sources; a window over one; a join of its results with the other; totals of a filtered source."""
    flow = sb.Flow("rides")
    trips = flow.source("trips", "driver string, fare bigint, ts timestamp", watermark=("ts", "0s"))
    fares = flow.source("fares", "driver string, tip bigint, ts timestamp", watermark=("ts", "0s"))
    dear = trips.where("fare > 10")
    windows = dear.group_by("driver", MINUTE, name="windows").agg(total=sb.sum("fare"))
    joined = fares.join(windows.select("driver", "total"), on="driver", window=MINUTE, name="joined")
    totals = trips.key_by("driver", name="totals").agg(n=sb.count())
    edges = {"trips": trips, "fares": fares, "dear": dear, "windows": windows, "joined": joined, "totals": totals}
    return flow.graph, {name: stream.edge for name, stream in edges.items()}


def placed(**sinks: Edge) -> Topology:
    graph, edges = rides()
    frames = {edges[name] for name in ("trips", "fares", "dear")}
    return topology(graph, frames, sinks or {"out": edges["joined"]})


def test_an_operator_is_one_level_behind_the_last_that_it_reads() -> None:
    found = placed()
    levels = [[place.operator.operator_id for place in level] for level in found.levels]
    assert levels == [["windows", "totals"], ["joined"]]
    windows = found.places[0]
    (route,) = windows.routes
    joined = next(place for place in found.places if place.operator.operator_id == "joined")
    # The rows of the source go along a branch from the beginning, the results of the window along their route.
    assert joined.branches == ((next(b.number for b in found.branches if b.sources == ("fares",)),), (route.number,))
    assert [step.text for step in route.steps] == ["select driver as driver, total as total"]


def test_every_branch_knows_its_frame_and_its_sources() -> None:
    _, edges = rides()
    found = {branch.operator.operator_id: (branch.edge, branch.sources) for branch in placed().branches}
    assert found == {
        "windows": (edges["dear"], ("trips",)),
        "joined": (edges["fares"], ("fares",)),
        "totals": (edges["trips"], ("trips",)),
    }


def test_columns_for_late_rows_are_carried_only_where_somebody_looks_at_them() -> None:
    _, edges = rides()

    def late_columns(topology: Topology) -> list[str]:
        operator = topology.places[0].operator
        assert isinstance(operator, Aggregation)
        return [field.name for field in operator.late_columns]

    assert late_columns(placed()) == []
    late = Edge(edges["windows"].node, LATE)
    assert late_columns(placed(late=late)) == ["driver", "fare", "ts"]
    assert placed(late=late).sinks["late"] == SinkStream("windows", LATE)


def test_sinks_of_one_output_share_its_files_and_those_behind_steps_have_their_own() -> None:
    graph, edges = rides()
    step = graph.nodes.index(next(n for n in graph.nodes if n.inputs == (edges["windows"],)))
    found = placed(one=edges["windows"], two=edges["windows"], three=Edge(step))
    assert found.sinks == {
        "one": SinkStream("windows", ""),
        "two": SinkStream("windows", ""),
        "three": SinkStream("", "for_three"),
    }
    assert [one.stream for one in found.places[0].outgoing] == ["", "for_three"]


@pytest.mark.parametrize("sink", ["minutes", "my-sink", "my.sink", "my_sink", "x" * 128, "a-" * 60 + "b"])
def test_every_name_of_a_sink_gives_the_name_of_an_outbox_file(sink: str) -> None:
    assert outbox_file(1, "op", stream_for(sink), 0, "0" * 32)
    assert len({stream_for(name) for name in ("my-sink", "my.sink", "my_sink", sink)}) == len(
        {"my-sink", "my.sink", "my_sink", sink}
    )
