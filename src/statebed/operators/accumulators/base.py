"""What every accumulator does: rows to partials, partials to partials, partials to results.

Partials are exact: folding and merging give the same bytes in any order and any grouping of the rows. The column
`{name}`, where there is one, is readable by itself: `SELECT {name}` over the state shows the running value.
"""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from statebed.operators.grouping import Grouping


class Accumulator(Protocol):
    """How one aggregate computes. Columns go in and come out in the order of `partial_fields`."""

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        """The columns of state it keeps."""

    @property
    def output_field(self) -> pa.Field:
        """The column of the result."""

    def fold(self, inputs: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        """One partial per group of batch rows; `inputs` as many columns as the aggregate reads."""

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        """One partial per group of partials."""

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        """The result of each partial."""
