"""Refusals: what a query asks for that cannot be computed exactly, in the user's words, and what to do."""

from pyspark.util import PythonEvalType

from statebed.errors import InputError
from statebed.spark.analysed.plan_tree import PlanNode

STEPS = {
    "Aggregate": "groupBy().agg()",
    "AsOfJoin": "merge_asof",
    "BatchEvalPython": "a Python UDF",
    "CoGroup": "cogroup",
    "CollectMetrics": "observe",
    "Deduplicate": "dropDuplicates",
    "DeduplicateWithinWatermark": "dropDuplicatesWithinWatermark",
    "Distinct": "distinct",
    "EventTimeWatermark": "withWatermark",
    "Except": "exceptAll / EXCEPT",
    "Expand": "rollup, cube or groupingSets",
    "Filter": "where",
    "FlatMapCoGroupsInArrow": "cogroup().applyInArrow",
    "FlatMapCoGroupsInPandas": "cogroup().applyInPandas",
    "FlatMapGroupsInArrow": "groupBy().applyInArrow",
    "FlatMapGroupsInPandas": "groupBy().applyInPandas",
    "FlatMapGroupsInPandasWithState": "applyInPandasWithState",
    "FlatMapGroupsWithState": "flatMapGroupsWithState",
    "Generate": "explode",
    "GlobalLimit": "limit",
    "Intersect": "intersect",
    "Join": "join",
    "LateralJoin": "lateralJoin",
    "LocalLimit": "limit",
    "MapGroups": "mapGroups",
    "MapInArrow": "mapInArrow",
    "MapInPandas": "mapInPandas",
    "NearestByJoin": "a join by the nearest values",
    "Offset": "offset",
    "Pivot": "pivot",
    "Project": "select",
    "Repartition": "repartition",
    "RepartitionByExpression": "repartition",
    "ResolvedHint": "hint",
    "Sample": "sample",
    "ScriptTransformation": "TRANSFORM",
    "Sort": "orderBy",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "Union": "union",
    "Window": "a window function (OVER)",
}
"""Nodes of analysed plans, as users write them with DataFrames."""
SQL_STEPS = {
    "Aggregate": "GROUP BY",
    "BatchEvalPython": "a Python function",
    "Distinct": "SELECT DISTINCT",
    "EventTimeWatermark": "WATERMARK FOR",
    "Except": "EXCEPT",
    "Expand": "ROLLUP, CUBE or GROUPING SETS",
    "Filter": "a condition",
    "Generate": "UNNEST or explode",
    "GlobalLimit": "LIMIT",
    "Intersect": "INTERSECT",
    "Join": "JOIN",
    "LateralJoin": "LATERAL",
    "LocalLimit": "LIMIT",
    "Offset": "OFFSET",
    "Project": "SELECT",
    "RepartitionByExpression": "DISTRIBUTE BY",
    "ResolvedHint": "a hint",
    "Sort": "ORDER BY",
    "Union": "UNION",
}
"""Nodes of analysed plans, as users write them in SQL text."""

_UNNAMED_SUBQUERY = "__auto_generated_subquery_name."
"""Prefix that Spark writes before columns of a subquery without a name."""
_NO_FIRST_ROWS = (
    "a stream has no first rows",
    "number rows with row_number() over a window, and keep those up to a bound",
    "number rows with ROW_NUMBER() OVER (PARTITION BY ... ORDER BY ...) AS rn, and keep WHERE rn <= 5 around it",
)
_OPAQUE = ("its state is opaque to statebed", "write the function as a sb.Process")
_INCOMPLETE = ("the groups of a stream are never complete", "write the function as a sb.Process")
_UNBOUND_JOIN = (
    "the nearest row of a stream is never known",
    "use as_of= of statebed's join, or join by equality and a time range",
)
NEVER = {
    "AsOfJoin": _UNBOUND_JOIN,
    "CoGroup": _INCOMPLETE,
    "Except": (
        "EXCEPT of streams has no operator",
        "join the two: LEFT ANTI JOIN, or how='left_anti'",
        "join the two: FROM a LEFT ANTI JOIN b ON a.k = b.k",
    ),
    "FlatMapCoGroupsInArrow": _INCOMPLETE,
    "FlatMapCoGroupsInPandas": _INCOMPLETE,
    "FlatMapGroupsInArrow": _INCOMPLETE,
    "FlatMapGroupsInPandas": _INCOMPLETE,
    "FlatMapGroupsInPandasWithState": _OPAQUE,
    "FlatMapGroupsWithState": _OPAQUE,
    "GlobalLimit": _NO_FIRST_ROWS,
    "Intersect": (
        "INTERSECT of streams has no operator",
        "join the two: LEFT SEMI JOIN, or how='left_semi'",
        "join the two: FROM a LEFT SEMI JOIN b ON a.k = b.k",
    ),
    "LocalLimit": _NO_FIRST_ROWS,
    "MapGroups": _INCOMPLETE,
    "NearestByJoin": _UNBOUND_JOIN,
    "Offset": _NO_FIRST_ROWS,
    "Pivot": ("its columns would depend on the rows", "name them: sum(x) FILTER (WHERE kind = 'a') AS a"),
    "Sample": ("it would choose other rows if the batch ran again", "choose by a hash: where('xxhash64(id) % 10 = 0')"),
    "Sort": (
        "a stream has no end at which it could be sorted",
        "sort where the result is read, or use complete mode",
        "sort where the result is read, or keep the first rows of each key by ROW_NUMBER()",
    ),
    "TransformWithState": _OPAQUE,
    "TransformWithStateInPySpark": _OPAQUE,
}
"""Nodes over a stream that no zone can compute: why, and what to do."""
ALLOWED_OVER_TABLES = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Sort"})
"""Nodes that complete mode allows, because they see the whole table in each batch."""


_PANDAS_STATE = frozenset(
    {
        PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF,
        PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF,
    }
)
"""Types of functions of transformWithStateInPandas; others are those of transformWithState."""


class RefusedStepError(InputError):
    """A step of a query cannot run. It is described in the words of DataFrames; `in_sql` has those of SQL text."""

    def __init__(self, node: PlanNode, why: str, fix: str, sql_fix: str) -> None:
        step = _step_of(node)
        super().__init__(f"{step} cannot run on statebed: {why}", where=node.described(), fix=fix)
        self.node = node
        self._why, self._sql_fix = why, sql_fix

    def in_sql(self, where: str) -> InputError:
        """Return the error for a query of SQL text, at a place of it."""
        kind = self.node.kind
        step = SQL_STEPS.get(kind) or _step_of(self.node)
        why = self._why.replace(_UNNAMED_SUBQUERY, "")
        return InputError(f"{step} cannot run on statebed: {why}", where=where, fix=self._sql_fix)


def _step_of(node: PlanNode) -> str:
    """Return a step as users write it with DataFrames."""
    if node.kind == "TransformWithStateInPySpark" and node.fields["functionExpr"][0]["evalType"] in _PANDAS_STATE:
        return "transformWithStateInPandas"
    return STEPS.get(node.kind, node.kind)


def refusal(node: PlanNode, why: str, fix: str = "", sql_fix: str = "") -> RefusedStepError:
    """Return the error for a node that cannot run; `sql_fix` is what to do in SQL text, if it is something else."""
    fix = fix or "rewrite this step, or run it before statebed in a query of Spark's own"
    return RefusedStepError(node, why, fix, sql_fix or fix)
