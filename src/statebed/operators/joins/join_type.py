"""Kinds of joins, and the rows that each of them emits."""

import enum


class JoinSide(enum.Enum):
    """One of the two inputs of a join."""

    LEFT = "left"
    RIGHT = "right"

    @property
    def other(self) -> "JoinSide":
        return JoinSide.RIGHT if self is JoinSide.LEFT else JoinSide.LEFT


class JoinKind(enum.Enum):
    """Kind of a join. A pair is a left and a right row with equal keys that also meet the other terms of the join."""

    INNER = "inner"
    """Every pair."""
    LEFT = "left"
    """Every pair, and left rows without a partner, with nulls for the right columns."""
    RIGHT = "right"
    """Every pair, and right rows without a partner, with nulls for the left columns."""
    FULL = "full"
    """Every pair, and rows of either side without a partner."""
    SEMI = "semi"
    """Left rows that are in a pair, each once, with the left columns only."""
    ANTI = "anti"
    """Left rows without a partner, with the left columns only."""

    @property
    def gives_pairs(self) -> bool:
        return self not in {JoinKind.SEMI, JoinKind.ANTI}

    def gives_unmatched(self, side: JoinSide) -> bool:
        """Return whether rows of a side without a partner are among the results."""
        kinds = (
            {JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI} if side is JoinSide.LEFT else {JoinKind.RIGHT, JoinKind.FULL}
        )
        return self in kinds
