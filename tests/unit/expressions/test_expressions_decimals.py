"""Decimals against exact fractions: every result is rounded once, half away from zero, or refused."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebed.errors import ExpressionError
from statebed.expressions import bind

Typed = tuple[pa.DataType, int]
"""A type and the digits of a value, without the point."""


@st.composite
def decimals(draw: st.DrawFn) -> Typed:
    """Any type; digits of any length, many nines among them, and what is near to a power of two."""
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    length = draw(st.integers(1, precision))
    tail = draw(st.integers(0, length))
    digits = draw(
        st.one_of(
            st.integers(0, 10**length - 1),
            st.just(10**length - 1),
            st.just((10 ** (length - tail) - 1) * 10**tail + 5 * 10**tail // 10),
            st.integers(0, 126).map(lambda bits: (2**bits - 1) % 10**precision),
        )
    )
    return pa.decimal128(precision, scale), digits * draw(st.sampled_from([1, -1]))


def number(typed: Typed) -> Fraction:
    return Fraction(typed[1], 10 ** typed[0].scale)


def column(typed: Typed) -> pa.Array:
    with localcontext(prec=80):
        return pa.array([Decimal(typed[1]).scaleb(-typed[0].scale)], typed[0])


def half_away(exact: Fraction, scale: int) -> int:
    size = math.floor(abs(exact) * Fraction(10) ** scale + Fraction(1, 2))
    return -size if exact < 0 else size


def check(text: str, table: pa.Table, exact: Fraction, kind: pa.DataType | None = None) -> None:
    bound = bind(text, table.schema)
    kind = kind or bound.type
    expected = half_away(exact, kind.scale)
    if abs(expected) >= 10**kind.precision:
        with pytest.raises(ExpressionError):
            bound.evaluate(table)
        return
    (found,) = bound.evaluate(table).to_pylist()
    assert Fraction(found) == Fraction(expected, 10**kind.scale)


@given(decimals(), decimals())
def test_sums_products_quotients_and_remainders_are_exact_before_they_are_rounded(one: Typed, other: Typed) -> None:
    table = pa.table({"a": column(one), "b": column(other)})
    left, right = number(one), number(other)
    check("a + b", table, left + right)
    check("a - b", table, left - right)
    check("a * b", table, left * right)
    if right:
        check("a / b", table, left / right)
        check("a % b", table, left - right * math.trunc(left / right))


@given(decimals(), st.integers(-5, 12))
def test_rounding_is_half_away_from_zero(one: Typed, digits: int) -> None:
    table = pa.table({"a": column(one)})
    exact = number(one)
    check(f"round(a, {digits})", table, Fraction(half_away(exact, digits)) / Fraction(10) ** digits)
    check("floor(a)", table, Fraction(math.floor(exact)))
    check("ceil(a)", table, Fraction(math.ceil(exact)))


@given(decimals(), decimals())
def test_casts_round_or_refuse(one: Typed, other: Typed) -> None:
    kind, exact = other[0], number(one)
    table = pa.table({"a": column(one)})
    name = f"decimal({kind.precision}, {kind.scale})"
    check(f"cast(a as {name})", table, exact, kind)
    check(f"cast(cast(a as string) as {name})", table, exact, kind)
    whole = math.trunc(exact)
    found = bind("try_cast(a as bigint)", table.schema).evaluate(table).to_pylist()
    assert found == [whole if -(2**63) <= whole < 2**63 else None]
    assert bind("cast(a as double)", table.schema).evaluate(table).to_pylist() == [float(exact)]


@given(st.floats(allow_nan=False, allow_infinity=False), decimals())
def test_a_double_becomes_the_decimal_that_names_it(value: float, other: Typed) -> None:
    kind = other[0]
    table = pa.table({"x": [value]})
    check(f"cast(x as decimal({kind.precision}, {kind.scale}))", table, Fraction(repr(value)), kind)
