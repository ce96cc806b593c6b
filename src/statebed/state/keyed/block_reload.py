"""A block on its way back to memory: its mapped files, and what lies over them, copied to one run.

The files do not change, and what lies over them is seldom written meanwhile: so the copy is made without the view's
lock, and is in vain when the block has changed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from statebed.state.keyed.block import Block
from statebed.state.keyed.mapped_run import newest
from statebed.state.keyed.sorted_run import SortedRun


class Returning:
    """What a block has at one moment. Made, and asked whether that still holds, with the lock; copied without it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._frozen = block.frozen
        # Without files there is nothing to copy, and what is in memory stays as it is charged.
        self._over = block.loose() if self._frozen else None
        self._writes = self._version()

    def copied(self, locked: Callable[[], AbstractContextManager[None]]) -> SortedRun | None:
        """Its rows; None: it is not spilled, or has changed. `locked` gives the lock, for a moment."""
        try:
            return newest(self._frozen, self._over) if self._frozen else None
        except Exception:
            with locked():
                if self.holds:
                    raise
            return None  # what was read was half written, or its file is gone

    @property
    def holds(self) -> bool:
        """Whether the block still has just that."""
        block = self._block
        same = not block.held_bytes if self._over is None else block.is_just(self._over)
        return same and block.frozen is self._frozen and self._version() == self._writes

    def _version(self) -> tuple[int, ...]:
        """Another one after every write, and after a checkpoint of changed rows."""
        over = 0 if self._over is None else self._over.writes
        return (over, *(one.dirty_rows for one in self._frozen))
