"""Bytes of state that a side writes for each batch, from the files of its checkpoint.

Changes only: deltas of ours with their metadata and record, changelogs of RocksDB, deltas of the HDFS-backed store.
Compactions of ours and snapshots of theirs come on top, at intervals of their own.
"""

import re
from collections import defaultdict
from pathlib import Path

from bench.spark.cases import Side

_OURS = re.compile(r"/checkpoints/(\d+)/(?!outbox/|published-)")
_THEIRS = {Side.ROCKSDB: re.compile(r"/(\d+)(?:_[^/]*)?\.changelog$"), Side.HDFS: re.compile(r"/(\d+)\.delta$")}


_FIRST = {Side.OURS: 2}
"""Number of the first batch: epoch 1 is the start of the run. Spark counts versions from 1."""


def checkpoint_bytes(side: Side, folder: Path, batches: int) -> list[int]:
    """Return the bytes of each batch whose files are still there, in their order."""
    pattern = _OURS if side is Side.OURS else _THEIRS.get(side)
    sizes: defaultdict[int, int] = defaultdict(int)
    for path in folder.rglob("*") if pattern is not None else ():
        match = pattern.search(path.as_posix()) if pattern is not None and path.is_file() else None
        if match is not None:
            sizes[int(match[1])] += path.stat().st_size
    first = _FIRST.get(side, 1)
    return [sizes[number] for number in range(first, first + batches) if number in sizes]
