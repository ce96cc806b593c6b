"""Warnings of state that never expires: which tables count."""

import pytest

import statebed as sb
from statebed.flow.graph import OperatorNode
from statebed.spark.plan.job_plan import unbounded_tables


@pytest.mark.parametrize(("ttl", "tables"), [("1 day", []), (None, ["groups", "values_0"])])
def test_values_that_expire_with_their_group_are_bounded(ttl: str | None, tables: list[str]) -> None:
    flow = sb.Flow("shop")
    rows = flow.source("rows", "k string, v string, ts timestamp", watermark=("ts", "0s"))
    rows.key_by("k", name="distinct").agg(n=sb.count_distinct("v"), ttl=ttl)
    (operator,) = [node.operator for node in flow.graph.nodes if isinstance(node, OperatorNode)]
    assert unbounded_tables(operator) == tables
