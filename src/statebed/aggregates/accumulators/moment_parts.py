"""Parts of variances, covariances and regression of integers: exact sums of words and of their products.

Partials keep exact sums of the values as doubles. A 32-bit integer is exactly a double; a 64-bit integer is rounded to
the nearest double, here as well. Sums of words are integers, so they do not depend on the order of rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.exact_sums import Doubles
from statebed.aggregates.parts import Factor, Part, PartInputs, Reduce, Word
from statebed.arrays.columns import int64_values
from statebed.arrays.grouping import Integers

_LOW_BITS = np.int64((1 << 32) - 1)
_WORD = 32
_HALF = 32


@dataclass(frozen=True)
class _Scaled:
    """A part multiplied by 2**`power`."""

    part: Part
    power: int


def moment_parts(inputs: PartInputs, sum_words: Sequence[str]) -> list[Part]:
    """Return the parts to compute for each group: the number of rows, and the parts of every sum."""
    count = Part(inputs.part_name("c"), Reduce.COUNT, pa.int64(), inputs.factors[:1], required=inputs.columns)
    return [count, *(addend.part for addends in _sums(inputs, sum_words).values() for addend in addends)]


def moment_terms(
    inputs: PartInputs, sum_words: Sequence[str], parts: Sequence[pa.Array]
) -> tuple[Integers, dict[str, list[Doubles]]]:
    """Return the number of rows of each group, and the doubles that add up to each sum.

    `parts` are in the order of `moment_parts`.
    """
    counts, *sums = map(int64_values, parts)
    values = iter(sums)
    terms = {
        word: [term for addend in addends for term in _doubles(next(values), addend.power)]
        for word, addends in _sums(inputs, sum_words).items()
    }
    return counts, terms


def _sums(inputs: PartInputs, sum_words: Sequence[str]) -> dict[str, list[_Scaled]]:
    """Return the parts that add up to each sum."""
    y = _words(inputs.columns[0], inputs.kinds[0])
    x = _words(inputs.columns[-1], inputs.kinds[-1])
    wanted = {
        "sum": (y,),
        "sum_y": (y,),
        "sum_x": (x,),
        "squares": (y, y),
        "squares_y": (y, y),
        "squares_x": (x, x),
        "products": (y, x),
    }
    return {word: list(_added(f"{inputs.part_name('m')}_{word}", wanted[word], inputs.columns)) for word in sum_words}


def _words(column: str, kind: pa.DataType) -> list[tuple[Factor, int]]:
    """Return the 32-bit numbers that make up a value, each with its power of two."""
    if kind.bit_width <= _WORD:
        return [(Factor(column), 0)]
    return [(Factor(column, Word.HIGH), _WORD), (Factor(column, Word.LOW), 0)]


def _added(name: str, of: Sequence[list[tuple[Factor, int]]], present: tuple[str, ...]) -> Iterator[_Scaled]:
    if len(of) == 1:
        for number, (factor, power) in enumerate(of[0]):
            yield _Scaled(Part(f"{name}_{number}", Reduce.SUM, pa.int64(), (factor,), required=present), power)
        return
    for number, ((first, left), (other, right)) in enumerate((a, b) for a in of[0] for b in of[1]):
        factors, power = (first, other), left + right
        yield _Scaled(Part(f"{name}_{number}l", Reduce.LOW_SUM, pa.int64(), factors, required=present), power)
        yield _Scaled(Part(f"{name}_{number}h", Reduce.HIGH_SUM, pa.int64(), factors, required=present), power + _HALF)


def _doubles(values: np.ndarray[tuple[int], np.dtype[np.int64]], power: int) -> tuple[Doubles, Doubles]:
    """Return two doubles that add up to each value exactly."""
    upper, lower = values >> np.int64(_WORD), values & _LOW_BITS
    return np.ldexp(upper.astype(np.float64), power + _WORD), np.ldexp(lower.astype(np.float64), power)
