"""Join conditions: which expressions are equal, how far apart the times of a pair are, and the rest."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from statebed.spark.analysed.expression_text import UntranslatableError, interval_us
from statebed.spark.analysed.plan_tree import Expr, conjuncts

_FLIPPED = {
    "EqualTo": "EqualTo",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
}


@dataclass
class JoinConditions:
    """A join condition, taken apart."""

    equal: list[tuple[Expr, Expr]] = field(default_factory=list)
    """Expressions over the left and the right row that are equal."""
    lower_us: int | None = None
    """Minimum of the right time minus the left time."""
    upper_us: int | None = None
    is_strict: tuple[bool, bool] = (False, False)
    """Whether the lower and the upper bound themselves are excluded."""
    bounds: list[Expr] = field(default_factory=list)
    """Conditions that the bounds come from."""
    rest: list[Expr] = field(default_factory=list)


@dataclass(frozen=True)
class _Comparison:
    kind: str
    left: Expr
    right: Expr


def conditions_of(
    condition: Expr | None,
    *,
    left: frozenset[int],
    right: frozenset[int],
    times: tuple[frozenset[int], frozenset[int]],
) -> JoinConditions:
    """Take a condition apart. `left` and `right` are the ids of both sides, `times` those of their event times."""
    conditions = JoinConditions()
    for conjunct in () if condition is None else conjuncts(condition):
        comparisons = _comparisons(conjunct)
        _check_months(comparisons, times)
        bounded = [_bound(comparison, times, conditions) for comparison in comparisons]
        if bounded and all(bounded):
            conditions.bounds.append(conjunct)
            continue
        if conjunct.kind == "EqualTo":
            a, b = conjunct.children
            if a.references and b.references:
                if a.references <= left and b.references <= right:
                    conditions.equal.append((a, b))
                    continue
                if a.references <= right and b.references <= left:
                    conditions.equal.append((b, a))
                    continue
        conditions.rest.append(conjunct)
    return conditions


def check_collations(equal: Iterable[tuple[Expr, Expr]]) -> None:
    """Raise UntranslatableError for keys of a join that are equal although their bytes differ."""
    for key in (side for pair in equal for side in pair):
        if "collate" in str(key.type_json):
            raise UntranslatableError(
                f"{key.sql} is compared by a collation; operators compare texts by their bytes",
                "join by a form that is equal for equal keys, such as lower(key) collate utf8_binary",
            )


def _check_months(comparisons: Iterable[_Comparison], times: tuple[frozenset[int], frozenset[int]]) -> None:
    """Raise UntranslatableError for a time range in months or years."""
    for comparison in comparisons:
        parts = [*comparison.left.walk(), *comparison.right.walk()]
        ids = {part.id for part in parts if part.is_attribute}
        shifted = [part for part in parts if part.kind == "TimestampAddYMInterval"]
        if shifted and ids & times[0] and ids & times[1]:
            raise UntranslatableError(
                f"{shifted[0].sql}: months and years have no fixed length",
                "write the range in days: b.ts BETWEEN a.ts AND a.ts + INTERVAL 31 DAYS",
                sql_fix="write the range in days: b.ts BETWEEN a.ts AND a.ts + INTERVAL '31' DAYS",
            )


def _comparisons(e: Expr) -> list[_Comparison]:
    if e.kind in _FLIPPED:
        return [_Comparison(e.kind, *e.children)]
    if e.kind == "Between":
        time = e.part("input")
        return [
            _Comparison("GreaterThanOrEqual", time, e.part("lower")),
            _Comparison("LessThanOrEqual", time, e.part("upper")),
        ]
    return []


def _bound(e: _Comparison, times: tuple[frozenset[int], frozenset[int]], conditions: JoinConditions) -> bool:
    """Narrow the bounds by a comparison of both times. Times are whole microseconds, so `<` is `<=` minus one."""
    first, second = _shifted(e.left), _shifted(e.right)
    if first is None or second is None:
        return False
    kind = e.kind
    if first[0] in times[0] and second[0] in times[1]:
        kind, first, second = _FLIPPED[kind], second, first
    if first[0] not in times[1] or second[0] not in times[0]:
        return False
    # right + a <kind> left + b, so right - left <kind> b - a
    apart = second[1] - first[1]
    if kind in {"LessThan", "LessThanOrEqual", "EqualTo"}:
        upper = apart - (kind == "LessThan")
        if conditions.upper_us is None or upper < conditions.upper_us:
            conditions.upper_us, conditions.is_strict = upper, (conditions.is_strict[0], kind == "LessThan")
    if kind in {"GreaterThan", "GreaterThanOrEqual", "EqualTo"}:
        lower = apart + (kind == "GreaterThan")
        if conditions.lower_us is None or lower > conditions.lower_us:
            conditions.lower_us, conditions.is_strict = lower, (kind == "GreaterThan", conditions.is_strict[1])
    return True


def _shifted(e: Expr) -> tuple[int, int] | None:  # noqa: PLR0911 - one return per kind of expression
    """Return the attribute and the constant interval added to it; None if it is another expression."""
    if e.is_attribute:
        return e.id, 0
    if e.kind == "Cast" and e.type_json == e.child.type_json:
        return _shifted(e.child)
    if e.kind == "Cast" and e.child.kind in {"TimestampAddInterval", "TimeAdd", "DatetimeSub"}:
        return _shifted(e.child) if e.type_json == "timestamp" else None
    if e.kind == "DatetimeSub":
        return _shifted(e.part("replacement"))
    if e.kind in {"TimestampAddInterval", "TimeAdd"}:
        inner = _shifted(e.children[0])
        try:
            return None if inner is None else (inner[0], inner[1] + interval_us(e.children[1]))
        except UntranslatableError:
            return None
    return None
