"""A block: the rows of one range of hashes, read from files when they are first needed.

A block holds a large run, and in front of it an overlay with the keys that came since. Values change in place in
either; the overlay is merged into the large run when it has grown to a part of it, so that many small batches of new
keys cost what few large ones cost.
"""

from collections.abc import Callable

import numpy as np

from statebed.format import checkpoint_pb2 as pb
from statebed.state.keyed_columns import Rows
from statebed.state.keyed_run import Run

BLOCK_BYTES = 64 << 20
_LEAST_OVERLAY = 1 << 15
_OVERLAY_SHARE = 8

Load = Callable[[pb.HashRange], Run]


class Block:
    """One range of hashes of a keyed table."""

    def __init__(self, owned: pb.HashRange, load: Load, *, runs: tuple[Run, ...] = ()) -> None:
        self.owned = owned
        self._load = load
        self._runs = runs

    @property
    def loaded(self) -> bool:
        return bool(self._runs)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The large run and, if there is one, the overlay; read from files on first use. No key is in both."""
        if not self._runs:
            self._runs = (self._load(self.owned),)
        return self._runs

    @property
    def held_bytes(self) -> int:
        return sum(run.held_bytes for run in self._runs)

    @property
    def dirty_rows(self) -> int:
        return sum(run.dirty_rows for run in self._runs)

    def insert(self, run: Run) -> None:
        """Add rows whose keys are not in the block."""
        main, *overlays = self.runs
        overlay = overlays[0].merged(run) if overlays else run
        self._runs = (main, overlay)
        if len(overlay) > max(_LEAST_OVERLAY, len(main) // _OVERLAY_SHARE):
            self.settle()

    def settle(self) -> Run:
        """All rows as one run."""
        main, *overlays = self.runs
        if overlays:
            self._runs = (main.merged(overlays[0]),)
        return self._runs[0]

    def release(self) -> int:
        """Forget the rows, to be read again when needed, and give the number of bytes; 0 if some are not in files."""
        if self.dirty_rows:
            return 0
        freed = self.held_bytes
        self._runs = ()
        return freed

    def split(self, *, block_bytes: int) -> "list[Block]":
        """The block, or several that are not too large."""
        if self.held_bytes <= block_bytes:
            return [self]
        run = self.settle()
        cut = _middle(run)
        if cut is None:
            return [self]
        edge = int(run.hashes[cut])
        rows: Rows = np.arange(len(run), dtype=np.int64)
        lower = pb.HashRange(first=self.owned.first, last=edge - 1)
        upper = pb.HashRange(first=edge, last=self.owned.last)
        parts = [
            Block(lower, self._load, runs=(run.select(rows[:cut]),)),
            Block(upper, self._load, runs=(run.select(rows[cut:]),)),
        ]
        return [piece for part in parts for piece in part.split(block_bytes=block_bytes)]


def _middle(run: Run) -> int | None:
    """A row near the middle whose hash differs from the one before it, so that a hash stays in one block."""
    if not len(run):
        return None
    middle = run.hashes[len(run) // 2]
    for cut in (np.searchsorted(run.hashes, middle), np.searchsorted(run.hashes, middle, side="right")):
        if 0 < cut < len(run):
            return int(cut)
    return None
