"""Changes of an epoch by key, applied to the files of a table: files that hold a changed key are replaced.

A file is read only if its bounds may include a changed key, one file at a time. Keys are compared as whole columns;
nulls are equal to nulls and NaN to NaN.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.checkpoint import Publication
from statebed.errors import SinkError
from statebed.operators.changelog import group_equal
from statebed.operators.input_rows import filtered
from statebed.sinks.base import outbox_rows
from statebed.sinks.lake.file_packer import fitted
from statebed.sinks.lake.lake_table import LakeFile, LakeTable, TableVersion
from statebed.sinks.row_kinds import KeyedChanges, RowKind

if TYPE_CHECKING:
    from statebed.sinks.lake.lake_sink import LakeRows


class KeyedRewrite:
    """Changes of one epoch, for one version of a table."""

    def __init__(self, table: LakeTable, version: TableVersion, rows: "LakeRows", publication: Publication) -> None:
        self._table, self._version = table, version
        self._key = list(rows.key)
        written = outbox_rows(publication)
        assert written is not None, "an epoch with files has rows"
        changes = KeyedChanges(written, rows.key)
        after = pa.concat_tables([changes.of(RowKind.INSERT), changes.of(RowKind.UPDATE_AFTER)])
        epoch = rows.shape.epoch_column
        if epoch is not None:
            after = after.append_column(epoch, pa.repeat(pa.scalar(publication.epoch, pa.int64()), after.num_rows))
        self.rows_after = fitted(after, version.columns)
        """Rows of the changed keys after the epoch."""
        self._changed = changes.rows.num_rows > 0
        self._keys = fitted(changes.rows, self._key_columns)
        self._check_unique(publication)

    @property
    def _key_columns(self) -> pa.Schema:
        return pa.schema([self._version.columns.field(name) for name in self._key])

    def replaced(self) -> Iterator[tuple[LakeFile, pa.Table]]:
        """Yield the files that hold a changed key, with their other rows."""
        if not self._changed:
            return
        for file in self._table.files(self._version):
            if not self._may_hold(file):
                continue
            rows = fitted(self._table.read(self._version, file), self._version.columns)
            changed = self._is_changed(rows)
            if changed.any():
                yield file, filtered(rows, ~changed)

    def _is_changed(self, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return, for each row, whether its key is among the changed ones."""
        if not self._key:
            return np.ones(rows.num_rows, dtype=np.bool_)
        count = self._keys.num_rows
        groups = group_equal(pa.concat_tables([self._keys, rows.select(self._key)])).group_of_rows()
        changed = np.zeros(int(groups.max(initial=-1)) + 1, dtype=np.bool_)
        changed[groups[:count]] = True
        return changed[groups[count:]]

    def _may_hold(self, file: LakeFile) -> bool:
        """Return False if the bounds of a key column exclude all changed keys."""
        for name in self._key:
            column = self._keys[name]
            if name not in file.bounds or column.null_count:
                continue
            low, high = (pa.scalar(bound, column.type) for bound in file.bounds[name])
            if not pc.any(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))).as_py():
                return False
        return True

    def _check_unique(self, publication: Publication) -> None:
        if not self._key:
            self._check_single(publication)
            return
        grouping = group_equal(self.rows_after.select(self._key))
        counts = grouping.add(np.ones(self.rows_after.num_rows, dtype=np.int64))
        if not (counts > 1).any():
            return
        first = int(np.argmax(counts > 1))
        named = self.rows_after.select(self._key).slice(int(grouping.first_rows[first]), 1).to_pylist()[0]
        raise SinkError(
            f"epoch {publication.epoch} has {counts[first]} rows with the key {named}",
            where=self._table.where,
            fix="declare a key that identifies every row of the stream: write(..., key=[...])",
        )

    def _check_single(self, publication: Publication) -> None:
        if self.rows_after.num_rows > 1:
            raise SinkError(
                f"epoch {publication.epoch} leaves {self.rows_after.num_rows} rows in a table of one row",
                where=self._table.where,
                fix="declare a key that identifies every row of the stream: write(..., key=[...])",
            )
