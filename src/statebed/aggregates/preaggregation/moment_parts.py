"""Parts of variances, covariances and regression of integers: exact sums of words and of their products.

Partials keep exact sums of the values as doubles. A 32-bit integer is exactly a double; a 64-bit integer is rounded to
the nearest double, here as well. Sums of words are integers, so they do not depend on the order of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators import Moments
from statebed.aggregates.exact_sums import Doubles
from statebed.aggregates.preaggregation.parts import Factor, Part, Reduce, Word
from statebed.arrays.columns import int64_values
from statebed.arrays.grouping import Grouping

_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = 32
_HALF = 32


@dataclass(frozen=True)
class _Scaled:
    """A part multiplied by 2**`power`."""

    part: Part
    power: int


def moment_parts(
    position: int, accumulator: Moments, columns: Sequence[str], kinds: Sequence[pa.DataType]
) -> list[Part]:
    """Return the parts to compute for each group: the number of rows, and the parts of every sum."""
    factors = tuple(map(Factor, columns))
    counted = Part(f"_c{position}", Reduce.COUNT, pa.int64(), factors[:1], given=tuple(columns))
    sums = _sums(position, accumulator, columns, kinds)
    return [counted, *(one.part for some in sums.values() for one in some)]


def moment_partial(
    position: int,
    accumulator: Moments,
    columns: Sequence[str],
    kinds: Sequence[pa.DataType],
    parts: Sequence[pa.Array],
) -> list[pa.Array]:
    """Return the partials of groups from their parts, in the order of `moment_parts`."""
    counts, *sums = map(int64_values, parts)
    found = iter(sums)
    terms = {
        word: [term for one in some for term in _doubles(next(found), one.power)]
        for word, some in _sums(position, accumulator, columns, kinds).items()
    }
    each = np.arange(len(counts), dtype=np.int64)
    return list(accumulator.of_terms(counts, terms, counts > 0, Grouping(order=each, starts=each)))


def _sums(
    position: int, accumulator: Moments, columns: Sequence[str], kinds: Sequence[pa.DataType]
) -> dict[str, list[_Scaled]]:
    """Return the parts that add up to each sum of the accumulator."""
    y, x = (_words(column, kind) for column, kind in ((columns[0], kinds[0]), (columns[-1], kinds[-1])))
    wanted = {
        "sum": (y,),
        "sum_y": (y,),
        "sum_x": (x,),
        "squares": (y, y),
        "squares_y": (y, y),
        "squares_x": (x, x),
        "products": (y, x),
    }
    return {word: list(_added(f"_m{position}_{word}", wanted[word], tuple(columns))) for word in accumulator.sum_words}


def _words(column: str, kind: pa.DataType) -> list[tuple[Factor, int]]:
    """Return the 32-bit numbers that make up a value, each with its power of two."""
    if kind.bit_width <= _WORD:
        return [(Factor(column), 0)]
    return [(Factor(column, Word.HIGH), _WORD), (Factor(column, Word.LOW), 0)]


def _added(name: str, of: Sequence[list[tuple[Factor, int]]], given: tuple[str, ...]) -> Iterator[_Scaled]:
    if len(of) == 1:
        for number, (factor, power) in enumerate(of[0]):
            yield _Scaled(Part(f"{name}_{number}", Reduce.SUM, pa.int64(), (factor,), given=given), power)
        return
    for number, ((one, left), (other, right)) in enumerate((a, b) for a in of[0] for b in of[1]):
        factors, power = (one, other), left + right
        yield _Scaled(Part(f"{name}_{number}l", Reduce.LOW_SUM, pa.int64(), factors, given=given), power)
        yield _Scaled(Part(f"{name}_{number}h", Reduce.HIGH_SUM, pa.int64(), factors, given=given), power + _HALF)


def _doubles(values: np.ndarray[tuple[int], np.dtype[np.int64]], power: int) -> tuple[Doubles, Doubles]:
    """Return two doubles that add up to each value exactly."""
    upper, lower = values >> np.int64(_WORD), values & _LOW_BITS
    return np.ldexp(upper.astype(np.float64), power + _WORD), np.ldexp(lower.astype(np.float64), power)
