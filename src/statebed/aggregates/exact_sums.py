"""Exact sums of doubles.

The exact sum of finite doubles is represented as a list of doubles: first the nearest to the sum, then the nearest to
the remainder, until nothing remains. The list depends on the exact sum alone, so it is independent of the order and
grouping of the additions. A sum beyond the largest double starts with the largest double, repeated as needed. Sums with
a NaN, or with infinities of both signs, are [NaN]; with one infinity, that infinity.

Most groups are summed all at once. A sufficiently large number extracts the upper bits of each value, all on one grid,
so that their sum is exact in any order; the remainders are treated the same way. If all values are on the first grid
(whole numbers, multiples of a quarter), a plain sum is exact and sufficient. One grid for all groups is tried first,
then one for each group; the few remaining groups are summed one by one.
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
"""Every finite double is an integer multiple of 2**-1074."""
_MAX_PARTS = 8
_SHARED_GRIDS = 4
"""Number of grids shared by all groups that are tried; more would not be faster than separate grids."""


@dataclass(frozen=True)
class GroupParts:
    """Parts of the sums of many groups."""

    leading: Doubles
    """First part of each group; zero for a group without values."""
    rest: Doubles
    """Other parts, group after group."""
    rest_counts: Integers
    """Number of other parts of each group."""


def exact_group_parts(values: Doubles, counts: Integers) -> GroupParts:
    """Return the parts of each group's sum; the values are stored group after group, with `counts` values each."""
    parts = np.zeros((1, len(counts)))
    left = np.flatnonzero(counts)
    for method in (_on_one_grid, _on_own_grids, _one_by_one):
        if not len(left):
            break
        chosen = values if len(left) == len(counts) else values[np.repeat(_flags(left, len(counts)), counts)]
        group_parts, known = method(chosen, counts[left])
        if len(group_parts) > len(parts):
            parts = np.pad(parts, ((0, len(group_parts) - len(parts)), (0, 0)))
        parts[: len(group_parts), left[known]] = group_parts[:, known]
        left = left[~known]
    rest = parts[1:].T
    not_zero = rest != 0.0
    return GroupParts(
        leading=parts[0] + 0.0,  # -0.0 becomes 0.0
        rest=rest[not_zero],
        rest_counts=np.count_nonzero(not_zero, axis=1).astype(np.int64),
    )


def _flags(places: Integers, length: int) -> Flags:
    flags = np.zeros(length, dtype=np.bool_)
    flags[places] = True
    return flags


def _on_one_grid(values: Doubles, counts: Integers) -> tuple[Doubles, Flags]:
    """Return the parts of each group, and for which groups they are exact; all groups share their grids."""
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
    """Return the same as `_on_one_grid`, with separate grids for each group."""
    starts = np.cumsum(counts) - counts
    spare = _spare(counts)
    left, upper = values.copy(), np.empty_like(values)
    with np.errstate(over="ignore"):
        # Infinite for special values, and for values so large that the grid would be beyond the largest double.
        known = np.isfinite(np.ldexp(np.maximum.reduceat(np.abs(left), starts), spare + 1))
    left[np.repeat(~known, counts)] = 0.0
    sums: list[Doubles] = []
    for _ in range(_MAX_PARTS):
        largest = np.maximum.reduceat(np.abs(left), starts)
        if not largest.any():
            break
        _take_upper(left, np.repeat(np.ldexp(1.0, np.frexp(largest)[1] + spare), counts), upper)
        sums.append(np.add.reduceat(upper, starts))
    known &= np.maximum.reduceat(np.abs(left), starts) == 0.0
    return _as_parts(sums, known)


def _one_by_one(values: Doubles, counts: Integers) -> tuple[Doubles, Flags]:
    """Return the parts of groups with any values."""
    ends = np.cumsum(counts)
    bounds = zip((ends - counts).tolist(), ends.tolist(), strict=True)
    lists = [exact_parts(values[start:end].tolist()) for start, end in bounds]
    parts = np.zeros((max(map(len, lists)), len(lists)))
    for group, listed in enumerate(lists):
        parts[: len(listed), group] = listed
    return parts, np.ones(len(lists), dtype=np.bool_)


def _spare(counts: Integers) -> npt.NDArray[np.int32]:
    """Return the number of bits to leave free: 2**spare >= count + 2, so that the sums stay on the grid."""
    return np.frexp((counts + 1).astype(np.float64))[1]


def _largest(values: Doubles) -> float:
    """Return the largest absolute value, or NaN if there is one."""
    return float(np.maximum(values.max(), -values.min()))


def _take_upper(left: Doubles, grid: Doubles, upper: Doubles) -> None:
    """Move the part of each value that is on the grid from `left` to `upper`; both stay exact."""
    np.add(left, grid, out=upper)
    upper -= grid
    left -= upper


def _as_parts(sums: list[Doubles], known: Flags) -> tuple[Doubles, Flags]:
    """Normalize the sums of each group to parts; clear `known` where rounding might decide otherwise."""
    if not sums:
        return np.zeros((1, len(known))), known
    parts = _ordered(sums)
    for index in range(len(parts) - 1):
        known &= (parts[index] + parts[index + 1] == parts[index]) & ((parts[index] != 0.0) | (parts[index + 1] == 0.0))
    for index in range(len(parts) - 2):
        # Halfway between two doubles, the following parts decide.
        beyond = np.nextafter(parts[index + 1], np.copysign(np.inf, parts[index + 1]))
        known &= (parts[index] + beyond == parts[index]) | (parts[index + 2] == 0.0)
    return np.stack(parts), known


def _ordered(sums: list[Doubles]) -> list[Doubles]:
    """Return numbers with the same total, each the rounded sum of itself and the next."""
    parts = list(sums)
    for _ in parts[1:]:
        for index in range(len(parts) - 1, 0, -1):
            parts[index - 1], parts[index] = _add_pairs(parts[index - 1], parts[index])
    return parts


def _add_pairs(augend: Doubles, addend: Doubles) -> tuple[Doubles, Doubles]:
    """Return sums and their rounding errors, exact wherever the sum is finite."""
    total = augend + addend
    back = total - augend
    return total, (augend - (total - back)) + (addend - back)


def exact_parts(values: Sequence[float]) -> list[float]:
    """Return the exact sum of at least one double as its list of parts.

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
        # fsum fails if an intermediate sum exceeds the largest double, and for infinities of both signs.
        return _slow_parts(values)
    if not math.isfinite(parts[-1]):
        return [math.nan if math.isnan(parts[-1]) else parts[-1]]
    return parts[:-1] or [0.0]


def rounded(parts: Sequence[float]) -> float:
    """Return the double nearest to the sum of parts; infinite if it is beyond the largest double."""
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
