"""What users chain without Spark: a stream of rows, its steps, and the operators on it.

    flow = Flow("rides")
    rides = flow.source("rides", "driver string, fare double, ts timestamp", watermark=("ts", "10 minutes"))
    per_minute = rides.where("fare > 0").group_by("driver", tumbling("1 minute"), name="per_minute").agg(trips=count())

Every step is checked when it is written. Nothing here runs anything: `statebed.testing.run(flow)` does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.flow.aggregates import bind_aggregates
from statebed.flow.graph import Edge, Graph, Node, OperatorNode, SourceNode, StepNode, UnionNode
from statebed.flow.joins import AsOf, JoinTerms, On, Within, joined
from statebed.flow.keys import OrderTerms, key_fields, key_values, keyed_columns, known, ordered_by, quoted
from statebed.flow.steps import Feed, Select, Value, Where
from statebed.format.names import check_name
from statebed.format.schema import check_user_columns
from statebed.operators import Aggregate, Emit, Operator, Window, WindowAggregate
from statebed.operators.deduplicate import Deduplicate, Keep
from statebed.operators.expressions import BoundExpression, bind
from statebed.operators.numbering import Numbering
from statebed.operators.operator import LATE, MAIN, Changes, Input, Output
from statebed.operators.process import Process, ProcessOperator
from statebed.operators.session_aggregate import SessionAggregate
from statebed.operators.time_to_live import time_to_live
from statebed.operators.top_n import TopN
from statebed.operators.type_text import schema_of
from statebed.operators.updating_aggregate import UpdatingAggregate
from statebed.operators.window_calls import WindowCall
from statebed.operators.window_functions import WindowFunctions
from statebed.operators.window_top_n import WindowTopN
from statebed.operators.windows import Duration, SessionWindow, parse_duration

Expression = str
EMITS = {"close": Emit.AT_CLOSE, "early": Emit.EARLY}


class Flow:
    """A graph of streams and operators; `name` is the job's."""

    def __init__(self, name: str = "flow") -> None:
        self.name = check_name("job", name)
        self.graph = Graph()

    def source(self, name: str, columns: str | pa.Schema, *, watermark: tuple[str, Duration] | None = None) -> "Stream":
        """Rows that come from outside. `watermark` names the event-time column and how late rows may be."""
        schema = schema_of(columns, where=f"source {name!r}")
        check_user_columns(schema.names, where=f"source {name!r}")
        event_time, delay = (None, "0s") if watermark is None else watermark
        if event_time is not None and (
            event_time not in schema.names or not pa.types.is_timestamp(schema.field(event_time).type)
        ):
            raise InputError(
                f"the event time {event_time!r} is no timestamp column of {schema.names}",
                where=f"source {name!r}",
                fix="name a column of the type timestamp: watermark=('ts', '10 minutes')",
            )
        node = SourceNode(name, schema, event_time, parse_duration(delay))
        return Stream(self.graph, Edge(self.graph.add(node)))


@dataclass(frozen=True)
class Stream:
    """Rows with a schema, an event time and, in a changelog, weights. Every method gives a new stream."""

    graph: Graph
    edge: Edge

    @property
    def output(self) -> Output:
        """Its columns, and whether it is a changelog."""
        return self.graph.output(self.edge)

    @property
    def columns(self) -> list[str]:
        return list(self.output.columns.names)

    @property
    def late(self) -> "Stream":
        """The rows that came too late for the operator: the input's columns, late_by, watermark, operator."""
        return self.side(LATE)

    def side(self, name: str) -> "Stream":
        """Another output of the operator."""
        outputs = self.graph.nodes[self.edge.node].outputs
        if self.edge.output != MAIN or name not in outputs:
            raise InputError(
                f"there is no output {name!r} here",
                fix=f"an operator's own outputs can be taken: {[one for one in outputs if one] or 'this has none'}",
            )
        return Stream(self.graph, Edge(self.edge.node, name))

    def named(self, name: str) -> "Stream":
        """The same, known by a name under which its rows can be looked at."""
        self.graph.name(name, self.edge)
        return self

    # ---- row by row ------------------------------------------------------------------------------------------

    def where(self, condition: Expression) -> "Stream":
        """Only rows for which the condition holds."""
        return self._step(Where(self._bound(condition), self.output.columns))

    def select(self, *columns: Expression) -> "Stream":
        """Only these columns: names or SQL, such as 'fare * 2 as double_fare'. The event time stays."""
        bound = [self._bound(column) for column in columns]
        return self._selected([(one.name, one) for one in bound])

    def with_columns(self, **columns: Expression) -> "Stream":
        """More columns, or others in the place of those with the same name."""
        made = {name: self._bound(column) for name, column in columns.items()}
        kept = [(name, made.get(name) or self._bound(quoted(name))) for name in self.columns]
        return self._selected([*kept, *((name, one) for name, one in made.items() if name not in self.columns)])

    def union(self, *others: "Stream") -> "Stream":
        """The rows of several streams with the same columns."""
        streams = (self, *others)
        for other in others:
            if not other.output.columns.equals(self.output.columns):
                raise InputError(
                    f"a union of streams with the columns {self.output.columns.names} and "
                    f"{other.output.columns.names}, or of other types",
                    fix="select the same columns, in the same order and with the same types, from each",
                )
        changelog = any(one.output.changes is Changes.CHANGELOG for one in streams)
        changes = Changes.CHANGELOG if changelog else Changes.APPEND
        return self._added(UnionNode(self.output.columns, tuple(one.edge for one in streams), changes))

    # ---- by key ----------------------------------------------------------------------------------------------

    def group_by(self, *keys: Expression | Window | SessionWindow, name: str | None = None) -> "GroupedStream":
        """Group by keys, or by none, and one window: `group_by("driver", tumbling("1 minute"))`."""
        windows = [key for key in keys if isinstance(key, Window | SessionWindow)]
        if len(windows) != 1:
            raise InputError(
                f"group_by has {len(windows)} windows, it takes one",
                where=f"operator {name!r}",
                fix='write group_by("driver", tumbling("1 minute")); without a window it is key_by("driver")',
            )
        texts = [key for key in keys if isinstance(key, str)]
        return GroupedStream(self, self._keys(texts, name), windows[0], name)

    def key_by(self, *keys: Expression, name: str | None = None) -> "KeyedStream":
        """Take rows of one key together, without a window."""
        return KeyedStream(self, self._keys(list(keys), name), name)

    def deduplicate(
        self, *keys: Expression, keep: str = "first", ttl: Duration | None = None, name: str | None = None
    ) -> "Stream":
        """One row of each key, see `KeyedStream.deduplicate`."""
        return self.key_by(*keys, name=name).deduplicate(keep=keep, ttl=ttl)

    def join(
        self,
        other: "Stream",
        on: On,
        *,
        within: Within | None = None,
        window: Window | None = None,
        as_of: AsOf | None = None,
        how: str = "inner",
        condition: Expression | None = None,
        suffixes: tuple[str, str] = ("", "_right"),
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
        name: str | None = None,
    ) -> "Stream":
        """Rows of two streams with equal columns, and times that belong together.

        `bids.join(auctions, on=eq("auction", "id"), within=between("0s", "1 hour"))`. Times: `within=between(...)`, a
        `window=` in which both are, or `as_of=as_of(...)` for the newest version of the other stream. Without any, both
        streams are joined for good, or for `ttl`, and the result is a changelog. `how` is inner, left, right, full,
        semi or anti; `condition` is SQL over the columns of a pair.
        """
        terms = JoinTerms(on, within, window, as_of, how, condition, suffixes, ttl, ttl_clock)
        return joined(self, other, terms, name=name or self.default_name("join"))

    def add_operator(
        self, operator: Operator, *others: "Stream", feeds: Sequence[Sequence[tuple[str, Value]]] = ()
    ) -> "Stream":
        """Put an operator behind this stream and others, one for each of its inputs.

        `feeds` has, for each input, the columns that are not the stream's of the same name.
        """
        streams = (self, *others)
        made = tuple(Feed(one, tuple(feeds[number]) if feeds else ()) for number, one in enumerate(operator.inputs))
        return self._added(OperatorNode(operator, tuple(one.edge for one in streams), made))

    # ---- inside ----------------------------------------------------------------------------------------------

    def input_of(self, name: str, keys: Sequence[str], *, columns: pa.Schema | None = None) -> Input:
        """An operator's input with the columns of this stream."""
        return Input(name, columns or self.output.columns, tuple(keys), self.output.changes)

    def keyed_input(self, keys: Sequence[BoundExpression]) -> Input:
        """An operator's input with the columns of this stream, and keys that are none of them."""
        return self.input_of("input", [key.name for key in keys], columns=keyed_columns(self.output.columns, keys))

    def _keys(self, texts: Sequence[str], name: str | None) -> tuple[BoundExpression, ...]:
        where = f"operator {name or 'without name'!r}"
        if name is not None:
            check_name("operator", name)
        return tuple(bind(text, self.output.columns, where=where) for text in texts)

    def _bound(self, text: Expression) -> BoundExpression:
        return bind(text, self.output.columns, where=f"columns {', '.join(self.columns)}")

    def _selected(self, values: Sequence[tuple[str, BoundExpression]]) -> "Stream":
        check_user_columns([name for name, _ in values], where=f"columns {', '.join(self.columns)}")
        return self._step(Select(tuple(values)))

    def _step(self, step: Where | Select) -> "Stream":
        return self._added(StepNode(step, (self.edge,), self.output.changes))

    def _added(self, node: Node) -> "Stream":
        return Stream(self.graph, Edge(self.graph.add(node)))

    def default_name(self, kind: str) -> str:
        """For an operator without one: by its place, so that the same program gives the same names."""
        return f"{kind}_{len(self.graph.nodes)}"


@dataclass(frozen=True)
class GroupedStream:
    """Rows grouped by keys and window."""

    stream: Stream
    keys: tuple[BoundExpression, ...]
    window: Window | SessionWindow
    name: str | None = None

    def agg(self, *, emit: str = "close", allowed_lateness: Duration = "0s", **aggregates: Aggregate) -> Stream:
        """One output column per aggregate: keys, window_start, window_end, aggregates.

        `emit` is "close" (a final result when the watermark closes the window) or "early" (a result in every epoch that
        changes it, as a changelog). For `allowed_lateness` after its close a window takes late rows and changes its
        result.
        """
        name = self.name or self.stream.default_name("window")
        where = f"operator {name!r}"
        if emit not in EMITS:
            raise InputError(f"emit={emit!r}", where=where, fix=f"use one of {list(EMITS)}")
        bound, values = bind_aggregates(aggregates, self.stream.output, where=where)
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
        return self.stream.add_operator(operator, feeds=[[*key_values(self.keys), *values]])

    def top(self, n: int, by: OrderTerms, *, numbering: str = "row_number", number: str | None = None) -> Stream:
        """The first n rows of each key and window, when it closes; `number` names the column for a row's number."""
        name = self.name or self.stream.default_name("top")
        operator = WindowTopN(
            name,
            self.stream.keyed_input(self.keys),
            self._fixed_window(name),
            n,
            ordered_by(by),
            Numbering(known(numbering, Numbering, name)),
            number,
        )
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)])

    def over(self, by: OrderTerms = (), **calls: WindowCall) -> Stream:
        """All rows of each key and window, when it closes, with columns such as `place=row_number()`."""
        name = self.name or self.stream.default_name("over")
        operator = WindowFunctions(
            name, self.stream.keyed_input(self.keys), self._fixed_window(name), ordered_by(by), tuple(calls.items())
        )
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)])

    def _fixed_window(self, name: str) -> Window:
        if isinstance(self.window, SessionWindow):
            raise InputError(
                "rows of sessions are not kept one by one",
                where=f"operator {name!r}",
                fix="use a tumbling, sliding or cumulative window, or aggregate the session with collect_list",
            )
        return self.window


@dataclass(frozen=True)
class KeyedStream:
    """Rows taken together by key."""

    stream: Stream
    keys: tuple[BoundExpression, ...]
    name: str | None = None

    def agg(self, *, ttl: Duration | None = None, ttl_clock: str = "event_time", **aggregates: Aggregate) -> Stream:
        """The result of each key so far, as a changelog; a group is forgotten `ttl` after its latest row."""
        name = self.name or self.stream.default_name("aggregate")
        bound, values = bind_aggregates(aggregates, self.stream.output, where=f"operator {name!r}")
        operator = UpdatingAggregate(
            operator_id=name,
            keys=key_fields(self.keys),
            aggregates=bound,
            ttl=time_to_live(ttl, ttl_clock),
            late_columns=tuple(self.stream.output.columns),
            changes=self.stream.output.changes,
        )
        return self.stream.add_operator(operator, feeds=[[*key_values(self.keys), *values]])

    def deduplicate(self, *, keep: str = "first", ttl: Duration | None = None, ttl_clock: str = "event_time") -> Stream:
        """One row of each key: the first, at once; or the last, as a changelog. A key is forgotten after `ttl`."""
        name = self.name or self.stream.default_name("deduplicate")
        operator = Deduplicate(
            name,
            self.stream.keyed_input(self.keys),
            Keep(known(keep, Keep, name)),
            time_to_live(ttl, ttl_clock),
        )
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)])

    def process(self, process: Process) -> Stream:
        """Your own function over batches, with keyed states and timers; its other outputs are `.side(name)`."""
        name = self.name or self.stream.default_name("process")
        operator = ProcessOperator(name, self.stream.keyed_input(self.keys), process)
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)])

    def top(
        self,
        n: int,
        by: OrderTerms,
        *,
        numbering: str = "row_number",
        number: str | None = None,
        ttl: Duration | None = None,
        ttl_clock: str = "event_time",
    ) -> Stream:
        """The first n rows of each key so far, as a changelog: `key_by("category").top(3, "price desc")`."""
        name = self.name or self.stream.default_name("top")
        operator = TopN(
            name,
            self.stream.keyed_input(self.keys),
            n,
            ordered_by(by),
            Numbering(known(numbering, Numbering, name)),
            number,
            time_to_live(ttl, ttl_clock),
        )
        return self.stream.add_operator(operator, feeds=[key_values(self.keys)])
