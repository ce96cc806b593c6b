"""Streams of a job on Spark: those of a flow, plus Spark's own expressions before the first operator, and sinks.

Until rows reach an operator, steps run in Spark: any expression and function can be used and is pushed down into the
source. Each step is analysed at once, so that an error is reported at its line. After an operator, steps are SQL text
on Arrow. Nothing here touches the state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike
from statebed.flow.graph import Edge, Node, OperatorNode, StepNode, UnionNode
from statebed.flow.joins import check_stream
from statebed.flow.keys import quoted
from statebed.flow.spark_names import SparkNames
from statebed.flow.steps import Explode, Expression, Select, Where
from statebed.flow.stream import Stream
from statebed.format.stream_schema import Changes
from statebed.operators.forward import Forward
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN
from statebed.spark.api.outputs import SinkLike, Transform
from statebed.spark.plan.column_text import column_text
from statebed.spark.plan.head_expressions import (
    FrameExpression,
    arrow_field,
    check_key,
    frame_expression,
    input_error,
)
from statebed.spark.plan.source_frames import HIDDEN, event_time_of, projected, source_frame
from statebed.spark.plan.source_plan import max_watermarks, streams_of

if TYPE_CHECKING:
    from statebed.spark.api.job import Job


_GENERATORS: dict[tuple[bool, bool, bool], Callable[[Column], Column]] = {
    (False, False, False): F.explode,
    (False, False, True): F.explode_outer,
    (False, True, False): F.posexplode,
    (False, True, True): F.posexplode_outer,
    (True, False, False): F.inline,
    (True, False, True): F.inline_outer,
}
"""Spark's generators, by whether they make fields columns, number elements, and keep rows without elements."""


@dataclass(frozen=True)
class SparkFrame:
    """A stream that Spark computes: a streaming DataFrame with the user's columns and statebed's."""

    df: DataFrame
    is_timed: bool
    position: int | None
    """Position of its source, or None if it has several."""
    leaves: tuple[str, ...]
    """Source of each stream that it reads, in the order of Spark's plan."""


@dataclass(frozen=True)
class FrameStep:
    """Result of a user function on a DataFrame."""

    columns: pa.Schema
    text: str
    event_time: str | None
    """Column that equals the event time of the rows; None if they have none."""

    def apply(self, rows: pa.Table) -> pa.Table:  # noqa: ARG002 - the protocol's argument
        raise InputError(
            f"only Spark can run {self.text}",
            fix="test the job on Spark, or test the operators after it with a source of the function's output",
        )


@dataclass(frozen=True, repr=False)
class JobStream(Stream):
    """Rows of a job; every method returns a new stream."""

    job: "Job"

    @property
    def frame(self) -> SparkFrame | None:
        """DataFrame that Spark computes, or None after an operator."""
        return self.job.frames.get(self.edge)

    @property
    def operator_id(self) -> str:
        """Id of the operator that outputs these rows."""
        node = self.graph.nodes[self.edge.node]
        if not isinstance(node, OperatorNode):
            raise InputError(
                "this stream is not the direct output of an operator", fix="use the stream that agg, join, ... returned"
            )
        return node.operator.operator_id

    @property
    def is_timed(self) -> bool:
        return super().is_timed if self.frame is None else self.frame.is_timed

    @property
    def dead_letters(self) -> "JobStream":
        """Malformed messages of a Kafka source: reason, topic, partition, offset, timestamp, key and value."""
        letters = self.job.dead_letters.get(self.edge)
        if letters is None:
            raise InputError(
                "this stream has no dead letters",
                fix="use the stream that job.kafka(..., malformed='dead_letters') returned",
            )
        return letters.stream()

    def transform(self, function: Callable[..., Any], *, schema: str | pa.Schema | None = None) -> Any:
        """Apply a function to the DataFrame: before the first operator, or after the last one, on the way to a sink.

        Return a stream, or after an operator a `Transformed`, which can be transformed again and written.

        With `schema`, the function computes new columns from a record batch instead, anywhere in the job: it returns a
        record batch with these columns and as many rows.
        """
        if schema is not None:
            return super(JobStream, self.forwarded()).transform(function, schema=schema)
        if not callable(function):
            raise InputError(
                f"transform takes a function of a DataFrame, got {function!r}",
                fix="write transform(lambda df: df.where('fare > 0'))",
            )
        if self.frame is None:
            return Transformed(self, (function,))
        name = getattr(function, "__name__", type(function).__name__)
        where = f"transform({name})"
        if self.frame.position is None:
            raise InputError(
                "transform() does not support a union of sources",
                where=where,
                fix="transform each source before the union",
            )
        try:
            df = function(self.frame.df.drop(*HIDDEN))
        except PySparkException as error:
            raise input_error(error, self.frame.df, where=where) from error
        if not isinstance(df, DataFrame) or not df.isStreaming:
            raise InputError(
                "the function did not return a streaming DataFrame", where=where, fix="return the changed df"
            )
        time = event_time_of(df, where=where)
        source = self.frame.leaves[0]
        if max_watermarks(df) > 1:
            raise InputError(
                f"the rows of the source {source!r} have a watermark already",
                where=where,
                fix="call withWatermark once: before job.source, or in the function",
            )
        columns = pa.schema([arrow_field(field, where=where) for field in df.schema.fields])
        if time is not None:
            self.graph.timed(source, time.column, time.delay_us, where=where)
        step = FrameStep(columns, where, None if time is None else time.column)
        edge = Edge(self.graph.add(StepNode(step, (self.edge,), Changes.APPEND)))
        transformed = source_frame(df, time, position=self.frame.position)
        leaves = (source,) * len(streams_of(df))
        self.job.frames[edge] = SparkFrame(transformed, time is not None, self.frame.position, leaves)
        return self.at(edge)

    def union(self, *others: "Stream") -> Self:
        """Return the rows of several streams with the same columns."""
        for other in others:
            check_stream(other, where="union")
        streams: list[Stream] = [self, *others]
        framed = [stream.edge in self.job.frames for stream in streams]
        if any(framed) and not all(framed):
            # If some rows come from operators, those of sources go through one too, so that they can be combined.
            streams = [
                self.at(stream.edge).forwarded() if there else stream
                for stream, there in zip(streams, framed, strict=True)
            ]
        return super(JobStream, self.at(streams[0].edge)).union(*streams[1:])

    def write(
        self,
        sink: SinkLike,
        *,
        path: str | PathLike[str] | None = None,
        name: str | None = None,
        key: str | Sequence[str] | None = None,
        **options: object,
    ) -> Self:
        """Publish the rows: `write("parquet", path="out/")`, or `write(function)` with function(df, epoch)."""
        self.job.add_sink(self, sink, path=path, name=name, key=key, options=options)
        return self

    # ---- inside ----------------------------------------------------------------------------------------------

    def bound(self, text: ColumnLike, where: str) -> Expression:
        if self.frame is not None:
            return frame_expression(self.frame.df, text, self.output.columns, where=where)
        return super().bound(self.written(text, where), where)

    def written(self, text: ColumnLike, where: str) -> ColumnLike:
        return column_text(text, where=where) if isinstance(text, Column) else text

    def forwarded(self, name: Callable[[], str] | None = None) -> Self:
        """Return the same rows as the output of an operator, which sinks and unions can read.

        `name` gives the name of the operator if there is none yet.
        """
        if self.frame is None:
            return self
        for number, node in enumerate(self.graph.nodes):
            if isinstance(node, OperatorNode) and isinstance(node.operator, Forward) and node.inputs == (self.edge,):
                return self.at(Edge(number))  # another sink reads these rows, too
        keys = [field.name for field in self.output.columns if not pa.types.is_nested(field.type)]
        operator_id = Forward.KIND if name is None else name()
        return self.add_operator(Forward(operator_id, self.input_of("input", keys)), unnamed=name is None)

    def _keys(self, texts: Sequence[ColumnLike], name: str | None, *, method: str) -> tuple[Expression, ...]:
        keys = super()._keys(texts, name, method=method)
        for key in keys:
            if isinstance(key, FrameExpression):
                check_key(key, where=key.where)
        return keys

    def _added(self, node: Node) -> Self:
        if isinstance(node, OperatorNode):
            self._check(node)
        added = super()._added(node)
        frame = self._derived(node)
        if frame is not None:
            self.job.frames[added.edge] = frame
        return added

    def _check(self, node: OperatorNode) -> None:
        """Check for what Spark or the state would refuse, at the line that adds the operator."""
        where = f"job {self.job.name}, {operator_label(node.operator)}"
        check_distinct(node.operator.outputs[MAIN].columns.names, where=where)
        for edge, feed in zip(node.inputs, node.feeds, strict=True):
            if edge in self.job.frames:
                projected(self.job.frames[edge].df, feed, where=where)

    def _derived(self, node: Node) -> SparkFrame | None:
        """Return the frame that Spark computes for a step on another one, or None."""
        if isinstance(node, UnionNode) and all(input_ in self.job.frames for input_ in node.inputs):
            frames = [self.job.frames[input_] for input_ in node.inputs]
            df = frames[0].df
            for other in frames[1:]:
                df = df.union(other.df)
            positions = {frame.position for frame in frames}
            leaves = tuple(name for frame in frames for name in frame.leaves)
            position = positions.pop() if len(positions) == 1 else None
            return SparkFrame(df, all(frame.is_timed for frame in frames), position, leaves)
        if self.frame is None or not isinstance(node, StepNode):
            return None
        df = self.frame.df
        try:
            if isinstance(node.step, Where):
                derived = df.where(_column(node.step.condition))
            elif isinstance(node.step, Explode):
                derived = _exploded(df, node.step)
            else:
                assert isinstance(node.step, Select)
                derived = df.select(*(_named(name, value) for name, value in node.step.values), *HIDDEN)
        except PySparkException as error:
            raise input_error(error, df, where=f"columns {', '.join(self.columns)}") from error
        return SparkFrame(derived, self.frame.is_timed, self.frame.position, self.frame.leaves)


def _exploded(df: DataFrame, step: Explode) -> DataFrame:
    """Return the rows of an explode step as Spark computes them."""
    generated = _GENERATORS[step.inline, step.position, step.outer](_column(step.value)).alias(*step.names)
    kept = [name for name in (*step.before.names, *HIDDEN) if name not in step.names]
    exploded = df.select(*map(quoted, kept), generated)
    return exploded.select(*map(quoted, step.columns.names), *HIDDEN)


@dataclass(frozen=True)
class Transformed(SparkNames):
    """Rows on their way to a sink, through functions on DataFrames."""

    stream: JobStream
    functions: tuple[Transform, ...]

    def transform(self, function: Transform) -> "Transformed":
        """Apply another function after this one."""
        return Transformed(self.stream, (*self.functions, function))

    def write(
        self,
        sink: SinkLike,
        *,
        path: str | None = None,
        name: str | None = None,
        key: str | Sequence[str] | None = None,
        **options: object,
    ) -> "Transformed":
        """Publish the result of the functions for the rows of each epoch."""
        self.stream.job.add_sink(
            self.stream, sink, path=path, name=name, key=key, options=options, transforms=self.functions
        )
        return self


def _column(value: Expression) -> Column:
    assert isinstance(value, FrameExpression)
    return value.column


def _named(name: str, value: Expression) -> Column:
    column = _column(value)
    return column if value.name == name else column.alias(name)


def check_distinct(names: Sequence[str], *, where: str) -> None:
    """Raise InputError for column names that differ only in case, which SQL does not distinguish."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InputError(
                f"two output columns are called {name!r} (names are not case-sensitive)",
                where=where,
                fix="rename the key with .alias(), or the aggregate",
            )
        seen.add(name.lower())
