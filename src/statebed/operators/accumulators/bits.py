"""Integers combined bit by bit; nulls are ignored."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.format.columns import fixed_width_values, from_numpy, validity
from statebed.operators.grouping import Grouping


class BitOperation(enum.Enum):
    """How bits are combined."""

    AND = "bitwise_and"
    OR = "bitwise_or"
    XOR = "bitwise_xor"


@dataclass(frozen=True)
class Bits:
    """All values combined by one operation."""

    name: str
    kind: pa.DataType
    operation: BitOperation

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field,)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.kind)

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        (values,) = inputs
        combine: np.ufunc = getattr(np, self.operation.value)
        bits = fixed_width_values(values, f"i{self.kind.bit_width // 8}")
        valid = validity(values)
        neutral = -1 if self.operation is BitOperation.AND else 0
        filled = np.where(valid, bits, bits.dtype.type(neutral))[grouping.order]
        combined = combine.reduceat(filled, grouping.starts) if grouping.groups else filled
        return (from_numpy(combined, self.kind, valid=grouping.any(valid)),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.fold(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]
