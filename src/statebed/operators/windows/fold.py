"""Incremental folding of the rows of an epoch into partials by pane and key, with about one piece of rows in memory."""

import numpy as np
import pyarrow as pa

from statebed.aggregates.partials import Partials
from statebed.aggregates.preaggregation import LATEST, ROW_COUNT, partial_columns
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.grouping import Integers
from statebed.arrays.key_hash import normalise_key
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.input_rows import conformed, filtered
from statebed.operators.window_definition import Window

FOLD_ROWS = 1 << 17
FOLD_BYTES = 8 << 20
"""Number of bytes of a batch that are folded at a time."""


class Folder:
    """Folds the rows of one epoch."""

    def __init__(
        self, source: Input, partials: Partials, window: Window, first_admitted: int | None, where: str
    ) -> None:
        """Create a folder for which rows in panes before `first_admitted` are late."""
        self._source = source
        self._partials = partials
        self._window = window
        self._first_admitted = first_admitted
        self._where = where
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0
        self._folded: list[pa.Table] = []
        self._late: list[pa.Table] = []
        self.rows_in = 0
        self.rows_late = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Fold a batch of any size."""
        self._waiting.append(conformed(batch, self._source.schema, where=self._where))
        self._waiting_rows += batch.num_rows
        self._waiting_bytes += batch.nbytes
        if self._waiting_rows >= FOLD_ROWS or self._waiting_bytes >= FOLD_BYTES:
            self._fold()

    def add_groups(self, batch: pa.RecordBatch, source: Input | None) -> None:
        """Add rows that are pre-aggregated by pane and key; late ones are only counted."""
        assert source is not None
        groups = conformed(batch, source.schema, where=self._where)
        # Late rows are validated, too, as they would be one by one.
        self._window.check_panes(groups[TIME], groups[LATEST])
        panes, counts = int64_values(groups[TIME]), int64_values(groups[ROW_COUNT])
        admitted = validity(groups[TIME])
        if self._first_admitted is not None:
            admitted = admitted & (panes >= self._first_admitted)
        self.rows_in += int(counts.sum())
        self.rows_late += int(counts[~admitted].sum())
        groups = filtered(groups, admitted)
        columns = [
            from_numpy(uint64_values(groups[KEY_HASH]), pa.uint64()),
            *(normalise_key(one_chunk(groups[key.name])) for key in self._partials.keys),
            groups[TIME],
            *partial_columns(self._partials, groups),
        ]
        self._folded.append(pa.Table.from_arrays(columns, schema=self._schema))
        # Sorted and merged at the end, even if it is the only piece.
        self._folded.append(self._schema.empty_table())

    def finish(self) -> pa.Table:
        """Return one partial row per pane and key of admitted rows, sorted: `_key_hash`, keys, `_time`, partials."""
        self._fold()
        if len(self._folded) == 1:
            return self._folded[0]
        rows = pa.concat_tables([self._schema.empty_table(), *self._folded])
        grouping = self._partials.grouping(rows, int64_values(rows[TIME]))
        firsts = rows.take(from_numpy(grouping.first_rows, pa.int64()))
        leading = firsts.columns[: len(self._schema) - len(self._partials.fields)]
        return pa.Table.from_arrays([*leading, *self._partials.merge(rows, grouping)], schema=self._schema)

    def late(self) -> pa.Table:
        """Return the late rows."""
        return pa.concat_tables([self._source.schema.empty_table(), *self._late])

    @property
    def _schema(self) -> pa.Schema:
        leading = [pa.field(KEY_HASH, pa.uint64(), nullable=False), *self._partials.keys]
        return pa.schema([*leading, pa.field(TIME, TIMESTAMP, nullable=False), *self._partials.fields])

    def _fold(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self.rows_in += rows.num_rows
        admitted, panes = self._admit(rows)
        if not admitted.num_rows:
            return
        keys = [normalise_key(one_chunk(admitted[key.name])) for key in self._partials.keys]
        for key, column in zip(self._partials.keys, keys, strict=True):
            admitted = admitted.set_column(admitted.schema.get_field_index(key.name), key, column)
        grouping = self._partials.grouping(admitted, panes)
        firsts = grouping.first_rows
        leading = [
            from_numpy(uint64_values(admitted[KEY_HASH])[firsts], pa.uint64()),
            *(key.take(from_numpy(firsts, pa.int64())) for key in keys),
            from_numpy(panes[firsts], TIMESTAMP),
        ]
        columns = [*leading, *self._partials.fold(admitted, grouping)]
        self._folded.append(pa.Table.from_arrays(columns, schema=self._schema))

    def _admit(self, rows: pa.Table) -> tuple[pa.Table, Integers]:
        """Return the rows that are not late, and their panes."""
        timed = validity(rows[TIME])
        times = int64_values(rows[TIME])
        panes = self._window.panes_of(np.where(timed, times, np.int64(0)))
        admitted = timed if self._first_admitted is None else timed & (panes >= self._first_admitted)
        if admitted.all():
            return rows, panes
        self._late.append(filtered(rows, ~admitted))
        self.rows_late += rows.num_rows - int(admitted.sum())
        return filtered(rows, admitted), panes[admitted]
