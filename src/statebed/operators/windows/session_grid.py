"""Cells in which the open sessions of a key are found by time.

Open sessions of a key neither overlap nor touch, and none is shorter than the gap. A session of level n lasts at least
2**n gaps and less than twice as many. Its cell is its start, counted in units of 2**n gaps. Therefore a level and a
cell have at most one session of a key, and all sessions that a span of time touches are in a few cells of each level,
however many sessions the key has.
"""

from dataclasses import dataclass

import numpy as np

from statebed.arrays.grouping import Integers

_POWERS = np.left_shift(1, np.arange(63, dtype=np.int64))
_CELLS_BEFORE = 2
"""A session that begins this many cells before a span may still touch it."""


@dataclass(frozen=True)
class Cells:
    """Cells of keys, which are identified by their positions."""

    key_index: Integers
    levels: Integers
    cells: Integers

    def __len__(self) -> int:
        return len(self.cells)

    def concatenated(self, others: "Cells") -> "Cells":
        """Return these cells, then the others."""
        return Cells(
            np.concatenate([self.key_index, others.key_index]),
            np.concatenate([self.levels, others.levels]),
            np.concatenate([self.cells, others.cells]),
        )


def cells_of(key_index: Integers, starts: Integers, ends: Integers, gap_us: int) -> Cells:
    """Return the cell of each session."""
    levels = np.searchsorted(_POWERS, (ends - starts) // gap_us, side="right") - 1
    return Cells(key_index, levels, starts // (gap_us * _POWERS[levels]))


def touched_cells(key_index: Integers, starts: Integers, ends: Integers, levels: Integers, gap_us: int) -> Cells:
    """Return the cells of sessions that overlap or touch spans of time, for the levels that the key of each span has.

    `levels` has a bit set for each of them. A cell is repeated if several spans touch it.
    """
    result = Cells(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    for level in range(int(levels.max(initial=0)).bit_length()):
        at = np.flatnonzero(levels & _POWERS[level])
        width = gap_us * int(_POWERS[level])
        firsts = starts[at] // width - _CELLS_BEFORE
        counts = ends[at] // width - firsts + 1
        spans = np.repeat(np.arange(len(at)), counts)
        offsets = np.arange(len(spans)) - np.repeat(np.cumsum(counts) - counts, counts)
        part = Cells(key_index[at][spans], np.full(len(spans), level, dtype=np.int64), firsts[spans] + offsets)
        result = result.concatenated(part)
    return result


def level_bits(levels: Integers) -> Integers:
    """Return the bit of each level."""
    return _POWERS[levels]
