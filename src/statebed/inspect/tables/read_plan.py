"""Read plan of a table's files for a request, decided by their entries and footers before any row is read.

A file is skipped if its entry shows that it cannot contain a matching row, a row group if its statistics do. If rows
replace others, nothing is skipped because of its time: an older version of a key must not appear because the newer one
was not read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import intersection
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, field_id, find_schema
from statebed.format.segment import SegmentSpec, chunk_ranges
from statebed.format.segment_reader import SegmentReader
from statebed.inspect.tables.parallel_reads import map_concurrently
from statebed.inspect.tables.request import Request
from statebed.inspect.tables.scan import FileScan
from statebed.inspect.tables.table_shape import GLOBAL_KEYED, TIME_KEYED
from statebed.state.live import tombstones
from statebed.state.live.deletions import Deletions
from statebed.state.live.files import BEGINNING, END, LiveFiles
from statebed.state.live.tombstones import DeletionKind

Fetch = Callable[[str, int, int], bytes]


@dataclass(eq=False)
class FilePlan:
    """Read plan of one file."""

    entry: pb.FileEntry
    owned: pb.HashRange
    columns: tuple[str, ...]
    """Columns of the current schema, in its order."""
    stored: pa.Schema
    """Columns of the file."""
    start_us: int
    """Time before which rows are deleted or not requested."""
    request: Request
    fetch: Fetch
    hidden: bool
    """Whether tombstones may hide rows of it."""
    replaces: bool
    """Whether rows may replace others, as in `PartPlan.replaces`."""

    @cached_property
    def reader(self) -> SegmentReader:
        return SegmentReader(self.entry, self.fetch)

    @cached_property
    def current(self) -> pa.Schema:
        """Columns to read, in the current schema."""
        schema = self.request.shape.file_schema
        return pa.schema([schema.field(name) for name in self.columns])

    @cached_property
    def names(self) -> list[str]:
        """Names of these columns in the file, without those that it lacks."""
        present = {field_id(column) for column in self.current}
        return [column.name for column in self.stored if field_id(column) in present]

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Row groups that may contain matching rows."""
        start, end = None, None
        if not self.replaces:
            start = None if self.start_us == BEGINNING else self.start_us // self._bin_us * self._bin_us
            end = None if self.request.end_us == END else self.request.end_us
        chosen = self.reader.select_row_groups(owned=self.owned, start_us=start, end_us=end)
        if self.request.keys:
            chosen = tuple(group for group in chosen if self._may_hold_keys(group))
        return chosen

    def scan(self, subtask: int, why: str) -> FileScan:
        """Return what this plan reads."""
        ranges = [chunk_ranges(self.reader.metadata, group) for group in self.groups]
        paths = [self.reader.metadata.schema.column(number).path for number in range(self.reader.metadata.num_columns)]
        tops = set(self.names)
        read = [index for index, path in enumerate(paths) if path in tops or path.split(".", 1)[0] in tops]
        nbytes = self.entry.footer_size + sum(chunks[index][1] for chunks in ranges for index in read)
        return FileScan(
            path=self.entry.path,
            subtask=subtask,
            level=self.entry.level,
            bytes=self.entry.size,
            bytes_read=nbytes,
            row_groups=self.reader.row_group_count,
            row_groups_read=self.groups,
            why=why,
        )

    @property
    def _bin_us(self) -> int:
        return self.request.shape.bin_us

    def _may_hold_keys(self, group: int) -> bool:
        hashes = self.request.hashes
        assert hashes is not None
        ends = self.hash_ends(group)
        if ends is not None and not any_between(hashes, *ends):
            return False
        if self.request.shape.kind != GLOBAL_KEYED:
            return True
        # Rows of these files are sorted by key.
        ends = self._statistics(group, self.request.shape.stored_keys[0])
        wanted = self.request.keys[0].rows.column(1).to_pylist()
        return ends is None or any(ends[0] <= key <= ends[1] for key in wanted)

    def hash_ends(self, group: int) -> tuple[int, int] | None:
        """Return the minimum and maximum hash of a row group, or None if unknown."""
        return self._statistics(group, KEY_HASH)

    def _statistics(self, group: int, name: str) -> tuple[int, int] | None:
        metadata = self.reader.metadata
        position = self.stored.get_field_index(name)  # no nested column precedes the requested ones
        statistics = metadata.row_group(group).column(position).statistics
        return (statistics.min, statistics.max) if statistics is not None and statistics.has_min_max else None


@dataclass(eq=False)
class PartPlan:
    """Read plan of one subtask's part of a table."""

    request: Request
    part: pb.TableSubtaskCheckpointMetadata
    fetch: Fetch
    skipped: list[tuple[pb.FileEntry, str]] = field(default_factory=list)

    @cached_property
    def live(self) -> LiveFiles:
        part = self.part
        return LiveFiles(part.owned, part.next_sequence, tuple(part.files), tuple(part.tombstones))

    @property
    def replaces(self) -> bool:
        """Whether a row may replace one with another time, so that no version of a key may be skipped because of its
        time.
        """
        return self.request.shape.kind != TIME_KEYED

    @property
    def spec(self) -> SegmentSpec:
        """Sort order of the rows of a time-keyed table."""
        shape = self.request.shape
        names = self.files[0].columns if self.files else shape.file_schema.names
        return SegmentSpec(
            table=shape.config.name,
            schema_id=0,
            schema=pa.schema([shape.file_schema.field(name).remove_metadata() for name in names]),
            sort_order=pb.BIN_FIRST,
            key_columns=shape.keys,
        )

    def first_bin(self, entry: pb.FileEntry) -> int:
        """Return the first time bin of a file of a time-keyed table."""
        return max(entry.min_time_us // self.request.shape.bin_us * self.request.shape.bin_us, BEGINNING)

    @cached_property
    def deletions(self) -> Deletions:
        return Deletions(self.live.tombstones, keys=self.request.shape.keys)

    @cached_property
    def files(self) -> list[FilePlan]:
        """Files that may contain matching rows. The other files are added to `skipped` with the reason."""
        plans = []
        for entry in self.part.files:
            plan, why = self._plan(entry)
            if plan is None:
                self.skipped.append((entry, why))
            else:
                plans.append(plan)
        return plans

    def only(self, file: FilePlan) -> "PartPlan":
        """Return the plan for one file alone."""
        part = pb.TableSubtaskCheckpointMetadata()
        part.CopyFrom(self.part)
        del part.files[:]
        part.files.append(file.entry)
        return PartPlan(self.request, part, self.fetch)

    def open_files(self) -> None:
        """Read the footers of all files concurrently; there are few if keys are given."""
        map_concurrently(lambda file: file.groups, self.files)

    def scans(self) -> list[FileScan]:
        """Return what reading this part involves."""
        self.open_files()
        why = ", ".join(self._reasons())
        scans = [plan.scan(self.part.subtask_index, why) for plan in self.files]
        return scans + [self._skipped(entry, reason) for entry, reason in self.skipped]

    def _plan(self, entry: pb.FileEntry) -> tuple[FilePlan | None, str]:
        request, shape = self.request, self.request.shape
        owned = intersection(entry.owned, pb.HashRange(first=entry.min_key_hash, last=entry.max_key_hash))
        if owned is None:
            return None, "owned"
        if request.hashes is not None and not any_between(request.hashes, owned.first, owned.last):
            return None, "key"
        start = BEGINNING
        if not self.replaces:
            early = entry.min_time_us < request.end_us or request.end_us == END
            if not (early and request.start_us <= entry.max_time_us):
                return None, "time"
            start = max(request.start_us, self.live.hidden_until(entry) or BEGINNING)
            if start > entry.max_time_us:
                return None, "deleted"
        # Rows of several files are compared, so all of them need the same columns.
        deletions = self.live.tombstones
        hidden = (
            bool(deletions)
            if shape.newest_counts
            else any(tombstones.may_hide(tombstone, entry) for tombstone in deletions)
        )
        clipped = shape.newest_counts or not owns_all(entry)
        return FilePlan(
            entry=entry,
            owned=owned,
            columns=self._columns(clipped=clipped, hidden=hidden),
            stored=find_schema(self.part.schemas, entry.schema_id, where=entry.path),
            start_us=start,
            request=request,
            fetch=self.fetch,
            hidden=hidden,
            replaces=self.replaces,
        ), ""

    def _columns(self, *, clipped: bool, hidden: bool) -> tuple[str, ...]:
        request, shape = self.request, self.request.shape
        if shape.kind == GLOBAL_KEYED:
            return tuple(shape.file_schema.names)
        needed = {*request.shown, *request.also}
        if shape.newest_counts:
            needed |= set(shape.deciding)
        if request.keys or clipped or hidden:
            needed |= {KEY_HASH, *(shape.keys if request.keys else ())}
        if hidden:
            needed |= {SEQUENCE, *shape.keys}
            needed |= {TIME} if shape.timed else set()
            if any(tombstones.kind_of(tombstone) is DeletionKind.VALUE for tombstone in self.live.tombstones):
                needed |= set(shape.schema.names)
        names = [name for name in shape.file_schema.names if name in needed]
        return tuple(names) or (BIN if BIN in shape.file_schema.names else KEY_HASH,)

    def _reasons(self) -> Sequence[str]:
        request = self.request
        reasons = [("key", bool(request.keys)), ("time", request.by_time)]
        reasons.append(("columns", not set(request.shape.schema.names) <= request.shown))
        return [name for name, holds in reasons if holds]

    def _skipped(self, entry: pb.FileEntry, why: str) -> FileScan:
        schema = find_schema(self.part.schemas, entry.schema_id, where=entry.path)
        return FileScan(
            path=entry.path,
            subtask=self.part.subtask_index,
            level=entry.level,
            bytes=entry.size,
            bytes_read=0,
            row_groups=len(entry.chunk_crc32c) // max(1, sum(_leaves(column.type) for column in schema)),
            row_groups_read=(),
            why=why,
        )


def owns_all(entry: pb.FileEntry) -> bool:
    """Return whether the subtask owns all rows of the file."""
    return bool(entry.owned.first <= entry.min_key_hash and entry.max_key_hash <= entry.owned.last)


def any_between(hashes: npt.NDArray[np.uint64], first: int, last: int) -> bool:
    """Return whether one of the ascending hashes is in a range."""
    position = int(np.searchsorted(hashes, np.uint64(first)))
    return position < len(hashes) and int(hashes[position]) <= last


def _leaves(kind: pa.DataType) -> int:
    """Return the number of column chunks of a column in a row group."""
    if pa.types.is_nested(kind):
        children = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else None
        children = children or [kind.field(index).type for index in range(kind.num_fields)]
        return sum(_leaves(child) for child in children)
    return 1
