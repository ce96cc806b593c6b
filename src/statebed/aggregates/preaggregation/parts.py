"""Parts: one value of each group, of which partials are made.

A part is computed of one column, or of the product of two, over the rows in which none of its columns is null. Products
of 64-bit integers are made of words: a value is `high * 2**32 + low` with words of 32 bits and a sign, whose products
fit 64 bits, and whose sums are added up in halves.
"""

import enum
from dataclasses import dataclass

import pyarrow as pa

_MOST_DIGITS = 34
"""Spark rounds the opposite of a longer decimal."""


class Reduce(enum.Enum):
    """What is computed of the values of a group; nulls do not count."""

    COUNT = "count"
    SUM = "sum"
    """Of integers below 64 bits, or of decimals."""
    LOW_SUM = "low_sum"
    """Of the lower halves of 64-bit integers, as numbers from 0."""
    HIGH_SUM = "high_sum"
    """Of their upper halves."""
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    """The value where another column is smallest; of several such the smallest, null last."""
    MAX_BY = "max_by"
    """The value where another column is largest; of several such the smallest, null last."""
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    SKETCH = "sketch"
    """A HyperLogLog sketch of DataSketches, of the key hashes of the values: its bytes, which become its registers."""


class Word(enum.Enum):
    """What of a number is meant."""

    WHOLE = "whole"
    HIGH = "high"
    """Of the nearest double: how many times 2**32 it is, rounded half to even."""
    LOW = "low"
    """The rest."""


@dataclass(frozen=True)
class Factor:
    """A column of the input, or a word of its values."""

    column: str
    word: Word = Word.WHOLE


@dataclass(frozen=True)
class Part:
    """One value of each group."""

    name: str
    reduce: Reduce
    type: pa.DataType
    factors: tuple[Factor, ...] = ()
    """What is reduced is their product; none: the rows themselves."""
    by: Factor | None = None
    """Of MIN_BY and MAX_BY, which have one factor."""
    given: tuple[str, ...] = ()
    """Rows in which one of these is null do not count either."""
    precision: int = 0
    """Of a SKETCH."""


def can_be_reversed(kind: pa.DataType) -> bool:
    """Whether values have counterparts in the opposite order; text, binaries and local times have none."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or (pa.types.is_decimal128(kind) and kind.precision <= _MOST_DIGITS)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
    )
