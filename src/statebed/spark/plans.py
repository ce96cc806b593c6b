"""What the plan of a streaming DataFrame must not contain, read from Spark's analysed plan."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from statebed.errors import InputError

_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    }
)


def check_stateless(df: DataFrame, *, where: str) -> None:
    """Refuse stateful steps of Spark's own, whose state no record holds, and rows that differ when read again."""
    plan = df._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to the plan
    for node in _nodes(plan):
        name = str(node.nodeName())
        if node.isStreaming() and (name in _STATEFUL or (name == "Join" and _joins_streams(node))):
            raise InputError(
                f"the DataFrame has a stateful step of Spark's own ({name}), whose state no record holds",
                where=where,
                fix="do this step with statebed's operators, or before the source in a query of its own",
            )
        if not node.deterministic():
            raise InputError(
                f"the step {name} gives other rows when computed again (rand, uuid, a nondeterministic function)",
                where=where,
                fix="derive the value from the row, for example with xxhash64, or add it before the source",
            )


def _joins_streams(join: Any) -> bool:
    return all(bool(child.isStreaming()) for child in _children(join))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(position) for position in range(children.size())]
