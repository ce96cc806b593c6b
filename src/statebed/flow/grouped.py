"""Grouped streams, by key and window or by key alone, and the operators on them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import pyarrow as pa

from statebed.aggregates.aggregate import Aggregate, BoundAggregate, EventTime
from statebed.aggregates.partials import input_column
from statebed.argument_checks import misplaced
from statebed.arrays.row_numbers import Numbering
from statebed.errors import InputError
from statebed.expressions.column_like import ColumnLike
from statebed.flow.broadcasts import BroadcastStream, check_broadcast
from statebed.flow.keys import OrderTerms, key_fields, key_values, known, ordered_by
from statebed.flow.spark_names import SparkNames, line_of
from statebed.flow.steps import AggregateValue, EventTimeValue, Expression, TimeColumn, Value
from statebed.format.stream_schema import Changes
from statebed.operators import Emit, Operator, Window, WindowAggregate
from statebed.operators.labels import step_label
from statebed.operators.process import Process, ProcessOperator
from statebed.operators.time_to_live import time_to_live
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.operators.updating.deduplicate import Deduplicate, Keep
from statebed.operators.updating.top_n import TopN
from statebed.operators.window_definition import SessionWindow
from statebed.operators.windows.function_calls import WindowCall
from statebed.operators.windows.functions import WindowFunctions
from statebed.operators.windows.sessions import SessionAggregate
from statebed.operators.windows.top_n import WindowTopN
from statebed.quantities import Duration, parse_duration

if TYPE_CHECKING:
    from statebed.flow.stream import Stream

S = TypeVar("S", bound="Stream")
Option: TypeAlias = Any
"""Argument beside the aggregates. Any type, so that type checkers accept `agg(**aggregates)` of a dict."""
EMITS = {"close": Emit.AT_CLOSE, "early": Emit.EARLY}


@dataclass(frozen=True, repr=False)
class GroupedStream(SparkNames, Generic[S]):
    """Rows grouped by keys and window."""

    stream: S
    keys: tuple[Expression, ...]
    window: Window | SessionWindow
    name: str | None = None

    def __repr__(self) -> str:
        keys = ", ".join(key.name for key in self.keys)
        return line_of(f"<GroupedStream by {keys or 'no key'}, {self.window.described()}, of {self.stream!r}>")

    def agg(self, *, emit: Option = "close", allowed_lateness: Option = "0s", **aggregates: Aggregate) -> S:
        """Aggregate the rows of each key and window; the columns are keys, window_start, window_end, aggregates.

        `emit` is "close" (a final result when the watermark closes the window) or "early" (a result in every epoch that
        changes it, as a changelog). For `allowed_lateness` after its close, a window accepts late rows and updates its
        result.
        """
        name = self.name or "window"
        where = step_label("group_by", self.name)
        if emit not in list(EMITS):  # a list, as the value may not be hashable
            raise InputError(f"`emit` must be one of {list(EMITS)}, got {emit!r}", where=where, fix="use 'close'")
        bound, values = bind_aggregates(aggregates, self.stream.bound, self.stream.output.changes, where=where)
        common: dict[str, Any] = {
            "operator_id": name,
            "keys": key_fields(self.keys),
            "aggregates": bound,
            "emit": EMITS[emit],
            "lateness_us": parse_duration(allowed_lateness),
            "late_columns": tuple(self.stream.output.columns),
            "changes": self.stream.output.changes,
        }
        operator: Operator
        if isinstance(self.window, SessionWindow):
            operator = SessionAggregate(window=self.window, **common)
        else:
            operator = WindowAggregate(window=self.window, **common)
        return self.stream.add_operator(
            operator, feeds=[[*key_values(self.keys), *values]], time=self._time(), unnamed=self.name is None
        )

    def top(self, n: int, by: OrderTerms, *, numbering: str = "row_number", number: str | None = None) -> S:
        """Return the first n rows of each key and window when it closes; `number` names a column for a row's number."""
        name = self.name or "top"
        operator = WindowTopN(
            name,
            self.stream.keyed_input(self.keys),
            self._fixed_window(),
            n,
            ordered_by(by),
            Numbering(known(numbering, Numbering, "numbering", where=step_label("group_by", self.name))),
            number,
        )
        return self.stream.add_operator(
            operator, feeds=[key_values(self.keys)], time=self._time(), unnamed=self.name is None
        )

    def over(self, by: OrderTerms = (), **calls: WindowCall) -> S:
        """Return all rows of each key and window when it closes, with columns such as `place=row_number()`."""
        name = self.name or "over"
        for column, call in calls.items():
            if not isinstance(call, WindowCall):
                raise InputError(
                    f"{call!r} is not a window function",
                    where=f"{step_label('group_by', self.name)}, column {column!r}",
                    fix=misplaced(call) or "use for example sb.row_number() or sb.lag('column')",
                )
        operator = WindowFunctions(
            name, self.stream.keyed_input(self.keys), self._fixed_window(), ordered_by(by), tuple(calls.items())
        )
        return self.stream.add_operator(
            operator, feeds=[key_values(self.keys)], time=self._time(), unnamed=self.name is None
        )

    def _time(self) -> TimeColumn | None:
        """Return the column that assigns rows to windows, or None for the event time."""
        on = self.window.on
        return None if on is None else self.stream.time_column(on, where=step_label("group_by", self.name))

    def _fixed_window(self) -> Window:
        if isinstance(self.window, SessionWindow):
            raise InputError(
                "session windows do not keep their rows, which `top` and `over` need",
                where=step_label("group_by", self.name),
                fix="use a tumbling, sliding or cumulative window, or aggregate the session with collect_list",
            )
        return self.window


@dataclass(frozen=True, repr=False)
class KeyedStream(SparkNames, Generic[S]):
    """Rows grouped by key."""

    stream: S
    keys: tuple[Expression, ...]
    name: str | None = None

    def __repr__(self) -> str:
        return line_of(f"<KeyedStream by {', '.join(key.name for key in self.keys) or 'no key'} of {self.stream!r}>")

    def agg(self, *, ttl: Option = None, ttl_clock: Option = "event_time", **aggregates: Aggregate) -> S:
        """Aggregate all rows of each key so far, as a changelog; a group expires `ttl` after its latest row."""
        name = self.name or "aggregate"
        stream = self.stream
        bound, values = bind_aggregates(
            aggregates, stream.bound, stream.output.changes, where=step_label("key_by", self.name)
        )
        operator = UpdatingAggregate(
            operator_id=name,
            keys=key_fields(self.keys),
            aggregates=bound,
            ttl=time_to_live(ttl, ttl_clock),
            late_columns=tuple(self.stream.output.columns),
            changes=self.stream.output.changes,
        )
        return self.stream.add_operator(operator, feeds=[[*key_values(self.keys), *values]], unnamed=self.name is None)

    def deduplicate(
        self,
        *,
        keep: str = "first",
        order_by: OrderTerms = (),
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
        on: str | None = None,
    ) -> S:
        """Keep one row of each key: the first, emitted at once, or the last, as a changelog. A key expires after `ttl`.

        `order_by`, such as "lsn" or ["file", "position"], decides which row is first or last, then the event time, then
        all columns. Set `order_by` if rows may have the same event time and it matters which of them stays. `on` names
        a timestamp column to use instead of the event time.
        """
        name = self.name or "deduplicate"
        operator = Deduplicate(
            name,
            self.stream.keyed_input(self.keys),
            Keep(known(keep, Keep, "keep", where=step_label("deduplicate", self.name))),
            time_to_live(ttl, ttl_clock),
            ordered_by(order_by),
        )
        time = None if on is None else self.stream.time_column(on, where=step_label("deduplicate", self.name))
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)], time=time, unnamed=self.name is None)

    def process(self, process: Process, *, tables: Sequence[BroadcastStream] = (), name: str | None = None) -> S:
        """Apply a user-defined process to batches, with keyed states and timers; other outputs are `.side(name)`.

        The process reads broadcast tables with `ctx.table(name)`: rules that change while the job runs.
        """
        name = name or self.name
        if not isinstance(tables, Sequence) or isinstance(tables, str):
            raise InputError(
                f"`tables` must be a list of broadcast streams, got {tables!r}",
                where=step_label("process", name),
                fix='write tables=[rules.broadcast("rule_id")]',
            )
        for table in tables:
            check_broadcast(self.stream, table, where=step_label("process", name))
        operator = ProcessOperator(
            name or "process",
            self.stream.keyed_input(self.keys),
            process,
            tuple(broadcast.table for broadcast in tables),
        )
        return self.stream.add_operator(
            operator,
            *(table.stream for table in tables),
            feeds=[key_values(self.keys), *([] for _ in tables)],
            unnamed=name is None,
        )

    def top(
        self,
        n: int,
        by: OrderTerms,
        *,
        numbering: str = "row_number",
        number: str | None = None,
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
    ) -> S:
        """Return the first n rows of each key so far, as a changelog: `key_by("category").top(3, "price desc")`."""
        name = self.name or "top"
        operator = TopN(
            name,
            self.stream.keyed_input(self.keys),
            n,
            ordered_by(by),
            Numbering(known(numbering, Numbering, "numbering", where=step_label("key_by", self.name))),
            number,
            time_to_live(ttl, ttl_clock),
        )
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)], unnamed=self.name is None)


Bind = Callable[[ColumnLike, str], Expression]
"""Binds an expression of the user, given with its place for errors."""
Bound = tuple[tuple[BoundAggregate, ...], tuple[tuple[str, Value], ...]]


def bind_aggregates(aggregates: Mapping[str, Aggregate], bind: Bind, changes: Changes, *, where: str) -> Bound:
    """Return the aggregates as subtasks run them, and the values of their input columns."""
    if not aggregates:
        raise InputError("agg() has no aggregate", where=where, fix="write agg(trips=sb.count())")
    bound: list[BoundAggregate] = []
    values: list[tuple[str, Value]] = []
    for position, (name, aggregate) in enumerate(aggregates.items()):
        place = f"{where}, aggregate {name!r}"
        if isinstance(aggregate, Window | SessionWindow):
            raise InputError(
                "a window is not an aggregate",
                where=place,
                fix='pass the window to group_by: group_by("key", sb.tumbling("1 minute")).agg(...)',
            )
        if not isinstance(aggregate, Aggregate):
            raise InputError(
                f"{aggregate!r} is not a statebed aggregate",
                where=place,
                fix=misplaced(aggregate) or "use sb.count() or sb.sum('column')",
            )
        inputs = tuple(
            EventTimeValue() if isinstance(input_, EventTime) else bind(input_, place) for input_ in aggregate.inputs
        )
        condition = None if aggregate.where is None else _condition(aggregate.where, bind, place)
        bound_aggregate = aggregate.bind(
            name,
            input_types=tuple(value.type for value in inputs),
            text=_text(aggregate, inputs),
            changelog=changes is Changes.CHANGELOG,
        )
        bound.append(bound_aggregate)
        # After an operator the values are sent with tasks, and a Spark Column cannot be sent.
        sent = replace(
            aggregate,
            inputs=tuple(getattr(value, "text", "") for value in inputs),
            where=None if condition is None else condition.text,
        )
        values += [
            (input_column(position, part), AggregateValue(sent, part, inputs, condition, kind))
            for part, kind in enumerate(bound_aggregate.input_types)
        ]
    return tuple(bound), tuple(values)


def _condition(text: ColumnLike, bind: Bind, where: str) -> Expression:
    condition = bind(text, where)
    if condition.type != pa.bool_():
        raise InputError(
            f"where={text!r} must be a boolean, but has the type {condition.type}",
            where=where,
            fix="compare it: where=\"status = 'ok'\"",
        )
    return condition


def _text(aggregate: Aggregate, inputs: Sequence[Value]) -> str:
    texts = [input_.value if isinstance(input_, EventTime) else str(input_) for input_ in aggregate.inputs]
    # A Spark Column has its own text; SQL text is shown as the user wrote it.
    said = [getattr(value, "text", text) for value, text in zip(inputs, texts, strict=True)]
    return ", ".join(said) + ("" if aggregate.where is None else f" where {aggregate.where}")
