"""Steps without state: watermarks, selections, filters, unions, names of sub-queries."""

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from statebed.errors import StatebedError
from statebed.flow.keys import quoted
from statebed.queries.catalyst import outputs
from statebed.queries.refusals import refusal
from statebed.queries.relation import BroadcastRows, Relation, distinct_names, fresh_name, renamed_ids
from statebed.queries.row_numbers import first_rows
from statebed.queries.windows import TIME, WindowSpec, part_of_window, window_of, window_time_of
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.analysed.optimised import watermark_key
from statebed.spark.analysed.plan_tree import Expr, PlanNode
from statebed.sql.query_rewriter import AS_OF
from statebed.sql.window_functions import CUMULATE, SESSION

if TYPE_CHECKING:
    from statebed.queries.translation import Translation


def watermark(query: "Translation", node: PlanNode) -> Relation:
    """Mark the event time of rows in the head; conditions that Spark's optimiser pushes below it come along."""
    child = query.visit(node.child)
    if not child.is_head:
        raise UntranslatableError(
            "a watermark is declared after a stateful step",
            "declare it before the first stateful step; results of windows have the event time window_time(window)",
        )
    if child.time is not None:
        raise UntranslatableError(
            "its rows have a watermark already",
            "call withWatermark once for each stream",
            sql_fix="declare one WATERMARK FOR a column of each table",
        )
    event_time = node.expression("eventTime")
    if event_time.type_json != "timestamp":
        raise UntranslatableError(
            f"the event time {event_time.name} is a window",
            "call withWatermark on the time column before window(...)",
        )
    plan = child.plan
    conditions = query.pushed.get(watermark_key(node), ())
    if conditions:
        there = outputs(plan)
        for condition in conditions:
            if condition.references <= set(there):
                plan = query.catalyst.filter(condition.handle, plan)
    head = query.head_of(node, [replace(child, plan=plan)])
    return replace(head, time=event_time.id, times=frozenset({event_time.id}))


def named(query: "Translation", node: PlanNode) -> Relation:
    """Take the name of a sub-query or a view for a source of its rows."""
    label = str(node.fields["identifier"]["name"])
    child = passed(query, node)
    if label == AS_OF:
        return replace(child, is_versioned=True)
    return child if label.startswith("__") or not label.isidentifier() else replace(child, label=label)


def passed(query: "Translation", node: PlanNode) -> Relation:
    """Return the same rows under the same ids."""
    return query.visit(node.child)


def with_cte(query: "Translation", node: PlanNode) -> Relation:
    """Remember the sub-queries of a WITH clause, which are the node's first children."""
    *definitions, body = node.children
    for definition in definitions:
        query.ctes[int(definition.fields["id"])] = definition.child
    return query.visit(body)


def cte_reference(query: "Translation", node: PlanNode) -> Relation:
    """Return the rows of a sub-query of a WITH clause, under the ids of the reference."""
    definition = query.ctes[int(node.fields["cteId"])]
    inner = query.visit(definition)
    attributes = node.expressions("output")
    is_repeated = len(attributes) > len(inner.names)  # `select *, k` has a column twice
    numbers = outputs(definition.handle).ids if is_repeated else list(inner.names)
    columns = list(zip(numbers, attributes, strict=True))
    ids = {old: attribute.id for old, attribute in reversed(columns)}
    copies = {attribute.id: ids[old] for old, attribute in columns if attribute.id != ids[old]}
    names = {attribute.id: attribute.name for attribute in attributes}
    if inner.is_head:
        there = outputs(inner.plan)
        kept = [
            query.catalyst.alias(there[old], attribute.name, like=attribute.handle, plain=False)
            for old, attribute in columns
            if old in there
        ]
        time = ids.get(inner.time) if inner.time is not None else None
        if inner.time is not None and time is None:
            kept.append(there[inner.time])
            time = inner.time
        inner = replace(inner, plan=query.catalyst.project(kept, inner.plan), time=time)
    return renamed_ids(inner, ids, names, copies)


# ---- selections ------------------------------------------------------------------------------------------------------


def project(query: "Translation", node: PlanNode) -> Relation:
    """Select columns: in the head as Spark's plan, else as text, else in the tail."""
    child = query.visit(node.child)
    expressions = node.expressions("projectList")
    if child.tail:
        return query.in_tail(node, child, "it follows another step of Spark's")
    if child.is_head:
        return _project_head(query, node, child, expressions)
    try:
        return _project_behind(query, child, expressions)
    except UntranslatableError as error:
        if child.rankings or child.virtual:
            raise
        return query.in_tail(node, child, error.why)


def _names(expressions: Sequence[Expr]) -> dict[int, str]:
    return {expression.id: expression.name for expression in expressions}


def _pending_of(query: "Translation", child: Relation, expressions: Sequence[Expr]) -> Relation:
    """Return the relation with the windows that a selection defines or renames."""
    pending, parts, times = dict(child.pending), dict(child.pending_parts), set(child.times)
    virtual, sessions, times_or_null = set(child.virtual), set(child.sessions), set(child.times_or_null)
    origins = dict(child.origins)
    for expression in expressions:
        inner = expression.value
        if inner.is_attribute:
            sessions |= {expression.id} if inner.id in child.sessions else set()
            if expression.name.startswith((CUMULATE, SESSION)):
                _check_event_times({inner.id}, child.pending)
            if inner.id in child.pending:
                pending[expression.id] = _of_function(child.pending[inner.id], expression.name, child)
            if inner.id != expression.id:
                origins[expression.id] = child.origins.get(inner.id, inner.id)
            if inner.id in child.pending_parts:
                parts[expression.id] = child.pending_parts[inner.id]
            times |= {expression.id} if inner.id in child.times else set()
            times_or_null |= {expression.id} if inner.id in child.times_or_null else set()
            is_computed = expression.name.startswith((CUMULATE, SESSION))
            virtual |= {expression.id} if inner.id in child.virtual or is_computed else set()
            continue
        part = _part_of(inner, child)
        spec = None if part is not None else window_of(inner)
        if part is not None:
            parts[expression.id] = part
            virtual |= {expression.id} if inner.references & child.virtual else set()
        elif spec is not None:
            sessions |= {expression.id} if spec.is_session else set()
            if _is_time(spec, child):
                pending[expression.id] = spec
    return replace(
        child,
        pending=pending,
        pending_parts=parts,
        times=frozenset(times),
        times_or_null=frozenset(times_or_null),
        virtual=frozenset(virtual | _sessions_of_operators(query, sessions & set(_names(expressions)), pending)),
        sessions=frozenset(sessions),
        origins=origins,
    )


def _sessions_of_operators(query: "Translation", sessions: set[int], pending: Collection[int]) -> set[int]:
    """Return the session windows that no plan computes: all of SQL text, where a row alone has no session."""
    if query.has_sessions_of_rows:
        return set()
    _check_event_times(sessions, pending)
    return sessions


def _of_function(spec: WindowSpec, name: str, child: Relation) -> WindowSpec:
    """Return the window of a column, whose name has the step of CUMULATE and the partition of SESSION."""
    if name.startswith(CUMULATE):
        return spec.cumulative(int(name.removeprefix(CUMULATE)))
    if not name.startswith(SESSION):
        return spec
    partition = [str(column).lower() for column in json.loads(name.removeprefix(SESSION))]
    known = {label.lower(): number for number, label in child.names.items()}
    missing = [column for column in partition if column not in known]
    if missing:
        columns = [label for number, label in child.names.items() if number not in child.pending]
        raise UntranslatableError(
            f"there is no column {missing[0]}, by which SESSION partitions the rows",
            f"the columns are {', '.join(columns)}",
        )
    return spec.partitioned(frozenset(child.origins.get(known[column], known[column]) for column in partition))


def _check_event_times(windows: Collection[int], pending: Collection[int]) -> None:
    """Raise UntranslatableError for windows that only an operator can compute, but not over the event time."""
    if not set(windows) <= set(pending):
        raise UntranslatableError(
            "SESSION and CUMULATE are windows over the event time of the rows",
            "name the column that has the watermark: WATERMARK FOR ts AS ts - INTERVAL '5 seconds'",
        )


def _is_time(spec: WindowSpec, child: Relation) -> bool:
    """Return whether an operator can compute a window: over the event time, or behind an operator over any column."""
    return spec.attribute in child.times or (not child.is_head and spec.attribute in child.columns)


def _part_of(e: Expr, child: Relation) -> tuple[WindowSpec, int] | None:
    window = window_time_of(e)
    if window is not None and window in child.pending:
        return child.pending[window], TIME
    if e.kind != "GetStructField" or not e.child.is_attribute or e.child.id not in child.pending:
        return None
    return child.pending[e.child.id], int(e.fields["ordinal"])


def _project_head(query: "Translation", node: PlanNode, child: Relation, expressions: Sequence[Expr]) -> Relation:
    projected = _pending_of(query, child, expressions)
    names = _names(expressions)
    virtual = projected.virtual & frozenset(names)
    rankings = {
        expression.id: child.rankings[expression.value.id]
        for expression in expressions
        if expression.value.is_attribute and expression.value.id in child.rankings
    }
    if any(
        expression.id not in rankings and expression.references & frozenset(child.rankings)
        for expression in expressions
    ):
        raise UntranslatableError("a row number is used before it is bounded", "keep some rows first: where rn <= 3")
    wrong = [
        expression
        for expression in expressions
        if expression.id not in virtual and expression.references & child.virtual
    ]
    if wrong:
        raise UntranslatableError(
            f"{_shown(wrong[0])}: a window is used before its aggregation",
            "aggregate by the window first: groupBy(window, ...).agg(...)",
            sql_fix="group by the window in a subquery first: GROUP BY window_start, window_end, ...",
        )
    renamed = [
        expression.id
        for expression in expressions
        if child.time is not None and expression.value.is_attribute and expression.value.id == child.time
    ]
    time = child.time if child.time in names or not renamed else renamed[0]
    loses_time = time is not None and time not in names
    if not virtual and not rankings and not loses_time and child.plan is node.child.handle:
        plan = node.handle
    else:
        kept = [
            expression.handle
            for expression in expressions
            if expression.id not in virtual and expression.id not in rankings
        ]
        needed = {number for ranking in rankings.values() for number in ranking.references}
        if loses_time and time is not None:
            needed.add(time)
        there = outputs(child.plan) if needed else {}
        kept += [there[number] for number in sorted(needed - set(names)) if number in there]
        plan = query.catalyst.project(kept, child.plan)
    seen = frozenset(names) | {number for ranking in rankings.values() for number in ranking.references}
    return replace(
        projected,
        broadcast=_renamed_broadcast(child, expressions),
        names=names,
        plan=plan,
        time=time,
        times=projected.times & seen,
        virtual=virtual,
        rankings=rankings,
        pending={number: spec for number, spec in projected.pending.items() if number in seen},
        pending_parts={number: part for number, part in projected.pending_parts.items() if number in seen},
    )


def _shown(expression: Expr) -> str:
    return "window_time" if window_time_of(expression.value) is not None else expression.sql


def _renamed_broadcast(child: Relation, expressions: Sequence[Expr]) -> BroadcastRows | None:
    """Return the broadcast table with the columns that a selection renames."""
    if child.broadcast is None:
        return None
    known = child.broadcast.columns
    plain = [entry for entry in expressions if entry.value.is_attribute and entry.value.id in known]
    renamed = {entry.id: known[entry.value.id] for entry in plain}
    return replace(child.broadcast, columns={**known, **renamed})


def _project_behind(query: "Translation", child: Relation, expressions: Sequence[Expr]) -> Relation:
    projected = _pending_of(query, child, expressions)
    columns, windows, shapes, rankings = (
        dict(child.columns),
        dict(child.windows),
        dict(child.shapes),
        dict(child.rankings),
    )
    known_by_id: list[dict[int, Any]] = [columns, windows, shapes, rankings]
    times, virtual, values = set(projected.times), set(projected.virtual), set[int]()
    texts: dict[str, str] = {}
    for expression in expressions:
        inner = expression.value
        if inner.is_attribute:
            for known in known_by_id:
                if inner.id in known:
                    known[expression.id] = known[inner.id]
            continue
        spec = projected.pending.get(expression.id)
        if spec is not None and query.options.mode == "complete" and spec.is_tumbling:
            # No window closes in complete mode, so a window is a value like any other.
            name = fresh_name(expression.name, [*child.behind.columns, *texts])
            texts[name] = spec.text(quoted(child.columns[spec.attribute]))
            columns[expression.id] = name
            values.add(expression.id)
            continue
        if spec is not None or expression.id in projected.pending_parts:
            virtual.add(expression.id)
            continue
        if inner.references & (child.virtual | frozenset(child.rankings)):
            raise UntranslatableError(
                f"{_shown(expression)}: a window or a row number is used before its operator",
                "aggregate by the window first, or keep some of the rows: where('rn <= 3')",
                sql_fix="group by the window in a subquery first: GROUP BY window_start, window_end, ...; or keep some "
                "of the rows: WHERE rn <= 3",
            )
        name = fresh_name(expression.name, [*child.behind.columns, *texts])
        texts[name] = child.bound_text(inner)
        columns[expression.id] = name
        part = part_of_window(inner, child.shapes)
        if part is not None:
            shapes[expression.id] = part
            times |= {expression.id} if part.part == TIME else set()
    return replace(
        projected,
        names=_names(expressions),
        pending={number: spec for number, spec in projected.pending.items() if number not in values},
        stream=query.extended(child.behind, texts),
        columns=columns,
        windows=windows,
        shapes=shapes,
        times=frozenset(times),
        virtual=frozenset(virtual),
        rankings=rankings,
    )


def filter_rows(query: "Translation", node: PlanNode) -> Relation:  # noqa: PLR0911 - one return per zone
    """Keep rows for which a condition holds."""
    child = query.visit(node.child)
    if child.tail:
        return query.in_tail(node, child, "it follows another step of Spark's")
    condition = node.expression("condition")
    used = condition.references
    if used & frozenset(child.rankings):
        return first_rows(query, child, condition)
    if used & child.virtual:
        if node.child.kind == "Expand":
            return child  # Spark's own filter of the windows that contain a row, which the operator finds itself
        raise UntranslatableError(
            f"{condition.sql}: a window is used before its aggregation",
            "filter the results: HAVING, or where() after agg()",
            sql_fix="filter the groups: HAVING window_start >= ...",
        )
    _check_partition(child, condition)
    if child.is_head:
        return replace(query.head_of(node, [child]), virtual=child.virtual)
    if child.virtual and condition.kind == "IsNotNull" and used <= {spec.attribute for spec in child.pending.values()}:
        return replace(child, stream=child.behind.where(child.bound_text(condition)))
    try:
        text = child.bound_text(condition)
    except UntranslatableError as error:
        if child.virtual or child.rankings:
            raise
        return query.in_tail(node, child, error.why)
    return replace(child, stream=child.behind.where(text))


def _check_partition(child: Relation, condition: Expr) -> None:
    """Raise UntranslatableError for a condition after SESSION that would remove some rows of a session."""
    specs = [*child.pending.values(), *(spec for spec, _ in child.pending_parts.values())]
    partitions = [spec.partition for spec in specs if spec.partition is not None]
    columns = {child.origins.get(number, number) for number in condition.references}
    if any(not columns <= partition for partition in partitions):
        raise UntranslatableError(
            f"{condition.sql}: SESSION has found the sessions of all rows, and the condition removes some of them",
            "filter the rows before: TABLE(SESSION(TABLE (SELECT * FROM bids WHERE price > 3) PARTITION BY auction, "
            "DESCRIPTOR(ts), INTERVAL '5' MINUTES))",
        )


def generate(query: "Translation", node: PlanNode) -> Relation:
    """Make a row of each element of a list or map: in the head as Spark's plan, else on Arrow, else in the tail."""
    child = query.visit(node.child)
    if child.tail:
        return query.in_tail(node, child, "it follows another step of Spark's")
    child.check_ready("it")
    if child.is_head:
        return query.head_of(node, [child])
    try:
        return _exploded(query, node, child)
    except UntranslatableError as error:
        return query.in_tail(node, child, error.why)


def _exploded(query: "Translation", node: PlanNode, child: Relation) -> Relation:
    generator, attributes = node.expression("generator"), node.expressions("generatorOutput")
    if generator.kind not in {"Explode", "PosExplode", "Inline"}:
        raise UntranslatableError(f"{generator.sql} is not available between operators")
    names: list[str] = []
    for attribute in attributes:
        names.append(fresh_name(attribute.name, [*child.behind.columns, *names]))
    has_position = generator.kind == "PosExplode"
    try:
        stream = child.behind.explode(
            child.bound_text(generator.child),
            *(names[1:] if has_position else names),
            outer=bool(node.fields["outer"]),
            position=names[0] if has_position else None,
            inline=generator.kind == "Inline",
        )
    except StatebedError as error:
        raise UntranslatableError(error.what, error.fix) from error
    added = {attribute.id: name for attribute, name in zip(attributes, names, strict=True)}
    return replace(child, names=query.names_of(node), stream=stream, columns={**child.columns, **added})


def union(query: "Translation", node: PlanNode) -> Relation:
    """Combine the rows of several streams."""
    if not all(child.is_streaming for child in node.children):
        raise UntranslatableError(
            "one of its inputs is a table that is read once, and the other a stream",
            "read the table as a stream, with spark.readStream, or write its rows to the sink before the first start",
            sql_fix="declare a table whose connector reads a stream, or write its rows to the sink before the first "
            "start",
        )
    children = [query.visit(child) for child in node.children]
    if all(child.is_head for child in children):
        for child in children:
            child.check_ready("a union")
        return _head_union(query, node, children)
    for child, branch in zip(children, node.children, strict=True):
        if child.tail:
            raise refusal(branch, "it would run in Spark after an operator, before a union", "select after the union")
    parts = [query.materialised(child) for child in children]
    if len({part.shift_us for part in parts}) > 1:
        parts = [replace(part, times=frozenset(), times_or_null=frozenset(), shift_us=0) for part in parts]
    names = distinct_names(list(parts[0].names.values()))
    streams = [query.selected(part, zip(part.names, names, strict=True)) for part in parts]
    ids = list(parts[0].names)
    places = [list(part.names) for part in parts]
    times, times_or_null = (
        frozenset(
            number
            for at, number in enumerate(ids)
            if all(place[at] in known for place, known in zip(places, of_parts, strict=True))
        )
        for of_parts in ([part.times for part in parts], [part.times | part.times_or_null for part in parts])
    )
    return Relation(
        names=dict(zip(ids, names, strict=True)),
        stream=streams[0].union(*streams[1:]),
        columns=dict(zip(ids, names, strict=True)),
        times=times,
        times_or_null=times_or_null - times,
        shift_us=parts[0].shift_us,
    )


def _head_union(query: "Translation", node: PlanNode, children: Sequence[Relation]) -> Relation:
    """Keep a union of Spark's; the event time is that of the first stream in Spark, and otherwise one that all streams
    have at the same place.
    """
    trimmed = []
    for child in children:
        there = outputs(child.plan)
        plan = child.plan
        if list(there) != list(child.names):
            plan = query.catalyst.project([there[number] for number in child.names], plan)
        trimmed.append(replace(child, plan=plan))
    places = [
        {at for at, number in enumerate(child.names) if number in child.times or number == child.time}
        for child in trimmed
    ]
    shared = places[0] if query.options.follows_spark else set.intersection(*places)
    united = query.head_of(node, trimmed)
    ids = list(united.names)
    timed = [ids[at] for at in sorted(shared)]
    return replace(
        united,
        time=timed[0] if timed else None,
        times=frozenset(timed),
        pending={},
        pending_parts={},
    )
