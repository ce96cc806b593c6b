"""The view of a time-keyed table: rows with a time, appended in batches, read by ranges of time, kept for a retention.

Rows that were appended since the last checkpoint are in memory; a checkpoint writes them as one file, merged with the
newest files when there are too many. Deleting a range of time reads nothing: files that lie inside leave, one tombstone
hides the rest. Rows older than the watermark minus the retention leave in the same way. In a generational table, of
several rows with one key and time the one appended last counts. A view is for one thread.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.errors import InputError, NotOwnerError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.format.keyhash import HASH_SEED, hash_columns, normalise_key
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, register_schema, schema_from_bytes
from statebed.format.segment import SegmentSpec, encode_segment, sort_segment
from statebed.format.segment_reader import SegmentReader
from statebed.state.config import TableConfig
from statebed.state.deletions import Deletions
from statebed.state.keyed_columns import column_of
from statebed.state.keyed_durable import NameOf
from statebed.state.live_files import LiveFiles, in_range
from statebed.state.time_keyed import MAX_FILES, RangeFetch, TimeKeyedTable
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

_BEGINNING = -(1 << 63)
_END = (1 << 63) - 1


class TimeKeyedView:
    """The state of one time-keyed table in the range of hashes that one subtask owns."""

    def __init__(
        self,
        config: TableConfig,
        *,
        owned: pb.HashRange,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata] = (),
    ) -> None:
        """Restore from the metadata of one or more earlier subtasks, at any parallelism; no file is read yet."""
        kind = config.time_keyed
        columns = schema_from_bytes(kind.schema, where=f"table {config.name!r}")
        self.table = TimeKeyedTable(
            name=config.name,
            description=config.description,
            keys=tuple(columns.field(name) for name in kind.key_columns),
            values=tuple(field for field in columns if field.name not in kind.key_columns),
            bin_us=kind.bin_us,
        )
        self._kind = kind
        self._store = store
        self._live = LiveFiles.restore(parts, owned=owned)
        self.table.check_schema(self._live, where=f"table {config.name!r}")
        self._appended: list[pa.Table] = []
        self._kept_from_us = _BEGINNING
        self.late_rows = 0
        """Rows that came when their time was over, and were not taken."""

    @cached_property
    def row_schema(self) -> pa.Schema:
        """The columns of rows as readers see them: keys, `_time`, values."""
        fields = [*self.table.keys, pa.field(TIME, TIMESTAMP, nullable=False), *self.table.values]
        return pa.schema([field.remove_metadata() for field in fields])

    # ---- rows ------------------------------------------------------------------------------------------------

    def append(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows: key and value columns, and `_time` without nulls. Rows whose retention is over are counted."""
        table = self._checked(rows)
        kept = int64_values(table[TIME]) >= self._kept_from_us
        self.late_rows += int(len(kept) - np.count_nonzero(kept))
        if kept.any():
            self._appended.append(_filtered(table, kept))

    def read(self, start_us: int | None = None, end_us: int | None = None) -> pa.Table:
        """The rows with start_us <= time < end_us (None: from the beginning, to the end), by bin and key."""
        start, end = _BEGINNING if start_us is None else start_us, _END if end_us is None else end_us
        pieces = [self._read_file(file, start, end) for file in self._live.files if _may_hold(file, start, end)]
        rows = self._settled([*pieces, *self._appended])
        times = int64_values(rows[TIME])
        rows = _filtered(rows, (times >= start) & (times < end))
        return pa.Table.from_arrays([rows[name] for name in self.row_schema.names], schema=self.row_schema)

    def delete(self, start_us: int, end_us: int) -> None:
        """Delete the rows with start_us <= time < end_us, without reading any file."""
        self._appended = [
            _filtered(table, (times < start_us) | (times >= end_us))
            for table in self._appended
            for times in [int64_values(table[TIME])]
        ]
        self._live = self._live.delete_range(start_us, end_us)

    def advance(self, watermark_us: int) -> None:
        """Let the rows leave whose retention is over; the watermark never goes back."""
        kept_from = max(self._kept_from_us, watermark_us - self._kind.retention_us)
        if kept_from > self._kept_from_us:
            self._kept_from_us = kept_from
            self.delete(_BEGINNING, kept_from)

    # ---- durability ------------------------------------------------------------------------------------------

    def metadata(self, *, subtask_index: int = 0) -> pb.TableSubtaskCheckpointMetadata:
        """What is in files: everything up to the last checkpoint."""
        live = self._live
        return pb.TableSubtaskCheckpointMetadata(
            subtask_index=subtask_index,
            owned=live.owned,
            next_sequence=live.next_sequence,
            files=live.files,
            tombstones=live.tombstones,
            schemas=live.schemas,
            bytes=sum(file.size for file in live.files),
            rows=sum(file.rows for file in live.files),
        )

    def checkpoint(self, name_of: NameOf, *, most_files: int = MAX_FILES) -> tuple[Upload, ...]:
        """Everything appended since the last checkpoint as at most one file; `metadata` then names it."""
        added = self._settled(self._appended)
        merged = self._to_merge(added.num_rows, most_files)
        self._appended = []
        if not added.num_rows and not merged:
            return ()
        rows = self._settled([*(self._read_file(file) for file in merged), added])
        kept = tuple(file for file in self._live.files if file not in merged)
        # The new file holds visible rows alone: only tombstones that the kept files need stay.
        live = replace(self._live, files=kept, next_sequence=self._live.next_sequence + 1).without_idle_tombstones()
        self._live = live
        if not rows.num_rows:
            return ()
        schema_id, schemas = register_schema(live.schemas, self.table.file_schema)
        segment = encode_segment(rows, spec=self._spec(schema_id))
        path = name_of(segment.digest)
        level = max((file.level + 1 for file in merged), default=0)
        entry = segment.file_entry(path, owned=live.owned, level=level)
        self._live = replace(live, files=(*kept, entry), schemas=schemas)
        return (Upload.of_bytes(path, segment.data),)

    # ---- inside ----------------------------------------------------------------------------------------------

    def _spec(self, schema_id: int) -> SegmentSpec:
        keys = tuple(key.name for key in self.table.keys)
        return SegmentSpec(self.table.name, schema_id, self.table.file_schema, pb.BIN_FIRST, keys)

    def _checked(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        """The rows with the columns of files, or an error before anything is taken."""
        where = f"table {self.table.name!r}"
        wanted = {field.name: field.type for field in self.row_schema}
        given = dict(zip(rows.schema.names, rows.schema.types, strict=True))
        if given != wanted or len(rows.schema.names) != len(wanted):
            raise InputError(
                f"rows have the columns {given} instead of {wanted}", where=where, fix="select and cast the columns"
            )
        columns = {name: one_chunk(rows.column(name)) for name in wanted}
        empty = [field.name for field in self.row_schema if not field.nullable and columns[field.name].null_count]
        if empty:
            raise InputError(
                f"rows have nulls in the columns {empty}", where=where, fix="leave such rows out, or fill them"
            )
        keys = [normalise_key(columns[key.name]) for key in self.table.keys]
        hashes = hash_columns(keys) if keys else np.full(rows.num_rows, HASH_SEED, dtype=np.uint64)
        if not in_range(hashes, self._live.owned).all():
            raise NotOwnerError(
                "a row belongs to another subtask", where=where, fix="send each row to the owner of its key's hash"
            )
        times = int64_values(columns[TIME])
        columns |= {key.name: column for key, column in zip(self.table.keys, keys, strict=True)}
        columns[KEY_HASH] = from_numpy(hashes, pa.uint64())
        columns[BIN] = from_numpy(times // self.table.bin_us * self.table.bin_us, TIMESTAMP)
        # Greater than any stored one; the checkpoint that writes the rows gives them the same.
        columns[SEQUENCE] = from_numpy(np.full(rows.num_rows, _END, dtype=np.uint64), pa.uint64())
        schema = self.table.file_schema
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _settled(self, pieces: Sequence[pa.Table]) -> pa.Table:
        """Rows in the order of files, appended ones with the next sequence; of each generation the newest."""
        rows = pa.concat_tables([self.table.file_schema.empty_table(), *pieces])
        sequences = np.minimum(uint64_values(rows[SEQUENCE]), np.uint64(self._live.next_sequence))
        index = rows.schema.get_field_index(SEQUENCE)
        rows = rows.set_column(index, rows.schema.field(index), from_numpy(sequences, pa.uint64()))
        rows = sort_segment(rows, spec=self._spec(0)).combine_chunks()
        if not self._kind.generational or rows.num_rows <= 1:
            return rows
        return _filtered(rows, ~_same_as_next(rows, [*(key.name for key in self.table.keys), TIME]))

    def _read_file(self, file: pb.FileEntry, start_us: int = _BEGINNING, end_us: int = _END) -> pa.Table:
        """The visible rows of a file, all those of the range and perhaps others."""
        reader = SegmentReader(file, RangeFetch(self._store).get_range)
        hidden = self._live.hidden_until(file)
        start = start_us if hidden is None else max(start_us, hidden)
        # Row groups are chosen by bins, and a bin may begin before a time that is wanted.
        first_bin = max(start // self.table.bin_us * self.table.bin_us, _BEGINNING)
        groups = reader.select_row_groups(owned=file.owned, start_us=first_bin, end_us=end_us)
        if not groups:
            return self.table.file_schema.empty_table()
        rows = reader.read(row_groups=groups, columns=self.table.file_schema.names)
        visible = in_range(uint64_values(rows[KEY_HASH]), file.owned)
        visible &= Deletions(self._live.tombstones, keys=[key.name for key in self.table.keys]).visible(rows)
        return _filtered(pa.Table.from_arrays(rows.columns, schema=self.table.file_schema), visible)

    def _to_merge(self, added: int, most_files: int) -> list[pb.FileEntry]:
        """The newest files that the next one replaces, when there are too many."""
        by_age = sorted(self._live.files, key=lambda file: (-file.max_sequence, file.path))
        surplus = len(by_age) + min(added, 1) - most_files
        return by_age[: surplus + most_files // 2] if surplus > 0 else []


def _may_hold(file: pb.FileEntry, start_us: int, end_us: int) -> bool:
    return file.min_time_us < end_us and file.max_time_us >= start_us


def _filtered(rows: pa.Table, wanted: npt.NDArray[np.bool_]) -> pa.Table:
    return rows if wanted.all() else rows.take(from_numpy(np.flatnonzero(wanted), pa.int64()))


def _same_as_next(rows: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which rows equal the row after them in all of these columns."""
    first = np.arange(rows.num_rows - 1, dtype=np.int64)
    same = np.ones(rows.num_rows, dtype=np.bool_)
    same[-1] = False
    for name in names:
        column = one_chunk(rows[name])
        same[:-1] &= column_of(column).equals(first, column[1:])
    return same
