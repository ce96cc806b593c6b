"""Comparisons in Spark's order: NaN equals NaN and is larger than every number; -0.0 equals 0.0; text compares by
bytes.
"""

from collections.abc import Callable
from functools import partial, reduce

import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.nested_order import encoded
from statebed.expressions import types
from statebed.expressions.casts import as_decimal, convert
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, arrays, spread

Comparison = Callable[[Datum, Datum], pa.Array]
_PLAIN: dict[str, Comparison] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def in_common_type(site: Site, *operands: Term) -> list[Term]:
    """Convert operands to their common type."""
    common = types.common_type(*(operand.type for operand in operands))
    if common is None:
        raise site.wrong_types("operands of one type")
    return [convert(operand, common) for operand in operands]


def comparison(sign: str, kind: pa.DataType) -> Comparison:
    """Return the comparison for values of a type; its result is null where an operand is null."""
    if pa.types.is_nested(kind):
        return partial(_of_nested, _PLAIN[sign])
    return partial(_of_floats, sign) if types.is_float(kind) else _PLAIN[sign]


def _of_nested(compare: Comparison, left: Datum, right: Datum) -> pa.Array:
    """Compare structs and lists for equality, part by part: null equals null, and NaN equals NaN."""
    return compare(*(encoded(array) for array in arrays(left, right)))


def _of_floats(sign: str, left: Datum, right: Datum) -> pa.Array:
    if isinstance(right, pa.Scalar) and right.is_valid and not pc.is_nan(right).as_py():
        # Arrow returns False when NaN is on the left: right for these operators, and for the negation of the others.
        opposite = {">": pc.less_equal, ">=": pc.less, "<>": pc.equal}.get(sign)
        return _PLAIN[sign](left, right) if opposite is None else pc.invert(opposite(left, right))
    if sign in {"=", "<>"}:
        same = pc.or_(pc.equal(left, right), pc.and_(pc.is_nan(left), pc.is_nan(right)))
        return same if sign == "=" else pc.invert(same)
    smaller, larger = (left, right) if sign in {"<", ">="} else (right, left)
    less = pc.and_(pc.invert(pc.is_nan(smaller)), pc.invert(pc.less_equal(larger, smaller)))
    return less if sign in {"<", ">"} else pc.invert(less)


def _compare(site: Site) -> Term:
    left, right = comparable(site)
    return site.apply(comparison(site.function, left.type), types.BOOLEAN, left, right)


def comparable(site: Site) -> tuple[Term, Term]:
    """Convert two operands to the type in which they are compared."""
    common = types.common_type(*(operand.type for operand in site.operands))
    operands = site.operands
    if common is not None and types.is_decimal(common):
        operands = tuple(as_decimal(operand, common) for operand in operands)
    left, right = in_common_type(site, *operands)
    if left.type == types.NULL:
        return convert(left, types.BOOLEAN), convert(right, types.BOOLEAN)
    equality = site.function in {"=", "<>", "<=>", "nullif", "equal_null"} and types.is_equatable(left.type)
    if not types.has_order(left.type) and not equality:
        raise site.wrong_types("values that can be compared")
    return left, right


def _null_safe(site: Site) -> Term:
    left, right = comparable(site)
    return site.apply(partial(_same, comparison("=", left.type)), types.BOOLEAN, left, right, nullable=False)


def _same(equal: Comparison, left: Datum, right: Datum) -> pa.Array:
    missing = pc.or_(pc.is_null(left), pc.is_null(right))
    both = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.if_else(missing, both, equal(left, right))


def _in(site: Site) -> Term:
    operand, *listed = in_common_type(site, *site.operands)
    if operand.type == types.NULL:
        operand, *listed = (convert(term, types.BOOLEAN) for term in (operand, *listed))
    if not types.is_equatable(operand.type):
        raise site.wrong_types("values that can be compared")
    nullable = any(term.nullable for term in (operand, *listed))
    constants = [term.constant for term in listed]
    if (
        all(value is not None for value in constants)
        and types.has_order(operand.type)
        and not types.is_float(operand.type)
    ):
        known = [spread(value, 1) for value in constants if value.is_valid]  # type: ignore[union-attr]  # none is None
        values = pa.concat_arrays([pa.nulls(0, operand.type), *known])
        kernel = partial(_is_in, values, len(known) < len(constants))
        return site.apply(kernel, types.BOOLEAN, operand, nullable=nullable)
    kernel = partial(_is_any, comparison("=", operand.type))
    return site.apply(kernel, types.BOOLEAN, operand, *listed, nullable=nullable)


def _is_in(values: pa.Array, with_null: bool, operand: pa.Array) -> pa.Array:
    contained = pc.is_in(operand, value_set=values)
    unknown = pc.is_null(operand)
    if with_null:
        unknown = pc.or_(unknown, pc.invert(contained))
    return pc.if_else(unknown, pa.scalar(None, pa.bool_()), contained)


def _is_any(equal: Comparison, operand: Datum, *listed: Datum) -> pa.Array:
    (first, *others) = arrays(operand, *listed)
    return reduce(pc.or_kleene, (equal(first, other) for other in others))


def _between(site: Site) -> Term:
    operand, low, high = site.operands
    bounds = [_compare(Site(site.place, sign, (operand, bound))) for sign, bound in ((">=", low), ("<=", high))]
    return site.apply(pc.and_kleene, types.BOOLEAN, *bounds)


def _extreme(site: Site) -> Term:
    operands = in_common_type(site, *site.operands)
    kind = operands[0].type
    read = kind != types.TEXT and any(operand.type == types.TEXT for operand in site.operands)
    if not types.has_order(kind) or kind == types.NULL or read:
        raise site.wrong_types("values that can be compared")
    beyond = comparison(">" if site.function == "greatest" else "<", kind)
    nullable = all(operand.nullable for operand in operands)
    return site.apply(partial(_outermost, beyond), kind, *operands, nullable=nullable)


def _outermost(beyond: Comparison, *data: Datum) -> pa.Array:
    """Return the extreme of the operands, ignoring nulls."""
    best, *others = arrays(*data)
    for other in others:
        better = pc.or_(pc.is_null(best), pc.fill_null(beyond(other, best), False))
        best = pc.if_else(better, other, best)
    return best


BUILDERS: dict[str, Builder] = {
    **{sign: of(_compare, 2) for sign in _PLAIN},
    "<=>": of(_null_safe, 2),
    "equal_null": of(_null_safe, 2),
    "in": of_many(_in, 2),
    "between": of(_between, 3),
    "greatest": of_many(_extreme, 2),
    "least": of_many(_extreme, 2),
}
