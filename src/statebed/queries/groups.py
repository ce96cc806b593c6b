"""Aggregations and deduplication."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statebed.aggregates import functions as ours
from statebed.flow.keys import quoted
from statebed.format.stream_schema import Changes
from statebed.operators import tumbling
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.queries.aggregates import aggregate_of, percentile_shares, percentiles
from statebed.queries.catalyst import Catalyst, outputs
from statebed.queries.relation import NEVER_US, Relation, fresh_name
from statebed.queries.windows import TIME, WindowSpec, part_of_window, time_text
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError, WindowColumns
from statebed.spark.analysed.plan_tree import Expr, Handle, PlanNode, plan_of
from statebed.spark.analysed.types import arrow_type, same_type
from statebed.spark.plan.source_frames import WATERMARK_KEY

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

TOUCHED = "rows_touched"
"""Aggregate that changes whenever a group gets a row, so that update mode emits the group even if its result stays."""
SESSION_KEY = "spark.sessionWindow"
"""Mark of a session window among the metadata of an attribute."""
MADE = WindowColumns(WINDOW_START, WINDOW_END)


@dataclass(frozen=True)
class _Groups:
    """Grouping expressions of an aggregation, by what they become."""

    windows: tuple[Expr, ...]
    """The window that the operator computes, and parts of it."""
    passed: tuple[Expr, ...]
    """Windows that an earlier operator computed."""
    keys: tuple[Expr, ...]


def aggregate(query: "Translation", node: PlanNode) -> Relation:
    """Aggregate by window, by key, or both."""
    return _aggregated(query, node, query.operand(node.child))


def _aggregated(query: "Translation", node: PlanNode, child: Relation) -> Relation:
    groupings, results = node.expressions("groupingExpressions"), node.expressions("aggregateExpressions")
    groups = _groups(query, child, groupings)
    specs = {_spec(child, window) for window in groups.windows}
    if len(specs) > 1:
        raise UntranslatableError("it groups by two windows", "group by one window, then aggregate its results")
    calls = _calls(results)
    _check_inputs(child, calls)
    source = _Source.of(query, child, groups, calls)
    keys, key_columns, made_windows = source.keys(groups)
    taken = [
        WINDOW_START,
        WINDOW_END,
        *key_columns.values(),
        *(n for w in made_windows.values() for n in (w.start, w.end)),
    ]
    names: dict[tuple[object, ...], str] = {}
    aggregates: dict[str, Any] = {}
    lists: dict[str, str] = {}
    for name, call in calls:
        column = fresh_name(name, taken)
        taken.append(column)
        names[call.key] = column
        shares = percentile_shares(call)
        if isinstance(shares, list):
            parts = [fresh_name(f"{column}_{place}", taken) for place in range(len(shares))]
            taken += parts
            aggregates |= dict(zip(parts, percentiles(call, shares, source.value), strict=True))
            quoted_parts = [quoted(part) for part in parts]
            lists[column] = f"if({quoted_parts[0]} is null, null, array({', '.join(quoted_parts)}))"
            continue
        aggregates[column] = aggregate_of(call, source.value, approximate=query.options.approximate)
    if query.options.mode in {"update", "complete"} or not aggregates:
        aggregates[fresh_name(TOUCHED, taken)] = ours.count()
    time_column = fresh_name("window_time", [*taken, *aggregates])
    if any(child.pending_parts.get(window.id, (None, None))[1] == TIME for window in groups.windows):
        lists[time_column] = time_text(WINDOW_END)
    stream = query.extended(_operator(query, source, groups, keys, aggregates), lists)
    _check_types(stream, calls, names)
    relation = _described(
        child, groups, stream, key_columns=key_columns, made_windows=made_windows, time_column=time_column
    )
    time = _time_key(groups.keys) if _is_by_time(query, child, groups) else None
    if time is not None and time.is_attribute:
        # The window of a group ends at its time, and its results have the time just before.
        relation = replace(relation, times_or_null=frozenset({time.id}), shift_us=-1)
    known = {**names, **{key.key: key_columns[key.key] for key in groups.keys if not key.is_attribute}}
    try:
        return _results(query, relation, results, known)
    except UntranslatableError as error:
        if query.depth:
            raise
        computed = [*(key for key in groups.keys if not key.is_attribute), *(call for _, call in calls)]
        passed = [key.handle for key in (*groups.windows, *groups.passed, *groups.keys) if key.is_attribute]
        plan = query.catalyst.project(
            [*passed, *(query.catalyst.alias(part.handle, known[part.key]) for part in computed)], node.child.handle
        )
        columns = {part.key: known[part.key] for part in computed}
        return _results_in_tail(query, relation, results, plan=plan, columns=columns, why=error.why)


def _groups(query: "Translation", child: Relation, groupings: Sequence[Expr]) -> _Groups:
    computes = query.options.mode != "complete"
    windows, passed, keys = [], [], []
    for grouping in groupings:
        if computes and grouping.is_attribute and (grouping.id in child.pending or grouping.id in child.pending_parts):
            windows.append(grouping)
        elif grouping.is_attribute and child.is_session(grouping.id):
            raise UntranslatableError(
                f"it groups by {grouping.name}, a session window, "
                + (
                    "in complete mode"
                    if grouping.id in child.pending or grouping.id in child.pending_parts
                    else "whose sessions Spark merges once more"
                    if grouping.id in child.windows
                    else "over a column that is not the event time of the rows"
                ),
                "declare the column by withWatermark, group by session_window(ts, '5 minutes') directly, and use "
                "outputMode('append')",
                sql_fix="declare WATERMARK FOR the column, group by SESSION(ts, INTERVAL '5' MINUTES) directly, and "
                "use no mode or mode='append'",
            )
        elif not computes and grouping.is_attribute and grouping.id in child.virtual:
            raise UntranslatableError(
                f"it groups by {grouping.name}, a window over results of another operator, in complete mode",
                "use outputMode('append'), in which windows over windows close one after the other",
                sql_fix="use mode='append', in which windows over windows close one after the other",
            )
        elif grouping.references & child.virtual:
            raise UntranslatableError(
                f"it groups by {grouping.value.sql}, which reads a window before its aggregation",
                "group by the window, and by the value of it in another step",
                sql_fix="group by the window in a subquery first: GROUP BY window_start, window_end, ...",
            )
        elif grouping.is_attribute and grouping.handle.metadata().contains(SESSION_KEY):
            raise UntranslatableError(
                f"it groups by {grouping.name}, a session window, in grouping sets",
                "group by session_window(ts, '5 minutes') and plain columns",
                sql_fix="keep the session outside, and use no mode: GROUP BY SESSION(ts, INTERVAL '5' MINUTES), "
                "ROLLUP(k)",
            )
        elif grouping.is_attribute and grouping.id in child.windows:
            passed.append(grouping)
        elif grouping.kind != "Literal":
            keys.append(grouping)
    return _Groups(tuple(windows), tuple(passed), tuple(keys))


def _spec(child: Relation, window: Expr) -> WindowSpec:
    return child.pending[window.id] if window.id in child.pending else child.pending_parts[window.id][0]


def _calls(results: Sequence[Expr]) -> list[tuple[str, Expr]]:
    """Return the distinct aggregate calls of the results, each with a name for its column."""
    calls: dict[tuple[object, ...], tuple[str, Expr]] = {}
    for result in results:
        for part in result.walk():
            if part.kind == "AggregateExpression" and part.key not in calls:
                calls[part.key] = (result.name if result.value is part else "aggregate", part)
    return list(calls.values())


def _check_inputs(child: Relation, calls: Sequence[tuple[str, Expr]]) -> None:
    """Raise UntranslatableError for an aggregate over a window that only an operator can compute."""
    for _, call in calls:
        if call.references & child.virtual:
            raise UntranslatableError(
                f"{call.child.sql} reads a window before its aggregation",
                "select the window itself, which is the same for all rows of a group, or aggregate by it first",
            )


@dataclass(frozen=True)
class _Source:
    """The stream that an aggregation reads, and how its expressions are written."""

    child: Relation
    stream: Any
    columns: dict[tuple[object, ...], str]
    """Columns of the head's source by the key of their expression."""

    @classmethod
    def of(cls, query: "Translation", child: Relation, groups: _Groups, calls: Sequence[tuple[str, Expr]]) -> "_Source":
        if not child.is_head:
            return cls(child, child.behind, {})
        read: dict[tuple[object, ...], tuple[Expr, str]] = {}
        inputs = [argument for _, call in calls for argument in (*call.child.children, *call.children[1:])]
        names: list[str] = []
        for expression in (*groups.keys, *inputs):
            if expression.key not in read and expression.kind != "Literal":
                name = fresh_name(
                    expression.name if expression.is_named else "value", [*names, WINDOW_START, WINDOW_END]
                )
                names.append(name)
                read[expression.key] = (expression.value, name)
        stream, _ = query.opened(child, [(expression, name) for expression, name in read.values()])
        return cls(child, stream, {key: name for key, (_, name) in read.items()})

    def value(self, expression: Expr) -> str:
        """Return an input of the operator as text."""
        if not self.child.is_head:
            return self.child.bound_text(expression)
        if expression.kind == "Literal":
            writer = ExpressionText({}, {}, {}, self.stream.graph.functions, self.stream.job.spark)
            return writer.bound(expression, self.stream.output.columns).text
        return quoted(self.columns[expression.key])

    def keys(self, groups: _Groups) -> tuple[list[str], dict[tuple[object, ...], str], dict[int, WindowColumns]]:
        """Return the keys as text, their columns, and the columns of windows among them."""
        texts: list[str] = []
        columns: dict[tuple[object, ...], str] = {}
        windows: dict[int, WindowColumns] = {}
        taken = [WINDOW_START, WINDOW_END]
        for passed_window in groups.passed:
            old = self.child.windows[passed_window.id]
            new = WindowColumns(*(fresh_name(f"{passed_window.name}_{part}", taken) for part in ("start", "end")))
            taken += [new.start, new.end]
            texts += [f"{quoted(old.start)} as {quoted(new.start)}", f"{quoted(old.end)} as {quoted(new.end)}"]
            windows[passed_window.id] = new
        for key in groups.keys:
            columns[key.key] = fresh_name(key.name if key.is_named else "key", taken)
            taken.append(columns[key.key])
            texts.append(f"{self.value(key)} as {quoted(columns[key.key])}")
        return texts, columns, windows


def _operator(
    query: "Translation", source: "_Source", groups: _Groups, keys: list[str], aggregates: dict[str, Any]
) -> Any:
    child, stream = source.child, source.stream
    spec = _spec(child, groups.windows[0]) if groups.windows else None
    mode = query.options.mode
    if spec is not None:
        _check_partition(child, spec, groups.keys)
        if not child.is_head and spec.attribute not in child.times and spec.attribute not in child.columns:
            raise UntranslatableError(
                "it groups by a window whose time an earlier step has dropped",
                "make the window in this step: keep the time, and groupBy(window(ts, '1 minute'))",
                sql_fix="keep the time in the subquery, and make the window in this step",
            )
        on = None if child.is_head or spec.attribute in child.times else child.columns[spec.attribute]
        emit = "early" if mode == "update" else "close"
        name = query.operator_name("session" if spec.is_session else "window")
        return stream.group_by(*keys, spec.window(on), name=name).agg(emit=emit, **aggregates)
    shape = _tile(query, child, groups)
    if shape is not None:
        # Results of one window have one event time, and no others have it: they close together.
        tile = WindowSpec(0, shape.slide_us, shape.slide_us, (shape.offset_us + shape.size_us) % shape.slide_us)
        return stream.group_by(*keys, tile.window(None), name=query.operator_name("window")).agg(**aggregates)
    time = _time_key(groups.keys) if _is_by_time(query, child, groups) else None
    if time is not None:
        return _by_time(query, source, time, keys, aggregates)
    if mode == "append":
        raise UntranslatableError(
            "it groups by no window over the event time, so its results are never final",
            "use outputMode('update') or 'complete', or group by window(ts, '1 minute') after withWatermark",
            sql_fix="use mode='update' or 'complete', or group by a window over a column with WATERMARK FOR: "
            "TUMBLE(ts, INTERVAL '1' MINUTE)",
        )
    name = query.operator_name("aggregate")
    if query.clock is not None and mode == "update" and not keys:
        query.job.graph.repeating[name] = query.clock
    return stream.key_by(*keys, name=name).agg(**aggregates)


def _tile(query: "Translation", child: Relation, groups: _Groups) -> WindowSpec | None:
    """Return the window of results that are grouped by it again, if they close together."""
    keys = () if query.options.follows_spark else (key for key in groups.keys if key.is_attribute)
    parts = [key for key in keys if _decides(child.shapes.get(key.id))]
    shape = next((child.shapes[window.id] for window in (*groups.passed, *parts) if window.id in child.shapes), None)
    is_append = not child.is_head and child.behind.output.changes is Changes.APPEND
    if shape is None or shape.is_session or not is_append or query.options.mode not in {None, "append"}:
        return None
    return shape


def _decides(shape: WindowSpec | None) -> bool:
    """Return whether a column is a window of results, or a part of it by which the whole window is known."""
    return shape is not None and not (shape.is_cumulative and shape.part == 0)


def _is_by_time(query: "Translation", child: Relation, groups: _Groups) -> bool:
    """Return whether an event time among the keys closes the groups, if there is one."""
    return not groups.windows and _tile(query, child, groups) is None and query.options.mode in {"append", "update"}


def _check_partition(child: Relation, spec: WindowSpec, keys: Sequence[Expr]) -> None:
    """Raise UntranslatableError if the rows of a group do not share the sessions that SESSION has given them."""
    grouped = {child.origins.get(key.id, key.id) if key.is_attribute else None for key in keys}
    if spec.partition is not None and grouped != spec.partition:
        raise UntranslatableError(
            "SESSION gives rows the sessions of its PARTITION BY, but GROUP BY has other columns",
            "name the same columns in both: TABLE(SESSION(TABLE bids PARTITION BY auction, DESCRIPTOR(ts), "
            "INTERVAL '5' MINUTES)) GROUP BY auction, window_start, window_end",
        )


def _time_key(keys: Sequence[Expr]) -> Expr | None:
    """Return the key that Spark takes for the event time of a group: it drops late rows and closes groups by it."""
    marked = [key for key in keys if key.value.is_attribute and key.value.handle.metadata().contains(WATERMARK_KEY)]
    if len({key.key for key in marked}) > 1:
        raise UntranslatableError(
            f"it groups by two event times, {marked[0].name} and {marked[1].name}", "group by one of them"
        )
    return marked[0] if marked else None


def _by_time(query: "Translation", source: "_Source", time: Expr, keys: list[str], aggregates: dict[str, Any]) -> Any:
    """Aggregate by a key that is the event time, or a window over it whose end counts, as in rollup and cube.

    The operator's window is the microsecond that ends at that time: like Spark, it closes when the watermark reaches
    the time. A group without a time, such as the total of a rollup, is never late and never closes.
    """
    ends = source.value(time) + (".end" if isinstance(time.value.type_json, dict) else "")
    on = fresh_name("known_time", source.stream.columns)
    text = f"coalesce({ends}, timestamp_micros({NEVER_US}L)) - interval 1 microsecond"
    stream = query.extended(source.stream, {on: text})
    emit = "early" if query.options.mode == "update" else "close"
    window = tumbling("1 microsecond", on=on)
    return stream.group_by(*keys, window, name=query.operator_name("window")).agg(emit=emit, **aggregates)


def _check_types(stream: Any, calls: Sequence[tuple[str, Expr]], names: dict[tuple[object, ...], str]) -> None:
    for _, call in calls:
        field, wanted = stream.output.columns.field(names[call.key]), arrow_type(call.type_json)
        if not same_type(field.type, wanted):
            is_average = call.child.kind == "Average"
            raise UntranslatableError(
                f"{call.sql} has the type {field.type} here, but {wanted} in Spark",
                "cast its argument to a decimal of at most 34 digits, such as decimal(34,10)" if is_average else "",
            )


def _described(
    child: Relation,
    groups: _Groups,
    stream: Any,
    *,
    key_columns: dict[tuple[object, ...], str],
    made_windows: dict[int, WindowColumns],
    time_column: str,
) -> Relation:
    """Return what the operator gives, before expressions over its results. `time_column` is the time of the window."""
    columns = {key.id: key_columns[key.key] for key in groups.keys if key.is_attribute}
    shapes = {
        passed_window.id: child.shapes[passed_window.id]
        for passed_window in groups.passed
        if passed_window.id in child.shapes
    }
    windows = dict(made_windows)
    for window in groups.windows:
        part = None
        if window.id in child.pending:
            windows[window.id] = MADE
        else:
            part = child.pending_parts[window.id][1]
            columns[window.id] = (WINDOW_START, WINDOW_END, time_column)[part]
        shapes[window.id] = replace(_spec(child, window), part=part)
    times = frozenset(number for number, shape in shapes.items() if shape.part == TIME)
    return Relation({}, label=child.label, stream=stream, columns=columns, windows=windows, shapes=shapes, times=times)


def _results(
    query: "Translation", relation: Relation, results: Sequence[Expr], known: dict[tuple[object, ...], str]
) -> Relation:
    """Compute expressions over aggregates and keys."""
    columns, windows, shapes = dict(relation.columns), dict(relation.windows), dict(relation.shapes)
    known_by_id: list[dict[int, Any]] = [columns, windows, shapes]
    times, times_or_null = set(relation.times), set(relation.times_or_null)
    writer = ExpressionText(
        relation.columns, relation.windows, known, query.job.graph.functions, query.catalyst.session
    )
    texts: dict[str, str] = {}
    schema = relation.behind.output.columns
    for result in results:
        inner = result.value
        if inner.is_attribute and (inner.id in relation.columns or inner.id in relation.windows):
            for there in known_by_id:
                if inner.id in there:
                    there[result.id] = there[inner.id]
            times |= {result.id} if inner.id in times else set()
            times_or_null |= {result.id} if inner.id in times_or_null else set()
            continue
        if inner.key in known:
            columns[result.id] = known[inner.key]
            continue
        name = fresh_name(result.name, [*relation.behind.columns, *texts])
        texts[name] = writer.bound(inner, schema).text
        columns[result.id] = name
        part = part_of_window(inner, relation.shapes)
        if part is not None:
            shapes[result.id] = part
            times |= {result.id} if part.part == TIME else set()
    return replace(
        relation,
        names={expression.id: expression.name for expression in results},
        stream=query.extended(relation.behind, texts),
        columns=columns,
        windows=windows,
        shapes=shapes,
        times=frozenset(times),
        times_or_null=frozenset(times_or_null),
    )


def _results_in_tail(
    query: "Translation",
    relation: Relation,
    results: Sequence[Expr],
    *,
    plan: Handle,
    columns: dict[tuple[object, ...], str],
    why: str,
) -> Relation:
    """Leave expressions over the results to Spark. `plan` has the keys of the operator, then its computed `columns`."""
    there = outputs(plan)
    ids = dict(zip(columns, list(there)[len(there) - len(columns) :], strict=True))
    attributes = {key: there[number] for key, number in ids.items()}
    projected = [
        _replaced(query.catalyst, result.child, attributes, within=result) if result.kind == "Alias" else result.handle
        for result in results
    ]
    known = {number: columns[key] for key, number in ids.items()}
    below = replace(relation, names=dict(there.names), columns={**relation.columns, **known})
    return query.in_tail(plan_of(query.catalyst.project(projected, plan)), below, why)


def _replaced(
    catalyst: Catalyst, part: Expr, attributes: Mapping[tuple[object, ...], Handle], *, within: Expr | None = None
) -> Handle:
    """Return an expression in which attributes stand for the parts that an operator computes."""
    if part.key in attributes:
        handle = attributes[part.key]
    else:
        children = [_replaced(catalyst, child, attributes) for child in part.children]
        is_same = all(new is child.handle for new, child in zip(children, part.children, strict=True))
        handle = part.handle if is_same else catalyst.with_children(part.handle, children)
    return handle if within is None else catalyst.with_children(within.handle, [handle])


# ---- deduplication ---------------------------------------------------------------------------------------------------


def distinct(query: "Translation", node: PlanNode) -> Relation:
    """Keep one of equal rows, at once.

    In an output mode, group by all columns as Spark does, which emits later; so does one over a changelog, whose
    retractions may take away all rows that are equal.
    """
    child = query.operand(node.child)
    is_grouped = query.options.mode is not None and query.options.follows_spark
    if is_grouped or _is_changelog(child):
        return _aggregated(query, plan_of(query.catalyst.distinct(node.child.handle)), child)
    return _deduplicated(query, child, list(child.names), None)


def deduplicate(query: "Translation", node: PlanNode) -> Relation:
    """Keep one row of each key, for ever, or until the watermark passes the event time if that is a key."""
    child = query.operand(node.child)
    keys = [key.id for key in node.expressions("keys")]
    if set(keys) == set(child.names) and _is_changelog(child):
        return _aggregated(query, plan_of(query.catalyst.distinct(node.child.handle)), child)
    if child.is_head and query.options.follows_spark and frozenset(keys) in query.untimed:
        child = replace(child, time=None, times=frozenset(), pending={})
    return _deduplicated(query, child, keys, None)


def _is_changelog(child: Relation) -> bool:
    return not child.is_head and child.behind.output.changes is Changes.CHANGELOG


def deduplicate_within_watermark(query: "Translation", node: PlanNode) -> Relation:
    """Keep one row of each key until the watermark passes its event time plus the delay."""
    child = query.operand(node.child)
    delays = [field["metadata"].get(WATERMARK_KEY) for field in node.child.schema_json["fields"]]
    known = [int(delay) for delay in delays if delay is not None]
    if not known:
        raise UntranslatableError("the rows have no watermark", "call withWatermark('ts', '10 minutes') before it")
    return _deduplicated(query, child, [key.id for key in node.expressions("keys")], max(known[0] * 1_000, 1))


def _deduplicated(query: "Translation", child: Relation, keys: Sequence[int], span_us: int | None) -> Relation:
    time = _time_of_rows(child)
    if span_us is None and (set(keys) & (child.times | child.times_or_null) or time in keys):
        # By statebed's clock, a row is as old as its own time, and another one of its window may follow.
        by_window = time in child.pending and not query.options.follows_spark
        span_us = child.pending[time].size_us if by_window else 1  # type: ignore[index]  # it is in the mapping
    if span_us is None and not query.options.follows_spark and not child.is_head and child.behind.is_timed:
        # Results of one window have one event time.
        span_us = 1 if any(_decides(child.shapes.get(key)) for key in keys) else None
    relation = query.materialised(child, window=time if time in child.pending else None)
    names = []
    for key in keys:
        window = relation.windows.get(key)
        names += [relation.columns[key]] if window is None else [window.start, window.end]
    ttl = None if span_us is None else f"{span_us} microseconds"
    stream, on = relation.behind, None
    if time is not None and query.options.follows_spark:
        # As in Spark, rows without an event time are never late and never expire.
        on = fresh_name("known_time", stream.columns)
        event_time = quoted(relation.columns[time]) + (".end" if time in child.pending else "")
        stream = query.extended(stream, {on: f"coalesce({event_time}, timestamp_micros({NEVER_US}L))"})
    name = query.operator_name("deduplicate")
    if query.clock is not None and query.options.mode in {"update", "complete"}:
        query.job.graph.repeating[name] = query.clock
    deduplicated = stream.key_by(*map(quoted, names), name=name).deduplicate(keep="first", ttl=ttl, on=on)
    if on is None:
        return replace(relation, stream=deduplicated)
    return replace(
        relation, stream=deduplicated, times=frozenset(), times_or_null=relation.times | relation.times_or_null
    )


def _time_of_rows(child: Relation) -> int | None:
    """Return the attribute that tells Spark which rows of the head are late: the event time, or else a window over it,
    whose end counts.
    """
    if not child.is_head:
        return None
    if child.time in child.names:
        return child.time
    return next((number for number in child.names if number in child.pending), None)
