"""Exact sums of doubles.

The exact sum of finite doubles is written as a list of doubles: first the nearest to the sum, then the nearest to what
is left, until nothing is left. The list depends on the exact sum alone, hence on no order and no grouping of the
additions. A sum beyond the largest double starts with the largest double, as often as it takes. Sums with a NaN, or
with infinities of both signs, are [NaN]; with one infinity, that one.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

_UNIT_BITS = 1074
"""Every finite double is a whole number of 2**-1074."""
_PAIR = 2


@dataclass(frozen=True)
class GroupParts:
    """The parts of the sums of many groups."""

    leading: Doubles
    """The first part of each group; zero for a group without values."""
    rest: Doubles
    """The other parts, group after group."""
    rest_counts: npt.NDArray[np.int64]
    """How many of them each group has."""


def exact_group_parts(values: Doubles, counts: npt.NDArray[np.int64]) -> GroupParts:
    """The parts of each group's sum; values stand group after group, `counts` of them in each.

    One value is its own sum, and two take a few vectorised additions; only larger groups are summed one by one.
    """
    starts = np.cumsum(counts) - counts
    leading = np.zeros(len(counts))
    rest_counts = np.zeros(len(counts), dtype=np.int64)
    single = np.flatnonzero(counts == 1)
    alone = values[starts[single]]
    leading[single] = np.where(np.isnan(alone), np.nan, alone) + 0.0  # one NaN, and one zero
    pairs = np.flatnonzero(counts == _PAIR)
    total, error = _add_pairs(values[starts[pairs]], values[starts[pairs] + 1])
    easy = np.isfinite(total)
    leading[pairs[easy]] = total[easy] + 0.0
    rest_counts[pairs[easy]] = error[easy] != 0.0
    slow = np.sort(np.concatenate([np.flatnonzero(counts > _PAIR), pairs[~easy]]))
    slow_rest: list[float] = []
    flat: list[float] = values.tolist() if len(slow) else []
    for group, start, count in zip(slow.tolist(), starts[slow].tolist(), counts[slow].tolist(), strict=True):
        first, *others = exact_parts(flat[start : start + count])
        leading[group] = first
        rest_counts[group] = len(others)
        slow_rest += others
    is_slow = np.zeros(len(counts), dtype=np.bool_)
    is_slow[slow] = True
    of_slow = np.repeat(is_slow, rest_counts)
    rest = np.empty(len(of_slow))
    rest[of_slow] = slow_rest
    rest[~of_slow] = error[easy & (error != 0.0)]
    return GroupParts(leading=leading, rest=rest, rest_counts=rest_counts)


def _add_pairs(one: Doubles, other: Doubles) -> tuple[Doubles, Doubles]:
    """Sums, and what rounding took from them: exact wherever the sum is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = one + other
        back = total - one
        return total, (one - (total - back)) + (other - back)


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
