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
_MOST_PARTS = 8


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

    All groups at once; only those with special values, or with more parts than usual, are summed one by one.
    """
    starts = np.cumsum(counts) - counts
    parts = np.zeros((len(counts), _MOST_PARTS))
    single = counts == 1
    alone = values[starts[single]]
    parts[single, 0] = np.where(np.isnan(alone), np.nan, alone)
    several = np.flatnonzero(counts > 1)
    found, known = _distilled(values[np.repeat(counts > 1, counts)], counts[several])
    parts[several[known], : found.shape[1]] = found[known]
    odd = several[~known]
    lists = [exact_parts(values[starts[group] : starts[group] + counts[group]].tolist()) for group in odd.tolist()]
    width = max([_MOST_PARTS, *map(len, lists)])
    parts = np.pad(parts, ((0, 0), (0, width - _MOST_PARTS)))
    for group, listed in zip(odd.tolist(), lists, strict=True):
        parts[group, : len(listed)] = listed
    rest = parts[:, 1:]
    return GroupParts(
        leading=parts[:, 0] + 0.0,  # one zero
        rest=rest[rest != 0.0],
        rest_counts=np.count_nonzero(rest, axis=1).astype(np.int64),
    )


def _distilled(values: Doubles, counts: npt.NDArray[np.int64]) -> tuple[Doubles, npt.NDArray[np.bool_]]:
    """The parts of each group, and for which groups they are known to be right.

    A number that is large enough takes from each value its upper bits, all on one grid, so that their sum is exact in
    any order; what is left goes the same way. The few sums of each group are then brought into the form of parts.
    """
    if not len(counts):
        return np.zeros((0, 1)), np.zeros(0, dtype=np.bool_)
    starts = np.cumsum(counts) - counts
    spare = np.frexp((counts + 1).astype(np.float64))[1]  # 2**spare >= count + 2: that many sums stay on the grid
    left = values.copy()
    with np.errstate(over="ignore"):
        # Infinite: special values, or so large that the grid would lie beyond the largest double.
        known = np.isfinite(np.ldexp(np.maximum.reduceat(np.abs(left), starts), spare + 1))
    left[np.repeat(~known, counts)] = 0.0
    sums: list[Doubles] = []
    for _ in range(_MOST_PARTS):
        largest = np.maximum.reduceat(np.abs(left), starts)
        if not largest.any():
            break
        grid = np.repeat(np.ldexp(1.0, np.frexp(largest)[1] + spare), counts)
        upper = (grid + left) - grid
        sums.append(np.add.reduceat(upper, starts))
        left -= upper
    known &= np.maximum.reduceat(np.abs(left), starts) == 0.0
    parts = _ordered(sums or [np.zeros(len(counts))])
    for index in range(len(parts) - 1):
        known &= (parts[index] + parts[index + 1] == parts[index]) & ((parts[index] != 0.0) | (parts[index + 1] == 0.0))
    for index in range(len(parts) - 2):
        # Halfway between two doubles, what comes after decides.
        beyond = np.nextafter(parts[index + 1], np.copysign(np.inf, parts[index + 1]))
        known &= (parts[index] + beyond == parts[index]) | (parts[index + 2] == 0.0)
    return np.stack(parts, axis=1), known


def _ordered(sums: list[Doubles]) -> list[Doubles]:
    """The same total, each number the rounded sum of itself and the next."""
    parts = list(sums)
    for _ in parts:
        for index in range(len(parts) - 1, 0, -1):
            parts[index - 1], parts[index] = _add_pairs(parts[index - 1], parts[index])
    return parts


def _add_pairs(one: Doubles, other: Doubles) -> tuple[Doubles, Doubles]:
    """Sums, and what rounding took from them: exact wherever the sum is finite."""
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
