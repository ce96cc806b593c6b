"""Sorted rows as data files on local disk, cut where files should end: at the edges of time buckets, and by size.

A bucket is a range of time. A file that compaction writes holds rows of one bucket, so when a bucket's time is over its
files leave unread. Buckets are whole bins, doubled until few of them cover what is live: the number of files stays
small however times are spread.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN
from statebed.format.segment import SegmentSpec
from statebed.format.segment_writer import row_bytes
from statebed.state.live.files import END
from statebed.state.memory.controller import Purpose
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.tiers.spill_files import ParquetFile, ParquetSpill

MAX_FILE_BYTES = 64 << 20
FILES_IN_BUDGET = 4
"""A file takes at most this part of the budget: about so much is held of what it is merged from."""
MAX_BUCKETS = 3
UNPACKED = 4
"""Rows take about so many times the bytes of their file."""
_RESERVED_BYTES = 32  # of a row: `_bin`, `_key_hash`, `_time` and `_seq`


@dataclass(frozen=True)
class NewFiles:
    """How new files of a table are written."""

    tiers: Tiers
    spec: SegmentSpec
    owner: str
    owned: pb.HashRange
    applied_sequence: int
    """The tombstones up to this sequence have been applied to the rows."""
    level: int = 0
    bucket_us: int | None = None
    """Width of time buckets, at the edges of which files end; None: they are cut by size alone."""
    cut: bool = True
    """Whether rows are cut into files of limited size; otherwise all rows become one file."""

    def write(self, pieces: Iterable[pa.Table]) -> tuple[ParquetFile, ...]:
        """The rows, which come in order. When this fails, nothing is left behind."""
        done: list[ParquetFile] = []
        try:
            for file in self._written(pieces):
                file.entry.applied_sequence = self.applied_sequence
                done.append(file)
        except BaseException:
            for file in done:
                file.path.unlink(missing_ok=True)
            raise
        return tuple(done)

    def _written(self, pieces: Iterable[pa.Table]) -> Iterator[ParquetFile]:
        for _, parts in itertools.groupby(self._parts(pieces), key=lambda part: part[0]):
            with ParquetSpill(self.spec, self.tiers.folder, owned=self.owned, level=self.level) as spill:
                for _, rows in parts:
                    with self.tiers.memory.reserve(self.owner, Purpose.MERGES, int(rows.nbytes)):
                        spill.write(rows)
                yield spill.finish()

    def _parts(self, pieces: Iterable[pa.Table]) -> Iterator[tuple[int, pa.Table]]:
        """Rows with the number of their file, which is a function of the rows alone, however they came in pieces."""
        limit = float(file_bytes(self.tiers)) if self.cut else math.inf
        number, taken, current = 0, 0.0, None
        for piece in pieces:
            for bucket, rows in self._by_bucket(piece):
                if taken and bucket != current:
                    number, taken = number + 1, 0.0
                current = bucket
                sizes = np.cumsum(row_bytes(rows))
                start, spent = 0, 0.0
                while start < rows.num_rows:
                    end = min(int(np.searchsorted(sizes, spent + limit - taken)) + 1, rows.num_rows)
                    yield number, rows.slice(start, end - start)
                    taken += float(sizes[end - 1]) - spent
                    start, spent = end, float(sizes[end - 1])
                    if taken >= limit:
                        number, taken = number + 1, 0.0

    def _by_bucket(self, rows: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        if self.bucket_us is None:
            yield None, rows
            return
        buckets = int64_values(rows[BIN]) // self.bucket_us
        edges = [0, *(np.flatnonzero(buckets[1:] != buckets[:-1]) + 1).tolist(), rows.num_rows]
        for start, end in itertools.pairwise(edges):
            yield int(buckets[start]), rows.slice(start, end - start)


def file_bytes(tiers: Tiers) -> int:
    """How many bytes of rows a file gets."""
    return max(1, min(MAX_FILE_BYTES, tiers.memory.budget // FILES_IN_BUDGET))


def full_bytes(tiers: Tiers) -> int:
    """Files with at least so many bytes are not merged for their size: rows in memory take a few times as much."""
    return file_bytes(tiers) // 4


def is_full(file: pb.FileEntry, full: int) -> bool:
    """Whether a file is large enough, however well it was compressed."""
    return bool(max(file.size, _RESERVED_BYTES * file.rows) >= full)


def bucket_width(files: Iterable[pb.FileEntry], *, bin_us: int) -> int:
    """The width of buckets: the least number of bins, a power of two, of which few cover all files."""
    spans = [(file.min_time_us, file.max_time_us) for file in files]
    width = bin_us
    if spans:
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        # Times are divided by it, so it has 64 bits, too; four buckets of the greatest width cover all times.
        while last // width - first // width >= MAX_BUCKETS and 2 * width <= END:
            width *= 2
    return width
