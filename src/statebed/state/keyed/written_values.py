"""Values that a write stores: those of its batch, or the result of merging them with existing rows."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.mutable import Rows, with_values
from statebed.state.keyed.batch import MergeFunction, ascending_rows, call_merge, take_rows
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.sorted_run import SortedRun


class WrittenValues:
    """Values that a batch writes, each key once."""

    def __init__(
        self, values: pa.Table, alive: Sequence[BatchMatches] = (), function: MergeFunction | None = None
    ) -> None:
        """Take the values as they are or, if there are live rows and a function, merge them with those."""
        self._values = values
        self._rows = np.zeros(0, dtype=np.int64)
        self._merged = values.slice(0, 0)
        self._starts: dict[int, int] = {}
        if function is None or not alive:
            return
        self._rows = np.concatenate([piece.rows for piece in alive])
        # Blocks and the rows within them come in order, so these are usually already ascending.
        in_order = len(alive) == 1 or bool((self._rows[1:] > self._rows[:-1]).all())
        new = ascending_rows(values, self._rows) if in_order else take_rows(values, self._rows)
        old = pa.concat_tables([values_of(piece.run, piece.at, values.schema) for piece in alive])
        self._merged = call_merge(function, old.combine_chunks(), new)
        ends = np.cumsum([len(piece.rows) for piece in alive]).tolist()
        self._starts = {id(piece): end - len(piece.rows) for piece, end in zip(alive, ends, strict=True)}

    def for_existing(self, piece: BatchMatches) -> list[pa.Array]:
        """Return the values for rows that were found."""
        start = self._starts.get(id(piece))
        if start is None:
            return self.at(piece.rows)
        return _arrays(self._merged.slice(start, len(piece.rows)))

    def new(self, rows: Rows) -> list[pa.Array]:
        """Return the values for keys that were not found, or are no longer alive."""
        return _arrays(ascending_rows(self._values, rows))

    def at(self, rows: Rows) -> list[pa.Array]:
        """Return the values for any rows."""
        return _arrays(ascending_rows(self._all, rows))

    @cached_property
    def _all(self) -> pa.Table:
        if not len(self._rows):
            return self._values
        columns = [
            with_values(one_chunk(column), self._rows, one_chunk(other))
            for column, other in zip(self._values.columns, self._merged.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self._values.schema)


def values_of(run: SortedRun, at: Rows, schema: pa.Schema) -> pa.Table:
    """Return the values of some rows of a run."""
    return pa.Table.from_arrays([column.take(at) for column in run.values], schema=schema)


def _arrays(table: pa.Table) -> list[pa.Array]:
    return [one_chunk(column) for column in table.columns]
