"""The clock of a query that came from Spark: its watermarks, in the order of the plan."""

from statebed.flow.spark_clock import SparkClock, SparkWatermark
from statebed.queries.catalyst import Catalyst
from statebed.queries.plan_tree import PlanNode

_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


def spark_clock(catalyst: Catalyst, plan: PlanNode) -> SparkClock | None:
    """Return the clock of a query; None if it has no watermark.

    Spark counts a watermark once, even if the query reads it in several places.
    """
    found: dict[str, SparkWatermark] = {}
    for node in plan.walk():
        if node.kind == "EventTimeWatermark":
            name = str(node.fields["nodeId"])
            if name not in found:
                found[name] = SparkWatermark(name, catalyst.delay_ms(node.handle))
    if not found:
        return None
    policy = str(catalyst.session.conf.get(_POLICY, "min")).lower()
    return SparkClock(tuple(found.values()), policy)
