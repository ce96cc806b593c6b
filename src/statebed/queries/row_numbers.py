"""Row numbers: ROW_NUMBER, RANK and DENSE_RANK with an upper bound, which become a top-n."""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from statebed.arrays.sort_order import Nulls, OrderBy, SortDirection
from statebed.flow.keys import quoted
from statebed.format.stream_schema import Changes
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.queries.relation import Ranking, Relation, fresh_name
from statebed.queries.windows import TIME, WindowSpec, time_text
from statebed.spark.analysed.expression_text import UntranslatableError, WindowColumns
from statebed.spark.analysed.plan_tree import Expr, PlanNode, conjuncts

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

_COMPARISONS = frozenset({"EqualTo", "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual"})
_NUMERIC = frozenset({"byte", "short", "integer", "long", "float", "double", "decimal"})
NUMBERINGS = {"RowNumber": "row_number", "Rank": "rank", "DenseRank": "dense_rank"}


def window_functions(query: "Translation", node: PlanNode) -> Relation:
    """Remember row numbers until a filter bounds them."""
    child = query.operand(node.child)
    rankings = dict(child.rankings)
    expressions = node.expressions("windowExpressions")
    for expression in expressions:
        function = expression.value.child if expression.value.kind == "WindowExpression" else expression.value
        if function.kind not in NUMBERINGS:
            name = function.sql.partition("(")[0]
            raise UntranslatableError(
                f"{name}() is not computed over a partition; row_number, rank and dense_rank are",
                "aggregate by a window instead, or use the operator `over` of statebed's own API",
            )
        rankings[expression.id] = Ranking(
            NUMBERINGS[function.kind],
            tuple(node.expressions("partitionSpec")),
            tuple(node.expressions("orderSpec")),
        )
    if query.options.mode == "append" and child.is_head:
        raise UntranslatableError(
            "the first rows of a stream change whenever better ones arrive",
            "use outputMode('update'), or number the results of a window",
            sql_fix="use mode='update', or number the results of a window",
        )
    names = {**child.names, **{expression.id: expression.name for expression in expressions}}
    return replace(child, names=names, rankings=rankings)


def first_rows(query: "Translation", child: Relation, condition: Expr) -> Relation:
    """Return the rows whose number is within the bound of a condition."""
    number, limit, rest = _bound(child, condition)
    ranking = child.rankings[number]
    hidden = [number for number, other in child.rankings.items() if other is ranking]
    pending = _pending_window(child, ranking)
    names = {
        number: name for number, name in {**ranking.attributes, **child.names}.items() if number not in child.rankings
    }
    if pending is not None:
        made_by_operator = {number for number in names if number in child.pending or number in child.pending_parts}
        names = {number: name for number, name in names.items() if number not in made_by_operator}
    plain = replace(child, names=names, rankings={})
    relation = query.materialised(plain, avoid=["window_start", "window_end"])
    column = fresh_name("row_number", relation.behind.columns)
    order = [_order(ordering, relation) for ordering in ranking.order]
    window = pending or _closed_window(relation, ranking)
    keys = []
    for part in ranking.partition:
        if part.is_attribute and window is not None and (part.id in relation.shapes or part.id not in names):
            continue
        if part.is_attribute and part.id in relation.windows:
            columns = relation.windows[part.id]
            keys += [quoted(columns.start), quoted(columns.end)]
        else:
            keys.append(relation.bound_text(part))
    name = query.operator_name("top")
    if window is not None:
        grouped = relation.behind.group_by(*keys, window.window(None), name=name)
        stream = grouped.top(limit, order, numbering=ranking.numbering, number=column)
    else:
        stream = relation.behind.key_by(*keys, name=name).top(limit, order, numbering=ranking.numbering, number=column)
    time = fresh_name("window_time", [*relation.behind.columns, column])
    ends = [quoted(WINDOW_START), quoted(WINDOW_END)] if pending is not None else []
    ends += [f"{time_text(WINDOW_END)} as {time}"] if _reads_time(child, pending) else []
    ranked = replace(
        relation,
        names=child.names,
        stream=stream.select(*map(quoted, relation.behind.columns), *ends, f"cast({column} as int) as {column}"),
        columns={**relation.columns, **dict.fromkeys(hidden, column)},
    )
    if pending is not None:
        ranked = _with_window(ranked, child, pending, time)
    for remaining in rest:
        ranked = replace(ranked, stream=ranked.behind.where(ranked.bound_text(remaining)))
    return ranked


def _pending_window(child: Relation, ranking: Ranking) -> WindowSpec | None:
    """Return the window over the event time of rows that the partition names, which the operator computes."""
    for part in ranking.partition:
        if not part.is_attribute:
            continue
        spec = child.pending.get(part.id) or child.pending_parts.get(part.id, (None,))[0]
        if spec is not None and not spec.is_session and spec.attribute in child.times:
            return spec
    return None


def _closed_window(relation: Relation, ranking: Ranking) -> WindowSpec | None:
    """Return the window that holds the results of exactly one window that the partition names; None for changelogs.

    Results of one window have one event time, just before its end, and no others have it.
    """
    if relation.behind.output.changes is not Changes.APPEND:
        return None
    named = [relation.shapes[part.id] for part in ranking.partition if part.is_attribute and part.id in relation.shapes]
    if not named or named[0].is_session:
        return None
    shape = named[0]
    return WindowSpec(0, shape.slide_us, shape.slide_us, (shape.offset_us + shape.size_us) % shape.slide_us)


def _reads_time(child: Relation, spec: WindowSpec | None) -> bool:
    return any(window == spec and part == TIME for window, part in child.pending_parts.values())


def _with_window(ranked: Relation, child: Relation, spec: WindowSpec, time: str) -> Relation:
    """Return the rows with the window that the operator has computed. `time` is the column of its event time."""
    edges = {number: part for number, (window, part) in child.pending_parts.items() if window == spec}
    parts = {number: (WINDOW_START, WINDOW_END, time)[part] for number, part in edges.items()}
    whole = {
        number: WindowColumns(WINDOW_START, WINDOW_END) for number, window in child.pending.items() if window == spec
    }
    return replace(
        ranked,
        columns={**ranked.columns, **parts},
        windows={**ranked.windows, **whole},
        shapes={
            **ranked.shapes,
            **{number: replace(spec, part=part) for number, part in edges.items()},
            **dict.fromkeys(whole, spec),
        },
        pending={number: window for number, window in ranked.pending.items() if window != spec},
        pending_parts={number: window for number, window in ranked.pending_parts.items() if window[0] != spec},
        times=ranked.times | {number for number, part in edges.items() if part == TIME},
        virtual=ranked.virtual - frozenset(parts) - frozenset(whole),
    )


def _order(e: Expr, relation: Relation) -> OrderBy:
    inner = e.child
    if not inner.is_attribute or inner.id not in relation.columns:
        raise UntranslatableError(
            f"{e.sql}: rows are numbered in the order of an expression", "select it as a column first"
        )
    if "collate" in str(inner.type_json):
        raise UntranslatableError(
            f"{e.sql} orders texts by a collation; operators compare them by their bytes",
            "order by a form that is ordered by its bytes, such as lower(text) collate utf8_binary",
        )
    way = SortDirection.DESCENDING if "Desc" in str(e.fields["direction"]) else SortDirection.ASCENDING
    nulls = Nulls.FIRST if "First" in str(e.fields["nullOrdering"]) else Nulls.LAST
    return OrderBy(relation.columns[inner.id], way, nulls)


def _bound(child: Relation, condition: Expr) -> tuple[int, int, Sequence[Expr]]:
    """Return the row number that a condition bounds, the bound, and the conditions that remain."""
    limits: dict[int, int] = {}
    rest = []
    for conjunct in conjuncts(condition):
        bound = _limit(conjunct, child.rankings)
        if bound is None:
            rest.append(conjunct)
            continue
        number, limit, is_all = bound
        limits[number] = min(limit, limits.get(number, limit))
        if not is_all:
            rest.append(conjunct)
    if not limits:
        raise UntranslatableError(f"{condition.sql}: row numbers have no upper bound", "add one, such as rn <= 3")
    number, ranking = next((number, child.rankings[number]) for number in limits)
    others = {
        number: other
        for number, other in child.rankings.items()
        if other is not ranking and (number in child.ids or number in limits)
    }
    if others:
        names = " and ".join(child.names.get(other, "another one") for other in (number, *others))
        raise UntranslatableError(
            f"rows have several numbers, {names}, but an operator computes one",
            "number and filter the rows in one query for each, and join the results; or keep one of the numbers",
        )
    return number, min(limits.values()), rest


def _limit(e: Expr, rankings: Collection[int]) -> tuple[int, int, bool] | None:
    """Return the row number that a condition bounds, the largest number for which it may hold, and whether it holds for
    all smaller ones; None if it bounds none.
    """
    if e.kind == "Between":
        number, values = _number(e.part("input"), rankings), [_constant(e.part("upper"))]
        is_inclusive = is_all = False
    elif e.kind == "In":
        number, values = _number(e.children[0], rankings), [_constant(option) for option in e.children[1:]]
        is_inclusive = is_all = False
    elif e.kind in _COMPARISONS:
        is_flipped = _number(e.children[0], rankings) is None
        compared, bound = reversed(e.children) if is_flipped else e.children
        number, values = _number(compared, rankings), [_constant(bound)]
        if e.kind != "EqualTo" and is_flipped != e.kind.startswith("Greater"):
            return None  # a lower bound
        is_inclusive, is_all = e.kind not in {"LessThan", "GreaterThan"}, e.kind != "EqualTo"
    else:
        return None
    known = [value for value in values if value is not None]
    if number is None or not known or len(known) < len(values):
        return None
    limit = math.floor(max(known)) if is_inclusive or not is_all else math.ceil(max(known)) - 1
    # An operator keeps at least one row of each key; the condition removes it if it holds for none.
    return number, max(limit, 1), (is_all and limit >= 1) or (e.kind == "EqualTo" and known == [1])


def _number(e: Expr, rankings: Collection[int]) -> int | None:
    """Return the row number that an expression is, apart from its numeric type."""
    inner = e.child if e.kind == "Cast" and _is_numeric(e) else e
    return inner.id if inner.is_attribute and inner.id in rankings else None


def _constant(e: Expr) -> Decimal | None:
    """Return the value of a number in a condition."""
    inner = e.child if e.kind == "Cast" and _is_numeric(e) else e
    if inner.kind != "Literal" or not _is_numeric(inner) or inner.fields["value"] is None:
        return None
    value = Decimal(str(inner.fields["value"]))
    return value if value.is_finite() else None


def _is_numeric(e: Expr) -> bool:
    return str(e.type_json).partition("(")[0] in _NUMERIC
