"""Streams without Spark: rows, their steps, and the operators on them.

    flow = Flow("rides")
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "10 minutes"))
    per_minute = rides.where("fare > 0").group_by("driver", tumbling("1 minute"), name="per_minute").agg(trips=count())

Every step is checked when it is declared. Declaring a flow runs nothing; `statebed.testing.run(flow)` runs it.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import pyarrow as pa

from statebed.argument_checks import check_text, texts
from statebed.errors import InputError
from statebed.expressions import bind
from statebed.expressions.column_like import ColumnLike
from statebed.expressions.type_text import schema_of
from statebed.expressions.types import nullable_field
from statebed.flow.batch_steps import batch_step
from statebed.flow.broadcasts import BroadcastStream, broadcast, looked_up
from statebed.flow.change_formats import DELETED, ChangeFormat, change_columns
from statebed.flow.event_time import time_lags
from statebed.flow.explosions import Generator, explode_step, generator_of
from statebed.flow.graph import Edge, Graph, Node, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.grouped import GroupedStream, KeyedStream
from statebed.flow.intervals import Within
from statebed.flow.join_arguments import check_on, check_suffixes
from statebed.flow.joins import AsOf, JoinTerms, On, check_stream, joined
from statebed.flow.keys import OrderTerms, keyed_columns, known, ordered_by, quoted
from statebed.flow.spark_names import SparkNames, line_of
from statebed.flow.steps import Expression, Feed, Select, Step, TimeColumn, Value, Where
from statebed.format.names import check_name
from statebed.format.stream_schema import Changes, Input, Output, check_stream_columns
from statebed.operators import Operator, Window
from statebed.operators.labels import operator_label, step_label
from statebed.operators.operator import LATE, MAIN
from statebed.operators.time_to_live import expires_by_event_time, time_to_live
from statebed.operators.updating.change_events import ChangeEvents
from statebed.operators.window_definition import SessionWindow
from statebed.quantities import Duration, parse_duration


def watermark_of(watermark: Any, *, where: str) -> tuple[str, Duration]:
    """Return the event-time column and the delay of the user's watermark=."""
    if isinstance(watermark, tuple | list) and len(watermark) == 2 and isinstance(watermark[0], str):  # noqa: PLR2004 - a pair
        if parse_duration(watermark[1]) < 0:
            raise InputError(
                f"the delay of a watermark must not be negative, got {watermark[1]!r}",
                where=where,
                fix=f"write watermark=({watermark[0]!r}, '0 seconds') if rows come in order",
            )
        return watermark[0], watermark[1]
    column = watermark if isinstance(watermark, str) else "ts"
    raise InputError(
        f"`watermark` must be the event-time column and how late its rows may be, got {watermark!r}",
        where=where,
        fix=f"write watermark=({column!r}, '10 minutes'): rows that are up to 10 minutes late still count",
    )


def is_star(text: ColumnLike) -> bool:
    """Return whether this is `*`, which stands for all columns."""
    return isinstance(text, str) and text.strip() == "*"


def _are_columns(declaration: str | pa.Schema) -> bool:
    """Return whether this declares columns: "driver string". A name contains neither spaces nor colons."""
    return isinstance(declaration, pa.Schema) or (
        isinstance(declaration, str) and any(mark in declaration.strip() for mark in " \n\t:")
    )


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

    def register_function(
        self, name: str, function: Callable[..., Any], *, returns: str | pa.DataType | None = None
    ) -> None:
        """Let expressions call a Python function by name. Without `returns`, it must be declared with `sb.udf`."""
        self.graph.register_function(name, function, returns)

    def source(
        self,
        columns: str | pa.Schema,
        name: str | pa.Schema = "source",
        *,
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
    ) -> "Stream":
        """Add a source of rows with these columns: `source("driver string, ts timestamp", name="rides")`.

        `watermark` is the event-time column and the delay of the watermark. After `idle_after` without rows, the source
        no longer holds back the watermark of operators with several inputs. The name may also come first, as in
        `source("rides", "driver string, ts timestamp")`. The arguments are those of `Job.source`.
        """
        if _are_columns(name):
            columns, name = name, columns
        schema = schema_of(columns, where=f"source {name!r}")
        check_stream_columns(schema.names, where=f"source {name!r}")
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
        origin = self.graph.written_origin(self.edge)
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
        if self.edge.output != MAIN or not isinstance(name, str) or name not in outputs:
            others = [output for output in outputs if output]
            raise InputError(
                f"this stream has no output {name!r}",
                fix=f"use one of its other outputs: {others}" if others else "only operators have other outputs",
            )
        return self.at(Edge(self.edge.node, name))

    def named(self, name: str) -> Self:
        """Return the stream under a name by which its rows can be inspected."""
        self.graph.name(name, self.edge)
        return self

    # ---- row by row ------------------------------------------------------------------------------------------

    def where(self, condition: ColumnLike) -> Self:
        """Keep only the rows for which the condition holds; null counts as false."""
        bound = self._bound(condition)
        if not (pa.types.is_boolean(bound.type) or pa.types.is_null(bound.type)):
            raise InputError(
                f"the condition of where must be a boolean, but {bound.text!r} has the type {bound.type}",
                where=bound.where,
                fix=f'compare it with something: where("{bound.text} > 0")',
            )
        return self.add_step(Where(bound, self.output.columns))

    def select(self, *columns: ColumnLike) -> Self:
        """Return only these columns: names or SQL, such as 'fare * 2 as double_fare'. The event time stays.

        `*` stands for all columns. One of the columns may be `explode(items) as item`, or another generator:
        `posexplode`, `inline`, `unnest`, and those with `_outer`.
        """
        named = [column for text in columns for column in (map(quoted, self.columns) if is_star(text) else [text])]
        where = f"columns {', '.join(self.columns)}"
        generators = [
            (place, parsed) for place, text in enumerate(named) if (parsed := generator_of(text, where=where))
        ]
        if not generators:
            bound = [self._bound(column) for column in named]
            return self.selected([(value.name, value) for value in bound])
        if len(generators) > 1:
            raise InputError(
                f"a select can explode one column, got {len(generators)}", where=where, fix="use one select for each"
            )
        ((place, generator),) = generators
        step = explode_step(self._bound(generator.operand), self.output.columns, generator)
        # Names that no column has, until the last select gives those of the user.
        own = tuple(f"exploded {number}" for number in range(len(step.names)))
        renamed = [f"{quoted(name)} as {quoted(shown)}" for name, shown in zip(own, step.names, strict=True)]
        return self.add_step(replace(step, names=own)).select(*named[:place], *renamed, *named[place + 1 :])

    def explode(
        self,
        column: ColumnLike,
        *names: str,
        outer: bool = False,
        position: str | None = None,
        inline: bool = False,
    ) -> Self:
        """Make a row for each element of a list or map; the other columns are repeated.

        The element replaces the column, or is called `names`: one name for a list, two for a map (by default `key` and
        `value`), one per field with `inline`, which makes the fields of structs columns. With `outer`, a row without
        elements stays, with nulls. `position` names a column with the position of the element, from 0.
        """
        bound = self._bound(column)
        for element_name in (*names, *([] if position is None else [position])):
            fix = "name each new column, as in explode('tags', 'tag', position='place')"
            check_text(element_name, "names" if element_name in names else "position", where=bound.where, fix=fix)
        element_names = names or (() if pa.types.is_map(bound.type) or inline else (bound.name,))
        if position is not None and not element_names:
            is_map = pa.types.is_map(bound.type)
            element_names = ("key", "value") if is_map else tuple(field.name for field in bound.type.value_type)
        all_names = element_names if position is None else (position, *element_names)
        generator = Generator(bound.text, all_names, outer, position is not None, inline)
        step = explode_step(bound, self.output.columns, generator)
        check_stream_columns(step.columns.names, where=bound.where)
        return self.add_step(step)

    def with_columns(self, **columns: ColumnLike) -> Self:
        """Add columns, or replace those with the same name."""
        bound = {name: self._bound(column) for name, column in columns.items()}
        kept = [(name, bound.get(name) or self._bound(quoted(name))) for name in self.columns]
        return self.selected(
            [*kept, *((name, expression) for name, expression in bound.items() if name not in self.columns)]
        )

    def transform(self, function: Callable[..., Any], *, schema: str | pa.Schema | None = None) -> Any:
        """Compute new columns with a Python function: it takes a record batch and returns one with as many rows.

        `schema` declares the columns of the result. Row n of the result belongs to row n of the batch and keeps its
        event time. The function must give the same result for the same rows.
        """
        name = getattr(function, "__qualname__", type(function).__qualname__)
        where = f"transform({name})"
        if schema is None:
            raise InputError(
                "the columns of the result are missing", where=where, fix="write transform(f, schema='total double')"
            )
        columns = schema_of(schema, where=where)
        check_stream_columns(columns.names, where=where)
        return self.add_step(batch_step(function, columns, name))

    def union(self, *others: "Stream") -> Self:
        """Combine the rows of several streams with the same columns into one stream.

        Columns must have the same names, order and types; one that may be null in any of the streams may be null here.
        """
        streams: list[Stream] = [self, *others]
        for other in others:
            check_stream(other, where="union")
        columns = united([stream.output.columns for stream in streams])
        changelog = any(stream.output.changes is Changes.CHANGELOG for stream in streams)
        changes = Changes.CHANGELOG if changelog else Changes.APPEND
        return self._added(UnionNode(columns, tuple(stream.edge for stream in streams), changes))

    # ---- by key ----------------------------------------------------------------------------------------------

    def group_by(self, *keys: ColumnLike | Window | SessionWindow, name: str | None = None) -> GroupedStream[Self]:
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

    def key_by(self, *keys: ColumnLike, name: str | None = None) -> KeyedStream[Self]:
        """Group the rows by key, without a window."""
        return KeyedStream(self, self._keys(list(keys), name, method="key_by"), name)

    def deduplicate(
        self,
        *keys: ColumnLike,
        keep: str = "first",
        order_by: OrderTerms = (),
        ttl: Duration | None = None,
        name: str | None = None,
    ) -> Self:
        """Keep one row of each key; see `KeyedStream.deduplicate`."""
        return self.key_by(*keys, name=name).deduplicate(keep=keep, order_by=order_by, ttl=ttl)

    def changelog(
        self,
        key: str | Sequence[str],
        *,
        format: str,  # noqa: A002 - the name that Spark's readers use
        order: str | Sequence[str] = (),
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
        name: str | None = None,
    ) -> Self:
        """Read the rows as change events of a database's log; the result is the changelog of its table.

        `format` is "debezium", "row_kind" or "delta_cdf", and `key` names the columns that identify a row. `order` is
        the position of an event in its log, by default the one that the format has. Events may be repeated and may
        arrive in any order: the newest event of a key counts. Keys, deleted ones too, are kept forever or for `ttl`.
        """
        where = step_label("changelog", name)
        keys = texts(key, "key", where=where, fix="name the columns that identify a row: changelog(['id'], ...)")
        changes = change_columns(
            self.output.columns,
            key=keys,
            change_format=ChangeFormat(known(format, ChangeFormat, "format", where=where)),
            order=texts(order, "order", where=where, fix="name the columns with the position: order='lsn'"),
            where=where,
        )
        counted = self.where(changes.condition)
        events = counted.selected([(column, counted.bound(text, where)) for column, text in changes.selected])
        operator = ChangeEvents(
            name or "changelog",
            events.input_of("events", keys),
            deleted=DELETED,
            order=ordered_by(changes.order),
            rows=tuple(column for column, _ in changes.columns),
            ttl=time_to_live(ttl, ttl_clock),
        )
        return events.add_operator(operator, unnamed=name is None)

    def join(
        self,
        other: "Stream",
        on: On,
        *,
        within: Within | str | None = None,
        window: Window | None = None,
        as_of: AsOf | None = None,
        how: str = "inner",
        condition: ColumnLike | None = None,
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
        where = step_label("join", name)
        check_on(on, where=where)
        check_suffixes(suffixes, where=where)
        terms = JoinTerms(on, within, window, as_of, how, condition, suffixes, ttl, ttl_clock)
        return joined(self, other, terms, name=name)

    def broadcast(self, *keys: str, deleted: str | None = None, name: str | None = None) -> BroadcastStream:
        """Return this stream as a small table by key that every subtask has, for `lookup` and `process`.

        A row replaces the row of its key, or removes it if its boolean column `deleted` is true; rows of a changelog
        are applied as they say. A change takes effect at the start of the epoch in which it is read. The table does not
        hold back the watermark. `name` names its state, by default after its source.
        """
        return broadcast(self, keys, deleted, name)

    def lookup(
        self,
        table: BroadcastStream,
        on: On | None = None,
        *,
        how: str = "inner",
        condition: ColumnLike | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        name: str | None = None,
    ) -> Self:
        """Join each row with the rows of a broadcast table that match it now: `bids.lookup(rates, on="currency")`.

        `how` is inner, left, semi or anti. `condition` is SQL over the columns of a pair; without `on`, it is checked
        against all rows of the table. Results are final: later changes of the table do not change them.
        """
        where = step_label("lookup", name)
        if on is not None:
            check_on(on, where=where)
        check_suffixes(suffixes, where=where)
        return looked_up(self, table, on, how=how, condition=condition, suffixes=suffixes, name=name)

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
            what = json.dumps(
                [operator.definition.fingerprint, *(self.graph.origin(joined_stream.edge) for joined_stream in streams)]
            )
            first = name = f"{operator.operator_id}_{hashlib.sha256(what.encode()).hexdigest()[:10]}"
            count = 1
            while not operator.tables and name in self.graph.names:  # without state, it need not find any again
                count += 1
                name = f"{first}_{count}"
            operator = replace(cast("Any", operator), operator_id=name)
        if any(expires_by_event_time(table) for table in operator.tables.values()):
            for stream in streams:
                stream.check_times_to_expire_by(operator_label(operator))
        operator_feeds = tuple(
            Feed(input_, tuple(feeds[number]) if feeds else (), time) for number, input_ in enumerate(operator.inputs)
        )
        return self._added(
            OperatorNode(operator, tuple(joined_stream.edge for joined_stream in streams), operator_feeds)
        )

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
            description = f"{columns.field(name).type}" if name in columns.names else "not a column"
            timestamps = [field.name for field in columns if pa.types.is_timestamp(field.type)]
            raise InputError(
                f"a window's `on` must be a timestamp column, got {name!r} ({description})",
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

    def _keys(self, texts: Sequence[ColumnLike], name: str | None, *, method: str) -> tuple[Expression, ...]:
        where = step_label(method, name)
        if name is not None:
            check_name("operator", name)
        return tuple(self.bound(text, where) for text in texts)

    def bound(self, text: ColumnLike, where: str) -> Expression:
        """Bind an expression of the user to the columns of this stream."""
        return bind(text, self.output.columns, where=where, functions=self.graph.functions)

    def written(self, text: ColumnLike, where: str) -> ColumnLike:  # noqa: ARG002 - jobs on Spark need it
        """Return an expression in the form that `bind` takes, however the user wrote it."""
        return text

    def _bound(self, text: ColumnLike) -> Expression:
        return self.bound(text, f"columns {', '.join(self.columns)}")

    def selected(self, values: Sequence[tuple[str, Expression]]) -> Self:
        """Return the stream with these columns: names and bound expressions."""
        check_stream_columns([name for name, _ in values], where=f"columns {', '.join(self.columns)}")
        return self.add_step(Select(tuple(values)))

    def add_step(self, step: Step) -> Self:
        """Add a row-wise step that reads this stream."""
        return self._added(StepNode(step, (self.edge,), self.output.changes))

    def _added(self, node: Node) -> Self:
        return self.at(Edge(self.graph.add(node)))

    def at(self, edge: Edge) -> Self:
        """Return another stream of the same graph."""
        return replace(self, edge=edge)


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of a union; a column is nullable if it is in one of the streams."""
    first = schemas[0]
    for other in schemas[1:]:
        if other.names != first.names:
            raise _different(
                f"the streams of a union must have the same columns, got {', '.join(first.names)} and "
                f"{', '.join(other.names)}"
            )
        for first_field, other_field in zip(first, other, strict=True):
            if nullable_field(first_field) != nullable_field(other_field):
                raise _different(
                    f"columns of a union must have the same types, but {first_field.name!r} is {first_field.type} and "
                    f"{other_field.type}"
                )
    return pa.schema(
        [
            nullable_field(fields[0]) if any(field != fields[0] for field in fields) else fields[0]
            for fields in zip(*schemas, strict=True)
        ]
    )


def _different(what: str) -> InputError:
    return InputError(what, fix="select the same columns, in the same order and with the same types, from each stream")
