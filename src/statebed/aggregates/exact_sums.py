"""Exact sums of doubles.

The exact sum of finite doubles is written as a list of doubles: first the nearest to the sum, then the nearest to what
is left, until nothing is left. The list depends on the exact sum alone, hence on no order and no grouping of the
additions. A sum beyond the largest double starts with the largest double, as often as it takes. Sums with a NaN, or
with infinities of both signs, are [NaN]; with one infinity, that one.

Most groups are summed all at once: a number that is large enough takes from each value its upper bits, all on one grid,
so that their sum is exact in any order; what is left goes the same way. Where all values lie on the first grid (whole
numbers, multiples of a quarter), a plain sum is exact and that is all. One grid for all groups is tried first, then one
for each group; the few groups that are left are summed one by one.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_UNIT_BITS = 1074
"""Every finite double is a whole number of 2**-1074."""
_MOST_PARTS = 8
_SHARED_GRIDS = 4
"""So many times a grid for all groups is tried: more would not be faster than a grid for each."""


@dataclass(frozen=True)
class GroupParts:
    """The parts of the sums of many groups."""

    leading: Doubles
    """The first part of each group; zero for a group without values."""
    rest: Doubles
    """The other parts, group after group."""
    rest_counts: Integers
    """How many of them each group has."""


def exact_group_parts(values: Doubles, counts: Integers) -> GroupParts:
    """The parts of each group's sum; values stand group after group, `counts` of them in each."""
    parts = np.zeros((1, len(counts)))
    left = np.flatnonzero(counts)
    for method in (_on_one_grid, _on_own_grids, _one_by_one):
        if not len(left):
            break
        chosen = values if len(left) == len(counts) else values[np.repeat(_flags(left, len(counts)), counts)]
        found, known = method(chosen, counts[left])
        if len(found) > len(parts):
            parts = np.pad(parts, ((0, len(found) - len(parts)), (0, 0)))
        parts[: len(found), left[known]] = found[:, known]
        left = left[~known]
    rest = parts[1:].T
    some = rest != 0.0
    return GroupParts(
        leading=parts[0] + 0.0,  # one zero
        rest=rest[some],
        rest_counts=np.count_nonzero(some, axis=1).astype(np.int64),
    )


def _flags(places: Integers, length: int) -> Flags:
    flags = np.zeros(length, dtype=np.bool_)
    flags[places] = True
    return flags


def _on_one_grid(values: Doubles, counts: Integers) -> tuple[Doubles, Flags]:
    """The parts of each group, and for which groups they are known to be right; all groups share their grids."""
    starts = np.cumsum(counts) - counts
    spare = _spare(counts.max())
    size = _largest(values)
    with np.errstate(over="ignore"):
        usable = np.isfinite(np.ldexp(size, spare + 1))
    if not usable:
        return np.zeros((1, len(counts))), np.zeros(len(counts), dtype=np.bool_)
    left, upper = values.copy(), np.empty_like(values)
    sums: list[Doubles] = []
    while size and len(sums) < _SHARED_GRIDS:
        _take_upper(left, np.ldexp(1.0, np.frexp(size)[1] + spare), upper)
        sums.append(np.add.reduceat(upper, starts))
        size = _largest(left)
    known = np.logical_and.reduceat(left == 0.0, starts) if size else np.ones(len(counts), dtype=np.bool_)
    return _as_parts(sums, known)


def _on_own_grids(values: Doubles, counts: Integers) -> tuple[Doubles, Flags]:
    """As `_on_one_grid`, with grids of each group's own."""
    starts = np.cumsum(counts) - counts
    spare = _spare(counts)
    left, upper = values.copy(), np.empty_like(values)
    with np.errstate(over="ignore"):
        # Infinite: special values, or so large that the grid would lie beyond the largest double.
        known = np.isfinite(np.ldexp(np.maximum.reduceat(np.abs(left), starts), spare + 1))
    left[np.repeat(~known, counts)] = 0.0
    sums: list[Doubles] = []
    for _ in range(_MOST_PARTS):
        largest = np.maximum.reduceat(np.abs(left), starts)
        if not largest.any():
            break
        _take_upper(left, np.repeat(np.ldexp(1.0, np.frexp(largest)[1] + spare), counts), upper)
        sums.append(np.add.reduceat(upper, starts))
    known &= np.maximum.reduceat(np.abs(left), starts) == 0.0
    return _as_parts(sums, known)


def _one_by_one(values: Doubles, counts: Integers) -> tuple[Doubles, Flags]:
    """The parts of groups of any values."""
    ends = np.cumsum(counts)
    bounds = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    lists = [exact_parts(values[start:end].tolist()) for start, end in bounds]
    parts = np.zeros((max(map(len, lists)), len(lists)))
    for group, listed in enumerate(lists):
        parts[: len(listed), group] = listed
    return parts, np.ones(len(lists), dtype=np.bool_)


def _spare(counts: Integers) -> npt.NDArray[np.int32]:
    """Bits to leave free: 2**spare >= count + 2, so that as many sums stay on the grid."""
    return np.frexp((counts + 1).astype(np.float64))[1]


def _largest(values: Doubles) -> float:
    """The largest size; NaN if there is one."""
    return float(np.maximum(values.max(), -values.min()))


def _take_upper(left: Doubles, grid: Doubles, upper: Doubles) -> None:
    """Move from `left` to `upper` what of each value lies on the grid; both are exact."""
    np.add(left, grid, out=upper)
    upper -= grid
    left -= upper


def _as_parts(sums: list[Doubles], known: Flags) -> tuple[Doubles, Flags]:
    """Sums of each group, brought into the form of parts; not known where rounding might decide otherwise."""
    if not sums:
        return np.zeros((1, len(known))), known
    parts = _ordered(sums)
    for index in range(len(parts) - 1):
        known &= (parts[index] + parts[index + 1] == parts[index]) & ((parts[index] != 0.0) | (parts[index + 1] == 0.0))
    for index in range(len(parts) - 2):
        # Halfway between two doubles, what comes after decides.
        beyond = np.nextafter(parts[index + 1], np.copysign(np.inf, parts[index + 1]))
        known &= (parts[index] + beyond == parts[index]) | (parts[index + 2] == 0.0)
    return np.stack(parts), known


def _ordered(sums: list[Doubles]) -> list[Doubles]:
    """The same total, each number the rounded sum of itself and the next."""
    parts = list(sums)
    for _ in parts[1:]:
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
