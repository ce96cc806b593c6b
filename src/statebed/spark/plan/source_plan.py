"""What the plan of a streaming DataFrame contains, and must not contain, read from Spark's analysed plan."""

from collections.abc import Iterator
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from statebed.errors import InputError
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
    """Refuse stateful steps of Spark's own, whose state no record holds, and rows that differ when read again.

    `columns` is `df` with the keys and the inputs of the aggregates, which may not make more rows of one.
    """
    plan = _analysed(columns)
    if _generators(plan) > _generators(_analysed(df)):
        raise InputError(
            "a key or an input of an aggregate makes several rows of one (such as explode)",
            where=where,
            fix="make the rows before: select(..., 'explode(items) as item'), then group by or sum 'item'",
        )
    for node in _nodes(plan):
        name = str(node.nodeName())
        if node.isStreaming() and (name in _STATEFUL or (name == "Join" and _joins_streams(node))):
            raise InputError(
                f"the DataFrame has a stateful step of Spark's own ({name}), whose state no record holds",
                where=where,
                fix="do this step with statebed's operators, or before the source in a query of its own",
            )
        if name == "Sample" or not node.deterministic():
            raise InputError(
                f"the step {name} gives other rows when computed again (rand, uuid, a nondeterministic function)",
                where=where,
                fix="derive the value from the row, for example with xxhash64, or add it before the source",
            )
    _check_streamable(columns, plan, where=where)


def streams_of(df: DataFrame) -> list[int]:
    """The streams that a DataFrame reads, as numbers, once for each time that it reads them.

    In the order of Spark's query, which has an offset for each entry here, and a source for each number.
    """
    leaves = [node for node in _nodes(_analysed(df)) if node.isStreaming() and not _children(node)]
    found: list[Any] = []
    numbers = []
    for leaf in leaves:
        number = next((place for place, one in enumerate(found) if one.equals(leaf)), len(found))
        if number == len(found):
            found.append(leaf)
        numbers.append(number)
    return numbers


def most_watermarks(df: DataFrame) -> int:
    """How many watermarks one after the other a row passes at most; Spark takes one."""

    def passed(node: Any) -> int:
        own = str(node.nodeName()) == "EventTimeWatermark"
        return own + max((passed(child) for child in _children(node)), default=0)

    return passed(_analysed(df))


def stays_in_place(df: DataFrame) -> bool:
    """Whether no step moves rows from task to task; one that is not known might."""
    return all(str(node.nodeName()) in _IN_PLACE for node in _nodes(_analysed(df)))


def _check_streamable(df: DataFrame, plan: Any, *, where: str) -> None:
    """What Spark itself would refuse, but only once the query starts and a run is open."""
    spark = df.sparkSession._jvm.org.apache.spark.sql  # type: ignore[union-attr]  # noqa: SLF001 - no public way
    try:
        spark.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, spark.streaming.OutputMode.Append())
    except AnalysisException as error:
        raise input_error(error, df, where=where) from error


def _analysed(df: DataFrame) -> Any:
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
