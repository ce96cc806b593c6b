"""Whether it pays to add rows up in the JVM is seen in those that could be, and in no others."""

from types import SimpleNamespace
from typing import Any

import statebed as sb
from statebed.config import Settings
from statebed.format import checkpoint_pb2 as pb
from statebed.spark.epoch.preaggregation import Reduction
from statebed.spark.plan.routing import Layout
from statebed.spark.plan.topology import topology
from statebed.subtasks import SubtaskReport


def reduction(*, plain: bool) -> Reduction:
    """Return the reduction of a job with totals of totals; the first can be pre-aggregated if `plain`."""
    flow = sb.Flow("rides")
    rides = flow.source("rides", "id bigint, fare double, ts timestamp", watermark=("ts", "0s"))
    first = rides.key_by("id", name="first").agg(n=sb.count() if plain else sb.sum("fare"))
    behind = first.key_by("id % 3 as g", name="behind").agg(total=sb.sum("n"))
    found = topology(flow.graph, {rides.edge}, {"out": behind.edge})
    layouts = {
        branch.number: Layout(
            branch.feed.input, tuple(f"s{place}" for place in range(len(branch.feed.input.columns))), branch.sources
        )
        for branch in found.branches
    }
    plan: Any = SimpleNamespace(
        topology=found, layouts=layouts, graph=flow.graph, parallelism=2, settings=Settings(preaggregate_below=0.5)
    )
    return Reduction(plan)


def report(operator: str, index: int, *, rows: int, groups: int) -> SubtaskReport:
    return SubtaskReport(
        operator_id=operator,
        subtask_index=index,
        epoch=2,
        reference=pb.SubtaskReference(subtask_index=index, path="a"),
        outbox=(),
        rows_in=rows,
        rows_late=0,
        rows_out=0,
        state_rows=0,
        state_bytes=0,
        state_files=0,
        bytes_written=0,
        groups_in=groups,
    )


def reports(first: tuple[int, int], behind: tuple[int, int]) -> dict[str, list[SubtaskReport]]:
    """Rows and groups of each subtask."""
    return {
        name: [report(name, index, rows=rows, groups=groups) for index in range(2)]
        for name, (rows, groups) in {"first": first, "behind": behind}.items()
    }


def test_rows_behind_the_first_operator_do_not_count() -> None:
    one = reduction(plain=True)
    one.observe(reports(first=(1500, 1500), behind=(9000, 3)))
    assert (one.rows, one.groups) == (3000, 3000)
    assert one.worthwhile() is None
    one.observe(reports(first=(1500, 10), behind=(9000, 9000)))
    added_up = one.worthwhile()
    assert added_up is not None
    assert added_up.operator.operator_id == "first"


def test_an_epoch_without_rows_tells_nothing() -> None:
    one = reduction(plain=True)
    one.observe(reports(first=(1500, 10), behind=(20, 3)))
    one.observe(reports(first=(0, 0), behind=(20, 20)))
    assert (one.rows, one.groups) == (3000, 20)


def test_nothing_is_seen_where_nothing_can_be_added_up() -> None:
    one = reduction(plain=False)
    one.observe(reports(first=(1500, 10), behind=(1500, 10)))
    assert one.worthwhile() is None
