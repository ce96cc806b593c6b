"""Streams without Spark: rows, their steps, and the operators on them.

    flow = Flow("rides")
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "10 minutes"))
    per_minute = rides.where("fare > 0").group_by("driver", tumbling("1 minute"), name="per_minute").agg(trips=count())

Every step is checked when it is written. Nothing here runs anything: `statebed.testing.run(flow)` does.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias, cast

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions import bind
from statebed.expressions.type_text import schema_of
from statebed.flow.event_time import time_lags
from statebed.flow.graph import Edge, Graph, Node, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.grouped import GroupedStream, KeyedStream
from statebed.flow.intervals import Within
from statebed.flow.joins import AsOf, JoinTerms, On, joined
from statebed.flow.keys import OrderTerms, keyed_columns, quoted
from statebed.flow.spark_names import SparkNames, line_of
from statebed.flow.steps import Expression, Feed, Select, TimeColumn, Value, Where
from statebed.flow.unions import united
from statebed.format.names import check_name
from statebed.format.schema import check_user_columns
from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators import Operator, Window
from statebed.operators.labels import operator_label, step_label
from statebed.operators.operator import LATE, MAIN
from statebed.operators.time_to_live import expires_by_event_time
from statebed.operators.window_definition import SessionWindow
from statebed.quantities import Duration, parse_duration


def watermark_of(given: Any, *, where: str) -> tuple[str, Duration]:
    """Return the event-time column and the delay of the user's watermark=."""
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):  # noqa: PLR2004 - a pair
        return given[0], given[1]
    column = given if isinstance(given, str) else "ts"
    raise InputError(
        f"`watermark` must be the event-time column and how late its rows may be, got {given!r}",
        where=where,
        fix=f"write watermark=({column!r}, '10 minutes'): rows that are up to 10 minutes late still count",
    )


Text: TypeAlias = Any
"""SQL text; in a job on Spark, before the first operator, also a Spark Column."""


class Flow(SparkNames):
    """A graph of streams and operators; `name` is the job's name.

    >>> flow = sb.Flow("rides")
    >>> rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "1 minute"))
    >>> earned = rides.key_by("driver", name="earned").agg(total=sb.sum("fare"))
    >>> with sb.testing.run(flow) as test:
    ...     test.feed("rides", [{"driver": "ann", "fare": 7.5, "ts": "2026-01-01T12:00:00Z"}])
    ...     test.output("earned")
    [{'driver': 'ann', 'total': 7.5}]
    """

    def __init__(self, name: str = "flow") -> None:
        self.name = check_name("job", name)
        self.graph = Graph()

    def source(
        self,
        name: str,
        columns: str | pa.Schema,
        *,
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
    ) -> "Stream":
        """Add a source of rows. `watermark` is the event-time column and the delay of the watermark.

        After `idle_after` without rows, the source no longer holds back the watermark of operators with several inputs.
        """
        schema = schema_of(columns, where=f"source {name!r}")
        check_user_columns(schema.names, where=f"source {name!r}")
        event_time, delay = (None, "0s") if watermark is None else watermark_of(watermark, where=f"source {name!r}")
        if event_time is not None and (
            event_time not in schema.names or not pa.types.is_timestamp(schema.field(event_time).type)
        ):
            timestamps = [field.name for field in schema if pa.types.is_timestamp(field.type)]
            raise InputError(
                f"the event time must be a timestamp column, got {event_time!r}; the columns are {schema.names}",
                where=f"source {name!r}",
                fix=f"write watermark=({(timestamps or ['ts'])[0]!r}, '10 minutes')",
            )
        idle_us = None if idle_after is None else parse_duration(idle_after)
        node = SourceNode(name, schema, event_time, parse_duration(delay), idle_us)
        return Stream(self.graph, Edge(self.graph.add(node)))


@dataclass(frozen=True, repr=False)
class Stream(SparkNames):
    """Rows with a schema, an event time and, in a changelog, weights. Every method returns a new stream."""

    graph: Graph
    edge: Edge

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name} {field.type}" for field in self.output.columns)
        changelog = ", changelog" if self.output.changes is Changes.CHANGELOG else ""
        origin = self.graph.origin(self.edge).removesuffix(".").replace(".)", ")")
        return line_of(f"<{type(self).__name__} of {origin}: {fields}{changelog}>")

    @property
    def output(self) -> Output:
        """Columns of the stream, and whether it is a changelog."""
        return self.graph.output(self.edge)

    @property
    def columns(self) -> list[str]:
        return list(self.output.columns.names)

    @property
    def late(self) -> Self:
        """Late rows of the operator: the input's columns, late_by, watermark, operator."""
        return self.side(LATE)

    def side(self, name: str) -> Self:
        """Return another output of the operator."""
        outputs = self.graph.nodes[self.edge.node].outputs
        if self.edge.output != MAIN or name not in outputs:
            raise InputError(
                f"this stream has no output {name!r}",
                fix=f"its other outputs are {[output for output in outputs if output] or 'none'}",
            )
        return self.at(Edge(self.edge.node, name))

    def named(self, name: str) -> Self:
        """Return the stream under a name by which its rows can be inspected."""
        self.graph.name(name, self.edge)
        return self

    # ---- row by row ------------------------------------------------------------------------------------------

    def where(self, condition: Text) -> Self:
        """Keep only the rows for which the condition holds; null counts as false."""
        bound = self._bound(condition)
        if not (pa.types.is_boolean(bound.type) or pa.types.is_null(bound.type)):
            raise InputError(
                f"the condition of where must be a boolean, but {bound.text!r} has the type {bound.type}",
                where=bound.where,
                fix=f'compare it with something: where("{bound.text} > 0")',
            )
        return self._step(Where(bound, self.output.columns))

    def select(self, *columns: Text) -> Self:
        """Return only these columns: names or SQL, such as 'fare * 2 as double_fare'. The event time stays."""
        bound = [self._bound(column) for column in columns]
        return self._selected([(one.name, one) for one in bound])

    def with_columns(self, **columns: Text) -> Self:
        """Add columns, or replace those with the same name."""
        made = {name: self._bound(column) for name, column in columns.items()}
        kept = [(name, made.get(name) or self._bound(quoted(name))) for name in self.columns]
        return self._selected([*kept, *((name, one) for name, one in made.items() if name not in self.columns)])

    def union(self, *others: "Stream") -> Self:
        """Combine the rows of several streams with the same columns into one stream.

        Columns must have the same names, order and types; one that may be null in any of the streams may be null here.
        """
        streams: list[Stream] = [self, *others]
        columns = united([one.output.columns for one in streams])
        changelog = any(one.output.changes is Changes.CHANGELOG for one in streams)
        changes = Changes.CHANGELOG if changelog else Changes.APPEND
        return self._added(UnionNode(columns, tuple(one.edge for one in streams), changes))

    # ---- by key ----------------------------------------------------------------------------------------------

    def group_by(self, *keys: Text | Window | SessionWindow, name: str | None = None) -> GroupedStream[Self]:
        """Group by any number of keys and one window: `group_by("driver", tumbling("1 minute"))`."""
        windows = [key for key in keys if isinstance(key, Window | SessionWindow)]
        if len(windows) != 1:
            raise InputError(
                f"group_by takes one window, got {len(windows)}",
                where=step_label("group_by", name),
                fix='write group_by("driver", tumbling("1 minute")); without a window it is key_by("driver")',
            )
        self.check_timed(name, method="group_by")
        texts = [key for key in keys if not isinstance(key, Window | SessionWindow)]
        return GroupedStream(self, self._keys(texts, name, method="group_by"), windows[0], name)

    def key_by(self, *keys: Text, name: str | None = None) -> KeyedStream[Self]:
        """Group the rows by key, without a window."""
        return KeyedStream(self, self._keys(list(keys), name, method="key_by"), name)

    def deduplicate(
        self,
        *keys: Text,
        keep: str = "first",
        order_by: OrderTerms = (),
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> Self:
        """Keep one row of each key; see `KeyedStream.deduplicate`."""
        return self.key_by(*keys, name=name).deduplicate(keep=keep, order_by=order_by, ttl=ttl)

    def join(
        self,
        other: "Stream",
        on: On,
        *,
        within: Within | str | None = None,
        window: Window | None = None,
        as_of: AsOf | None = None,
        how: str = "inner",
        condition: Text | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
        name: str | None = None,
    ) -> Self:
        """Join two streams on equal columns, for event times that belong together.

        `bids.join(auctions, on=eq("auction", "id"), within=between("-1 hour", "0s"))`: the auction opened up to an hour
        before the bid, in SQL `within="auctions.ts BETWEEN bids.ts - INTERVAL 1 HOUR AND bids.ts"`. The alternatives
        are a `window=` that contains both rows, and `as_of=as_of(...)` for the newest version of the other stream.
        Without any of them, rows are joined forever, or for `ttl`, and the result is a changelog. `how` is inner, left,
        right, full, semi or anti; `condition` is SQL over the columns of a pair.

        The event time of a pair is the later of its two rows' event times. To window the pairs by the time of one of
        them, name its column: `group_by("seller", tumbling("1 minute", on="opened_at"))`.
        """
        terms = JoinTerms(on, within, window, as_of, how, condition, suffixes, ttl, ttl_clock)
        return joined(self, other, terms, name=name)

    def add_operator(
        self,
        operator: Operator,
        *others: "Stream",
        feeds: Sequence[Sequence[tuple[str, Value]]] = (),
        time: TimeColumn | None = None,
        unnamed: bool = False,
    ) -> Self:
        """Add an operator that reads this stream and others, one for each of its inputs.

        `feeds` has, for each input, the columns that are computed; the others are the stream's columns of the same
        name. `time` replaces the event time of the rows. An unnamed operator is named after its definition and what it
        reads, never after its position, so that it finds its state again in a changed program.
        """
        streams: list[Stream] = [self, *others]
        if unnamed:
            what = json.dumps([operator.definition.fingerprint, *(self.graph.origin(one.edge) for one in streams)])
            name = f"{operator.operator_id}_{hashlib.sha256(what.encode()).hexdigest()[:10]}"
            operator = replace(cast("Any", operator), operator_id=name)
        if any(expires_by_event_time(table) for table in operator.tables.values()):
            for stream in streams:
                stream.check_times_to_expire_by(operator_label(operator))
        made = tuple(
            Feed(one, tuple(feeds[number]) if feeds else (), time) for number, one in enumerate(operator.inputs)
        )
        return self._added(OperatorNode(operator, tuple(one.edge for one in streams), made))

    # ---- inside ----------------------------------------------------------------------------------------------

    @property
    def is_timed(self) -> bool:
        """Whether the rows have event times."""
        return self.graph.is_timed(self.edge)

    def check_timed(self, name: str | None, *, method: str) -> None:
        """Raise InputError if the rows have no event time, for an operator that needs one."""
        if not self.is_timed:
            raise InputError(
                "windows and time joins need an event-time column with a watermark, but the rows have none",
                where=step_label(method, name),
                fix="set source(..., watermark=('ts', '10 minutes')); in a job df.withWatermark(...) works, too",
            )

    def check_times_to_expire_by(self, label: str) -> None:
        """Raise InputError if state expires by event time but the rows have none: every row would be late."""
        if not self.is_timed:
            raise InputError(
                "`ttl` counts event time, but the rows have no event time",
                where=label,
                fix="give the source a watermark: source(..., watermark=('ts', '10 minutes')); "
                "or count processing time: ttl_clock='epoch_time'",
            )

    def time_column(self, name: str, *, where: str) -> TimeColumn:
        """Return a timestamp column that assigns rows to windows instead of the event time."""
        columns = self.output.columns
        if name not in columns.names or not pa.types.is_timestamp(columns.field(name).type):
            found = f"{columns.field(name).type}" if name in columns.names else "not a column"
            timestamps = [field.name for field in columns if pa.types.is_timestamp(field.type)]
            raise InputError(
                f"a window's `on` must be a timestamp column, got {name!r} ({found})",
                where=where,
                fix=f"use one of {timestamps}" if timestamps else "cast a column to timestamp first, with with_columns",
            )
        return TimeColumn(name, time_lags(self.graph, self.edge).get(name))

    def input_of(self, name: str, keys: Sequence[str], *, columns: pa.Schema | None = None) -> Input:
        """Return an operator's input with the columns of this stream."""
        return Input(name, columns or self.output.columns, tuple(keys), self.output.changes)

    def keyed_input(self, keys: Sequence[Expression]) -> Input:
        """Return an operator's input with the columns of this stream, and computed keys."""
        return self.input_of("input", [key.name for key in keys], columns=keyed_columns(self.output.columns, keys))

    def _keys(self, texts: Sequence[Text], name: str | None, *, method: str) -> tuple[Expression, ...]:
        where = step_label(method, name)
        if name is not None:
            check_name("operator", name)
        return tuple(self.bound(text, where) for text in texts)

    def bound(self, text: Text, where: str) -> Expression:
        """Bind an expression of the user to the columns of this stream."""
        return bind(text, self.output.columns, where=where)

    def written(self, text: Text, where: str) -> Text:  # noqa: ARG002 - jobs on Spark need it
        """Return an expression in the form that `bind` takes, however the user wrote it."""
        return text

    def _bound(self, text: Text) -> Expression:
        return self.bound(text, f"columns {', '.join(self.columns)}")

    def _selected(self, values: Sequence[tuple[str, Expression]]) -> Self:
        check_user_columns([name for name, _ in values], where=f"columns {', '.join(self.columns)}")
        return self._step(Select(tuple(values)))

    def _step(self, step: Where | Select) -> Self:
        return self._added(StepNode(step, (self.edge,), self.output.changes))

    def _added(self, node: Node) -> Self:
        return self.at(Edge(self.graph.add(node)))

    def at(self, edge: Edge) -> Self:
        """Return another stream of the same graph."""
        return replace(self, edge=edge)
