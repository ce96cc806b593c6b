"""Where the keys of a batch are in a block."""

from dataclasses import dataclass

from statebed.state.columns import Mask, Rows
from statebed.state.keyed.run import Run
from statebed.state.keyed.spilled import FrozenRun


@dataclass(frozen=True)
class Found:
    """Rows of a batch that a run of a block holds, and where."""

    run: Run
    frozen: FrozenRun | None
    """None: the run is in memory, and changes in place."""
    at: Rows
    rows: Rows

    def where(self, mask: Mask | None) -> "Found":
        """Some of the rows; None: all."""
        if mask is None or mask.all():
            return self
        return Found(self.run, self.frozen, self.at.compress(mask), self.rows.compress(mask))
