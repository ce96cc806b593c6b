"""Checks of a streaming DataFrame, based on Spark's analysed plan."""

from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from statebed.errors import InputError
from statebed.spark.java_classes import java_class
from statebed.spark.plan.head_expressions import input_error

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

_IN_PLACE = frozenset(
    {
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "LocalRelation",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "Range",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "Union",
        "View",
    }
)
"""Steps that leave rows in the tasks that read them."""


def check_steps(df: DataFrame, columns: DataFrame, *, where: str) -> None:
    """Raise InputError for stateful steps of Spark, whose state is not part of records, and for rows that differ when
    read again.

    `columns` is `df` with the keys and the inputs of the aggregates, which must not produce several rows from one.
    """
    plan = analysed_handle(columns)
    if _generators(plan) > _generators(analysed_handle(df)):
        raise InputError(
            "a key or an input of an aggregate produces several rows from one (such as explode)",
            where=where,
            fix="produce the rows first: select(..., 'explode(items) as item'), then group by or sum 'item'",
        )
    for node in _nodes(plan):
        name = str(node.nodeName())
        if node.isStreaming() and (name in _STATEFUL or (name == "Join" and _joins_streams(node))):
            raise InputError(
                f"the DataFrame has a stateful step of Spark ({name}), whose state is not part of checkpoints",
                where=where,
                fix="use statebed's operators for this step, or run it before the source in a separate query",
            )
        if name == "Sample" or not node.deterministic():
            raise InputError(
                f"the step {name} returns different rows when computed again (rand, uuid, a nondeterministic function)",
                where=where,
                fix="derive the value from the row, for example with xxhash64, or add it before the source",
            )
    _check_streamable(columns, plan, where=where)


def stream_leaves(df: DataFrame) -> list[Any]:
    """Return the nodes of Spark's plan that read streams, in the order of Spark's query."""
    return [node for node in _nodes(analysed_handle(df)) if node.isStreaming() and not _children(node)]


def streams_of(df: DataFrame) -> list[int]:
    """Return the streams that a DataFrame reads, as numbers, once for each time that it reads them.

    The order is that of Spark's query, which has an offset for each entry and a source for each number.
    """
    distinct: list[Any] = []
    numbers = []
    for leaf in stream_leaves(df):
        number = next((place for place, known in enumerate(distinct) if known.equals(leaf)), len(distinct))
        if number == len(distinct):
            distinct.append(leaf)
        numbers.append(number)
    return numbers


def max_watermarks(df: DataFrame) -> int:
    """Return the maximum number of watermarks that a row passes; Spark accepts one."""

    def passed(node: Any) -> int:
        own = str(node.nodeName()) == "EventTimeWatermark"
        return own + max((passed(child) for child in _children(node)), default=0)

    return passed(analysed_handle(df))


def stays_in_place(df: DataFrame) -> bool:
    """Return whether no step moves rows between tasks; an unknown step might."""
    return all(str(node.nodeName()) in _IN_PLACE for node in _nodes(analysed_handle(df)))


def _check_streamable(df: DataFrame, plan: Any, *, where: str) -> None:
    """Raise the errors that Spark itself would only raise once the query starts and a run is open."""
    session = df.sparkSession
    checker = java_class(session, "org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker")
    append = java_class(session, "org.apache.spark.sql.streaming.OutputMode").Append()
    try:
        checker.checkForStreaming(plan, append)
    except AnalysisException as error:
        raise input_error(error, df, where=where, fix="leave this step out, or run it on the results") from error


def analysed_handle(df: DataFrame) -> Any:
    """Return the analysed plan of a DataFrame in the JVM."""
    return df._jdf.queryExecution().analyzed()  # noqa: SLF001 - no public way to the plan


def _generators(plan: Any) -> int:
    return sum(str(node.nodeName()) == "Generate" for node in _nodes(plan))


def _joins_streams(join: Any) -> bool:
    return all(bool(child.isStreaming()) for child in _children(join))


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for child in _children(plan):
        yield from _nodes(child)


def _children(plan: Any) -> list[Any]:
    children = plan.children()
    return [children.apply(position) for position in range(children.size())]
