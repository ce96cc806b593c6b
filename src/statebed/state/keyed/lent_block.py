"""Blocks as a checkpoint takes them: another thread writes them to files while the operator continues.

Taking a block copies little. A run with few changed rows contributes a copy of those rows. Any other run lends its
arrays, and copies them at its next write. Mapped files never change, and stay readable after they are removed. Memory
that only the checkpoint holds is charged to the budget until the block is given back.
"""

import copy
from collections.abc import Callable, Sequence

from statebed.state.keyed.block import Block
from statebed.state.keyed.sorted_run import Loan, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Reservation

_FEW = 32
"""Changed rows are copied if at most one row in this many has changed, so that later writes copy nothing."""


class LentBlock(Block):
    """Changed rows of a block at one moment, and the rows needed to decide which of them are the newest."""

    def __init__(self, block: Block, table: KeyedTable, charge: Callable[[], Reservation]) -> None:
        """Take a block, with the lock of its view held. `charge` opens a reservation for bytes that only the checkpoint
        holds.
        """
        super().__init__(block.owned, table, frozen=tuple(copy.copy(frozen_run) for frozen_run in block.frozen))
        self._loans: list[Loan] = []
        self._copies: list[Reservation] = []
        # A changed row of a file is the newest only if its key is not in memory, so unchanged rows in memory are needed
        # too.
        every = any(frozen_run.dirty_rows for frozen_run in block.frozen)
        taken = [self._taken(run, charge(), whole=every) for run in block.loose_runs if every or run.dirty_rows]
        self._loose.runs = tuple(taken)

    def _taken(self, run: SortedRun, charge: Reservation, *, whole: bool) -> SortedRun:
        if not whole and run.dirty_rows * _FEW <= len(run):
            few = run.select(run.dirty_between(0, len(run)))
            charge.set(few.held_bytes)
            self._copies.append(charge)
            return few
        taken, loan = run.lend(charge)
        self._loans.append(loan)
        return taken

    def give_back(self) -> None:
        """End all loans and charges, once the rows are written or discarded."""
        for loan in self._loans:
            loan.end()
        for charge in self._copies:
            charge.release()
        self._loose.runs = self._frozen = ()


def lend_blocks(blocks: Sequence[Block], table: KeyedTable, charge: Callable[[], Reservation]) -> list[LentBlock]:
    """Take all blocks of a view. Blocks without changes contribute only their range of hashes."""
    return [LentBlock(block if block.dirty_rows else Block(block.owned, table), table, charge) for block in blocks]
