"""Rows that a program passes to a time-keyed table: checked before anything changes, then completed for files."""

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.key_hash import HASH_SEED, hash_columns, normalise_key
from statebed.arrays.storable_values import check_values
from statebed.errors import InputError, NotOwnerError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, reserved_field
from statebed.state.arguments import check_rows
from statebed.state.live.files import BEGINNING
from statebed.state.live.row_set import RowSet, distinct
from statebed.state.live.tombstones import DeletionKind
from statebed.state.memory.sizes import ArrowRows
from statebed.state.time_keyed.table import TimeKeyedTable


class GivenRows:
    """Checks and completes rows of one table, for the subtask that owns a range of hashes."""

    def __init__(self, table: TimeKeyedTable, owned: pb.HashRange) -> None:
        self._table = table
        self._owned = owned
        self._where = f"table {table.name!r}"
        self.keys = [key.name for key in table.keys]
        self.values = [value.name for value in table.values]

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns of rows as programs see them: keys, `_time`, values."""
        fields = [*self._table.keys, pa.field(TIME, TIMESTAMP, nullable=False), *self._table.values]
        return pa.schema([field.remove_metadata() for field in fields])

    def completed(self, rows: ArrowRows, *, sequence: int) -> pa.Table:
        """Return rows to append, with the columns of files."""
        self._check_columns(rows, self.schema.names)
        columns = {name: one_chunk(rows.column(name)) for name in self.schema.names}
        self._check_nulls(columns)
        for name, column in columns.items():
            check_values(column, name, where=self._where)
        columns |= self._hashed(columns, rows.num_rows)
        times = int64_values(columns[TIME])
        bins = times // self._table.bin_us * self._table.bin_us
        # The first bin may begin before the earliest time, which does not fit into 64 bits.
        columns[BIN] = from_numpy(np.where(bins > times, BEGINNING, bins), TIMESTAMP)
        columns[SEQUENCE] = from_numpy(np.full(rows.num_rows, sequence, dtype=np.uint64), pa.uint64())
        schema = pa.schema([field.remove_metadata() for field in self._table.file_schema])
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def deleted(self, kind: DeletionKind, rows: ArrowRows) -> pa.Table:
        """Return the distinct rows of a tombstone: `_key_hash`, keys, and `_time` or values, with field ids."""
        return distinct(self._named(kind, rows), keys=self.keys)

    def key_set(self, keys: ArrowRows) -> RowSet:
        """Return the set of keys to look up; `keys` may contain duplicates."""
        return RowSet(self._named(DeletionKind.KEY, keys), keys=self.keys)

    def _named(self, kind: DeletionKind, rows: ArrowRows) -> pa.Table:
        """Return the checked rows that identify rows to delete or to look up."""
        names = {
            DeletionKind.KEY: self.keys,
            DeletionKind.TIME_KEY: [*self.keys, TIME],
            DeletionKind.VALUE: self.keys + self.values,
        }
        if not names[kind]:
            raise InputError(
                "the table has no columns that identify rows", where=self._where, fix="delete by time range"
            )
        self._check_columns(rows, names[kind])
        columns = {name: one_chunk(rows.column(name)) for name in names[kind]}
        if TIME in columns:
            self._check_nulls({TIME: columns[TIME]})
        columns |= self._hashed(columns, rows.num_rows)
        ordered = [KEY_HASH, *names[kind]]
        schema = pa.schema([self._field(name) for name in ordered])
        return pa.Table.from_arrays([columns[name] for name in ordered], schema=schema)

    def _field(self, name: str) -> pa.Field:
        return reserved_field(name) if name in {KEY_HASH, TIME} else self._table.columns.field(name)

    def _check_columns(self, rows: ArrowRows, names: Sequence[str]) -> None:
        check_rows(rows, "rows", where=self._where)
        wanted = {name: self.schema.field(name).type for name in names}
        types = dict(zip(rows.schema.names, rows.schema.types, strict=True))
        if types != wanted or len(rows.schema.names) != len(wanted):
            raise InputError(
                f"the rows have the columns {_types_text(types)}, expected {_types_text(wanted)}",
                where=self._where,
                fix="select and cast the columns",
            )

    def _check_nulls(self, columns: Mapping[str, pa.Array]) -> None:
        empty = [name for name, column in columns.items() if not self.schema.field(name).nullable and column.null_count]
        if empty:
            raise InputError(
                f"the rows have nulls in the columns {empty}",
                where=self._where,
                fix="remove these rows, or fill the nulls",
            )

    def _hashed(self, columns: Mapping[str, pa.Array], count: int) -> dict[str, pa.Array]:
        """Return the normalized keys and their hashes, all of which this subtask must own."""
        keys = {name: normalise_key(columns[name]) for name in self.keys}
        hashes: npt.NDArray[np.uint64] = np.full(count, HASH_SEED, dtype=np.uint64)
        if keys:
            hashes = hash_columns(list(keys.values()))
        if not in_range(hashes, self._owned).all():
            raise NotOwnerError(
                "a row belongs to another subtask",
                where=self._where,
                fix="send each row to the owner of its key's hash",
            )
        return keys | {KEY_HASH: from_numpy(hashes, pa.uint64())}


def _types_text(types: Mapping[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items()) or "none"
