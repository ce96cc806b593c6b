"""Conditions (and, or, case, if, coalesce): three-valued logic, and choices that evaluate an operand only where needed.

An operand that can fail is evaluated only on the rows that need it, so `if(d = 0, null, n / d)` never divides by zero.
An operand that cannot fail is evaluated on all rows at once, which is faster.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions.comparisons import comparable, comparison, in_common_type
from statebed.expressions.list_parts import Flags, check_together, content_of, sizes_of
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import BatchColumns, Datum, Term, arrays, scattered
from statebed.expressions.text_limits import check_size, is_small


@dataclass(frozen=True, eq=False)
class FirstMatch(Term):
    """Value of the first condition that is true for a row, or else the last value."""

    branches: tuple[tuple[Term, Term], ...]
    otherwise: Term

    def value(self, frame: BatchColumns) -> pa.Array:
        return self._for_all(frame) if not self.fallible else self._row_by_need(frame)

    def _for_all(self, frame: BatchColumns) -> pa.Array:
        result = self.otherwise.value(frame)
        for condition, then in reversed(self.branches):
            holds = pc.fill_null(condition.array(frame), False)
            value = then.value(frame)
            _check_chosen(holds, value, result)
            result = pc.if_else(holds, value, result)
        return result

    def _row_by_need(self, frame: BatchColumns) -> pa.Array:
        left = np.arange(frame.num_rows, dtype=np.int64)
        rows, pieces = [], []
        for condition, then in self.branches:
            part = frame.part(left)
            holds = boolean_values(condition.array(part))
            pieces.append(then.array(part.part(np.flatnonzero(holds).astype(np.int64))))
            rows.append(left[holds])
            left = left[~holds]
        pieces.append(self.otherwise.array(frame.part(left)))
        rows.append(left)
        check_together(pieces)
        order = np.empty(frame.num_rows, dtype=np.int64)
        order[np.concatenate(rows)] = np.arange(frame.num_rows, dtype=np.int64)
        return pa.concat_arrays(pieces).take(from_numpy(order, pa.int64()))


@dataclass(frozen=True, eq=False)
class FirstKnown(Term):
    """First non-null value of each row."""

    operands: tuple[Term, ...]

    def value(self, frame: BatchColumns) -> pa.Array:
        known = self.operands[0].array(frame)
        for operand in self.operands[1:]:
            if not known.null_count:
                break
            if not operand.fallible:
                value = operand.value(frame)
                _check_chosen(pc.is_valid(known), known, value)
                known = pc.coalesce(known, value)
                continue
            rows = np.flatnonzero(~validity(known)).astype(np.int64)
            known = pc.coalesce(known, scattered(operand.array(frame.part(rows)), rows, frame.num_rows))
        return known


def _check_chosen(holds: pa.Array, then: Datum, otherwise: Datum) -> None:
    """Raise if a choice between two values is too large: a long constant can be chosen for many rows."""
    if is_small(content_of(then, len(holds)) + content_of(otherwise, len(holds))):
        return
    flags = boolean_values(holds)
    check_size(_bytes_at(then, flags) + _bytes_at(otherwise, ~flags), len(holds))


def _bytes_at(datum: Datum, flags: Flags) -> int:
    if isinstance(datum, pa.Scalar):
        return content_of(datum, int(np.count_nonzero(flags)))
    return int(sizes_of(datum)[0][flags].sum())


@dataclass(frozen=True, eq=False)
class Junction(Term):
    """`and`, `or`: if the right side can fail, it is evaluated only where the left side does not decide the result."""

    kernel: Callable[[Datum, Datum], pa.Array]
    decisive: bool
    """Value of one side that decides the result: False for `and`, True for `or`."""
    left: Term
    right: Term

    def value(self, frame: BatchColumns) -> pa.Array:
        left = self.left.array(frame)
        if not self.right.fallible:
            return self.kernel(left, self.right.value(frame))
        decided = boolean_values(left) if self.decisive else ~boolean_values(left) & validity(left)
        rows = np.flatnonzero(~decided).astype(np.int64)
        return self.kernel(left, scattered(self.right.array(frame.part(rows)), rows, frame.num_rows))


def choose(place: TextSpan, branches: list[tuple[Term, Term]], otherwise: Term) -> Term:
    """Build a `case`, after converting its values to one type and checking that its conditions are booleans."""
    terms = [otherwise, *(term for branch in branches for term in branch)]
    return FirstMatch(
        place,
        otherwise.type,
        any(term.nullable for term in (otherwise, *(then for _, then in branches))),
        any(term.fallible for term in terms),
        frozenset().union(*(term.columns for term in terms)),
        tuple(branches),
        otherwise,
    )


def as_condition(term: Term, function: str) -> Term:
    """Return the term if it is boolean; raise otherwise."""
    if term.type == types.NULL:
        return convert(term, types.BOOLEAN)
    if term.type != types.BOOLEAN:
        raise term.place.type_mistake(
            f"{function} needs a boolean, got {types.type_name(term.type)}", fix="compare it: fare > 0"
        )
    return term


def _junction(site: Site) -> Term:
    left, right = (as_condition(operand, site.function) for operand in site.operands)
    kernel = pc.and_kleene if site.function == "and" else pc.or_kleene
    return Junction(
        site.place,
        types.BOOLEAN,
        left.nullable or right.nullable,
        left.fallible or right.fallible,
        left.columns | right.columns,
        kernel,
        site.function == "or",
        left,
        right,
    )


def _not(site: Site) -> Term:
    return site.apply(pc.invert, types.BOOLEAN, as_condition(site.operands[0], "not"))


def _if(site: Site) -> Term:
    condition, *values = site.operands
    then, otherwise = in_common_type(site, *values)
    return choose(site.place, [(as_condition(condition, "if"), then)], otherwise)


def _second_if_known(site: Site) -> Term:
    tested, *values = site.operands
    then, otherwise = in_common_type(site, *values)
    known = site.apply(_known, types.BOOLEAN, tested, nullable=False)
    return choose(site.place, [(known, then)], otherwise)


def _coalesce(site: Site) -> Term:
    operands = tuple(in_common_type(site, *site.operands))
    return FirstKnown(
        site.place,
        operands[0].type,
        all(operand.nullable for operand in operands),
        any(operand.fallible for operand in operands),
        frozenset().union(*(operand.columns for operand in operands)),
        operands,
    )


def _null_if(site: Site) -> Term:
    original = site.operands[0]
    if original.type == types.NULL:
        return original
    left, right = comparable(site)
    kernel = partial(_unless_equal, comparison("=", left.type))
    return site.apply(kernel, original.type, original, left, right, nullable=True)


def _unless_equal(equal: Callable[[Datum, Datum], pa.Array], *data: Datum) -> pa.Array:
    original, left, right = arrays(*data)
    return pc.if_else(pc.fill_null(equal(left, right), False), pa.scalar(None, original.type), original)


def _known(datum: Datum) -> pa.Array:
    return pc.is_valid(datum)


def _is_null(site: Site) -> Term:
    kernel = pc.is_null if site.function == "isnull" else pc.is_valid
    return site.apply(kernel, types.BOOLEAN, nullable=False)


def _is_nan(site: Site) -> Term:
    operand = convert(site.operands[0], types.DOUBLE)
    return site.apply(_nan, types.BOOLEAN, operand, nullable=False)


def _nan(datum: Datum) -> pa.Array:
    return pc.fill_null(pc.is_nan(datum), False)


BUILDERS: dict[str, Builder] = {
    "and": of(_junction, 2),
    "or": of(_junction, 2),
    "not": of(_not, 1),
    "if": of(_if, 3),
    "nvl2": of(_second_if_known, 3),
    "coalesce": of_many(_coalesce),
    "ifnull": of(_coalesce, 2),
    "nvl": of(_coalesce, 2),
    "nullif": of(_null_if, 2),
    "isnull": of(_is_null, 1),
    "isnotnull": of(_is_null, 1),
    "isnan": of(_is_nan, 1),
}
