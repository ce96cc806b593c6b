"""Changes of Spark's optimiser that concern event times.

It moves filters below a watermark. Rows that they remove do not advance the watermark in Spark, so the head must have
them there, too. Some are not in the query at all: a join implies that its keys are not null. And it removes an event
time that no step needs after a deduplication, which then drops no late row.
"""

from collections.abc import Collection, Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from statebed.spark.analysed.plan_tree import Expr, PlanNode, conjuncts, plan_of
from statebed.spark.plan.source_frames import WATERMARK_KEY

WatermarkKey = tuple[str, int]
"""Id of a watermark node, and of its event-time attribute."""


def watermark_key(node: PlanNode) -> WatermarkKey:
    """Return what a watermark node is known by, before and after optimisation."""
    return str(node.fields["nodeId"]), node.expression("eventTime").id


def optimised(session: SparkSession, plan: Any) -> Any:
    """Run Spark's optimiser; `queryExecution.optimizedPlan` refuses streams, the optimiser itself does not."""
    return session._jsparkSession.sessionState().optimizer().execute(plan)  # noqa: SLF001 - no public way


def optimised_plan(session: SparkSession, plan: PlanNode) -> PlanNode | None:
    """Return the plan as Spark's optimiser leaves it; None if it has no watermark, or cannot be optimised."""
    if not any(node.kind == "EventTimeWatermark" for node in plan.walk()):
        return None
    try:
        return plan_of(optimised(session, plan.handle))
    except Py4JError:
        return None


def untimed_deduplications(optimised: PlanNode | None) -> Collection[frozenset[int]]:
    """Return the keys of deduplications whose rows the optimiser leaves without an event time, as no later step uses
    it. Spark then drops no late row.
    """
    if optimised is None:
        return ()
    return {
        frozenset(key.id for key in node.expressions("keys"))
        for node in optimised.walk()
        if node.kind == "Deduplicate"
        and not any(WATERMARK_KEY in field["metadata"] for field in node.child.schema_json["fields"])
    }


def pushed_filters(plan: PlanNode, optimised: PlanNode | None) -> Mapping[WatermarkKey, list[Expr]]:
    """Return the conditions that the optimiser puts below each watermark and that the query does not have there.

    Branches of a plan may read one stream under the same ids. A condition counts only if it is pushed into all.
    """
    if optimised is None:
        return {}
    by_watermark: dict[WatermarkKey, list[dict[object, Expr]]] = {}
    for node in optimised.walk():
        if node.kind == "EventTimeWatermark":
            by_watermark.setdefault(watermark_key(node), []).append(_conditions_below(node))
    written: dict[WatermarkKey, set[object]] = {}
    for node in plan.walk():
        if node.kind == "EventTimeWatermark":
            written.setdefault(watermark_key(node), set()).update(_conditions_below(node))
    return {
        key: [
            condition
            for name, condition in several[0].items()
            if all(name in other for other in several[1:]) and name not in written.get(key, set())
        ]
        for key, several in by_watermark.items()
    }


def _conditions_below(node: PlanNode) -> dict[object, Expr]:
    """Return the conditions of filters between a watermark and its source."""
    conditions: dict[object, Expr] = {}
    below = node.child
    while below.kind in {"Filter", "Project"}:
        if below.kind == "Filter":
            conditions |= {conjunct.key: conjunct for conjunct in conjuncts(below.expression("condition"))}
        below = below.child
    return conditions
