"""Parts: values of each group from which partials are made.

A part is computed from one column, or from the product of two, over the rows in which none of its columns is null.
Products of 64-bit integers are split into words: a value is `high * 2**32 + low` with signed 32-bit words, whose
products fit into 64 bits, and whose sums are added up in halves.
"""

import enum
from dataclasses import dataclass

import pyarrow as pa

_MAX_DIGITS = 34
"""Maximum precision: Spark rounds when it negates a longer decimal."""


class Reduce(enum.Enum):
    """Reduction of the values of a group; nulls are ignored."""

    COUNT = "count"
    SUM = "sum"
    """Sum of integers below 64 bits, or of decimals."""
    LOW_SUM = "low_sum"
    """Sum of the lower halves of 64-bit integers, as unsigned numbers."""
    HIGH_SUM = "high_sum"
    """Sum of the upper halves of 64-bit integers."""
    MIN = "min"
    MAX = "max"
    MIN_BY = "min_by"
    """Value where another column is smallest; ties go to the smallest value, null last."""
    MAX_BY = "max_by"
    """Value where another column is largest; ties go to the smallest value, null last."""
    BIT_AND = "bit_and"
    BIT_OR = "bit_or"
    BIT_XOR = "bit_xor"
    SKETCH = "sketch"
    """Bytes of a DataSketches HyperLogLog sketch of the values' key hashes, which are converted to its registers."""


class Word(enum.Enum):
    """Part of a number that a factor uses."""

    WHOLE = "whole"
    HIGH = "high"
    """Nearest double divided by 2**32, rounded half to even."""
    LOW = "low"
    """Remainder after HIGH."""


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
    """Factors whose product is reduced; the rows themselves if empty."""
    by: Factor | None = None
    """Order column of MIN_BY and MAX_BY, which have one factor."""
    required: tuple[str, ...] = ()
    """Rows in which one of these columns is null are ignored, too."""
    precision: int = 0
    """Precision of a SKETCH."""


@dataclass(frozen=True)
class PartInputs:
    """Input columns of one aggregate, from which its parts are computed."""

    position: int
    """Position of the aggregate among those of its operator."""
    columns: tuple[str, ...]
    kinds: tuple[pa.DataType, ...]

    @property
    def factors(self) -> tuple[Factor, ...]:
        return tuple(map(Factor, self.columns))

    def part_name(self, letter: str) -> str:
        """Return the name of a part; the letters of an aggregate's parts differ."""
        return f"_{letter}{self.position}"

    def count(self) -> Part:
        """Return the number of rows whose inputs are not null."""
        return Part(self.part_name("c"), Reduce.COUNT, pa.int64(), self.factors)


def can_be_reversed(kind: pa.DataType) -> bool:
    """Return whether the order of values can be reversed; that of text, binaries and local times cannot."""
    return bool(
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or (pa.types.is_decimal128(kind) and kind.precision <= _MAX_DIGITS)
        or pa.types.is_date32(kind)
        or (pa.types.is_timestamp(kind) and kind.tz is not None)
    )
