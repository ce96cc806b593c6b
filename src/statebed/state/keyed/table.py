"""Definition of a keyed table by its configuration: its columns, its files, and how long its rows live.

A keyed table holds one row per key. Keys can have any type that has a key hash, in one or several columns. Null equals
null, NaN equals NaN, and -0.0 equals 0.0. With a time to live, each row has a time, and expires once the clock has
reached that time plus the time to live. The clock is event time (writes carry the times of their rows) or epoch
time (writes take the time of their epoch).

A multiset table is a keyed table whose first key columns identify a group and whose other key columns identify an
element of it. Its rows are placed by `placement_hash`: all rows of a group are in one range of hashes, which blocks,
files and reads may cut anywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa

from statebed.arrays.key_hash import Hashes, hash_columns, placement_hash
from statebed.arrays.packed_text import PackedText
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import TIME, schema_from_bytes
from statebed.format.segment import SegmentSpec, segment_schema
from statebed.state.config import TableConfig, TimeToLiveClock
from statebed.state.evolution.adaptation import SchemaHistory
from statebed.state.evolution.column_defaults import defaults_from_bytes
from statebed.state.live.files import LiveFiles

_OTHER_BYTES = 16


@dataclass(frozen=True)
class KeyedTable:
    """Definition of a keyed table, from the configuration that `keyed_table_config` built."""

    config: TableConfig
    schemas: tuple[pb.TableSchema, ...] = ()
    """Schemas of the files that the table is restored from."""

    def __post_init__(self) -> None:
        if self.config.WhichOneof("kind") != "keyed":
            raise InputError(
                f"the table {self.config.name!r} is not a keyed table", fix="configure it with `keyed_table_config`"
            )

    @property
    def name(self) -> str:
        return self.config.name

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        return tuple(self.config.keyed.key_columns)

    @cached_property
    def prefix_columns(self) -> int:
        """Number of key columns that identify a group of a multiset table; 0 for an ordinary keyed table."""
        return int(self.config.keyed.prefix_columns)

    @cached_property
    def group_schema(self) -> pa.Schema:
        """Key columns that identify a group of a multiset table."""
        return pa.schema(list(self.key_schema)[: self.prefix_columns])

    @cached_property
    def element_schema(self) -> pa.Schema:
        """Columns of the rows of a group: the other key columns, `_time` if rows expire, values."""
        return pa.schema(list(self.row_schema)[self.prefix_columns :])

    def hash_keys(self, columns: Sequence[pa.Array | PackedText]) -> Hashes:
        """Return the hashes by which rows with these keys are placed."""
        return placement_hash(columns, self.prefix_columns) if self.prefix_columns else hash_columns(columns)

    @cached_property
    def time_to_live_us(self) -> int | None:
        kind = self.config.keyed
        return kind.time_to_live_us if kind.HasField("time_to_live_us") else None

    @property
    def expires(self) -> bool:
        return self.time_to_live_us is not None

    @cached_property
    def clock(self) -> TimeToLiveClock | None:
        """Clock by which rows expire, or None if they do not."""
        return TimeToLiveClock(self.config.keyed.time_to_live_clock) if self.expires else None

    @cached_property
    def columns(self) -> pa.Schema:
        """Key and value columns, with their field ids."""
        return schema_from_bytes(self.config.keyed.schema, where=f"table {self.name!r}")

    @cached_property
    def key_schema(self) -> pa.Schema:
        return pa.schema([self.columns.field(name).remove_metadata() for name in self.key_names])

    @cached_property
    def value_schema(self) -> pa.Schema:
        return pa.schema([field.remove_metadata() for field in self.columns if field.name not in self.key_names])

    @cached_property
    def row_schema(self) -> pa.Schema:
        """Columns of rows as readers see them: keys, `_time` if rows expire, values."""
        times = [self.file_schema.field(TIME).remove_metadata()] if self.expires else []
        return pa.schema([*self.key_schema, *times, *self.value_schema])

    @cached_property
    def file_schema(self) -> pa.Schema:
        """Columns of files. Values are nullable there, because deletions have none."""
        fields = [field if field.name in self.key_names else field.with_nullable(True) for field in self.columns]
        return segment_schema(
            pa.schema(fields),
            sort_order=pb.HASH_FIRST,
            key_columns=self.key_names,
            timed=self.expires,
            deletions=True,
        )

    @cached_property
    def row_bytes(self) -> int:
        """Approximate minimum size of a row in memory: its values, hash, marks, and index entry."""
        kinds = [field.type for field in self.row_schema]
        return _OTHER_BYTES + sum(
            kind.bit_width // 8 if pa.types.is_primitive(kind) and kind.bit_width > 1 else _OTHER_BYTES
            for kind in kinds
        )

    def segment_spec(self, schema_id: int) -> SegmentSpec:
        return SegmentSpec(
            table=self.name,
            schema_id=schema_id,
            schema=self.file_schema,
            sort_order=pb.HASH_FIRST,
            key_columns=self.key_names,
        )

    @cached_property
    def history(self) -> SchemaHistory:
        """History of the table's schemas, by which files of any age are read."""
        defaults = defaults_from_bytes(self.config.keyed.defaults)
        return SchemaHistory(self.schemas, self.file_schema, defaults, where=f"table {self.name!r}")

    def check_schema(self, live: LiveFiles) -> None:
        """Raise if the state was written with columns that cannot be read with the current ones."""
        replace(self, schemas=live.schemas).history.check()
