"""Reload of a spilled block: its mapped files and the newer rows in memory, copied into one run.

The copy is made without holding the view's lock, because the files never change and the newer rows are seldom written.
If the block has changed in the meantime, the copy is discarded.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from statebed.state.keyed.block import Block
from statebed.state.keyed.mapped_run import newest
from statebed.state.keyed.sorted_run import SortedRun


class BlockReload:
    """Runs of a block at one moment. Create it and check `holds` with the lock held; copy without it."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._frozen = block.frozen
        # Without files there is nothing to copy, and the rows in memory are left as they are.
        self._over = block.loose() if self._frozen else None
        self._writes = self._version()

    def copied(self, locked: Callable[[], AbstractContextManager[None]]) -> SortedRun | None:
        """Return the rows as one run, or None if the block is not spilled or has changed. `locked` acquires the lock
        for the check.
        """
        try:
            return newest(self._frozen, self._over) if self._frozen else None
        except Exception:
            with locked():
                if self.holds:
                    raise
            return None  # a concurrent write was read half-way, or the file was removed

    @property
    def holds(self) -> bool:
        """Whether the block still has the same runs, unchanged."""
        block = self._block
        same = not block.held_bytes if self._over is None else block.is_only_run(self._over)
        return same and block.frozen is self._frozen and self._version() == self._writes

    def _version(self) -> tuple[int, ...]:
        """Return a value that changes with every write, and with every checkpoint of changed rows."""
        over = 0 if self._over is None else self._over.writes
        return (over, *(frozen_run.dirty_rows for frozen_run in self._frozen))
