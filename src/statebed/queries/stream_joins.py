"""Joins of two streams."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statebed.errors import StatebedError
from statebed.flow.intervals import Interval
from statebed.flow.joins import AsOf, Eq, as_of, eq
from statebed.flow.keys import quoted
from statebed.flow.spark_clock import MILLISECOND_US
from statebed.format.stream_schema import Changes
from statebed.operators.joins.matches import MAX_BOUND_US
from statebed.queries.broadcast_joins import is_lookup, lookup_join
from statebed.queries.conditions import JoinConditions, check_collations, conditions_of
from statebed.queries.relation import Relation
from statebed.queries.row_steps import filter_rows
from statebed.queries.table_joins import join_with_table
from statebed.queries.window_edges import time_difference
from statebed.queries.window_joins import WindowedSides
from statebed.queries.windows import WindowSpec
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, PlanNode

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

KINDS = {
    "Cross": "inner",
    "FullOuter": "full",
    "Inner": "inner",
    "LeftAnti": "anti",
    "LeftOuter": "left",
    "LeftSemi": "semi",
    "RightOuter": "right",
}
_ONE_SIDED = frozenset({"semi", "anti"})


def filter_or_join(query: "Translation", node: PlanNode) -> Relation:
    """Keep rows for which a condition holds; over `FROM a, b`, the condition of WHERE is that of the join."""
    below = node.child
    if below.kind == "Join" and not below.fields.get("condition") and _joins_streams(below):
        return join(query, below, where=node.expression("condition"))
    return filter_rows(query, node)


def _joins_streams(node: PlanNode) -> bool:
    return "Inner" in str(node.fields["joinType"]) and all(child.is_streaming for child in node.children)


def join(query: "Translation", node: PlanNode, *, where: Expr | None = None) -> Relation:
    """Join two streams, or a stream with a table. `where` is a condition if the node has none."""
    if not all(child.is_streaming for child in node.children):
        return join_with_table(query, node, _kind(node))
    is_read = query.depth > 0
    left, right = (query.operand(child) for child in node.children)
    how = _kind(node)
    conditions = conditions_of(
        node.optional("condition") if where is None else where,
        left=left.ids,
        right=right.ids,
        times=(left.times | left.times_or_null, right.times | right.times_or_null),
    )
    if is_lookup(left, right):
        if right.is_versioned:
            raise UntranslatableError(
                "FOR SYSTEM_TIME AS OF needs versions of a table, but a broadcast table has only the newest rows",
                "leave FOR SYSTEM_TIME AS OF out, or remove the option 'broadcast' from the table",
            )
        return lookup_join(query, left, right, how, conditions)
    if right.is_versioned:
        return _temporal_join(query, left, right, how, conditions)
    if not conditions.equal and conditions.lower_us is None:
        raise UntranslatableError(
            "the two streams have no equal columns",
            "add an equality to the condition, with more than two streams to that of each join (a JOIN b ON a.k = b.k "
            "JOIN c ON ...): every row of one stream would wait for every row of the other",
        )
    return _Join(query, left, right, how, conditions, is_read).result()


def _temporal_join(
    query: "Translation", left: Relation, right: Relation, how: str, conditions: JoinConditions
) -> Relation:
    """Join each row with the newest version of its key at the row's event time: FOR SYSTEM_TIME AS OF."""
    time_marks = [
        condition for condition in conditions.rest if condition.kind == "IsNotNull" and condition.references <= left.ids
    ]
    if len(time_marks) != 1 or not time_marks[0].references <= left.times:
        raise UntranslatableError(
            "FOR SYSTEM_TIME AS OF takes the event time of the left side",
            "write a JOIN b FOR SYSTEM_TIME AS OF a.ts ON a.key = b.key, where a has WATERMARK FOR ts",
        )
    others = [condition for condition in conditions.rest if condition is not time_marks[0]]
    if how not in {"inner", "left"}:
        raise UntranslatableError(
            f"a temporal join is an inner or left join, not {how}", "write JOIN or LEFT JOIN before FOR SYSTEM_TIME"
        )
    if not conditions.equal:
        raise UntranslatableError("a temporal join needs the key of the versions", "write ON a.key = b.key")
    if others or conditions.lower_us is not None or conditions.upper_us is not None:
        raise UntranslatableError("a temporal join is on equal columns alone", "move other conditions to WHERE")
    return _Join(query, left, right, how, JoinConditions(conditions.equal), is_read=False, as_of=as_of()).result()


def _kind(node: PlanNode) -> str:
    join_type = node.fields["joinType"]
    name = (join_type.get("object") or join_type.get("product-class") or "").rpartition(".")[2].rstrip("$")
    if name not in KINDS:
        raise UntranslatableError(f"a join of the kind {name or join_type}", f"use one of {', '.join(sorted(KINDS))}")
    return KINDS[name]


@dataclass(frozen=True)
class _Join:
    query: "Translation"
    left: Relation
    right: Relation
    how: str
    conditions: JoinConditions
    is_read: bool
    """Whether another stateful step reads the results."""
    as_of: AsOf | None = None
    windowed: WindowedSides | None = None
    """Sides whose rows join within a window that the operator finds; None for other joins."""

    def result(self) -> Relation:
        if self.windowed is None and self.as_of is None:
            windowed = WindowedSides.of(self.query, self.left, self.right, self.how, self.conditions)
            if windowed is not None:
                join = replace(
                    self, left=windowed.left, right=windowed.right, conditions=windowed.conditions, windowed=windowed
                )
                return join.result()
        query, equal = self.query, self.conditions.equal
        check_collations(equal)
        names = [f"join_key_{place}" for place in range(len(equal))]
        window = self._pending_window(names)
        own = self._own_keys()
        added = [(name, *pair) for place, (name, pair) in enumerate(zip(names, equal, strict=True)) if place not in own]
        left = self._side(self.left, {name: a for name, a, _ in added}, window, ())
        keys: list[str | Eq] = [name for name in left.behind.columns if name.startswith("join_key_")]
        avoid = [name for name in left.behind.columns if name not in keys]
        right = self._side(self.right, {name: b for name, _, b in added}, window, avoid)
        for a, b in (equal[place] for place in own):
            keys.append(eq(left.columns[a.id], right.columns[b.id]))
            # A pair has one column of both keys.
            right = replace(right, columns={**right.columns, b.id: left.columns[a.id]})
        columns, windows = {**left.columns, **right.columns}, {**left.windows, **right.windows}
        self._check_one_sided()
        is_by_time = self.as_of is not None or self.windowed is not None
        within = None if is_by_time else self._within(left, right)
        if within is None and not is_by_time:
            self._check_mode(left, right)
        waits = within
        remaining = list(self.conditions.rest)
        if within is None:
            remaining += self.conditions.bounds
        elif self._waits_like_spark:
            waits = self._widened(within)
            remaining += self.conditions.bounds
        if waits is not None:
            waits = _shifted(waits, right.shift_us - left.shift_us)
        writer = ExpressionText(columns, windows, {}, query.job.graph.functions, query.catalyst.session)
        condition = " and ".join(writer.text(remaining_condition) for remaining_condition in remaining) or None
        try:
            stream = left.behind.join(
                right.behind,
                on=keys,
                within=waits,
                as_of=self.as_of,
                window=None if self.windowed is None else self.windowed.window,
                how=self.how,
                condition=condition,
                name=query.operator_name("join"),
            )
        except StatebedError as error:
            raise UntranslatableError(error.what, error.fix) from error
        if self.windowed is not None:
            return self.windowed.described(query, left, right, stream)
        return self._described(left, right, stream, within)

    def _own_keys(self) -> list[int]:
        """Return the equalities of columns that are equal bit for bit in a pair, and need no column of their own."""
        if self.how not in {"inner", "semi"} or self.as_of is not None:
            return []
        places: list[int] = []
        used: set[int] = set()
        for place, (a, b) in enumerate(self.conditions.equal):
            sides = ((a, self.left), (b, self.right))
            is_plain = all(
                key.is_attribute
                and key.id not in {*used, *side.windows, *side.pending, *side.pending_parts, *side.shapes}
                and not isinstance(key.type_json, dict)
                and key.type_json not in {"float", "double"}
                for key, side in sides
            )
            if is_plain:
                places.append(place)
                used |= {a.id, b.id}
        return places

    def _side(self, relation: Relation, keys: Mapping[str, Expr], window: str | None, avoid: Sequence[str]) -> Relation:
        """Return a side with a column for each key; a window that an operator computed has two, on both sides."""
        window_of_rows = window if relation.is_head else None
        if self.windowed is not None:
            return self.windowed.opened(self.query, relation, keys, avoid=avoid)
        side = self.query.materialised(relation, keys, avoid=avoid, window=window_of_rows, is_kept=self._keeps_all)
        bounded = {number for bound in self.conditions.bounds for number in bound.references} & side.times_or_null
        if bounded:
            # As in Spark, rows without an event time match no time range, and wait for a partner for ever.
            present = " and ".join(f"{quoted(side.columns[number])} is not null" for number in sorted(bounded))
            side = replace(side, stream=side.behind.where(present), times=side.times | side.times_or_null)
        if window is None or not relation.is_head or (self.left.is_head and self.right.is_head):
            return side
        kept = [quoted(name) for name in side.behind.columns if name != window]
        ends = (f"{quoted(window)}.start as {quoted(window)}", f"{quoted(window)}.end as {window}_end")
        return replace(side, stream=side.behind.select(*kept, *ends))

    @property
    def _keeps_all(self) -> bool:
        """Whether rows without an event time wait for partners for ever, as in Spark's inner join."""
        bounds = (self.conditions.lower_us, self.conditions.upper_us)
        is_unbounded = bounds == (None, None) and self._difference_of_windows() is None
        return self.query.options.mode is not None and self.how == "inner" and is_unbounded

    def _within(self, left: Relation, right: Relation) -> Interval | None:
        """Return the bounds of the time difference; None for a join that updates its results for ever."""
        lower, upper = self.conditions.lower_us, self.conditions.upper_us
        timed = all(side.behind.is_timed and side.behind.output.changes is Changes.APPEND for side in (left, right))
        if timed and (lower is None or upper is None):
            of_windows = self._difference_of_windows()
            if of_windows is not None:
                lower = min(of_windows[0], of_windows[1] if upper is None else upper) if lower is None else lower
                upper = max(of_windows[1], lower) if upper is None else upper
        if not timed or (lower is None and upper is None and self.how != "inner"):
            return None
        return Interval(-MAX_BOUND_US if lower is None else lower, MAX_BOUND_US if upper is None else upper)

    def _difference_of_windows(self) -> tuple[int, int] | None:
        """Return the bounds of the time difference of rows in equal windows; None if no windows are equal."""
        for a, b in self.conditions.equal:
            if self._is_pending_window(a, b):
                sides = ((a, self.left), (b, self.right))
                if not all(side.is_head or key.id in side.shapes for key, side in sides):
                    return None
                # By Spark's clock, the event time of rows is the end of their window, and that of results, too. By
                # statebed's, rows keep their own.
                follows_spark = self.query.options.follows_spark
                spread = (
                    0 if follows_spark else max(side.pending[key.id].size_us for key, side in sides if side.is_head) - 1
                )
                return -spread, spread
        if any(side.is_head and side.time not in side.names for side in (self.left, self.right)):
            return None  # as in Spark, rows without the column have no event time, and wait for ever
        return time_difference(self.conditions.equal, self.left, self.right)

    def _check_mode(self, left: Relation, right: Relation) -> None:
        """Raise UntranslatableError for an updating join whose results no output mode can express: it emits equal rows
        once, with their number, and retracts rows without a partner when one arrives.
        """
        is_append = all(side.behind.output.changes is Changes.APPEND for side in (left, right))
        if self.query.options.mode == "append" and not (self.how == "inner" and is_append):
            raise UntranslatableError(
                "its results are never final: no time range says how long a row waits for a partner",
                "call withWatermark on both streams and add a range, such as b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 "
                "HOUR; or use job.from_dataframe(df) without a mode, whose results have a weight",
                sql_fix="declare WATERMARK FOR on both tables and add a range, such as b.ts BETWEEN a.ts AND a.ts + "
                "INTERVAL '1' HOUR; or call job.sql without a mode, whose results have a weight",
            )
        if self.query.options.mode is not None and self.how == "inner" and is_append:
            raise UntranslatableError(
                "the streams have no event times on both sides, so that all their rows are kept for ever",
                "call withWatermark on both streams before the join, or use job.from_dataframe(df) without a mode, "
                "whose results have a weight",
                sql_fix="declare WATERMARK FOR on both tables, or call job.sql without a mode, whose results have a "
                "weight",
            )

    @property
    def _waits_like_spark(self) -> bool:
        """Whether it matters when Spark drops a row from its state: then unmatched rows are emitted."""
        return (
            self.query.options.follows_spark
            and bool(self.conditions.bounds)
            and any(bound.kind != "EqualTo" for bound in self.conditions.bounds)
            and (self.how not in {"inner", "semi"} or self.is_read)
        )

    def _widened(self, within: Interval) -> Interval:
        """Return the bounds by which Spark keeps rows: a millisecond longer, unless the bound itself is excluded."""
        lower, upper = within.lower_us, within.upper_us
        strict_lower, strict_upper = self.conditions.is_strict
        if lower > -MAX_BOUND_US:
            lower -= 1 if strict_lower else MILLISECOND_US
        if upper < MAX_BOUND_US:
            upper += 1 if strict_upper else MILLISECOND_US
        return Interval(lower, upper)

    def _check_one_sided(self) -> None:
        """Refuse conditions on the rows of a side that is kept: Spark emits rows that fail them at once."""
        kept = {"left": [self.left], "right": [self.right], "full": [self.left, self.right]}.get(self.how, [])
        for side in kept:
            for condition in self.conditions.rest:
                if condition.references and condition.references <= side.ids and self.query.options.follows_spark:
                    raise UntranslatableError(
                        f"the condition {condition.sql} is about rows of one side alone, which an outer join keeps",
                        "filter the rows before the join and add the others with a union, or use clock='statebed'",
                    )

    def _pending_window(self, names: Sequence[str]) -> str | None:
        """Return the key that is a window of rows, in the head, of one side or both; None if no key is."""
        for name, (a, b) in zip(names, self.conditions.equal, strict=True):
            if self._is_pending_window(a, b):
                return name
        return None

    def _is_pending_window(self, a: Expr, b: Expr) -> bool:
        sides = ((a, self.left), (b, self.right))
        of_rows = [side.is_head and key.is_attribute and key.id in side.pending for key, side in sides]
        computed = [key.is_attribute and key.id in side.windows for key, side in sides]
        return any(of_rows) and all(row or window for row, window in zip(of_rows, computed, strict=True))

    def _described(self, left: Relation, right: Relation, stream: Any, within: Interval | None) -> Relation:
        kept = (left,) if self.how in _ONE_SIDED else (left, right)
        times: frozenset[int] = frozenset()
        # Steps behind the join rely on the event time of windows: their last microsecond.
        shapes: dict[int, WindowSpec] = {}
        has_time_of_left = self.how in _ONE_SIDED or self.as_of is not None
        if has_time_of_left:
            times, shapes = left.times, dict(left.shapes)
        elif within is not None:
            # The event time of a pair is the later one of its rows.
            if within.upper_us <= 0 and self.how in {"inner", "left"}:
                shapes |= left.shapes
                times |= frozenset() if left.shift_us else left.times
            if within.lower_us >= 0 and self.how in {"inner", "right"}:
                shapes |= right.shapes
                times |= frozenset() if right.shift_us else right.times
        return Relation(
            names={number: name for side in kept for number, name in side.names.items()},
            label=left.label,
            stream=stream,
            columns={number: name for side in kept for number, name in side.columns.items()},
            windows={number: window for side in kept for number, window in side.windows.items()},
            shapes=shapes,
            times=times,
            times_or_null=left.times_or_null if has_time_of_left else frozenset(),
            shift_us=left.shift_us if has_time_of_left else 0,
        )


def _shifted(interval: Interval, by_us: int) -> Interval:
    """Return an interval whose bounds, unless they are missing, are later by a number of microseconds."""
    lower, upper = interval.lower_us, interval.upper_us
    return Interval(
        lower if lower == -MAX_BOUND_US else lower + by_us, upper if upper == MAX_BOUND_US else upper + by_us
    )
