"""Expand nodes of analysed plans: the rows of sliding windows, and those of rollup, cube and grouping sets."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from statebed.flow.keys import quoted
from statebed.format.stream_schema import Changes
from statebed.queries.catalyst import outputs
from statebed.queries.relation import Relation, distinct_names
from statebed.queries.windows import END, START, TIME, WindowSpec, time_text, window_of
from statebed.spark.analysed.expression_text import UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, PlanNode

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

_BETWEEN = frozenset({"Filter", "Project"})
"""Nodes between the rows of a sliding window and those of the grouping sets above them."""


def expand(query: "Translation", node: PlanNode) -> Relation:
    """Take a sliding window from Spark's rows per window; rollup and cube stay Spark's, unless behind an operator."""
    child = query.visit(node.child)
    attributes = node.expressions("output")
    first = node.nested_expression("projections", 0, 0)
    spec = None if first is None else window_of(first)
    if spec is not None and _is_left_to_operator(query, child, spec, attributes[0].id):
        return replace(
            child,
            names={attribute.id: attribute.name for attribute in attributes},
            pending={**child.pending, attributes[0].id: spec},
            virtual=child.virtual | {attributes[0].id},
        )
    if child.is_head and query.options.mode is not None:
        _check_ready(query, child)
        return query.head_of(node, [child])
    sets = _rows_of_sets(node)
    shared = _shared_windows(child, attributes, sets) if query.options.mode is None else {}
    if child.is_head:
        _check_windows(query, child, attributes, sets, shared)
        return _in_head(query, child, node, shared)
    return _behind_operator(child, attributes, sets, shared)


def _is_left_to_operator(query: "Translation", child: Relation, spec: WindowSpec, window: int) -> bool:
    """Return whether an operator finds the windows of a row, instead of the visited Expand of a sliding window."""
    is_time = spec.attribute in child.times or (not child.is_head and spec.attribute in child.columns)
    if not is_time or query.options.mode == "complete":
        return False
    between = list(takewhile(lambda node: node.kind in _BETWEEN, reversed(query.visited[:-1])))
    above = query.visited[-2 - len(between)] if len(between) + 2 <= len(query.visited) else None
    if above is None or above.kind != "Expand":
        return True
    return query.options.mode is None and _is_in_every_set(between, above, spec, window)


def _is_in_every_set(between: Sequence[PlanNode], above: PlanNode, spec: WindowSpec, window: int) -> bool:
    """Return whether all grouping sets have a window, and rows still have their time after the nodes in between."""
    windows = {window}
    for node in between:
        if node.kind != "Project":
            continue
        selected = node.expressions("projectList")
        if spec.attribute not in {expression.id for expression in selected}:
            return False
        windows |= {expression.id for expression in selected if _is_from(expression.value, windows)}
    origins = _shared_origins(above.expressions("output"), _rows_of_sets(above))
    return any(number != origin and origin in windows for number, origin in origins.items())


def _is_from(value: Expr, windows: set[int]) -> bool:
    """Return whether a value is one of the windows, or its start or end."""
    window = value.child if value.kind == "GetStructField" else value
    return window.is_attribute and window.id in windows


def _rows_of_sets(node: PlanNode) -> list[list[Expr]]:
    """Return the values of each of the rows that an Expand makes of a row."""
    places = range(len(node.expressions("output")))
    rows = []
    for row in range(node.handle.projections().size()):
        values = (node.nested_expression("projections", row, place) for place in places)
        rows.append([value for value in values if value is not None])
    return rows


def _shared_origins(attributes: Sequence[Expr], sets: Sequence[Sequence[Expr]]) -> dict[int, int]:
    """Return the attributes that are the same one in all grouping sets, with that one."""
    origins = {}
    for attribute, *values in zip(attributes, *sets, strict=True):
        ids = {value.id if value.is_attribute else None for value in values}
        origin = ids.pop()
        if origin is not None and not ids:
            origins[attribute.id] = origin
    return origins


def _shared_windows(child: Relation, attributes: Sequence[Expr], sets: Sequence[Sequence[Expr]]) -> dict[int, int]:
    """Return the keys that are a window, or a part of one, in all grouping sets, with the attribute of the window.

    An operator can close these, if the rows still have the time. Output modes of Spark close them by the event time of
    the window itself, as Spark does.
    """
    origins = _shared_origins(attributes, sets)
    if not child.is_head and child.behind.output.changes is Changes.CHANGELOG:
        return {}
    specs = {number: spec for number, spec in _specs(child).items() if spec.attribute in child.ids}
    return {number: old for number, old in origins.items() if number not in child.ids and old in specs}


def _specs(child: Relation) -> dict[int, WindowSpec]:
    return {**child.pending, **{number: spec for number, (spec, _) in child.pending_parts.items()}}


def _check_windows(
    query: "Translation",
    child: Relation,
    attributes: Sequence[Expr],
    sets: Sequence[Sequence[Expr]],
    shared: Mapping[int, int],
) -> None:
    """Raise UntranslatableError if grouping sets need a window that no plan computes, as one that some sets lack."""
    specs = _specs(child)
    closed = {specs[origin] for origin in shared.values()}
    missing = child.virtual & child.ids
    keys = [place for place, attribute in enumerate(attributes) if attribute.id not in {*child.ids, *shared}]
    read = {number for values in sets for place in keys for number in values[place].references}
    waiting = {number for number in missing if specs[number] not in closed or number in read}
    _check_ready(query, replace(child, virtual=frozenset(waiting)))


def _check_ready(query: "Translation", child: Relation) -> None:
    """Raise UntranslatableError if grouping sets need windows that only an operator computes, or unbounded ranks."""
    waiting = child.virtual & child.ids
    if not waiting:
        child.check_ready("the grouping sets")
        return
    specs = _specs(child)
    mode = query.options.mode
    outside = "keep both parts of the window outside: GROUP BY window_start, window_end, ROLLUP(k)"
    if any(specs[number].is_session for number in waiting):
        outside = "keep the session outside: GROUP BY SESSION(ts, INTERVAL '5' MINUTES), ROLLUP(k)"
    outside += "" if mode is None else f", and use no mode instead of mode={mode!r}"
    if all(not specs[number].is_session and not specs[number].is_cumulative for number in waiting):
        outside += "; or group by the function: ROLLUP(HOP(ts, INTERVAL '10' SECONDS, INTERVAL '1' MINUTE), k)"
    raise UntranslatableError(
        "a sliding, cumulative or session window, or a part of it, "
        + ("is not in all of the grouping sets" if mode is None else "is a key of grouping sets"),
        "group by the window itself: rollup(window('ts', '1 minute', '20 seconds'), 'k')",
        sql_fix=outside,
    )


def _with_windows(rows: Relation, child: Relation, origins: Mapping[int, int]) -> Relation:
    """Return rows whose attributes are windows, or parts of windows, of the rows that they were made of."""
    parts = {number: child.pending_parts[old] for number, old in origins.items() if old in child.pending_parts}
    return replace(
        rows,
        pending={number: child.pending[old] for number, old in origins.items() if old in child.pending},
        pending_parts=parts,
        sessions=frozenset(number for number, old in origins.items() if old in child.sessions),
    )


def _in_head(query: "Translation", child: Relation, node: PlanNode, shared: Mapping[int, int]) -> Relation:
    """Leave the rows of grouping sets to Spark; windows that an operator finds are null in its plan."""
    missing = child.virtual & child.ids
    if missing:
        of_node, there = outputs(node.child.handle), outputs(child.plan)
        nulls = [query.catalyst.null_as(of_node[number]) for number in child.names if number in missing]
        child = replace(child, plan=query.catalyst.project([*there.values(), *nulls], child.plan))
    rows = query.head_of(node, [child])
    origins = {**{number: number for number in rows.names}, **shared}
    virtual = frozenset(number for number, old in origins.items() if old in missing)
    return _with_windows(replace(rows, virtual=virtual), child, origins)


def _behind_operator(
    child: Relation, attributes: Sequence[Expr], sets: Sequence[Sequence[Expr]], shared: Mapping[int, int]
) -> Relation:
    """Make several rows of each result of an operator, one per grouping set.

    Windows that all sets have are left to the next operator. Others become values.
    """
    missing = child.virtual & child.ids
    ready = replace(child, virtual=frozenset())
    ready.check_ready("the grouping sets")
    specs = _specs(child)
    left = frozenset({number for number in missing if shared and not specs[number].is_tumbling} | set(shared))
    names = dict(
        zip(
            (attribute.id for attribute in attributes),
            distinct_names([attribute.name for attribute in attributes]),
            strict=True,
        )
    )
    streams = []
    for values in sets:
        texts = [
            f"{_value(ready, missing, value)} as {quoted(names[attribute.id])}"
            for attribute, value in zip(attributes, values, strict=True)
            if attribute.id not in left
        ]
        streams.append(child.behind.select(*texts))
    rows = Relation(
        names={attribute.id: attribute.name for attribute in attributes},
        label=child.label,
        stream=streams[0].union(*streams[1:]),
        columns={number: name for number, name in names.items() if number not in left},
        virtual=left,
    )
    return _with_windows(rows, child, {**{number: number for number in left - set(shared)}, **shared})


def _value(child: Relation, missing: frozenset[int], value: Expr) -> str:
    """Return a value of a row as text; a window that no plan computes is a struct of its start and end."""
    if not value.is_attribute or value.id not in missing:
        return child.bound_text(value)
    if value.id in child.pending:
        spec = child.pending[value.id]
        return spec.text(quoted(child.columns[spec.attribute]))
    spec, part = child.pending_parts[value.id]
    window = f"({spec.text(quoted(child.columns[spec.attribute]))})"
    end = f"{window}.end"
    return {START: f"{window}.start", END: end, TIME: time_text(end)}[part]
