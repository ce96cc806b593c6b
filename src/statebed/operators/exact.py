"""Exact sums of doubles.

The exact sum of finite doubles is written as a list of doubles: first the nearest to the sum, then the nearest to what
is left, until nothing is left. The list depends on the exact sum alone, hence on no order and no grouping of the
additions. A sum beyond the largest double starts with the largest double, as often as it takes. Sums with a NaN, or
with infinities of both signs, are [NaN]; with one infinity, that one.
"""

import math
import sys
from collections.abc import Sequence

_UNIT_BITS = 1074
"""Every finite double is a whole number of 2**-1074."""


def exact_parts(values: Sequence[float]) -> list[float]:
    """The exact sum of at least one double as its list of parts.

    >>> exact_parts([1e16, 1.0, 1.0, -1e16])
    [2.0]
    >>> exact_parts([1e16, 1.0])
    [1e+16, 1.0]
    """
    terms = list(values)
    try:
        parts = [math.fsum(terms)]
        while math.isfinite(parts[-1]) and parts[-1] != 0.0:
            terms.append(-parts[-1])
            parts.append(math.fsum(terms))
    except (OverflowError, ValueError):
        # fsum refuses sums that pass the largest double on the way, and infinities of both signs.
        return _slow_parts(values)
    if not math.isfinite(parts[-1]):
        return [math.nan if math.isnan(parts[-1]) else parts[-1]]
    return parts[:-1] or [0.0]


def rounded(parts: Sequence[float]) -> float:
    """The nearest double to the sum of parts; infinite when it is beyond the largest double."""
    try:
        return math.fsum(parts)
    except OverflowError:
        return math.copysign(math.inf, parts[0])


def _slow_parts(values: Sequence[float]) -> list[float]:
    special = {value for value in values if not math.isfinite(value)}
    if special:
        return [special.pop() if len(special) == 1 and not any(map(math.isnan, special)) else math.nan]
    left = sum(map(_units, values))
    parts = []
    while left:
        try:
            part = left / (1 << _UNIT_BITS)
        except OverflowError:
            part = sys.float_info.max if left > 0 else -sys.float_info.max
        parts.append(part)
        left -= _units(part)
    return parts or [0.0]


def _units(value: float) -> int:
    numerator, denominator = value.as_integer_ratio()
    return numerator * ((1 << _UNIT_BITS) // denominator)
