"""Tombstones: logical deletions as messages of the format, and decisions on them that read no row.

A tombstone hides rows with a hash in its owned range and a sequence not greater than its own. It hides all rows of a
time range, or those that equal one of its rows in key, in key and time, or in key and values. One batch of deletions is
one tombstone, whose rows are an Arrow IPC stream sorted by hash.
"""

from collections.abc import Iterable
from enum import Enum

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, uint64_values
from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import overlaps
from statebed.format.schema import KEY_HASH, TIME
from statebed.format.segment import DAMAGED_FIX


class DeletionKind(Enum):
    """Columns in which a deleted row equals a row of the tombstone."""

    KEY = "delete_key"
    TIME_KEY = "delete_time_key"
    VALUE = "delete_value"


TIME_RANGE = "delete_time_range"


def of_rows(kind: DeletionKind, rows: pa.Table, *, sequence: int, owned: pb.HashRange) -> pb.Tombstone:
    """Build one tombstone for these rows (at least one): `_key_hash`, keys, and `_time` or values, with field ids."""
    hashes = uint64_values(rows[KEY_HASH])
    order = np.argsort(hashes, kind="stable")
    rows = rows.take(from_numpy(order, pa.int64())).combine_chunks()
    times = int64_values(rows[TIME]) if TIME in rows.column_names else None
    deleted = pb.DeletedRows(
        arrow_ipc=_to_bytes(rows),
        rows=rows.num_rows,
        min_key_hash=int(hashes.min()),
        max_key_hash=int(hashes.max()),
        min_time_us=None if times is None else int(times.min()),
        max_time_us=None if times is None else int(times.max()),
    )
    tombstone = pb.Tombstone(sequence=sequence, owned=owned)
    getattr(tombstone, kind.value).CopyFrom(deleted)
    return tombstone


def of_range(start_us: int, end_us: int, *, sequence: int, owned: pb.HashRange) -> pb.Tombstone:
    """Build the tombstone of all rows with start_us <= time < end_us."""
    span = pb.DeleteTimeRange(start_us=start_us, end_us=end_us)
    return pb.Tombstone(sequence=sequence, owned=owned, delete_time_range=span)


def rows_of(tombstone: pb.Tombstone) -> pa.Table:
    """Return the rows of a tombstone that has rows."""
    deleted = _deleted_rows(tombstone)
    if deleted is None:
        raise CorruptObjectError(
            f"a tombstone of the kind {tombstone.WhichOneof('operation')} has no rows", fix=DAMAGED_FIX
        )
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(deleted.arrow_ipc)).read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptObjectError(f"the rows of a tombstone cannot be decoded: {error}", fix=DAMAGED_FIX) from error
    if rows.num_rows != deleted.rows or KEY_HASH not in rows.column_names:
        raise CorruptObjectError(
            f"a tombstone has {rows.num_rows} rows with the columns {rows.column_names} instead of {deleted.rows} rows",
            fix=DAMAGED_FIX,
        )
    return rows


def kind_of(tombstone: pb.Tombstone) -> DeletionKind | None:
    """Return the columns that its rows must equal, or None for a time range."""
    kind = tombstone.WhichOneof("operation")
    if kind == TIME_RANGE:
        return None
    if kind is None:
        raise CorruptObjectError("a tombstone has an operation that this version does not know", fix="upgrade statebed")
    return DeletionKind(kind)


def clipped(tombstone: pb.Tombstone, owned: pb.HashRange) -> pb.Tombstone | None:
    """Clip the tombstone to the range that a subtask owns; None if it does not apply there."""
    kind = kind_of(tombstone)
    if not overlaps(tombstone.owned, owned):
        return None
    first, last = max(tombstone.owned.first, owned.first), min(tombstone.owned.last, owned.last)
    common = pb.HashRange(first=first, last=last)
    deleted = _deleted_rows(tombstone)
    if kind is not None and deleted is not None and not (first <= deleted.min_key_hash <= deleted.max_key_hash <= last):
        rows = rows_of(tombstone)
        hashes = uint64_values(rows[KEY_HASH])
        kept = np.flatnonzero((hashes >= np.uint64(first)) & (hashes <= np.uint64(last)))
        if not len(kept):
            return None
        return of_rows(kind, rows.take(from_numpy(kept, pa.int64())), sequence=tombstone.sequence, owned=common)
    copy = pb.Tombstone()
    copy.CopyFrom(tombstone)
    copy.owned.CopyFrom(common)
    return copy


def may_hide(tombstone: pb.Tombstone, file: pb.FileEntry) -> bool:
    """Return whether it may hide a row of this file, or of a segment with the same span."""
    # The cheapest checks first: this runs for every pair of tombstone and file.
    sequence = tombstone.sequence
    if sequence < file.min_sequence or sequence <= file.applied_sequence:
        return False
    deleted = _deleted_rows(tombstone)
    span = tombstone.delete_time_range
    if deleted is None and not (span.start_us <= file.max_time_us and file.min_time_us < span.end_us):
        return False
    first, last = _reach(file)
    if not (tombstone.owned.first <= last and first <= tombstone.owned.last):
        return False
    if deleted is None:
        return True
    if not (deleted.min_key_hash <= last and first <= deleted.max_key_hash):
        return False
    return not deleted.HasField("min_time_us") or (
        deleted.min_time_us <= file.max_time_us and file.min_time_us <= deleted.max_time_us
    )


def hides_range(tombstone: pb.Tombstone, file: pb.FileEntry, start_us: int, end_us: int) -> bool:
    """Return whether it certainly hides all rows of the file with start_us <= time < end_us, by its time range."""
    span = tombstone.delete_time_range
    return (
        kind_of(tombstone) is None
        and _applies_to_all(tombstone, file)
        and span.start_us <= max(start_us, file.min_time_us)
        and min(end_us, file.max_time_us + 1) <= span.end_us
    )


def hide_all(deletions: Iterable[pb.Tombstone], file: pb.FileEntry) -> bool:
    """Return whether the time ranges among these tombstones together certainly hide every row of the file."""
    spans = [
        (tombstone.delete_time_range.start_us, tombstone.delete_time_range.end_us)
        for tombstone in deletions
        if kind_of(tombstone) is None and _applies_to_all(tombstone, file)
    ]
    reached = file.min_time_us
    for start, end in sorted(spans):
        if start > reached:
            break
        reached = max(reached, end)
    return reached > file.max_time_us


def _applies_to_all(tombstone: pb.Tombstone, file: pb.FileEntry) -> bool:
    first, last = _reach(file)
    return bool(
        tombstone.sequence >= file.max_sequence and tombstone.owned.first <= first and last <= tombstone.owned.last
    )


def _reach(file: pb.FileEntry) -> tuple[int, int]:
    """Return the range of hashes of the entry's rows: those of its file that it owns."""
    first = max(file.owned.first, file.min_key_hash)
    return first, max(first, min(file.owned.last, file.max_key_hash))


def replaces(newer: pb.Tombstone, older: pb.Tombstone) -> bool:
    """Return whether the newer one hides all that the older one hides: it covers its time, or has the same rows."""
    if newer.WhichOneof("operation") != older.WhichOneof("operation") or newer.sequence < older.sequence:
        return False
    if not (newer.owned.first <= older.owned.first and older.owned.last <= newer.owned.last):
        return False
    rows = _deleted_rows(newer)
    if rows is not None:
        return rows == _deleted_rows(older)
    span, covered = newer.delete_time_range, older.delete_time_range
    return span.start_us <= covered.start_us and covered.end_us <= span.end_us


def held_bytes(tombstones: Iterable[pb.Tombstone]) -> int:
    """Return the approximate size of tombstones in memory and in metadata."""
    return sum(int(tombstone.ByteSize()) for tombstone in tombstones)


def _deleted_rows(tombstone: pb.Tombstone) -> pb.DeletedRows | None:
    kind = kind_of(tombstone)
    if kind is None:
        return None
    rows: pb.DeletedRows = getattr(tombstone, kind.value)
    return rows


def _to_bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    data: bytes = sink.getvalue().to_pybytes()
    return data
