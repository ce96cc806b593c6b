"""Parts of groups as Spark aggregates that return the same bits regardless of the order of rows.

Parts for which Spark's order of values or arithmetic might differ from statebed's are not requested
(`statebed.aggregates.preaggregation`), or are built from others: among equal values, such as 0.0 and -0.0, Spark keeps
any.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from statebed.aggregates.parts import Factor, Part, Reduce, Word, can_be_reversed
from statebed.flow.steps import key_hashes
from statebed.format.ranges import subtask_of

_LOW_BITS = 0xFFFFFFFF
_HALF = 32
_TWO_32 = float(1 << _HALF)
_VALUE = "value"


@dataclass(frozen=True)
class Columns:
    """Columns and types of the inputs of aggregates in Spark's rows."""

    names: Mapping[str, str]
    kinds: Mapping[str, pa.DataType]

    def column(self, factor: Factor) -> Column:
        """Return the column, with values that are equal but differ in their bits normalised."""
        column, kind = F.col(self.names[factor.column]), self.kinds[factor.column]
        if pa.types.is_string(kind):
            return column.cast("string")  # compared byte by byte, regardless of its collation
        if not pa.types.is_floating(kind):
            return column
        name = "float" if pa.types.is_float32(kind) else "double"
        return F.when(F.isnan(column), F.lit(float("nan"))).otherwise(column + F.lit(0.0)).cast(name)

    def number(self, factor: Factor) -> Column:
        """Return the column as a 64-bit integer or one word of it; a decimal stays as it is."""
        column, kind = F.col(self.names[factor.column]), self.kinds[factor.column]
        if factor.word is Word.WHOLE:
            return column.cast("bigint") if pa.types.is_integer(kind) else column
        # Exact steps: division by a power of two, and the difference to a near multiple of it.
        double = column.cast("double")
        high = F.rint(double / F.lit(_TWO_32))
        return (high if factor.word is Word.HIGH else double - high * F.lit(_TWO_32)).cast("bigint")


def owner_expression(keys: Sequence[Column], parallelism: int) -> Column:
    """Return the subtask that owns a key, as `subtask_of` computes it from the hash, which is Spark's own."""
    if not keys:
        return F.lit(int(subtask_of(key_hashes([], 1).view(np.uint64), parallelism)[0]))
    return F.shiftright(F.shiftrightunsigned(F.xxhash64(*keys), _HALF) * F.lit(parallelism), _HALF).cast("int")


def part_expression(part: Part, columns: Columns) -> Column:
    """Return the aggregate that computes a part."""
    if not part.factors:
        return F.count(F.lit(1))
    if part.by is not None:
        return _value_by(part, part.by, columns)
    if part.reduce in _SUMS:
        value = functools.reduce(operator.mul, (columns.number(factor) for factor in part.factors))
    else:
        value = columns.column(part.factors[0])
    for name in part.required:
        value = F.when(F.col(columns.names[name]).isNotNull(), value)
    if part.reduce is Reduce.SKETCH:
        return F.hll_sketch_agg(F.when(value.isNotNull(), F.xxhash64(value)), part.precision)
    return _sum(part, value) if part.reduce in _SUMS else _PLAIN[part.reduce](value)


def _sum(part: Part, value: Column) -> Column:
    if part.reduce is Reduce.LOW_SUM:
        return F.sum(value.bitwiseAND(F.lit(_LOW_BITS)))
    if part.reduce is Reduce.HIGH_SUM:
        return F.sum(F.shiftright(value, _HALF))
    if pa.types.is_decimal(part.type):
        return F.sum(value).cast(f"decimal({part.type.precision}, {part.type.scale})")
    return F.sum(value)


_SUMS = {Reduce.SUM, Reduce.LOW_SUM, Reduce.HIGH_SUM}
_PLAIN = {
    Reduce.COUNT: F.count,
    Reduce.MIN: F.min,
    Reduce.MAX: F.max,
    Reduce.BIT_AND: F.bit_and,
    Reduce.BIT_OR: F.bit_or,
    Reduce.BIT_XOR: F.bit_xor,
}


def _value_by(part: Part, by: Factor, columns: Columns) -> Column:
    """Return the value of the first or last row in a total order, which does not depend on the order of arrival."""
    factor = part.factors[0]
    value, kind = columns.column(factor), columns.kinds[factor.column]
    other, other_kind = columns.column(by), columns.kinds[by.column]
    chosen, order = F.min, [other, value.isNull()]
    if part.reduce is Reduce.MAX_BY and can_be_reversed(other_kind):
        order = [*_opposite(other, other_kind), value.isNull()]
    elif part.reduce is Reduce.MAX_BY:
        chosen, order = F.max, [other, value.isNotNull(), *_opposite(value, kind)]
    row = F.struct(*(column.alias(f"by{place}") for place, column in enumerate(order)), value.alias(_VALUE))
    return chosen(F.when(other.isNotNull(), row)).getField(_VALUE)


def _opposite(column: Column, kind: pa.DataType) -> list[Column]:
    """Return columns that sort in the opposite order of the value."""
    if pa.types.is_boolean(kind):
        return [~column]
    if pa.types.is_floating(kind):
        return [~F.isnan(column), -column]
    if pa.types.is_decimal(kind):
        return [-column]
    if pa.types.is_date(kind):
        return [-F.unix_date(column)]
    return [F.bitwise_not(F.unix_micros(column) if pa.types.is_timestamp(kind) else column)]
