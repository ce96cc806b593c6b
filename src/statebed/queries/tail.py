"""The tail of a query: steps after the last operator that only Spark can compute, over the rows of each epoch."""

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statebed.flow.keys import quoted
from statebed.format.stream_schema import WEIGHT, Changes
from statebed.queries.catalyst import Catalyst, outputs
from statebed.queries.relation import Relation
from statebed.spark.plan.source_plan import analysed_handle


def tail_function(
    catalyst: Catalyst, relation: Relation, wanted: Sequence[tuple[int, str]], *, has_weights: bool = True
) -> Callable[[DataFrame], DataFrame]:
    """Return the function that applies the tail to the rows of an epoch, with the wanted attributes and their names."""
    weighted = relation.behind.output.changes is Changes.CHANGELOG and has_weights
    first = next(child for child in relation.tail[0].children if child.is_streaming)
    attributes = outputs(first.handle)

    def tail(rows: DataFrame) -> DataFrame:
        for number, window in relation.windows.items():
            ends = F.col(quoted(window.start)).alias("start"), F.col(quoted(window.end)).alias("end")
            rows = rows.withColumn(f"window_{number}", F.struct(*ends))
        plan = analysed_handle(rows)
        there = outputs(plan)
        expressions = []
        for number, attribute in attributes.items():
            column = f"window_{number}" if number in relation.windows else relation.columns.get(number)
            if column is not None:
                expressions.append(catalyst.alias(there.named(column), attributes.names[number], like=attribute))
        weight = [there.named(WEIGHT)] if weighted else []
        plan = catalyst.project([*expressions, *weight], plan)
        for node in relation.tail:
            if node.kind == "Project":
                plan = catalyst.project(
                    [*(expression.handle for expression in node.expressions("projectList")), *weight], plan
                )
            else:
                others = [plan if child.is_streaming else child.handle for child in node.children]
                plan = catalyst.with_children(node.handle, others)
        results = outputs(plan)
        columns = [catalyst.alias(results[number], name) for number, name in wanted]
        return catalyst.frame(catalyst.project([*columns, *weight], plan), rows.sparkSession)

    return tail
