"""Interface of accumulators: rows to partials, partials to partials, partials to results.

Partials are exact: folding and merging give the same bytes for any order and grouping of the rows. The column `{name}`,
if there is one, is readable by itself: `SELECT {name}` over the state shows the running value.

Rows of a changelog have weights: +n for n inserted rows, -n for n retracted rows. Merging adds, so a retraction is a
fold with a negative weight, and it may arrive before the row that it retracts.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from statebed.aggregates.parts import Part, PartInputs
from statebed.arrays.columns import from_numpy
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.errors import InputError

_ROWS_AT_ONCE = 1 << 16
Folding = Callable[[Sequence[pa.Array], Grouping, Integers | None], tuple[pa.Array, ...]]


class Accumulator(Protocol):
    """Computes one aggregate. Columns are passed and returned in the order of `partial_fields`."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        """Columns of state that it keeps."""

    @property
    def output_field(self) -> pa.Field:
        """Column of the result."""

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        """Return one partial per group of batch rows; `inputs` has one column per input of the aggregate.

        Without `weights` each row counts once.
        """

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        """Return one partial per group of partials."""

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        """Return the result of each partial."""


@runtime_checkable
class MadeOfParts(Accumulator, Protocol):
    """Accumulator whose partials can be made of parts, which Spark computes before rows are shuffled."""

    def parts(self, inputs: PartInputs) -> list[Part] | None:
        """Return the parts to compute for each group; None if this is not possible for these types of inputs."""

    def from_parts(self, inputs: PartInputs, parts: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the partials of groups; `parts` are in the order of `parts()`."""


def piece_by_piece(
    folding: Folding, columns: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
) -> tuple[pa.Array, ...]:
    """Return what `folding` returns for all groups; process some groups at a time, so that arrays fit into the CPU
    cache.
    """
    if len(grouping.order) < 2 * _ROWS_AT_ONCE:
        return folding(columns, grouping, weights)
    partials = []
    for rows, groups in grouping.pieces(_ROWS_AT_ONCE):
        taken = [column.take(from_numpy(rows, pa.int64())) for column in columns]
        partials.append(folding(taken, groups, None if weights is None else weights[rows]))
    return tuple(pa.concat_arrays(list(column)) for column in zip(*partials, strict=True))


def check_weights(weights: Integers | None, name: str, *, changelog: bool = False) -> None:
    """Raise InputError for weights if the partials cannot undo a retraction."""
    if weights is not None and not changelog:
        raise InputError(
            "rows with weights reached an aggregate that was bound for append-only rows",
            where=f"aggregate {name!r}",
            fix="bind it with changelog=True",
        )


def weight_of(weights: Integers | None, valid: Flags) -> Integers:
    """Return the weight of each row, 0 if it is not valid."""
    return valid.astype(np.int64) if weights is None else np.where(valid, weights, np.int64(0))


def zero_for_null(column: pa.Array) -> pa.Array:
    """Replace nulls by zeros: in a changelog, retracted values must leave the same bytes as no values."""
    return column.fill_null(pa.scalar(0, column.type)) if column.null_count else column
