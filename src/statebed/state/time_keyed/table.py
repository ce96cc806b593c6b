"""Time-keyed tables: rows in time bins, appended by epochs, deleted by ranges of time.

A subtask writes at most one segment per epoch, sorted by bin, hash and key. Reading fetches only the files and row
groups that may hold rows of the wanted bins and of the owned range. All rows of a segment carry one sequence.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.checkpoint.objects import fetch_range
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import from_numpy, int64_values, uint64_values
from statebed.format.ranges import in_range
from statebed.format.schema import (
    BIN,
    KEY_HASH,
    SEQUENCE,
    assign_field_ids,
    find_schema,
    register_schema,
    same_schema,
    schema_to_bytes,
)
from statebed.format.segment import EncodedSegment, SegmentSpec, encode_segment, segment_schema
from statebed.format.segment_reader import SegmentReader
from statebed.state.live.deletions import Deletions
from statebed.state.live.files import LiveFiles
from statebed.storage import ObjectStore

MAX_FILES = 8
"""More files than this in one subtask's table are merged into one."""


@dataclass(frozen=True)
class TimeKeyedTable:
    """The definition of a time-keyed table."""

    name: str
    description: str
    keys: tuple[pa.Field, ...]
    values: tuple[pa.Field, ...]
    bin_us: int

    @cached_property
    def columns(self) -> pa.Schema:
        """Keys and values, with their field ids."""
        return assign_field_ids(pa.schema([*self.keys, *self.values]), where=f"table {self.name!r}")

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The columns of its files."""
        names = [key.name for key in self.keys]
        return segment_schema(self.columns, sort_order=pb.BIN_FIRST, key_columns=names)

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of rows as operators see them: those of the files without `_seq`, and without field ids."""
        return pa.schema([field.remove_metadata() for field in self.file_schema if field.name != SEQUENCE])

    def config(self) -> pb.TableConfig:
        kind = pb.TimeKeyedTableConfig(
            schema=schema_to_bytes(self.columns),
            key_columns=[key.name for key in self.keys],
            bin_us=self.bin_us,
        )
        return pb.TableConfig(name=self.name, description=self.description, time_keyed=kind)

    def check_schema(self, live: LiveFiles, *, where: str) -> None:
        """Refuse state that was written with other columns."""
        for schema_id in sorted({file.schema_id for file in live.files}):
            found = find_schema(live.schemas, schema_id, where=where)
            if not same_schema(found, self.file_schema):
                raise InputError(
                    f"the state of table {self.name!r} has the columns {_described(found)}; "
                    f"the job defines {_described(self.file_schema)}",
                    where=where,
                    fix="give the changed operator another name, or put its definition back",
                )

    def encode(self, rows: pa.Table, live: LiveFiles) -> tuple[EncodedSegment, tuple[pb.TableSchema, ...]]:
        """The segment of sorted rows that takes the next sequence, and the table's schemas with its schema."""
        schema_id, schemas = register_schema(live.schemas, self.file_schema)
        sequence = np.full(rows.num_rows, live.next_sequence, dtype=np.uint64)
        spec = SegmentSpec(
            table=self.name,
            schema_id=schema_id,
            schema=self.file_schema,
            sort_order=pb.BIN_FIRST,
            key_columns=tuple(key.name for key in self.keys),
        )
        table = rows.append_column(SEQUENCE, from_numpy(sequence, pa.uint64()))
        return encode_segment(table, spec=spec), schemas


@dataclass(frozen=True)
class RowsRead:
    """Visible rows, and what it took to read them."""

    rows: pa.Table
    bytes_read: int


def read_rows(table: TimeKeyedTable, live: LiveFiles, store: ObjectStore, *, end_us: int | None = None) -> RowsRead:
    """Visible rows of bins before `end_us` (None: all), file after file, each in its order."""
    fetch = RangeFetch(store)
    deletions = Deletions(live.tombstones, keys=[key.name for key in table.keys])
    pieces = [table.row_schema.empty_table()]
    for file in live.files:
        if end_us is not None and file.min_time_us >= end_us:
            continue
        reader = SegmentReader(file, fetch.get_range)
        groups = reader.select_row_groups(owned=file.owned, start_us=live.hidden_until(file), end_us=end_us)
        if groups:
            rows = reader.read(row_groups=groups, columns=table.file_schema.names)
            pieces.append(_visible_rows(rows, table, deletions, owned=file.owned, end_us=end_us))
    return RowsRead(rows=pa.concat_tables(pieces), bytes_read=fetch.bytes_read)


def write_segment(
    table: TimeKeyedTable,
    live: LiveFiles,
    store: ObjectStore,
    rows: pa.Table,
    *,
    name_of: Callable[[str], str],
    level: int = 0,
) -> LiveFiles:
    """The live files with a new one of these rows (at least one), named by its digest."""
    segment, schemas = table.encode(rows, live)
    path = name_of(segment.digest)
    store.put(path, segment.data)
    entry = segment.file_entry(path, owned=live.owned, level=level)
    return replace(live, schemas=schemas).append(entry)


class RangeFetch:
    """Ranges of data files, with the error that metadata's readers expect and a count of bytes."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.bytes_read = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = fetch_range(self._store, path, start, length)
        self.bytes_read += len(data)
        return data


def _visible_rows(
    rows: pa.Table, table: TimeKeyedTable, deletions: Deletions, *, owned: pb.HashRange, end_us: int | None
) -> pa.Table:
    wanted = in_range(uint64_values(rows[KEY_HASH]), owned)
    if end_us is not None:
        wanted &= int64_values(rows[BIN]) < end_us
    wanted &= deletions.visible(rows)
    columns = [rows[name] for name in table.row_schema.names]
    kept = pa.Table.from_arrays(columns, schema=table.row_schema)
    if wanted.all():
        return kept
    return kept.take(from_numpy(np.flatnonzero(wanted), pa.int64()))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
