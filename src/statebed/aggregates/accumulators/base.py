"""What every accumulator does: rows to partials, partials to partials, partials to results.

Partials are exact: folding and merging give the same bytes in any order and any grouping of the rows. The column
`{name}`, where there is one, is readable by itself: `SELECT {name}` over the state shows the running value.

Rows of a changelog carry weights: +n for n rows that came, -n for n that are taken back. Merging adds; so a retraction
is a fold with a negative weight, and it may come before the row that it takes back.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.errors import InputError

_ROWS_AT_ONCE = 1 << 16
Folding = Callable[[Sequence[pa.Array], Grouping, Integers | None], tuple[pa.Array, ...]]


class Accumulator(Protocol):
    """How one aggregate computes. Columns go in and come out in the order of `partial_fields`."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        """The columns of state it keeps."""

    @property
    def output_field(self) -> pa.Field:
        """The column of the result."""

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        """One partial per group of batch rows; `inputs` as many columns as the aggregate reads.

        Without `weights` each row counts once.
        """

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        """One partial per group of partials."""

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        """The result of each partial."""


def piece_by_piece(
    folding: Folding, columns: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
) -> tuple[pa.Array, ...]:
    """The same as all at once, some groups at a time: arrays of many steps stay in the processor's cache."""
    if len(grouping.order) < 2 * _ROWS_AT_ONCE:
        return folding(columns, grouping, weights)
    found = []
    for rows, groups in grouping.pieces(_ROWS_AT_ONCE):
        taken = [column.take(from_numpy(rows, pa.int64())) for column in columns]
        found.append(folding(taken, groups, None if weights is None else weights[rows]))
    return tuple(pa.concat_arrays(list(column)) for column in zip(*found, strict=True))


def check_weights(weights: Integers | None, name: str, *, changelog: bool = False) -> None:
    """Refuse weights where partials forget what a retraction would have to restore."""
    if weights is not None and not changelog:
        raise InputError(
            "rows with weights reached an aggregate that was bound for rows that are never taken back",
            where=f"aggregate {name!r}",
            fix="bind it with changelog=True",
        )


def weight_of(weights: Integers | None, valid: Flags) -> Integers:
    """How often each row counts: not at all where it is not valid."""
    return valid.astype(np.int64) if weights is None else np.where(valid, weights, np.int64(0))


def zero_for_null(column: pa.Array) -> pa.Array:
    """In a changelog nothing is zero: what was added and taken back leaves the same bytes as what never came."""
    return column.fill_null(pa.scalar(0, column.type)) if column.null_count else column
