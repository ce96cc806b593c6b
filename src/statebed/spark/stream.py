"""What users chain: a stream of rows, grouped by keys and window, aggregated, written to sinks.

Each step is checked when it is written: Spark analyses the expression at once, so an unknown column is reported at its
line. Nothing here touches the state.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame

from statebed.checkpoint import Sink
from statebed.errors import InputError
from statebed.format.names import check_name
from statebed.operators import Aggregate, BoundAggregate, Window, WindowAggregate, input_column
from statebed.operators import EventTime as EventTimeInput
from statebed.operators.windows import SessionWindow
from statebed.spark.frames import (
    EventTime,
    aggregate_inputs,
    analysed,
    arrow_field,
    as_column,
    check_key,
    event_time_of,
    input_error,
    named_column,
)
from statebed.spark.plans import check_steps

if TYPE_CHECKING:
    from statebed.spark.job import Job


class Stream:
    """Rows of a source after stateless steps; every method gives a new stream."""

    def __init__(self, job: "Job", df: DataFrame, *, source: str) -> None:
        self._job = job
        self._df = df
        self._source = source

    @property
    def columns(self) -> list[str]:
        return list(self._df.columns)

    def where(self, condition: str | Column) -> "Stream":
        """Only rows for which the condition holds."""
        return self._step(lambda: self._df.where(condition))

    def select(self, *columns: str | Column) -> "Stream":
        """Only these columns; text is a column name or SQL, such as 'fare * 2 as double_fare'."""
        where = self._where()
        return self._step(lambda: self._df.select(*(as_column(self._df, column, where=where) for column in columns)))

    def with_columns(self, **columns: str | Column) -> "Stream":
        """More columns, by name."""
        where = self._where()
        return self._step(
            lambda: self._df.withColumns(
                {name: as_column(self._df, column, where=where) for name, column in columns.items()}
            )
        )

    def group_by(self, *keys: str | Column | Window, name: str | None = None) -> "GroupedStream":
        """Group by key columns, or by none, and one window: `group_by("driver", sb.tumbling("1 minute"))`."""
        where = self._where(name)
        if any(isinstance(key, SessionWindow) for key in keys):
            raise InputError(
                "session windows run in flows, not yet in jobs on Spark",
                where=where,
                fix="use a tumbling, sliding or cumulative window, or run the flow with sb.Flow",
            )
        windows = [key for key in keys if isinstance(key, Window)]
        columns = [key for key in keys if not isinstance(key, Window)]
        if len(windows) != 1:
            raise InputError(
                f"group_by has {len(windows)} windows, it takes one",
                where=where,
                fix='write group_by("driver", sb.tumbling("1 minute"))',
            )
        if name is not None:
            check_name("operator", name)
        selected = [as_column(self._df, column, where=where) for column in columns]
        analysed(self._df, selected, where=where)
        return GroupedStream(
            job=self._job,
            df=self._df,
            source=self._source,
            name=name,
            keys=tuple(selected),
            window=windows[0],
            event_time=event_time_of(self._df, where=where),
        )

    def _step(self, build: Callable[[], DataFrame]) -> "Stream":
        try:
            return Stream(self._job, build(), source=self._source)
        except AnalysisException as error:
            raise input_error(error, self._df, where=self._where()) from error

    def _where(self, operator: str | None = None) -> str:
        return f"source {self._source!r}" + (f", operator {operator!r}" if operator else "")


@dataclass(frozen=True)
class GroupedStream:
    """Rows grouped by keys and window, waiting for their aggregates."""

    job: "Job"
    df: DataFrame
    source: str
    name: str | None
    keys: tuple[Column, ...]
    window: Window
    event_time: EventTime

    def agg(self, **aggregates: Aggregate) -> "AggregatedStream":
        """One output column per aggregate: `agg(trips=sb.count(), total=sb.sum("fare"))`."""
        where = f"source {self.source!r}, operator {self.name or 'without name'!r}"
        if not aggregates:
            raise InputError("agg() has no aggregate", where=where, fix="write agg(trips=sb.count())")
        inputs: list[Column] = []
        bound: list[BoundAggregate] = []
        for position, (name, aggregate) in enumerate(aggregates.items()):
            columns, kinds = self._inputs(position, name, aggregate, where=where)
            inputs += columns
            bound.append(aggregate.bind(name, input_types=kinds, text=_text(aggregate)))
        fields = analysed(self.df, self.keys, where=where).schema.fields
        for field in fields:
            check_key(field, inputs=analysed(self.df, inputs, where=where).columns, where=where)
        keys = tuple(arrow_field(field, where=where) for field in fields)
        _check_distinct([*(key.name for key in keys), "window_start", "window_end", *aggregates], where=where)
        operator = WindowAggregate(
            operator_id=self.name or "unnamed", keys=keys, window=self.window, aggregates=tuple(bound)
        )
        if self.name is None:
            operator = replace(operator, operator_id=_default_name(self.source, operator.fingerprint))
        check_steps(self.df, analysed(self.df, [*self.keys, *inputs], where=where), where=where)
        return self.job.add_operator(
            AggregatedStream(job=self.job, grouped=self, operator=operator, inputs=tuple(inputs))
        )

    def _inputs(
        self, position: int, name: str, aggregate: Aggregate, *, where: str
    ) -> tuple[list[Column], tuple[pa.DataType, ...]]:
        """The columns that an aggregate reads, under the names that subtasks know, and their types."""
        where = f"{where}, aggregate {name!r}"
        if not isinstance(aggregate, Aggregate):
            raise InputError(
                f"{aggregate!r} is no aggregate of statebed", where=where, fix="use sb.count() or sb.sum('column')"
            )
        if not aggregate.needs_input:
            return [], ()
        columns = [
            column.alias(input_column(position, part))
            for part, column in enumerate(
                aggregate_inputs(self.df, aggregate, named_column(self.event_time.column), where=where)
            )
        ]
        fields = analysed(self.df, columns, where=where).schema.fields
        return columns, tuple(arrow_field(field, where=where).type for field in fields)


@dataclass(frozen=True)
class AggregatedStream:
    """The results of an operator: keys, window_start, window_end, aggregates."""

    job: "Job"
    grouped: GroupedStream
    operator: WindowAggregate
    inputs: tuple[Column, ...]

    @property
    def operator_id(self) -> str:
        return self.operator.operator_id

    def write(
        self, sink: str | Callable[..., Any] | Sink, *, path: str | None = None, name: str | None = None
    ) -> "AggregatedStream":
        """Publish the results: `write("parquet", path="out/")`, or `write(function)` with function(df, epoch)."""
        self.job.add_sink(self, sink, path=path, name=name)
        return self


def _text(aggregate: Aggregate) -> str:
    inputs = ", ".join(str(one.value if isinstance(one, EventTimeInput) else one) for one in aggregate.inputs)
    return inputs if aggregate.where is None else f"{inputs} where {aggregate.where}"


def _default_name(source: str, fingerprint: str) -> str:
    return f"op_{hashlib.sha256(f'{source} {fingerprint}'.encode()).hexdigest()[:12]}"


def _check_distinct(names: list[str], *, where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InputError(
                f"two output columns are called {name!r} (upper and lower case are not told apart)",
                where=where,
                fix="rename the key with .alias(), or the aggregate",
            )
        seen.add(name.lower())
