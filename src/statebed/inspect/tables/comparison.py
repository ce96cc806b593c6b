"""Comparison of a table at two epochs; reads only what they do not share.

The hash space is split at the subtask boundaries of both sides, so that each range compares one subtask with one other,
even after a rescale. Files listed by both sides contain the same rows. For a keyed table, only those of their row
groups are read that may contain a key of the other files, because it may be the previous value. For a time-keyed table,
they are read only where different deletions apply to them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_array, boolean_values, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import KEY_HASH
from statebed.format.segment import SegmentSpec
from statebed.inspect.tables.hash_merge import HashSource, merge_by_hash
from statebed.inspect.tables.read_plan import Fetch, FilePlan, PartPlan, any_between
from statebed.inspect.tables.request import Request
from statebed.inspect.tables.row_reader import generations, newest_of_each, rows_of_file, rows_of_group, rows_of_part
from statebed.inspect.tables.table_shape import GLOBAL_KEYED, KEYED
from statebed.state.evolution.adaptation import adapt
from statebed.state.live import tombstones
from statebed.state.live.files import clipped
from statebed.state.live.row_set import ascending
from statebed.state.tiers.selection import among
from statebed.state.time_keyed.row_merge import SortedSource, combined, merged
from statebed.state.time_keyed.snapshot import filtered

Part = pb.TableSubtaskCheckpointMetadata
Both = tuple[pa.Table, pa.Table]
"""Rows before and rows after, with the same keys (and times)."""

_AFTER = "\0after"
"""Column that distinguishes the sides; no user column has this name."""


@dataclass(frozen=True)
class ComparedSide:
    """A table at one of the two epochs."""

    request: Request
    parts: Sequence[Part]
    fetch: Fetch

    def part(self, owned: pb.HashRange) -> Part:
        """Return the part of a hash range, from the metadata of its owner; empty if the table did not exist."""
        clipped_part = Part(owned=owned)
        for part in self.parts:
            if part.owned.first <= owned.first and owned.last <= part.owned.last:
                clipped_part.CopyFrom(part)
                del clipped_part.files[:]
                clipped_part.files.extend(clipped(part.files, owned))
                clipped_part.owned.CopyFrom(owned)
        return clipped_part


def compare(before: ComparedSide, after: ComparedSide, *, only: int | None = None) -> Iterator[Both]:
    """Yield the rows of keys that may have changed, in the columns of the later side; all rows of a key (and time)
    together. `only` restricts them to one of the hash ranges.
    """
    for number, owned in enumerate(hash_ranges(before, after)):
        if only is None or number == only:
            yield from _Range(before, after, owned).compared()


def hash_ranges(before: ComparedSide, after: ComparedSide) -> list[pb.HashRange]:
    """Split the hash space at the subtask boundaries of both sides."""
    parts = [*before.parts, *after.parts]
    edges = sorted({part.owned.first for part in parts} | {part.owned.last + 1 for part in parts})
    edges = edges or [WHOLE_SPACE.first, WHOLE_SPACE.last + 1]
    return [pb.HashRange(first=first, last=end - 1) for first, end in pairwise(edges)]


class _Range:
    """One hash range."""

    def __init__(self, before: ComparedSide, after: ComparedSide, owned: pb.HashRange) -> None:
        self._sides = (before, after)
        self._parts = (before.part(owned), after.part(owned))
        self._same_columns = before.request.shape.file_schema.equals(
            after.request.shape.file_schema, check_metadata=True
        )

    def compared(self) -> Iterator[Both]:
        kind = self._sides[1].request.shape.kind
        if not self._differ():
            return
        if kind == KEYED:
            yield from self._keyed()
        elif kind == GLOBAL_KEYED:
            yield self._whole(0), self._whole(1)
        else:
            yield from self._time_keyed()

    def _differ(self) -> bool:
        before, after = self._parts
        same = _entries(before) == _entries(after) and list(before.tombstones) == list(after.tombstones)
        return not (same and self._same_columns)

    def _plan(self, side: int, *, without: set[str], only: bool = False) -> PartPlan:
        """Plan the read of one side, without the files in `without`, or with `only`, of only those."""
        part = Part()
        part.CopyFrom(self._parts[side])
        kept = [file for file in part.files if (file.path in without) is only]
        del part.files[:]
        part.files.extend(kept)
        return PartPlan(self._sides[side].request, part, self._sides[side].fetch)

    def _whole(self, side: int) -> pa.Table:
        """Read all rows of a small table."""
        pieces = list(rows_of_part(self._plan(side, without=set())))
        return pa.concat_tables([self._sides[side].request.shape.full_schema.empty_table(), *pieces])

    def _shared(self) -> set[str]:
        """Return the files whose rows are the same on both sides."""
        before, after = (_entries(part) for part in self._parts)
        return {path for path, owned in before & after} if self._same_columns else set()

    def _present(self, side: int, rows: pa.Table) -> pa.Table:
        """Convert rows of either side to the columns of the later one."""
        if side == 1 or self._same_columns:
            return rows
        before, after = (compared.request.shape for compared in self._sides)
        current = pa.schema([field for field in after.file_schema if field.name in after.schema.names])
        return adapt(rows, before.file_schema, current, after.defaults)

    # ---- keyed ---------------------------------------------------------------------------------------------------

    def _keyed(self) -> Iterator[Both]:
        shared = self._shared() if list(self._parts[0].tombstones) == list(self._parts[1].tombstones) else set()
        plans = [self._plan(side, without=shared) for side in (0, 1)]
        cursors = [_Cursor(file, part) for part in [self._plan(1, without=shared, only=True)] for file in part.files]
        sources = [
            HashSource(int(file.owned.first), rows_of_file(file, plan), side)
            for side, plan in enumerate(plans)
            for file in plan.files
        ]
        for pieces in merge_by_hash(sources):
            touched = ascending(np.concatenate([uint64_values(rows[KEY_HASH]) for _, rows in pieces]))
            old = [rows for cursor in cursors for rows in cursor.rows_of(touched)]
            yield (
                self._newest(0, [rows for side, rows in pieces if side == 0] + old),
                self._newest(1, [rows for side, rows in pieces if side == 1] + old),
            )

    def _newest(self, side: int, pieces: list[pa.Table]) -> pa.Table:
        shape = self._sides[side].request.shape
        rows = newest_of_each(pieces, shape) if pieces else _plain(shape.file_schema).empty_table()
        return self._present(side, rows)

    # ---- time keyed ----------------------------------------------------------------------------------------------

    def _time_keyed(self) -> Iterator[Both]:
        shared = self._shared()
        before, after = ({tombstone.SerializeToString() for tombstone in part.tombstones} for part in self._parts)
        other = [
            tombstone
            for part in self._parts
            for tombstone in part.tombstones
            if tombstone.SerializeToString() not in before & after
        ]
        files = {file.path: file for part in self._parts for file in part.files}
        shared = {
            path for path in shared if not any(tombstones.may_hide(tombstone, files[path]) for tombstone in other)
        }
        if self._sides[1].request.shape.generational:
            # A generation in a shared file may be replaced by one in another file, at any of its times.
            shared = {path for path in shared if not self._may_be_replaced(files[path], shared)}
        sources = [source for side in (0, 1) for source in self._sources(side, shared)]
        keys = self._sides[1].request.shape.keys
        for rows in combined(merged(sources, self._spec()), keys, _unchanged):
            is_after = boolean_values(rows[_AFTER])
            yield filtered(rows, ~is_after), filtered(rows, is_after)

    def _may_be_replaced(self, file: pb.FileEntry, shared: set[str]) -> bool:
        others = (other_file for part in self._parts for other_file in part.files if other_file.path not in shared)
        return any(
            other_file.min_time_us <= file.max_time_us and file.min_time_us <= other_file.max_time_us
            for other_file in others
        )

    def _sources(self, side: int, shared: set[str]) -> Iterator[SortedSource]:
        plan = self._plan(side, without=shared)
        if self._sides[side].request.shape.generational:
            first = min((plan.first_bin(file_plan.entry) for file_plan in plan.files), default=0)
            yield SortedSource(first, self._tagged(side, generations(plan)))
            return
        for file in plan.files:
            yield SortedSource(plan.first_bin(file.entry), self._tagged(side, rows_of_file(file, plan)))

    def _tagged(self, side: int, pieces: Iterator[pa.Table]) -> Iterator[pa.Table]:
        schema = self._spec().schema
        shapes = [compared.request.shape for compared in self._sides]
        for piece in pieces:
            rows = adapt(piece, shapes[side].file_schema, shapes[1].file_schema, shapes[1].defaults)
            tags = boolean_array(np.full(rows.num_rows, bool(side)))
            yield pa.Table.from_arrays([*rows.columns, tags], schema=schema)

    def _spec(self) -> SegmentSpec:
        shape = self._sides[1].request.shape
        return SegmentSpec(
            table=shape.config.name,
            schema_id=0,
            schema=_plain(shape.file_schema).append(pa.field(_AFTER, pa.bool_(), nullable=False)),
            sort_order=pb.BIN_FIRST,
            key_columns=shape.keys,
        )


class _Cursor:
    """Looks up keys of ascending hashes in one file, holding one row group."""

    def __init__(self, file: FilePlan, part: PartPlan) -> None:
        self._file = file
        self._part = part
        self._held: tuple[int, pa.Table] | None = None

    def rows_of(self, hashes: npt.NDArray[np.uint64]) -> Iterator[pa.Table]:
        """Yield the rows with one of these hashes."""
        for group in self._file.groups:
            ends = self._file.hash_ends(group)
            if ends is None or any_between(hashes, *ends):
                if self._held is None or self._held[0] != group:
                    self._held = group, rows_of_group(self._file, self._part, group)
                rows = self._held[1]
                yield filtered(rows, among(uint64_values(rows[KEY_HASH]), hashes))


def _entries(part: Part) -> set[tuple[str, tuple[int, int]]]:
    return {(file.path, (int(file.owned.first), int(file.owned.last))) for file in part.files}


def _plain(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.remove_metadata() for field in schema])


_unchanged: Callable[[pa.Table], pa.Table] = lambda rows: rows  # noqa: E731 - a name for doing nothing
