"""Bitwise aggregates of integers; nulls are ignored."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import check_weights
from statebed.aggregates.parts import Part, PartInputs, Reduce
from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.arrays.grouping import Grouping, Integers


class BitOperation(enum.Enum):
    """Bitwise operation."""

    AND = "bitwise_and"
    OR = "bitwise_or"
    XOR = "bitwise_xor"

    @property
    def ufunc(self) -> np.ufunc:
        """Ufunc that combines whole arrays."""
        function: np.ufunc = getattr(np, self.value)
        return function

    @property
    def reduce(self) -> Reduce:
        """Reduction of the values of a group before rows are shuffled."""
        return {"bitwise_and": Reduce.BIT_AND, "bitwise_or": Reduce.BIT_OR, "bitwise_xor": Reduce.BIT_XOR}[self.value]

    @property
    def neutral(self) -> int:
        """Neutral element of the operation."""
        return -1 if self is BitOperation.AND else 0


@dataclass(frozen=True)
class Bits:
    """All values combined by one operation."""

    name: str
    kind: pa.DataType
    operation: BitOperation
    changelog: bool = False
    """Only for XOR; the other operations need a multiset over a changelog."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field,)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.kind)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        (values,) = inputs
        valid = validity(values)
        check_weights(weights, self.name, changelog=self.changelog)
        # An even number of equal values cancels out, whatever the sign of the weight.
        counted = valid if weights is None else valid & (weights % 2 == 1)
        bits = fixed_width_values(values, f"i{self.kind.bit_width // 8}")
        filled = np.where(counted, bits, bits.dtype.type(self.operation.neutral))[grouping.order]
        combined = self.operation.ufunc.reduceat(filled, grouping.starts) if grouping.groups else filled
        return (from_numpy(combined, self.kind, valid=grouping.any(valid)),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.fold(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    def parts(self, inputs: PartInputs) -> list[Part]:
        return [Part(inputs.part_name("b"), self.operation.reduce, self.kind, inputs.factors)]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(parts)
