"""Blocks as a checkpoint takes them: it writes them to files on another thread, while the operator goes on.

Taking a block copies little. A run with few changed rows gives a copy of those rows; any other lends its arrays, and
copies them when it is next written. Mapped files never change, and stay readable when they are removed. Whatever the
checkpoint alone holds is charged to the memory budget until the block is returned.
"""

import copy
from collections.abc import Callable, Sequence

from statebed.state.keyed.block import Block
from statebed.state.keyed.sorted_run import Loan, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import Reservation

_FEW = 32
"""At most one row in this many has changed: those rows are copied, so that a later write copies nothing."""


class LentBlock(Block):
    """The changed rows of a block at one moment, and whatever says which of them are the newest."""

    def __init__(self, block: Block, table: KeyedTable, charge: Callable[[], Reservation]) -> None:
        """`charge` opens an account for bytes that nobody else holds. With the lock of the block's view."""
        super().__init__(block.owned, table, frozen=tuple(copy.copy(one) for one in block.frozen))
        self._loans: list[Loan] = []
        self._copies: list[Reservation] = []
        # Changed rows of a file are the newest only if their keys are not in memory, in a row that changed or not.
        every = any(one.dirty_rows for one in block.frozen)
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
        """Its rows are written, or are not going to be."""
        for loan in self._loans:
            loan.end()
        for charge in self._copies:
            charge.release()
        self._loose.runs = self._frozen = ()


def lent(blocks: Sequence[Block], table: KeyedTable, charge: Callable[[], Reservation]) -> list[LentBlock]:
    """All blocks of a view, of which those without changes give nothing but their range of hashes."""
    return [LentBlock(one if one.dirty_rows else Block(one.owned, table), table, charge) for one in blocks]
