"""Positions of the keys of a batch in a block."""

from dataclasses import dataclass

from statebed.arrays.mutable import Mask, Rows
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.sorted_run import SortedRun


@dataclass(frozen=True)
class BatchMatches:
    """Rows of a batch whose keys are in one run of a block, and their rows in that run."""

    run: SortedRun
    frozen: FrozenRun | None
    """The frozen run that holds them, or None if the run is in memory and can be changed in place."""
    at: Rows
    rows: Rows

    def where(self, mask: Mask | None) -> "BatchMatches":
        """Return the matches that the mask selects, or all of them if it is None."""
        if mask is None or mask.all():
            return self
        return BatchMatches(self.run, self.frozen, self.at.compress(mask), self.rows.compress(mask))
