"""Warnings of state that never expires: which tables count."""

import pytest

import statebed as sb
from statebed.flow.graph import OperatorNode
from statebed.flow.intervals import Interval
from statebed.operators.joins import IntervalJoin
from statebed.operators.joins.matches import MAX_BOUND_US
from statebed.spark.plan.job_plan import unbounded_tables


@pytest.mark.parametrize(("ttl", "tables"), [("1 day", []), (None, ["groups", "values_0"])])
def test_values_that_expire_with_their_group_are_bounded(ttl: str | None, tables: list[str]) -> None:
    flow = sb.Flow("shop")
    rows = flow.source("rows", "k string, v string, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="distinct").agg(n=sb.count_distinct("v"), ttl=ttl)
    (operator,) = [node.operator for node in flow.graph.nodes if isinstance(node, OperatorNode)]
    assert unbounded_tables(operator) == tables


@pytest.mark.parametrize(
    ("lower_us", "upper_us", "how", "tables", "text"),
    [
        (-5, 7, "full", [], "at most 5 microseconds before and 7 microseconds after"),
        (-MAX_BOUND_US, MAX_BOUND_US, "inner", ["left", "right"], "both rows have any time"),
        (0, MAX_BOUND_US, "inner", ["left"], "the right row is at least 0 seconds after"),
        (-MAX_BOUND_US, 7, "inner", ["right"], "the right row is at most 7 microseconds after"),
        (-MAX_BOUND_US, -7, "inner", ["right"], "the right row is at least 7 microseconds before"),
    ],
)
def test_rows_that_wait_for_a_partner_without_an_end_are_unbounded(
    *, lower_us: int, upper_us: int, how: str, tables: list[str], text: str
) -> None:
    flow = sb.Flow("shop")
    left, right = (flow.source(name, "k string, ts timestamp", watermark=("ts", "0s")) for name in ("bids", "rates"))
    left.join(right, "k", within=Interval(lower_us, upper_us), how=how)
    (operator,) = [node.operator for node in flow.graph.nodes if isinstance(node, OperatorNode)]
    assert isinstance(operator, IntervalJoin)
    assert unbounded_tables(operator) == tables
    assert text in operator.interval_text()
