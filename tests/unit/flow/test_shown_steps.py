"""Steps as `explain` shows them."""

import pytest

import statebed as sb
from statebed.flow.graph import StepNode
from statebed.flow.steps import shown_step


@pytest.mark.parametrize(
    ("column", "shown"),
    [
        ("v", "v"),
        ("`v`", "v"),
        ("v + 1 as w", "v + 1 as w"),
        ("upper(k) AS `two words`", "upper(k) AS `two words`"),
        ("v as w", "v as w"),
    ],
)
def test_a_column_is_shown_with_one_name(column: str, shown: str) -> None:
    flow = sb.Flow("shown")
    flow.source("rows", "k string, v bigint").select(column)
    node = flow.graph.nodes[-1]
    assert isinstance(node, StepNode)
    assert shown_step(node.step) == f"select {shown}"


def test_a_computed_column_is_shown_with_its_name() -> None:
    flow = sb.Flow("shown")
    flow.source("rows", "k string, v bigint").with_columns(w="v * 2")
    node = flow.graph.nodes[-1]
    assert isinstance(node, StepNode)
    assert shown_step(node.step) == "select k, v, v * 2 as w"
