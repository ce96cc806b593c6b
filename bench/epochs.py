"""Cost of an epoch by the number of keys it touches and by the size of the state.

An epoch is: merge a batch of keys, take a checkpoint, put its files into the store. Views of two sizes take turns,
epoch by epoch. Compactions run between epochs, as the manager's background thread would; the files that they made are
put by the next epoch, in its time, and their bytes are counted separately. At the end each state is restored from its
files and compared with what the view holds and with the sum of all that was added.
"""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.report import Report, smaller
from bench.workload import Ids, key_table
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, ManagerOptions, MemoryController, Merge, Tiers, keyed_table_config, merge_columns
from statebed.state.keyed.files import BASE
from statebed.storage import MemoryStore

_MILLION = 1_000_000
_LOAD_ROWS = 1_000_000
_TOUCHED = 100_000
_FEW = 1_000
_BUDGET = 8 << 30
_TIME = 1 / 1.5
"""An epoch takes at most 1.5 times as long with ten times the state."""
_BYTES = 0.9
_FEW_BYTES = 20.0
_SUM = merge_columns(value=Merge.SUM)
_MAX_COMPACTED = ManagerOptions().max_compaction_bytes


@dataclass(frozen=True)
class Epoch:
    """Measurements of one epoch."""

    seconds: float
    changed_bytes: int
    """Size of the files that hold changes."""
    blocks: int
    """Blocks that were written again."""
    block_bytes: int


class State:
    """A keyed table of int64 keys and values, with a store of its own."""

    def __init__(self, keys: int) -> None:
        schema = pa.schema([("id", pa.int64()), pa.field("value", pa.int64(), nullable=False)])
        self._config = keyed_table_config("bench", "", ["id"], schema)
        self._tiers = Tiers(MemoryController(_BUDGET))
        self._store = MemoryStore(f"epochs-{keys}")
        self._view = KeyedView(self._config, owned=WHOLE_SPACE, store=self._store, tiers=self._tiers)
        self._random = np.random.default_rng(keys)
        self._total = 0
        self._merged: set[str] = set()
        """Paths of what compactions made of deltas."""
        self.keys = keys
        for start in range(0, keys, _LOAD_ROWS):
            self._add(np.arange(start, min(start + _LOAD_ROWS, keys), dtype=np.int64))
        self.settle()

    def settle(self) -> None:
        """Everything in blocks, nothing in deltas."""
        self._checkpoint()
        while (job := self._view.plan_compaction(max_bytes=_MAX_COMPACTED)) is not None:
            self._view.offer_edit(job.run())
            self._checkpoint()

    def epoch(self, touched: int) -> Epoch:
        ids = self._random.choice(self.keys, touched, replace=False, shuffle=False).astype(np.int64)
        start = time.perf_counter()
        self._add(ids)
        changed, blocks, block_bytes = self._checkpoint()
        seconds = time.perf_counter() - start
        job = self._view.plan_compaction(max_bytes=_MAX_COMPACTED)
        if job is not None:
            edit = job.run()
            self._merged |= {_path(output.digest) for output in edit.outputs}
            self._view.offer_edit(edit)
        return Epoch(seconds, changed, blocks, block_bytes)

    def check(self) -> None:
        """Check that the files, the view, and the sum of everything added are the same."""
        self._checkpoint()
        parts = [self._view.metadata()]
        restored = KeyedView(
            self._config, owned=WHOLE_SPACE, store=self._store, parts=parts, tiers=self._tiers, owner="restored"
        )
        for name, view in (("view", self._view), ("restored state", restored)):
            rows = total = 0
            for part in view.scan():
                rows += part.num_rows
                total += pc.sum(part["value"]).as_py()
            if (rows, total) != (self.keys, self._total):
                raise SystemExit(f"epochs: the {name} has {rows} keys and the sum {total}, not {self._total}")

    def close(self) -> None:
        self._tiers.close()

    def _add(self, ids: Ids) -> None:
        amounts = pa.table([pa.array(ids % 97)], schema=self._view.table.value_schema)
        self._view.merge(key_table("int64", ids), amounts, _SUM)
        self._total += int((ids % 97).sum())

    def _checkpoint(self) -> tuple[int, int, int]:
        """Bytes of changes, number of new blocks, their bytes."""
        checkpoint = self._view.checkpoint(_path)
        for upload in checkpoint.uploads:
            self._store.put(upload.path, upload.content())
            upload.on_stored()
        live = {file.path: file for file in checkpoint.metadata.files}
        for stored in list(self._store.list("data")):
            if stored.path not in live:
                self._store.delete(stored.path)
        blocks = [upload.size for upload in checkpoint.uploads if live[upload.path].level == BASE]
        changed = sum(
            upload.size
            for upload in checkpoint.uploads
            if live[upload.path].level != BASE and upload.path not in self._merged
        )
        return changed, len(blocks), sum(blocks)


def _path(digest: str) -> str:
    return f"data/{digest}.parquet"


def measure(report: Report, *, quick: bool) -> None:
    """Compare states of two sizes, and epochs of two sizes."""
    small, large = State(_MILLION), State((2 if quick else 10) * _MILLION)
    try:
        count = 12 if quick else 24
        for state in (small, large):
            state.epoch(_TOUCHED)  # warms up
        pairs = [(small.epoch(_TOUCHED), large.epoch(_TOUCHED)) for _ in range(count)]
        few = [large.epoch(_FEW) for _ in range(4)]
        for state in (small, large):
            state.check()
    finally:
        small.close()
        large.close()
    case, baseline = f"epoch of 100k of {large.keys // _MILLION}M keys", f"of {small.keys // _MILLION}M keys"
    before, after = ([pair[index] for pair in pairs] for index in (0, 1))
    # The median is an epoch as most are; the mean also has those that take over what compactions made.
    for name, of in (("median", statistics.median), ("mean", statistics.mean)):
        ours, theirs = (1000 * of([epoch.seconds for epoch in group]) for group in (after, before))
        report.add(smaller(case, baseline, f"{name} time", ours=ours, theirs=theirs, unit="ms", target=_TIME))
        ours, theirs = (of([float(epoch.changed_bytes) for epoch in group]) for group in (after, before))
        report.add(smaller(case, baseline, f"{name} bytes", ours=ours, theirs=theirs, unit="bytes", target=_BYTES))
    report.add(
        smaller(
            f"epoch of 1k of {large.keys // _MILLION}M keys",
            "epoch of 100k",
            "checkpoint bytes",
            ours=statistics.median(epoch.changed_bytes for epoch in few),
            theirs=statistics.median(epoch.changed_bytes for epoch in after),
            unit="bytes",
            target=_FEW_BYTES,
        )
    )
    _blocks(case, after, report)


def measure_blocks(report: Report) -> None:
    """Measure the maximum number of blocks that an epoch rewrites at 50M keys."""
    state = State(50 * _MILLION)
    try:
        epochs = [state.epoch(20 * _TOUCHED) for _ in range(20)]
        state.check()
    finally:
        state.close()
    _blocks("epoch of 2M of 50M keys", epochs, report)


def _blocks(case: str, epochs: Sequence[Epoch], report: Report) -> None:
    largest = max(epochs, key=lambda epoch: epoch.block_bytes)
    if not largest.blocks:
        report.note(f"{case}: no epoch wrote a block again")
        return
    report.add(
        smaller(
            case,
            "bound of a compaction",
            "blocks rewritten",
            ours=largest.block_bytes,
            theirs=_MAX_COMPACTED,
            unit=f"bytes ({largest.blocks} blocks)",
            target=1.0,
        )
    )
