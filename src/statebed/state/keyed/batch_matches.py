"""Where the keys of a batch are in a block."""

from dataclasses import dataclass

from statebed.arrays.mutable import Mask, Rows
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.sorted_run import SortedRun


@dataclass(frozen=True)
class BatchMatches:
    """Rows of a batch that a run of a block holds, and where."""

    run: SortedRun
    frozen: FrozenRun | None
    """None: the run is in memory, and changes in place."""
    at: Rows
    rows: Rows

    def where(self, mask: Mask | None) -> "BatchMatches":
        """Some of the rows; None: all."""
        if mask is None or mask.all():
            return self
        return BatchMatches(self.run, self.frozen, self.at.compress(mask), self.rows.compress(mask))
