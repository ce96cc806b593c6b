"""The kinds of joins, and which rows each of them gives."""

import enum


class JoinSide(enum.Enum):
    """One of the two inputs of a join."""

    LEFT = "left"
    RIGHT = "right"

    @property
    def other(self) -> "JoinSide":
        return JoinSide.RIGHT if self is JoinSide.LEFT else JoinSide.LEFT


class JoinKind(enum.Enum):
    """Which rows a join gives. A pair is a left and a right row with one key that also meet the join's other terms."""

    INNER = "inner"
    """Every pair."""
    LEFT = "left"
    """Every pair, and left rows that are in none, with nulls for the right columns."""
    RIGHT = "right"
    """Every pair, and right rows that are in none, with nulls for the left columns."""
    FULL = "full"
    """Every pair, and the rows of either side that are in none."""
    SEMI = "semi"
    """Left rows that are in a pair, each once, with the left columns alone."""
    ANTI = "anti"
    """Left rows that are in no pair, with the left columns alone."""

    @property
    def gives_pairs(self) -> bool:
        return self not in {JoinKind.SEMI, JoinKind.ANTI}

    def gives_unmatched(self, side: JoinSide) -> bool:
        """Whether rows of a side that are in no pair are among the results."""
        kinds = (
            {JoinKind.LEFT, JoinKind.FULL, JoinKind.ANTI} if side is JoinSide.LEFT else {JoinKind.RIGHT, JoinKind.FULL}
        )
        return self in kinds
