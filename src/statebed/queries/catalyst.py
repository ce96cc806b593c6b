"""Builds Spark plans for the head and the tail of a query, with the JVM's own public constructors."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statebed.format.digest import digest
from statebed.spark.analysed.plan_tree import Handle
from statebed.spark.java_classes import java_class
from statebed.spark.plan.source_plan import analysed_handle

_SEPARATOR = "\x01"
_ATTRIBUTE = re.compile(r"(?P<name>.*)#(?P<id>\d+)L?(-T\d+ms)?", re.DOTALL)
"""An attribute as Spark prints it: name, id, a mark of bigint, and the delay of a watermark."""

_NUMBERS = re.compile(r"#\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Ids in the text of a plan, which differ from start to start."""


class Catalyst:
    """Constructors of plan nodes and expressions in the JVM of a session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session

    def _sql(self, name: str) -> Any:
        """Return a class of Spark SQL; plans have no public API in Python."""
        return java_class(self.session, f"org.apache.spark.sql.{name}")

    def seq(self, items: Sequence[Any]) -> Handle:
        return java_class(self.session, "PythonUtils").toSeq(list(items))

    def project(self, expressions: Sequence[Handle], child: Handle) -> Handle:
        return self._sql("catalyst.plans.logical.Project")(self.seq(expressions), child)

    def filter(self, condition: Handle, child: Handle) -> Handle:
        return self._sql("catalyst.plans.logical.Filter")(condition, child)

    def distinct(self, child: Handle) -> Handle:
        """Return the aggregation by all columns that Spark's optimiser makes of a Distinct."""
        output = child.output()
        nothing = java_class(self.session, "scala.Option").empty()
        return self._sql("catalyst.plans.logical.Aggregate")(output, output, child, nothing)

    def with_children(self, node: Handle, children: Sequence[Handle]) -> Handle:
        return node.withNewChildren(self.seq(children))

    def alias(self, expression: Handle, name: str, *, like: Handle | None = None, plain: bool = True) -> Handle:
        """Name an expression, under the id of `like` if given; a plain one loses Spark's mark of an event time."""
        names = self._sql("catalyst.expressions.NamedExpression")
        number = names.newExprId() if like is None else like.exprId()
        option = java_class(self.session, "scala.Option")
        metadata = option.apply(self._sql("types.Metadata").empty()) if plain else option.empty()
        nothing = self.seq([])
        return self._sql("catalyst.expressions.Alias")(expression, name, number, nothing, metadata, nothing)

    def null_as(self, attribute: Handle) -> Handle:
        """Return a null of the type and under the id of an attribute."""
        null = self._sql("catalyst.expressions.Literal").create(None, attribute.dataType())
        return self.alias(null, attribute.name(), like=attribute)

    def digest(self, frame: DataFrame) -> str:
        """Return a digest of the plan of a frame, the same in every start."""
        return digest(_NUMBERS.sub("", analysed_handle(frame).toString()).encode())

    def no_rows(self, schema: StructType, attributes: Handle) -> Handle:
        """Return a plan without rows that has these attributes, and their schema."""
        plan = analysed_handle(self.session.createDataFrame([], schema))
        there = plan.output()
        named = [
            self.alias(there.apply(place), field.name, like=attributes.apply(place))
            for place, field in enumerate(schema.fields)
        ]
        return self.project(named, plan)

    def frame(self, plan: Handle, session: SparkSession | None = None) -> DataFrame:
        """Return the rows of a plan as a DataFrame."""
        session = session or self.session
        dataset = self._sql("classic.Dataset").ofRows(session._jsparkSession, plan)  # noqa: SLF001
        return DataFrame(dataset, session)

    def delay_ms(self, watermark: Handle) -> int:
        """Return the delay of a watermark node."""
        return int(self._sql("catalyst.plans.logical.EventTimeWatermark").getDelayMs(watermark.delay()))


class Outputs(Mapping[int, Handle]):
    """Attributes of a plan's rows by id. Ids and names take two calls of the JVM, however many columns there are."""

    def __init__(self, plan: Handle) -> None:
        self._attributes = plan.output()
        text = str(self._attributes.mkString(_SEPARATOR))
        parts = [_ATTRIBUTE.fullmatch(piece) for piece in text.split(_SEPARATOR)] if text else []
        known = [(place, int(part["id"]), part["name"]) for place, part in enumerate(parts) if part is not None]
        self.ids = [number for _, number, _ in known]
        """Ids in the order of the columns: `select("k", "k")` has one twice."""
        self.names = {number: name for _, number, name in known}
        """Names by id, in order."""
        self._places = {number: place for place, number, _ in known}

    def __getitem__(self, number: int) -> Handle:
        return self._attributes.apply(self._places[number])

    def __iter__(self) -> Iterator[int]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def named(self, name: str) -> Handle:
        """Return the attribute with a name."""
        return self[next(number for number, other in self.names.items() if other == name)]


def outputs(plan: Handle) -> Outputs:
    """Return the attributes of a plan's rows."""
    return Outputs(plan)
