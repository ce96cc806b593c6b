"""Columns of state that hold exact sums of doubles.

`{column}` is the exact sum rounded to the nearest double, `{stem}_rest` the little-endian doubles of the remainder,
each the nearest to what remains (null if nothing does). NaN and the infinities have no remainder. Negative zero is
zero.

Over a changelog, special values can be retracted, too. They are counted separately from the finite sum in
`{stem}_special`, three little-endian 64-bit integers: the numbers of NaN, infinities and negative infinities (null if
all are zero).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.base import weight_of, zero_for_null
from statebed.aggregates.exact_sums import Doubles, exact_group_parts, rounded
from statebed.arrays.columns import float64_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.errors import SumOverflowError

Wide = tuple[Doubles, Doubles]
"""Numbers of about 107 bits: a double and its rounding error."""

_BYTES = 8
_SPECIALS = 3
_SPLIT = 134_217_729.0  # 2**27 + 1
_LOW_BITS = np.uint64((1 << 32) - 1)
_WORD = np.uint64(32)
_LARGE = 2.0**900
_SCALE = 128
_MAX_PADDED = 4
_MAX_TERMS = 64


@dataclass(frozen=True)
class DoubleSum:
    """One exact sum of doubles per group."""

    column: str
    """Name of the column of leading parts."""
    stem: str
    """Prefix of the names of the other columns."""
    changelog: bool

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        fields = (pa.field(self.column, pa.float64()), pa.field(f"{self.stem}_rest", pa.binary()))
        return (*fields, pa.field(f"{self.stem}_special", pa.binary())) if self.changelog else fields

    def fold(
        self, terms: Sequence[Doubles], valid: Flags, grouping: Grouping, weights: Integers | None
    ) -> tuple[pa.Array, ...]:
        """Return the sum of each group; a row's value is the sum of its `terms`, of which only the first may be
        special.
        """
        if not self.changelog:
            return _summed(terms, valid, grouping)
        finite = valid & np.isfinite(terms[0])
        specials = _count_specials(terms[0], valid & ~finite, grouping, weights)
        terms = [np.where(finite, term, 0.0) for term in terms]
        weighted = terms if weights is None else _weighted(terms, weights)
        leading, rest = _summed(weighted, finite, grouping)
        return zero_for_null(leading), rest, specials

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        """Return the exact sums of groups of exact sums."""
        leading, rest = partials[:2]
        valid = validity(leading)
        others, per_row = _unpack(rest, "<f8")
        widest = int(per_row.max(initial=0))
        if widest > _MAX_PADDED:
            values = np.concatenate([np.where(valid, float64_values(leading), 0.0), others])
            owners = np.concatenate([grouping.group_of_rows(), np.repeat(grouping.group_of_rows(), per_row)])
            order = np.argsort(owners, kind="stable")
            merged = _as_columns(values[order], np.bincount(owners, minlength=grouping.groups), grouping.any(valid))
        else:
            merged = _summed([float64_values(leading), *_padded(others, per_row, widest)], valid, grouping)
        return (*merged, _merge_specials(partials[2], grouping)) if self.changelog else merged

    def rounded(self, partials: Sequence[pa.Array]) -> Doubles:
        """Return the nearest double to each sum."""
        results = float64_values(partials[0]).copy()
        # The leading part already is the rounded sum, unless the sum is beyond the largest double.
        at_the_edge = np.abs(results) == np.finfo(np.float64).max
        for row in np.flatnonzero(at_the_edge & validity(partials[1])):
            rest = np.frombuffer(partials[1][int(row)].as_py(), dtype="<f8").tolist()
            results[row] = rounded([float(results[row]), *rest])
        return self._with_specials(results, partials)

    def wide(self, partials: Sequence[pa.Array]) -> Wide:
        """Return about 107 bits of each sum: the leading part and the largest of the rest."""
        values, per_row = _unpack(partials[1], "<f8")
        return self._with_specials(float64_values(partials[0]), partials), _padded(values, per_row, 1)[0]

    def _with_specials(self, finite: Doubles, partials: Sequence[pa.Array]) -> Doubles:
        if not self.changelog or partials[2].null_count == len(partials[2]):
            return finite
        nans, infinities, negatives = _specials(partials[2]).T > 0
        results = np.where(infinities, np.inf, np.where(negatives, -np.inf, finite))
        return np.where(nans | (infinities & negatives), np.nan, results)


def as_doubles(column: pa.Array) -> pa.Array:
    """Convert numbers of any type to the nearest doubles."""
    return column if column.type.equals(pa.float64()) else pc.cast(column, pa.float64(), safe=False)


def product(factor: Doubles, other: Doubles) -> Wide:
    """Return products and their rounding errors, which are zero where they cannot be determined."""
    with np.errstate(all="ignore"):
        result = factor * other
        one_high, one_low = _halves(factor)
        other_high, other_low = (one_high, one_low) if other is factor else _halves(other)
        error = ((one_high * other_high - result) + one_high * other_low + one_low * other_high) + one_low * other_low
    if not np.isfinite(error.sum()):
        error = np.where(np.isfinite(error), error, 0.0)
    return result, error


def _halves(values: Doubles) -> Wide:
    shifted = values * _SPLIT
    high = shifted - (shifted - values)
    return high, values - high


# ---- rows ----------------------------------------------------------------------------------------------------


def _summed(terms: Sequence[Doubles], valid: Flags, grouping: Grouping) -> tuple[pa.Array, pa.Array]:
    """Return the sum of each group of rows."""
    order, counts, has_values = grouping.order, grouping.sizes, np.ones(grouping.groups, dtype=np.bool_)
    if not valid.all():
        order, counts, has_values = order[valid[order]], grouping.add(valid.astype(np.int64)), grouping.any(valid)
    if len(terms) == 1:
        return _as_columns(terms[0][order], counts, has_values)
    values = np.stack([term[order] for term in terms], axis=1).ravel()
    return _as_columns(values, counts * len(terms), has_values)


def _as_columns(values: Doubles, counts: Integers, has_values: Flags) -> tuple[pa.Array, pa.Array]:
    parts = exact_group_parts(values, counts)
    return from_numpy(parts.leading, pa.float64(), valid=has_values), _pack(parts.rest.astype("<f8"), parts.rest_counts)


def _weighted(terms: Sequence[Doubles], weights: Integers) -> list[Doubles]:
    """Return terms whose sum is exactly the sum of `terms` times the weights."""
    sizes = np.abs(weights).view(np.uint64)
    if not len(sizes) or sizes.max() <= 1:
        return [term * weights for term in terms]
    signs = np.sign(weights).astype(np.float64)
    low, high = (sizes & _LOW_BITS).astype(np.float64), (sizes >> _WORD).astype(np.float64) * 2.0**32
    factors = [low, high] if high.any() else [low]
    return [part for term in terms for factor in factors for part in _times(term * signs, factor)]


def _times(values: Doubles, factors: Doubles) -> list[Doubles]:
    """Return doubles whose sum is exactly the products with integers."""
    # Scale large values down first, so that only the result may be large.
    scale = np.where(np.abs(values) > _LARGE, _SCALE, 0)
    high, low = product(np.ldexp(values, -scale), factors)
    parts = [np.ldexp(low, scale)]
    # A power of two far above the last bits leaves an exact remainder.
    limit = np.ldexp(1.0, np.finfo(np.float64).maxexp - 1 - scale)
    while (beyond := np.abs(high) > limit).any():
        taken = np.where(beyond, np.copysign(limit, high), 0.0)
        high = high - taken
        parts.append(np.ldexp(taken, scale))
        if len(parts) > _MAX_TERMS:
            raise SumOverflowError(
                "a value times its weight is far beyond the largest double",
                fix="scale the input of the aggregate down",
            )
    return [np.ldexp(high, scale), *parts]


# ---- packed columns ------------------------------------------------------------------------------------------


def _count_specials(values: Doubles, special: Flags, grouping: Grouping, weights: Integers | None) -> pa.Array:
    if not special.any():
        return pa.nulls(grouping.groups, pa.binary())
    kinds = (np.isnan(values), values == np.inf, values == -np.inf)
    return _pack_specials([grouping.add(weight_of(weights, special & kind)) for kind in kinds])


def _merge_specials(column: pa.Array, grouping: Grouping) -> pa.Array:
    if column.null_count == len(column):
        return pa.nulls(grouping.groups, pa.binary())
    return _pack_specials([grouping.add(counts) for counts in _specials(column).T])


def _pack_specials(counts: Sequence[Integers]) -> pa.Array:
    table = np.stack(counts, axis=1)
    has_specials = table.any(axis=1)
    return _pack(table[has_specials].ravel().astype("<i8"), np.where(has_specials, _SPECIALS, 0).astype(np.int64))


def _specials(column: pa.Array) -> Integers:
    """Return the numbers of NaN, infinities and negative infinities of each row."""
    values, per_row = _unpack(column, "<i8")
    table = np.zeros((len(column), _SPECIALS), dtype=np.int64)
    table[per_row > 0] = values.reshape(-1, _SPECIALS)
    return table


def _padded(values: Doubles, per_row: Integers, width: int) -> list[Doubles]:
    """Return the first `width` values of each row, padded with zeros."""
    starts = np.cumsum(per_row) - per_row
    columns = []
    for place in range(width):
        has_value = per_row > place
        column = np.zeros(len(per_row))
        column[has_value] = values[starts[has_value] + place]
        columns.append(column)
    return columns


def _unpack(column: pa.Array, dtype: str) -> tuple[npt.NDArray[Any], Integers]:
    """Return the numbers in a binary column, and how many each row holds."""
    if column.null_count == len(column):
        return np.zeros(0, dtype=dtype), np.zeros(len(column), dtype=np.int64)
    lengths = int64_values(pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    whole = np.frombuffer(data if data is not None else b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return np.frombuffer(whole.tobytes(), dtype=dtype), lengths // _BYTES


def _pack(values: npt.NDArray[np.generic], counts: Integers) -> pa.Array:
    """Return a binary column with `counts` 64-bit numbers per row, null if none."""
    if not len(values):
        return pa.nulls(len(counts), pa.binary())
    offsets = np.concatenate([[0], np.cumsum(counts * _BYTES)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the remainders of float sums of one batch exceed 2 GB")
    buffers = [
        pa.py_buffer(np.packbits(counts > 0, bitorder="little")),
        pa.py_buffer(offsets.astype(np.int32)),
        pa.py_buffer(np.ascontiguousarray(values)),
    ]
    return pa.Array.from_buffers(pa.binary(), len(counts), buffers)
