"""Minimum and maximum, and the value that belongs to it.

The order is Spark's: NaN is larger than every number, text and binary are ordered by their bytes, false is below true;
nulls are ignored. -0.0 counts as 0.0. `min_by` and `max_by` break ties by the smaller value, null last, so the result
does not depend on the order of rows.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import check_weights
from statebed.aggregates.parts import Part, PartInputs, Reduce, can_be_reversed
from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.arrays.grouping import Grouping, Integers
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.sort_order import codes, sorted_by, total_keys


class End(enum.Enum):
    """End of the order: smallest or largest."""

    SMALLEST = "smallest"
    LARGEST = "largest"

    @property
    def reduce(self) -> Reduce:
        """Reduction of the values of a group before rows are shuffled."""
        return Reduce.MIN if self is End.SMALLEST else Reduce.MAX


@dataclass(frozen=True)
class Extreme:
    """The smallest or the largest value."""

    name: str
    kind: pa.DataType
    end: End

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field,)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.kind)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name)
        values = normalise_key(inputs[0])
        if is_plain(values.type) and grouping.groups:
            return (self._reduce(values, grouping),)
        return (values.take(_best_rows(grouping, values, self.end)),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.fold(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    def parts(self, inputs: PartInputs) -> list[Part]:
        return [Part(inputs.part_name("e"), self.end.reduce, self.kind, inputs.factors)]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(map(normalise_key, parts))

    def _reduce(self, values: pa.Array, grouping: Grouping) -> pa.Array:
        """Reduce without sorting, for numbers that numpy compares."""
        floating = pa.types.is_floating(values.type)
        numbers = fixed_width_values(values, f"{'f' if floating else 'i'}{values.type.bit_width // 8}")
        # NaN is the largest: fmin ignores it, maximum does not.
        smallest = np.fmin if floating else np.minimum
        reduce = smallest if self.end is End.SMALLEST else np.maximum
        if not values.null_count:
            return from_numpy(reduce.reduceat(numbers[grouping.order], grouping.starts), self.kind)
        valid = validity(values)
        filled = np.where(valid, numbers, self._beyond(numbers.dtype))[grouping.order]
        return from_numpy(reduce.reduceat(filled, grouping.starts), self.kind, valid=grouping.any(valid))

    def _beyond(self, dtype: np.dtype[Any]) -> Any:
        """Return the worst possible value, which replaces nulls."""
        if np.issubdtype(dtype, np.floating):
            return dtype.type(np.nan if self.end is End.SMALLEST else -np.inf)
        limits = np.iinfo(dtype)
        return dtype.type(limits.max if self.end is End.SMALLEST else limits.min)


@dataclass(frozen=True)
class ExtremeBy:
    """Value of the row whose other column is smallest or largest; rows in which that is null are ignored."""

    name: str
    kind: pa.DataType
    by: pa.DataType
    end: End

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (self.output_field, pa.field(f"_{self.name}_by", self.by))

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, self.kind)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name)
        values, by = (normalise_key(column) for column in inputs)
        rows = _best_rows(grouping, by, self.end, ties=values)
        return values.take(rows), by.take(rows)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        return self.fold(partials, grouping)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        return partials[0]

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        value, by = inputs.factors
        largest = self.end is End.LARGEST
        # Ties go to the smallest value, so for the largest one of the two orders must be reversed.
        if largest and not (can_be_reversed(self.by) or can_be_reversed(self.kind)):
            return None
        reduce = Reduce.MAX_BY if largest else Reduce.MIN_BY
        return [
            Part(inputs.part_name("v"), reduce, self.kind, (value,), by=by),
            Part(inputs.part_name("e"), self.end.reduce, self.by, (by,)),
        ]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(map(normalise_key, parts))


def has_order(kind: pa.DataType) -> bool:
    """Return whether values of the type can be compared."""
    return not (pa.types.is_nested(kind) or pa.types.is_null(kind) or pa.types.is_dictionary(kind))


def is_plain(kind: pa.DataType) -> bool:
    """Return whether values are machine numbers, or times that are stored as such."""
    return bool(
        pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind))
    )


def _best_rows(grouping: Grouping, values: pa.Array, end: End, *, ties: pa.Array | None = None) -> pa.Array:
    """Return the first row of each group by `values`, then by `ties`; null if all its values are null."""
    valid = validity(values)
    places = codes(values) if end is End.SMALLEST else ~codes(values)
    keys = [grouping.group_of_rows(), (~valid).astype(np.int64), np.where(valid, places, np.int64(0))]
    # Nulls are last in each group, so the first row shows whether it has a value.
    firsts = sorted_by(keys if ties is None else [*keys, *total_keys(pa.table({"tie": ties}), ["tie"])])
    firsts = firsts[grouping.starts]
    return from_numpy(firsts, pa.int64(), valid=valid[firsts])
