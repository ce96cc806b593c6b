"""The durable part of a keyed view: its live files, read into runs and extended by deltas and blocks."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.columns import boolean_values, from_numpy, int64_values, one_chunk, uint64_values
from statebed.format.ranges import overlaps
from statebed.format.schema import DELETED as DELETED_COLUMN
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME, TIMESTAMP, register_schema
from statebed.format.segment import DAMAGED_FIX, encode_segment
from statebed.state.keyed_columns import Rows
from statebed.state.keyed_files import (
    BASE,
    DELTA,
    MERGED_DELTAS,
    deltas_of,
    newest_rows,
    read_range,
    rows_in,
    to_merge,
    with_sequence,
    without_range,
)
from statebed.state.keyed_run import DELETED, STORED, Run
from statebed.state.keyed_table import KeyedTable
from statebed.state.live_files import LiveFiles
from statebed.state.upload import Upload
from statebed.storage import ObjectStore

MAX_DELTAS = 8
NameOf = Callable[[str], str]
"""The path of a new data file, from the digest of its bytes."""


class DurableRows:
    """What files hold of a keyed table in the range of one subtask."""

    def __init__(
        self,
        table: KeyedTable,
        store: ObjectStore,
        parts: Sequence[pb.TableSubtaskCheckpointMetadata],
        owned: pb.HashRange,
    ) -> None:
        if any(part.tombstones for part in parts):
            raise CorruptObjectError(
                f"the keyed table {table.name!r} has tombstones; its deletions are rows", fix=DAMAGED_FIX
            )
        self._table = table
        self._store = store
        self._live = LiveFiles.restore(parts, owned=owned)
        table.check_schema(self._live)

    @property
    def owned(self) -> pb.HashRange:
        return self._live.owned

    @property
    def files(self) -> tuple[pb.FileEntry, ...]:
        return self._live.files

    def metadata(self, subtask_index: int) -> pb.TableSubtaskCheckpointMetadata:
        return pb.TableSubtaskCheckpointMetadata(
            subtask_index=subtask_index,
            owned=self.owned,
            next_sequence=self._live.next_sequence,
            files=self.files,
            schemas=self._live.schemas,
            bytes=sum({file.path: file.size for file in self.files}.values()),
            rows=sum({file.path: file.rows for file in self.files}.values()),
        )

    def load(self, owned: pb.HashRange) -> Run:
        """The rows of a range of hashes: of each key the newest, without those that are deleted."""
        rows = newest_rows(self._table, read_range(self._table, self.files, self._store, owned))
        deleted = boolean_values(rows[DELETED_COLUMN])
        if deleted.any():
            rows = rows.take(from_numpy(np.flatnonzero(~deleted), pa.int64()))
        return Run.of(
            uint64_values(rows[KEY_HASH]),
            [one_chunk(rows[name]) for name in self._table.key_schema.names],
            [one_chunk(rows[name]) for name in self._table.value_schema.names],
            int64_values(rows[TIME]) if self._table.expires else None,
            STORED,
        )

    def may_expire(self, owned: pb.HashRange, until_us: int) -> bool:
        """Whether files may hold rows of the range whose time is not after `until_us`."""
        return any(
            overlaps(file.owned, owned) and file.HasField("min_time_us") and file.min_time_us <= until_us
            for file in self.files
        )

    def add_delta(self, changed: Sequence[pa.Table], name_of: NameOf) -> Upload:
        """One file of all changes; with the youngest earlier ones when there are many."""
        older = to_merge(deltas_of(self.files), most=MAX_DELTAS)
        rows = pa.concat_tables([read_range(self._table, older, self._store), *changed])
        replaced = {file.path for file in older}
        kept = tuple(file for file in self.files if file.path not in replaced)
        upload = self._add_file(
            newest_rows(self._table, rows),
            name_of,
            kept=kept,
            sequence=self._live.next_sequence,
            owned=self.owned,
            level=MERGED_DELTAS if older else DELTA,
        )
        self._live = replace(self._live, next_sequence=self._live.next_sequence + 1)
        return upload

    def replace_block(self, owned: pb.HashRange, rows: pa.Table, name_of: NameOf) -> Upload | None:
        """All rows of a range as one file, which replaces whatever files hold of that range."""
        kept = without_range(self.files, owned)
        if not rows.num_rows:
            self._live = replace(self._live, files=kept)
            return None
        # The sequence of the newest delta: older than every later one.
        return self._add_file(
            newest_rows(self._table, rows),
            name_of,
            kept=kept,
            sequence=self._live.next_sequence - 1,
            owned=owned,
            level=BASE,
        )

    def debt(self, owned: pb.HashRange) -> float:
        """Rows of deltas for each row of the base, about."""
        base = [file for file in self.files if file.level == BASE]
        return rows_in(deltas_of(self.files), owned) / max(rows_in(base, owned), 1.0)

    def rows_of(self, run: Run, rows: Rows) -> pa.Table:
        """Rows of a run as rows of files, without their sequence; deletions have neither time nor values."""
        deleted = (run.marks[rows] & DELETED) != 0
        alive = from_numpy(np.arange(len(rows), dtype=np.int64), pa.int64(), valid=~deleted)
        columns: dict[str, pa.Array] = {
            KEY_HASH: from_numpy(run.hashes[rows], pa.uint64()),
            SEQUENCE: from_numpy(np.zeros(len(rows), dtype=np.uint64), pa.uint64()),
            DELETED_COLUMN: pa.Array.from_buffers(
                pa.bool_(), len(rows), [None, pa.py_buffer(np.packbits(deleted, bitorder="little"))]
            ),
        }
        for name, key in zip(self._table.key_schema.names, run.keys, strict=True):
            columns[name] = key.take(rows)
        if run.times is not None:
            columns[TIME] = from_numpy(run.times[rows], TIMESTAMP, valid=~deleted)
        for name, value in zip(self._table.value_schema.names, run.values, strict=True):
            taken = value.take(rows)
            columns[name] = taken.take(alive) if deleted.any() else taken
        schema = self._table.file_schema
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def _add_file(
        self,
        rows: pa.Table,
        name_of: NameOf,
        *,
        kept: tuple[pb.FileEntry, ...],
        sequence: int,
        owned: pb.HashRange,
        level: int,
    ) -> Upload:
        schema_id, schemas = register_schema(self._live.schemas, self._table.file_schema)
        spec = self._table.segment_spec(schema_id)
        segment = encode_segment(with_sequence(rows, sequence), spec=spec)
        path = name_of(segment.digest)
        entry = segment.file_entry(path, owned=owned, level=level)
        self._live = replace(self._live, files=(*kept, entry), schemas=schemas)
        return Upload.of_bytes(path, segment.data)
