"""Rows, specs and tiers that tests of segments share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP, assign_field_ids
from statebed.format.segment import SegmentSpec, segment_schema, sort_segment
from statebed.state.memory.controller import MemoryController
from statebed.state.tiers.selection import ALL_ROWS, Selection
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.append_buffer import AppendBuffer

MINUTE = 60_000_000
COLUMNS = assign_field_ids(pa.schema([("driver", pa.int64()), ("city", pa.string()), ("fare", pa.float64())]))


def spec(sort_order: "pb.SortOrder.ValueType" = pb.BIN_FIRST) -> SegmentSpec:
    schema = segment_schema(COLUMNS, sort_order=sort_order, key_columns=["driver"])
    return SegmentSpec("rides", 0, schema, sort_order, ("driver",))


def rows(count: int, *, start: int = 0, bins: int = 4, sort_order: "pb.SortOrder.ValueType" = pb.BIN_FIRST) -> pa.Table:
    """Rows numbered from `start` by their sequence, unsorted, with the columns of a segment."""
    numbers = np.arange(start, start + count, dtype=np.int64)
    columns = {
        BIN: from_numpy(numbers % bins * MINUTE, TIMESTAMP),
        KEY_HASH: from_numpy(numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15), pa.uint64()),
        "driver": from_numpy(numbers, pa.int64()),
        TIME: from_numpy(numbers % bins * MINUTE + numbers % 1000, TIMESTAMP),
        SEQUENCE: from_numpy(numbers.astype(np.uint64), pa.uint64()),
        "city": pa.array([f"city {number % 97}" for number in numbers.tolist()]),
        "fare": from_numpy(numbers / 4, pa.float64()),
    }
    names = spec(sort_order).schema.names
    return pa.table({name: columns[name] for name in names})


def sorted_rows(
    count: int, *, start: int = 0, bins: int = 4, sort_order: "pb.SortOrder.ValueType" = pb.BIN_FIRST
) -> pa.Table:
    return sort_segment(rows(count, start=start, bins=bins, sort_order=sort_order), spec=spec(sort_order))


def sequences(*tables: pa.Table) -> list[int]:
    """Return the numbers of the rows, ascending."""
    return sorted(number for table in tables for number in table[SEQUENCE].to_pylist())


def rows_in(buffer: AppendBuffer, selection: Selection = ALL_ROWS) -> Iterator[pa.Table]:
    """The rows of a buffer as of now, a table for each segment or piece."""
    segments, loose = buffer.pinned()
    try:
        yield from (segment.read(selection) for segment in segments)
    finally:
        for segment in segments:
            segment.unpin()
    yield from map(selection.apply, loose)


def file_entry(path: str, times: tuple[int, int] = (0, 10_000), size: int = 1000) -> pb.FileEntry:
    """Return the entry of a file with one row."""
    return pb.FileEntry(
        path=path,
        size=size,
        rows=1,
        owned=WHOLE_SPACE,
        max_key_hash=(1 << 64) - 1,
        min_time_us=times[0],
        max_time_us=times[1],
        min_sequence=1,
        max_sequence=1,
    )


@contextlib.contextmanager
def opened_tiers(folder: Path, *, budget: int = 64 << 20, cache_bytes: int = 1 << 30) -> Iterator[Tiers]:
    tiers = Tiers(MemoryController(budget, wait_seconds=30), folder=folder, cache_bytes=cache_bytes)
    try:
        yield tiers
    finally:
        tiers.close()
