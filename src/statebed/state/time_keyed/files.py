"""Data files on local disk from sorted rows, cut at the edges of time buckets and by size.

A bucket is a time range. A file that compaction writes holds rows of one bucket, so the files of an expired bucket are
removed unread. Buckets are whole bins, doubled until few of them cover what is live: the number of files stays small
however times are spread.
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
"""A file takes at most this fraction of the budget, since about one file's worth of its inputs is in memory."""
MAX_BUCKETS = 3
UNPACKED = 4
"""Approximate ratio of the size of rows in memory to the size of their file."""
_RESERVED_BYTES = 32  # per row: `_bin`, `_key_hash`, `_time` and `_seq`


@dataclass(frozen=True)
class NewFiles:
    """Writes new files of a table."""

    tiers: Tiers
    spec: SegmentSpec
    owner: str
    owned: pb.HashRange
    applied_sequence: int
    """Tombstones up to this sequence have been applied to the rows."""
    level: int = 0
    bucket_us: int | None = None
    """Width of the time buckets at whose edges files end, or None to cut by size alone."""
    cut: bool = True
    """Whether rows are cut into files of limited size; otherwise all rows become one file."""

    def write(self, pieces: Iterable[pa.Table]) -> tuple[ParquetFile, ...]:
        """Write sorted rows to files. If this fails, no file is left behind."""
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
        """Yield rows with the number of their file, which depends on the rows alone, not on how they are split into
        pieces.
        """
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
    """Return the target size of a file in bytes of rows."""
    return max(1, min(MAX_FILE_BYTES, tiers.memory.budget // FILES_IN_BUDGET))


def full_bytes(tiers: Tiers) -> int:
    """Return the size from which files count as full; rows in memory take a few times as much."""
    return file_bytes(tiers) // 4


def is_full(file: pb.FileEntry, full: int) -> bool:
    """Return whether a file is large enough, however well it is compressed."""
    return bool(max(file.size, _RESERVED_BYTES * file.rows) >= full)


def bucket_width(files: Iterable[pb.FileEntry], *, bin_us: int) -> int:
    """Return the width of buckets: the smallest power of two of bins with which few buckets cover all files."""
    spans = [(file.min_time_us, file.max_time_us) for file in files]
    width = bin_us
    if spans:
        first, last = min(span[0] for span in spans), max(span[1] for span in spans)
        # Times are divided by the width, so it must fit into 64 bits; four buckets of the greatest width cover all
        # times.
        while last // width - first // width >= MAX_BUCKETS and 2 * width <= END:
            width *= 2
    return width
