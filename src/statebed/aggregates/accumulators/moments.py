"""Variances, covariances, correlation and regression from counts and exact sums of values and of their products.

Products are exact, too: a double and its rounding error. Partials therefore do not depend on the order of rows, and
results are computed from them with about 107 bits, which avoids cancellation errors. Values are doubles. Undefined
results are null, as in Spark: one value has no sample variance, a constant no slope and no correlation.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import check_weights, piece_by_piece, weight_of
from statebed.aggregates.accumulators.counts import Count
from statebed.aggregates.accumulators.doubles import DoubleSum, Wide, as_doubles, product
from statebed.aggregates.accumulators.moment_parts import moment_parts, moment_terms
from statebed.aggregates.exact_sums import Doubles
from statebed.aggregates.parts import Part, PartInputs
from statebed.arrays.columns import float64_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Flags, Grouping, Integers

_PAIR = 2
_WORDS_OF_TWO = ("sum_y", "sum_x", "squares_y", "squares_x", "products")


class MomentFunction(enum.Enum):
    """Function to compute; with two columns, y comes before x, as in SQL."""

    VAR_POP = "var_pop"
    VAR_SAMP = "var_samp"
    STDDEV_POP = "stddev_pop"
    STDDEV_SAMP = "stddev_samp"
    COVAR_POP = "covar_pop"
    COVAR_SAMP = "covar_samp"
    CORR = "corr"
    REGR_COUNT = "regr_count"
    REGR_AVGX = "regr_avgx"
    REGR_AVGY = "regr_avgy"
    REGR_SXX = "regr_sxx"
    REGR_SYY = "regr_syy"
    REGR_SXY = "regr_sxy"
    REGR_SLOPE = "regr_slope"
    REGR_INTERCEPT = "regr_intercept"
    REGR_R2 = "regr_r2"

    @property
    def columns(self) -> int:
        """Number of columns that it reads."""
        return 1 if self.value.startswith(("var", "std")) else _PAIR


@dataclass(frozen=True)
class Moments:
    """Any of the moments, over rows in which no input is null."""

    name: str
    moment: MomentFunction
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        sums = [field for total in self._sums.values() for field in total.partial_fields]
        return (Count(f"_{self.name}_count").output_field, *sums)

    @property
    def output_field(self) -> pa.Field:
        if self.moment is MomentFunction.REGR_COUNT:
            return Count(self.name).output_field
        return pa.field(self.name, pa.float64())

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name, changelog=self.changelog)
        return piece_by_piece(self._fold, inputs, grouping, weights)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return piece_by_piece(self._merge, partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        counts = int64_values(partials[0])
        if self.moment is MomentFunction.REGR_COUNT:
            return from_numpy(np.maximum(counts, 0), pa.int64())
        sums = {
            word: total.wide(columns)
            for word, (total, columns) in zip(self._sums, self._columns(partials), strict=True)
        }
        with np.errstate(all="ignore"):
            results, defined = _RESULTS[self.moment](counts.astype(np.float64), sums)
        return from_numpy(results, pa.float64(), valid=defined & (counts > 0))

    def _fold(self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None) -> tuple[pa.Array, ...]:
        columns = list(map(as_doubles, inputs))
        valid = np.logical_and.reduce([validity(column) for column in columns])
        # With one column, both are the same.
        y, x = (_values(column) for column in (columns[0], columns[-1]))
        terms = {"sum": (y,), "sum_y": (y,), "sum_x": (x,), "squares": _terms(y, y)}
        terms |= {"squares_y": terms["squares"]}
        if len(columns) == _PAIR:
            terms |= {"squares_x": _terms(x, x), "products": _terms(x, y)}
        return self.of_terms(grouping.add(weight_of(weights, valid)), terms, valid, grouping, weights)

    def of_terms(
        self,
        counts: Integers,
        terms: Mapping[str, Sequence[Doubles]],
        valid: Flags,
        grouping: Grouping,
        weights: Integers | None = None,
    ) -> tuple[pa.Array, ...]:
        """Return the partials of groups with `counts` values, whose sums are those of `terms` by `sum_words`."""
        sums = [
            part for word, total in self._sums.items() for part in total.fold(terms[word], valid, grouping, weights)
        ]
        return (from_numpy(counts, pa.int64()), *sums)

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        integers = all(map(pa.types.is_signed_integer, inputs.kinds))
        return moment_parts(inputs, self.sum_words) if integers else None

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:
        counts, terms = moment_terms(inputs, self.sum_words, parts)
        each = np.arange(len(counts), dtype=np.int64)
        return list(self.of_terms(counts, terms, counts > 0, Grouping(order=each, starts=each)))

    @property
    def sum_words(self) -> tuple[str, ...]:
        """Sums that are kept, in the order of their columns."""
        return ("sum", "squares") if self.moment.columns == 1 else _WORDS_OF_TWO

    def _merge(
        self,
        partials: Sequence[pa.Array],
        grouping: Grouping,
        weights: Integers | None,  # noqa: ARG002 - as of rows
    ) -> tuple[pa.Array, ...]:
        counts = from_numpy(grouping.add(int64_values(partials[0])), pa.int64())
        sums = [part for total, columns in self._columns(partials) for part in total.merge(columns, grouping)]
        return (counts, *sums)

    @property
    def _sums(self) -> dict[str, DoubleSum]:
        stems = {word: f"_{self.name}_{word}" for word in self.sum_words}
        return {word: DoubleSum(stem, stem, changelog=self.changelog) for word, stem in stems.items()}

    def _columns(self, partials: Sequence[pa.Array]) -> list[tuple[DoubleSum, Sequence[pa.Array]]]:
        """Return each sum with its columns."""
        sums = list(self._sums.values())
        width = len(sums[0].partial_fields)
        return [(total, partials[1 + place * width :][:width]) for place, total in enumerate(sums)]


def _values(column: pa.Array) -> Doubles:
    values = float64_values(column)
    return np.where(validity(column), values, 0.0) if column.null_count else values


def _terms(factor: Doubles, other: Doubles) -> tuple[Doubles, ...]:
    """Return doubles that add up to each product exactly."""
    rounded, error = product(factor, other)
    return (rounded, error) if error.any() else (rounded,)


# ---- arithmetic with two doubles for each number -------------------------------------------------------------

Sums = dict[str, Wide]
Result = tuple[Doubles, Flags]


def _wide_product(factor: Wide, other: Wide) -> Wide:
    rounded, error = product(factor[0], other[0])
    return _normal(rounded, error + (factor[0] * other[1] + factor[1] * other[0]))


def _normal(high: Doubles, low: Doubles) -> Wide:
    total = high + low
    return total, low - (total - high)


def _less(minuend: Wide, subtrahend: Wide) -> Doubles:
    """Return one - other, rounded."""
    difference = minuend[0] - subtrahend[0]
    back = difference - minuend[0]
    error = (minuend[0] - (difference - back)) - (subtrahend[0] + back)
    return difference + (error + (minuend[1] - subtrahend[1]))


def _spread(counts: Doubles, products: Wide, left: Wide, right: Wide) -> Doubles:
    """Return the sum of (a - mean of a) * (b - mean of b)."""
    scaled, error = product(products[0], counts)
    result: Doubles = _less(_normal(scaled, error + products[1] * counts), _wide_product(left, right)) / counts
    return result


# ---- results -------------------------------------------------------------------------------------------------


def _xx(counts: Doubles, sums: Sums) -> Doubles:
    return np.maximum(_spread(counts, sums["squares_x"], sums["sum_x"], sums["sum_x"]), 0.0)


def _yy(counts: Doubles, sums: Sums) -> Doubles:
    return np.maximum(_spread(counts, sums["squares_y"], sums["sum_y"], sums["sum_y"]), 0.0)


def _xy(counts: Doubles, sums: Sums) -> Doubles:
    return _spread(counts, sums["products"], sums["sum_x"], sums["sum_y"])


def _variance(*, less: int, root: bool) -> Callable[[Doubles, Sums], Result]:
    def result(counts: Doubles, sums: Sums) -> Result:
        spread = np.maximum(_spread(counts, sums["squares"], sums["sum"], sums["sum"]), 0.0)
        variance = spread / (counts - less)
        return (np.sqrt(variance) if root else variance), counts > less

    return result


def _covariance(*, less: int) -> Callable[[Doubles, Sums], Result]:
    return lambda counts, sums: (_xy(counts, sums) / (counts - less), counts > less)


def _always(function: Callable[[Doubles, Sums], Doubles]) -> Callable[[Doubles, Sums], Result]:
    return lambda counts, sums: (function(counts, sums), np.ones(len(counts), dtype=np.bool_))


def _correlation(counts: Doubles, sums: Sums) -> Result:
    spread = np.sqrt(_xx(counts, sums)) * np.sqrt(_yy(counts, sums))
    return _xy(counts, sums) / spread, (counts > 1) & (spread != 0.0)


def _slope(counts: Doubles, sums: Sums) -> Result:
    spread = _xx(counts, sums)
    return _xy(counts, sums) / spread, spread != 0.0


def _intercept(counts: Doubles, sums: Sums) -> Result:
    slope, defined = _slope(counts, sums)
    return (sums["sum_y"][0] - slope * sums["sum_x"][0]) / counts, defined


def _r2(counts: Doubles, sums: Sums) -> Result:
    xx, yy, xy = _xx(counts, sums), _yy(counts, sums), _xy(counts, sums)
    return np.where(yy == 0.0, 1.0, xy / xx * (xy / yy)), xx != 0.0


_RESULTS: dict[MomentFunction, Callable[[Doubles, Sums], Result]] = {
    MomentFunction.VAR_POP: _variance(less=0, root=False),
    MomentFunction.VAR_SAMP: _variance(less=1, root=False),
    MomentFunction.STDDEV_POP: _variance(less=0, root=True),
    MomentFunction.STDDEV_SAMP: _variance(less=1, root=True),
    MomentFunction.COVAR_POP: _covariance(less=0),
    MomentFunction.COVAR_SAMP: _covariance(less=1),
    MomentFunction.CORR: _correlation,
    MomentFunction.REGR_AVGX: _always(lambda counts, sums: sums["sum_x"][0] / counts),
    MomentFunction.REGR_AVGY: _always(lambda counts, sums: sums["sum_y"][0] / counts),
    MomentFunction.REGR_SXX: _always(_xx),
    MomentFunction.REGR_SYY: _always(_yy),
    MomentFunction.REGR_SXY: _always(_xy),
    MomentFunction.REGR_SLOPE: _slope,
    MomentFunction.REGR_INTERCEPT: _intercept,
    MomentFunction.REGR_R2: _r2,
}
