"""Approximate number of distinct values: HyperLogLog with the registers of a DataSketches sketch.

A value's hash selects one of 2**precision registers, which keeps the longest run of leading zeros seen in the rest of
the hash. The result is the same for any order and grouping of the rows, byte for byte, and whether rows are aggregated
here or by Spark. The key hash of a value is hashed, so values of all types count, including the empty text. The state
lists only the registers in use, so few values take little space. The estimator is Ertl's improved one: unbiased from
the first value to billions, with a standard error of 1.04 / sqrt(2**precision).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators.base import check_weights
from statebed.aggregates.accumulators.datasketches import VALUES, Codes, codes_of_numbers, codes_of_sketches
from statebed.aggregates.exact_sums import Doubles
from statebed.aggregates.parts import Part, PartInputs, Reduce
from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.arrays.grouping import Grouping, Integers
from statebed.arrays.key_hash import hash_columns, normalise_key

MIN_PRECISION = 4
MAX_PRECISION = 18
CODES = pa.list_(pa.field("element", pa.int32()))
"""Type of a partial."""
_ALPHA = 0.5 / np.log(2.0)
_STEPS = 64
"""Upper bound of the number of steps until the series below converge."""
_CELLS_AT_ONCE = 1 << 18
"""Number of cells of registers and their counts while estimates are computed: a few megabytes."""


@dataclass(frozen=True)
class DistinctSketch:
    """Approximate number of distinct values; 0 if there are none."""

    name: str
    precision: int

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return (pa.field(f"_{self.name}_codes", CODES, nullable=False),)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, pa.int64(), nullable=False)

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name)
        values = normalise_key(inputs[0])
        valid = validity(values)
        codes = codes_of_numbers(hash_columns([values]), self.precision)
        return (_lists(codes[valid], grouping.group_of_rows()[valid], grouping.groups),)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        lengths = int64_values(pc.list_value_length(partials[0]).cast(pa.int64()))
        codes = fixed_width_values(partials[0].flatten(), np.int32).astype(np.int32)
        return (_lists(codes, np.repeat(grouping.group_of_rows(), lengths), grouping.groups),)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        codes = partials[0]
        lengths = int64_values(pc.list_value_length(codes).cast(pa.int64()))
        estimates = np.empty(len(codes), dtype=np.int64)
        # Groups often have few registers, so a table of all groups would take more memory than the registers
        # themselves.
        share = np.cumsum(lengths + VALUES) // _CELLS_AT_ONCE
        cuts = [0, *(np.flatnonzero(np.diff(share)) + 1).tolist(), len(codes)]
        for start, end in itertools.pairwise(cuts):
            estimates[start:end] = self._finished(codes.slice(start, end - start), lengths[start:end])
        return from_numpy(estimates, pa.int64())

    def parts(self, inputs: PartInputs) -> list[Part]:
        return [Part(inputs.part_name("d"), Reduce.SKETCH, CODES, inputs.factors, precision=self.precision)]

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:  # noqa: ARG002 - interface
        return list(parts)

    def _finished(self, codes: pa.Array, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        groups = len(codes)
        values = fixed_width_values(codes.flatten(), np.int32).astype(np.int64) % VALUES
        place = np.repeat(np.arange(groups, dtype=np.int64), lengths) * VALUES + values
        counts = np.bincount(place, minlength=groups * VALUES).reshape(groups, VALUES).astype(np.float64)
        counts[:, 0] = (1 << self.precision) - lengths
        return np.rint(_estimates(counts, 1 << self.precision)).astype(np.int64)


def registers_of(sketches: pa.Array) -> pa.Array:
    """Return the partial of each group from the sketch that Spark made of the key hashes of its values.

    The running estimate in a sketch, and the order of its coupons, depend on the order of rows; registers do not.
    """
    return _lists(*codes_of_sketches(sketches), len(sketches))


def _lists(codes: Codes, owners: npt.NDArray[np.int64], groups: int) -> pa.Array:
    """Return the maximum of each group's registers, in order."""
    packed = np.sort((owners << np.int64(32)) | codes.astype(np.int64))
    last = np.append((packed[1:] // VALUES) != (packed[:-1] // VALUES), True) if len(packed) else packed > 0
    kept = packed[last]
    offsets = np.searchsorted(kept, np.arange(groups + 1, dtype=np.int64) << np.int64(32))
    buffers = [None, pa.py_buffer(offsets.astype(np.int32))]
    registers = from_numpy((kept & np.int64(0xFFFFFFFF)).astype(np.int32), pa.int32())
    return pa.Array.from_buffers(CODES, groups, buffers, children=[registers])


def _estimates(counts: Doubles, registers: int) -> Doubles:
    """Return estimates from the number of registers of each group that hold each value."""
    total = registers * _tau(1.0 - counts[:, -1] / registers)
    for value in range(counts.shape[1] - 2, 0, -1):
        total = 0.5 * (total + counts[:, value])
    total += registers * _sigma(counts[:, 0] / registers)
    with np.errstate(divide="ignore"):
        return np.where(np.isinf(total), 0.0, _ALPHA * registers * registers / total)


def _sigma(share: Doubles) -> Doubles:
    power, factor, result = share.copy(), 1.0, share.copy()
    for _ in range(_STEPS):
        power = power * power
        result = result + power * factor
        factor *= 2.0
    return np.where(share == 1.0, np.inf, result)


def _tau(share: Doubles) -> Doubles:
    root, factor, result = share.copy(), 1.0, 1.0 - share
    for _ in range(_STEPS):
        root = np.sqrt(root)
        factor *= 0.5
        result = result - (1.0 - root) ** 2 * factor
    return np.where((share == 0.0) | (share == 1.0), 0.0, result / 3.0)
