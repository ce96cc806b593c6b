"""Shape of a stored table: its columns as shown to readers and as stored in files."""

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, DELETED, KEY_HASH, RESERVED_FIELDS, SEQUENCE, TIME, schema_from_bytes
from statebed.format.segment import segment_schema
from statebed.inspect.tables.broadcast_rows import BroadcastColumns
from statebed.state.evolution.column_defaults import defaults_from_bytes
from statebed.state.global_keyed.files import FILE_SCHEMA as GLOBAL_FILE_SCHEMA
from statebed.state.global_keyed.files import KEY, VALUE
from statebed.state.keyed.table import KeyedTable

KEYED = "keyed"
TIME_KEYED = "time keyed"
GLOBAL_KEYED = "global keyed"
BROADCAST = "broadcast"
INTERNAL = (KEY_HASH, SEQUENCE)
"""Columns of files that are shown on request."""
_TEXT = pa.schema([pa.field(KEY, pa.string(), nullable=False), pa.field(VALUE, pa.string(), nullable=False)])
"""Schema of global keyed tables whose keys and values have any type: they are shown as JSON."""


@dataclass(frozen=True)
class TableShape:
    """Columns of a table at one epoch, from its stored configuration."""

    config: pb.TableConfig
    broadcast: BroadcastColumns | None = None
    """Columns of a broadcast table, which is stored as a global keyed table; None for other tables."""

    def __reduce__(self) -> tuple[object, ...]:
        return (_shape_of, (self.config.SerializeToString(), self.broadcast))

    @cached_property
    def kind(self) -> str:
        kind = self.config.WhichOneof("kind")
        if kind is None:
            raise CorruptObjectError(
                f"the kind of the table {self.config.name!r} is unknown to this version", fix="upgrade statebed"
            )
        return str(kind).replace("_", " ")

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Key columns shown to readers."""
        if self.broadcast is not None:
            return self.broadcast.keys
        return self.stored_keys

    @cached_property
    def stored_keys(self) -> tuple[str, ...]:
        """Key columns of files."""
        if self.kind == GLOBAL_KEYED:
            return (KEY,)
        return tuple(self.config.keyed.key_columns if self.kind == KEYED else self.config.time_keyed.key_columns)

    @cached_property
    def generational(self) -> bool:
        """Whether only the newest of the rows with the same key and time counts."""
        return bool(self.kind == TIME_KEYED and self.config.time_keyed.generational)

    @property
    def newest_counts(self) -> bool:
        """Whether rows replace others, so that all versions of a key must be read."""
        return self.kind != TIME_KEYED or self.generational

    @property
    def timed(self) -> bool:
        return TIME in self.file_schema.names

    @property
    def bin_us(self) -> int:
        return int(self.config.time_keyed.bin_us)

    @cached_property
    def defaults(self) -> dict[str, pa.Scalar]:
        """Default values of columns for rows that are older than the column."""
        if self.kind == GLOBAL_KEYED:
            return {}
        return defaults_from_bytes((self.config.keyed if self.kind == KEYED else self.config.time_keyed).defaults)

    @cached_property
    def schema(self) -> pa.Schema:
        """Columns shown by default: keys, `_time` if rows have one, values."""
        if self.broadcast is not None:
            return self.broadcast.schema
        if self.kind == GLOBAL_KEYED:
            return _TEXT
        times = [pa.field(TIME, RESERVED_FIELDS[TIME].type, nullable=False)] if self.timed else []
        keys = [self._columns.field(name) for name in self.keys]
        values = [field for field in self._columns if field.name not in self.keys]
        return pa.schema([field.remove_metadata() for field in (*keys, *times, *values)])

    @cached_property
    def full_schema(self) -> pa.Schema:
        """Columns that can be selected."""
        return pa.schema([*self.schema, *(RESERVED_FIELDS[name] for name in INTERNAL)])

    @cached_property
    def key_schema(self) -> pa.Schema:
        """Key columns with the types of keys that are looked up."""
        if self.broadcast is not None:
            return self.broadcast.key_schema
        return pa.schema([self.file_schema.field(name).remove_metadata() for name in self.stored_keys])

    @cached_property
    def file_schema(self) -> pa.Schema:
        """Columns of newly written files, with their field ids."""
        if self.kind == GLOBAL_KEYED:
            return GLOBAL_FILE_SCHEMA
        if self.kind == KEYED:
            return self.keyed.file_schema
        return segment_schema(self._columns, sort_order=pb.BIN_FIRST, key_columns=self.keys)

    @cached_property
    def keyed(self) -> KeyedTable:
        """The table as defined by the engine."""
        return KeyedTable(self.config)

    @cached_property
    def deciding(self) -> tuple[str, ...]:
        """Columns that determine which rows of files count."""
        reserved = (BIN, KEY_HASH, TIME, SEQUENCE, DELETED) if self.generational else (KEY_HASH, SEQUENCE, DELETED)
        return (*(name for name in reserved if name in self.file_schema.names), *self.keys)

    @cached_property
    def _columns(self) -> pa.Schema:
        kind = self.config.keyed if self.kind == KEYED else self.config.time_keyed
        return schema_from_bytes(kind.schema, where=f"table {self.config.name!r}")


def _shape_of(config: bytes, broadcast: BroadcastColumns | None) -> TableShape:
    return TableShape(pb.TableConfig.FromString(config), broadcast)
