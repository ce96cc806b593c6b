"""Packs rows into data files of a target size: split by partition, sorted, and written once."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pyarrow as pa

from statebed.sinks.lake.arrow_kinds import plain_type
from statebed.sinks.lake.lake_table import LakeFile, LakeTable, TableVersion
from statebed.subtasks.outbox import encode_outbox


class FilePacker:
    """Collects rows and writes a file whenever there are enough. At most `TARGET_BYTES` of rows wait in memory."""

    TARGET_BYTES: ClassVar[int] = 128 << 20

    def __init__(
        self,
        table: LakeTable,
        version: TableVersion,
        *,
        name: Callable[[int, bytes], str],
        default_order: Sequence[str] = (),
    ) -> None:
        self._table, self._version, self._name = table, version, name
        self._order = [(column, "ascending") for column in table.layout.sort_by or default_order]
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._files: list[LakeFile] = []
        self._prefix = ""

    @property
    def is_plain(self) -> bool:
        """Whether rows may be stored in the order and the files in which they arrive."""
        return not self._order and not self._table.partition_columns(self._version)

    def copied(self, data: bytes) -> LakeFile:
        """Write a file with these bytes."""
        file = self._table.write(self._version, self._name(len(self._files), data), data, {})
        self._files.append(file)
        return file

    def add(self, rows: pa.Table) -> None:
        """Add rows; columns of the table that they lack are null."""
        if rows.num_rows:
            self._waiting.append(fitted(rows, self._version.columns))
            self._bytes += rows.nbytes
            if self._bytes >= self.TARGET_BYTES:
                self._flush()

    def finished(self, *, prefix: str = "") -> list[LakeFile]:
        """Write what is left and return all files."""
        self._prefix = prefix
        if self._waiting:
            self._flush()
        return self._files

    def _flush(self) -> None:
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._bytes = [], 0
        for partition, part in self._table.parts(self._version, rows):
            order = [(name, way) for name, way in self._order if name in part.schema.names]
            ordered = part.sort_by(order) if order else part
            size = max(int(ordered.num_rows * self.TARGET_BYTES / max(ordered.nbytes, 1)), 1)
            for first in range(0, ordered.num_rows, size):
                data = encode_outbox(ordered.slice(first, size))
                name = f"{self._prefix}{self._name(len(self._files), data)}"
                self._files.append(self._table.write(self._version, name, data, partition))


def fitted(rows: pa.Table, columns: pa.Schema) -> pa.Table:
    """Return the rows with exactly these columns. Columns that the rows lack are null."""
    arrays = []
    for field in columns:
        kind = plain_type(field.type)
        index = _index(rows.schema, field.name)
        arrays.append(pa.nulls(rows.num_rows, kind) if index is None else rows.column(index).cast(kind))
    schema = pa.schema([pa.field(field.name, plain_type(field.type)) for field in columns])
    return pa.Table.from_arrays(arrays, schema=schema)


def _index(schema: pa.Schema, name: str) -> int | None:
    """Return the position of a column; names of columns are not case-sensitive in lakehouse tables."""
    names = [name.lower() for name in schema.names]
    return names.index(name.lower()) if name.lower() in names else None
