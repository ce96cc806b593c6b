"""Row numbers: ROW_NUMBER, RANK and DENSE_RANK with an upper bound, which become a top-n."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from statebed.flow.keys import quoted
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.queries.conditions import conjuncts
from statebed.queries.expression_text import WindowColumns
from statebed.queries.plan_tree import Expr, PlanNode
from statebed.queries.refusals import UntranslatableError
from statebed.queries.relation import Ranking, Relation, fresh_name
from statebed.queries.windows import WindowSpec

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

NUMBERINGS = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}


def window_functions(query: "Translation", node: PlanNode) -> Relation:
    """Remember row numbers until a filter bounds them."""
    child = query.operand(node.child)
    rankings = dict(child.rankings)
    expressions = node.expressions("windowExpressions")
    for one in expressions:
        function = one.value.child if one.value.kind == "WindowExpression" else one.value
        if function.kind not in NUMBERINGS:
            raise UntranslatableError(
                f"{one.sql}: over a partition there are row_number, rank and dense_rank",
                "aggregate by a window instead, or use the operator `over` of statebed's own API",
            )
        rankings[one.id] = Ranking(
            NUMBERINGS[function.kind],
            tuple(node.expressions("partitionSpec")),
            tuple(node.expressions("orderSpec")),
        )
    if query.options.mode == "append" and child.is_head:
        raise UntranslatableError(
            "the first rows of a stream change whenever better ones arrive",
            "use outputMode('update'), or number the results of a window",
        )
    names = {**child.names, **{one.id: one.name for one in expressions}}
    return replace(child, names=names, rankings=rankings)


def first_rows(query: "Translation", child: Relation, condition: Expr) -> Relation:
    """Return the rows whose number is within the bound of a condition."""
    number, limit, rest = _bound(child, condition)
    ranking = child.rankings[number]
    hidden = [one for one, other in child.rankings.items() if other is ranking]
    pending = _pending_window(child, ranking)
    names = {one: name for one, name in {**ranking.attributes, **child.names}.items() if one not in child.rankings}
    if pending is not None:
        made_by_operator = {one for one in names if one in child.pending or one in child.pending_parts}
        names = {one: name for one, name in names.items() if one not in made_by_operator}
    plain = replace(child, names=names, rankings={})
    relation = query.materialised(plain, avoid=["window_start", "window_end"])
    column = fresh_name("row_number", relation.behind.columns)
    order = [_order(one, relation) for one in ranking.order]
    window = pending or _closed_window(relation, ranking)
    keys = []
    for one in ranking.partition:
        if one.is_attribute and window is not None and (one.id in relation.shapes or one.id not in names):
            continue
        if one.is_attribute and one.id in relation.windows:
            columns = relation.windows[one.id]
            keys += [quoted(columns.start), quoted(columns.end)]
        else:
            keys.append(relation.bound_text(one))
    name = query.operator_name("top")
    if window is not None:
        grouped = relation.behind.group_by(*keys, window.window(None), name=name)
        stream = grouped.top(limit, order, numbering=ranking.numbering, number=column)
    else:
        stream = relation.behind.key_by(*keys, name=name).top(limit, order, numbering=ranking.numbering, number=column)
    ends = [quoted(WINDOW_START), quoted(WINDOW_END)] if pending is not None else []
    made = replace(
        relation,
        names=child.names,
        stream=stream.select(*map(quoted, relation.behind.columns), *ends, f"cast({column} as int) as {column}"),
        columns={**relation.columns, **dict.fromkeys(hidden, column)},
    )
    if pending is not None:
        made = _with_window(made, child, pending)
    for one in rest:
        made = replace(made, stream=made.behind.where(made.bound_text(one)))
    return made


def _pending_window(child: Relation, ranking: Ranking) -> WindowSpec | None:
    """Return the window over the event time of rows that the partition names, which the operator computes."""
    for one in ranking.partition:
        if not one.is_attribute:
            continue
        spec = child.pending.get(one.id) or child.pending_parts.get(one.id, (None,))[0]
        if spec is not None and not spec.is_session and spec.attribute in child.times:
            return spec
    return None


def _closed_window(relation: Relation, ranking: Ranking) -> WindowSpec | None:
    """Return the window that holds the results of exactly one window that the partition names; None for changelogs.

    Results of one window have one event time, just before its end, and no others have it.
    """
    if relation.behind.output.changes is not Changes.APPEND:
        return None
    named = [relation.shapes[one.id] for one in ranking.partition if one.is_attribute and one.id in relation.shapes]
    if not named or named[0].is_session:
        return None
    shape = named[0]
    return WindowSpec(0, shape.slide_us, shape.slide_us, (shape.offset_us + shape.size_us) % shape.slide_us)


def _with_window(made: Relation, child: Relation, spec: WindowSpec) -> Relation:
    """Return the rows with the window that the operator has computed."""
    parts = {
        one: (WINDOW_START, WINDOW_END)[part] for one, (found, part) in child.pending_parts.items() if found == spec
    }
    whole = {one: WindowColumns(WINDOW_START, WINDOW_END) for one, found in child.pending.items() if found == spec}
    return replace(
        made,
        columns={**made.columns, **parts},
        windows={**made.windows, **whole},
        shapes={**made.shapes, **dict.fromkeys([*parts, *whole], spec)},
        pending={one: found for one, found in made.pending.items() if found != spec},
        pending_parts={one: found for one, found in made.pending_parts.items() if found[0] != spec},
        virtual=made.virtual - frozenset(parts) - frozenset(whole),
    )


def _order(e: Expr, relation: Relation) -> str:
    inner = e.child
    if not inner.is_attribute or inner.id not in relation.columns:
        raise UntranslatableError(
            f"{e.sql}: rows are numbered in the order of an expression", "select it as a column first"
        )
    direction = str(e.fields["direction"])
    nulls = str(e.fields["nullOrdering"])
    return (
        f"{relation.columns[inner.id]} {'desc' if 'Desc' in direction else 'asc'} "
        f"nulls {'first' if 'First' in nulls else 'last'}"
    )


def _bound(child: Relation, condition: Expr) -> tuple[int, int, Sequence[Expr]]:
    """Return the row number that a condition bounds, the bound, and the conditions that remain."""
    number, limit, rest = None, 0, []
    for one in conjuncts(condition):
        found = _limit(one, child)
        if found is None:
            rest.append(one)
            continue
        number, limit = found
        if one.kind == "EqualTo" and limit > 1:
            rest.append(one)
    if number is None:
        raise UntranslatableError(f"{condition.sql}: row numbers have no upper bound", "add one, such as rn <= 3")
    return number, limit, rest


def _limit(e: Expr, child: Relation) -> tuple[int, int] | None:
    if e.kind not in {"LessThanOrEqual", "LessThan", "EqualTo"}:
        return None
    left, right = (one.child if one.kind == "Cast" else one for one in e.children)
    if not left.is_attribute or left.id not in child.rankings or right.kind != "Literal":
        return None
    value = int(right.fields["value"])
    return left.id, value - (e.kind == "LessThan")
