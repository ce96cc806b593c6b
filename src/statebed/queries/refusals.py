"""Refusals: what a query asks for that cannot be computed exactly, in the user's words, and what to do."""

from statebed.errors import InputError
from statebed.spark.analysed.plan_tree import PlanNode

STEPS = {
    "Aggregate": "groupBy().agg()",
    "BatchEvalPython": "a Python UDF",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "EventTimeWatermark": "withWatermark",
    "Except": "exceptAll / EXCEPT",
    "Expand": "rollup, cube or a sliding window",
    "Filter": "where",
    "FlatMapGroupsInPandas": "groupBy().applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "Generate": "explode",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    "Join": "join",
    "LocalLimit": "limit",
    "Offset": "offset",
    "Pivot": "pivot",
    "Project": "select",
    "Sample": "sample",
    "Sort": "orderBy",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPandas": "transformWithStateInPandas",
    "TransformWithStateInPySpark": "transformWithState",
    "Union": "union",
    "Window": "a window function (OVER)",
}
"""Nodes of analysed plans, as users write them."""

_NO_FIRST_ROWS = (
    "a stream has no first rows",
    "number rows with row_number() over a window, and keep those up to a bound",
)
_OPAQUE = ("its state is opaque to statebed", "write the function as a sb.Process")
_INCOMPLETE = ("the groups of a stream are never complete", "write the function as a sb.Process")
NEVER = {
    "Except": ("EXCEPT of streams has no operator", "join the two: LEFT ANTI JOIN, or how='left_anti'"),
    "FlatMapCoGroupsInPandas": _INCOMPLETE,
    "FlatMapGroupsInArrow": _INCOMPLETE,
    "FlatMapGroupsInPandas": _INCOMPLETE,
    "FlatMapGroupsInPandasWithState": _OPAQUE,
    "FlatMapGroupsWithState": _OPAQUE,
    "GlobalLimit": _NO_FIRST_ROWS,
    "Intersect": ("INTERSECT of streams has no operator", "join the two: LEFT SEMI JOIN, or how='left_semi'"),
    "LocalLimit": _NO_FIRST_ROWS,
    "Offset": _NO_FIRST_ROWS,
    "Pivot": ("its columns would depend on the rows", "name them: sum(x) FILTER (WHERE kind = 'a') AS a"),
    "Sample": ("it would choose other rows if the batch ran again", "choose by a hash: where('xxhash64(id) % 10 = 0')"),
    "Sort": ("a stream has no end at which it could be sorted", "sort where the result is read, or use complete mode"),
    "TransformWithState": _OPAQUE,
    "TransformWithStateInPandas": _OPAQUE,
    "TransformWithStateInPySpark": _OPAQUE,
}
"""Nodes over a stream that no zone can compute: why, and what to do."""
ALLOWED_OVER_TABLES = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sort"})
"""Nodes that complete mode allows, because they see the whole table in each batch."""


def refusal(node: PlanNode, why: str, fix: str = "") -> InputError:
    """Return the error for a node that cannot run."""
    step = STEPS.get(node.kind, node.kind)
    return InputError(
        f"{step} cannot run on statebed: {why}",
        where=node.described(),
        fix=fix or "rewrite this step, or run it before statebed in a query of Spark's own",
    )
