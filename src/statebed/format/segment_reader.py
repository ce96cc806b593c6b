"""Partial reads of a data file: footer first, then only the row groups and columns that are needed.

The file entry has the footer's size, so two range reads are enough for a small part. Everything is checked before it is
used: the footer and each column chunk against the entry's CRC-32C, pages against their own. A range that fails its
check is fetched once more.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.errors import CorruptObjectError, InputError
from statebed.format.checkpoint_pb2 import FileEntry, HashRange
from statebed.format.digest import crc32c
from statebed.format.repeated_reads import read_checked
from statebed.format.schema import BIN, KEY_HASH
from statebed.format.segment import DAMAGED_FIX, chunk_ranges

GetRange = Callable[[str, int, int], bytes]
"""Signature of `ObjectStore.get_range`: path, start, length."""
Forget = Callable[[str, int, int], None]


class SegmentReader:
    """A data file, opened by its footer. Not thread-safe."""

    def __init__(self, entry: FileEntry, get_range: GetRange, *, forget: Forget | None = None) -> None:
        """Open a data file. `forget` is called with a range that fails its check before it is read again: a cached copy
        may be damaged.
        """
        self.entry = entry
        self._get_range = get_range
        self._forget = forget
        self._last = (0, 0)
        start = entry.size - entry.footer_size
        self.metadata = self._parse(read_checked(lambda: self._fetch_footer(start)))

    @property
    def row_group_count(self) -> int:
        return int(self.metadata.num_row_groups)

    def select_row_groups(
        self,
        *,
        owned: HashRange | None = None,
        start_us: int | None = None,
        end_us: int | None = None,
    ) -> tuple[int, ...]:
        """Return the row groups that may have rows in `owned` and bins in [start_us, end_us); None means no limit."""
        return tuple(
            group
            for group in range(self.row_group_count)
            if (owned is None or self._may_own(group, owned)) and self._may_hold(group, start_us, end_us)
        )

    def read(self, *, row_groups: Sequence[int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of the given row groups and columns (None means all), after checking them."""
        groups = list(range(self.row_group_count)) if row_groups is None else list(row_groups)
        names = None if columns is None else list(columns)
        wanted = self._column_indices(names)
        parts: dict[int, bytes] = {}
        for group in groups:
            parts |= self._fetch_chunks(group, wanted)
        try:
            file = pq.ParquetFile(
                pa.PythonFile(_FetchedParts(parts, self.entry.size), mode="r"),
                metadata=self.metadata,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            table = file.read_row_groups(groups, columns=names, use_threads=False)
        except MemoryError:
            raise  # not enough memory: an ArrowException, too, but it says nothing about the file
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"does not decode: {error}") from error
        return (table if names is None else table.select(names)).replace_schema_metadata(None)

    def _column_indices(self, names: list[str] | None) -> list[int]:
        if names is None:
            return list(range(self.metadata.num_columns))
        unknown = sorted(set(names).difference(self.metadata.schema.to_arrow_schema().names))
        if unknown:
            raise InputError(f"the data file has no columns {unknown}", where=self.entry.path)
        # A nested column has several chunks, whose paths start with its name.
        return [
            index
            for index, path in enumerate(self._paths)
            if any(path == name or path.startswith(f"{name}.") for name in names)
        ]

    @cached_property
    def _paths(self) -> list[str]:
        return [self.metadata.schema.column(index).path for index in range(self.metadata.num_columns)]

    def _fetch_chunks(self, group: int, wanted: list[int]) -> dict[int, bytes]:
        """Return checked column chunks by their start; adjacent chunks are fetched together."""
        ranges = chunk_ranges(self.metadata, group)
        parts: dict[int, bytes] = {}
        for run in _neighbours(wanted):
            start = ranges[run[0]][0]
            length = sum(ranges[index][1] for index in run)
            chunks = {index: ranges[index] for index in run}
            expected = {index: self.entry.chunk_crc32c[group * len(ranges) + index] for index in run}
            parts[start] = read_checked(partial(self._fetch_run, group, start, length, chunks, expected))
        return parts

    def _fetch_run(
        self,
        group: int,
        start: int,
        length: int,
        chunks: Mapping[int, tuple[int, int]],
        expected: Mapping[int, int],
    ) -> bytes:
        data = self._fetch(start, length, what=f"row group {group}")
        for index, (chunk_start, chunk_length) in chunks.items():
            chunk = data[chunk_start - start : chunk_start - start + chunk_length]
            self._check(chunk, expected[index], what=f"column chunk {index} of row group {group}")
        return data

    def _fetch_footer(self, start: int) -> bytes:
        footer = self._fetch(start, self.entry.footer_size, what="the footer")
        self._check(footer, self.entry.footer_crc32c, what="the footer")
        return footer

    def _fetch(self, start: int, length: int, *, what: str) -> bytes:
        self._last = (start, length)
        data = self._get_range(self.entry.path, start, length) if start >= 0 and length else b""
        if len(data) != length or not length:
            raise self._damaged(f"is cut short: {what} has {len(data)} bytes instead of {length}")
        return data

    def _check(self, data: bytes, expected: int, *, what: str) -> None:
        if crc32c(data) != expected:
            if self._forget is not None:
                self._forget(self.entry.path, *self._last)
            raise self._damaged(f"is damaged: the checksum of {what} does not match its bytes")

    def _parse(self, footer: bytes) -> pq.FileMetaData:
        try:
            metadata = pq.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(f"has a footer that does not parse: {error}") from error
        if metadata.num_rows != self.entry.rows:
            raise self._damaged(f"holds {metadata.num_rows} rows instead of {self.entry.rows}")
        if metadata.num_row_groups * metadata.num_columns != len(self.entry.chunk_crc32c):
            raise self._damaged("has another number of column chunks than its entry says")
        return metadata

    def _may_own(self, group: int, owned: HashRange) -> bool:
        statistics = self._statistics(group, KEY_HASH)
        if statistics is None:
            return True
        return bool(statistics.min <= owned.last and owned.first <= statistics.max)

    def _may_hold(self, group: int, start_us: int | None, end_us: int | None) -> bool:
        statistics = None if start_us is None and end_us is None else self._statistics(group, BIN)
        if statistics is None:
            return True
        return (end_us is None or statistics.min_raw < end_us) and (start_us is None or statistics.max_raw >= start_us)

    def _statistics(self, group: int, column: str) -> pq.Statistics | None:
        paths = self._paths
        if column not in paths:
            return None
        statistics = self.metadata.row_group(group).column(paths.index(column)).statistics
        return statistics if statistics is not None and statistics.has_min_max else None

    def _damaged(self, what: str) -> CorruptObjectError:
        return CorruptObjectError(f"a data file {what}", where=self.entry.path, fix=DAMAGED_FIX)


class _FetchedParts(io.RawIOBase):
    """A file of which only some parts are in memory; reading any other byte is an error."""

    def __init__(self, parts: dict[int, bytes], size: int) -> None:
        super().__init__()
        self._parts = parts
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = origin + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        for start, data in self._parts.items():
            offset = self._position - start
            if size >= 0 and offset >= 0 and offset + size <= len(data):
                self._position += size
                return data[offset : offset + size]
        raise OSError(f"{size} bytes at {self._position} are outside the fetched parts")


def _neighbours(indices: list[int]) -> list[list[int]]:
    """Group consecutive numbers.

    >>> _neighbours([0, 1, 3])
    [[0, 1], [3]]
    """
    runs: list[list[int]] = []
    for index in indices:
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs
