"""Cases measured on Spark: which operator, over how many keys, against what, and with which target.

Everything about time is counted in rows, because rows arrive at a steady pace of event time: rows per window, within
the bounds of a join, within the gap of a session. That keeps the state near the number of keys that a case is named
after.
"""

import enum
from dataclasses import dataclass

ROW_US = 20
"""Event time from one row to the next: 500,000 rows are ten seconds."""
FILE_ROWS = 500_000
DELAY = "1 second"
_MILLION = 1_000_000


class Kind(enum.Enum):
    """The operators."""

    AGGREGATE = "keyed count+sum"
    TEXT_AGGREGATE = "keyed count+sum, text,"
    TUMBLING = "tumbling window"
    SLIDING = "sliding window"
    JOIN = "interval join"
    SESSION = "session window"
    DEDUPLICATION = "deduplication"
    PROCESS = "user function"


class Side(enum.Enum):
    """Implementation that does the work."""

    OURS = "statebed"
    ROCKSDB = "Spark RocksDB"
    HDFS = "Spark HDFS-backed"
    ROWS = "transformWithState"
    PANDAS = "transf.WithStateInPandas"


STORES = (Side.ROCKSDB, Side.HDFS)
FUNCTIONS = (Side.ROWS, Side.PANDAS)
_FUNCTION_ROWS = {Side.ROWS: 100_000, Side.PANDAS: 20_000}
"""Rows per batch: with many keys nearly every row is a call of the function, and calls cost the same however many there
are.
"""
_GOALS = {Kind.JOIN: 6.0}
_GOAL = 4.0
_GOAL_MANY_KEYS = 6.0
_GOAL_FEW_KEYS = 1.5
_GOALS_OF_FUNCTIONS = (30.0, 100.0)
"""Goals with few and with many keys."""


@dataclass(frozen=True)
class Files:
    """Amount of input of a case: files that warm up and fill the state, then files that are measured."""

    warm: int
    warm_rows: int
    measured: int
    rows: int = FILE_ROWS

    @property
    def all(self) -> list[int]:
        """Rows of each file, in their order."""
        return [self.warm_rows] * self.warm + [self.rows] * self.measured


@dataclass(frozen=True)
class Case:
    """One operator over a number of keys."""

    kind: Kind
    keys: int

    @property
    def name(self) -> str:
        size = f"{self.keys // _MILLION}M" if self.keys >= _MILLION else f"{self.keys // 1000}k"
        return f"{self.kind.value} {size} keys"

    @property
    def sources(self) -> tuple[str, ...]:
        return ("a", "b") if self.kind is Kind.JOIN else ("a",)

    @property
    def by_time(self) -> bool:
        """Whether event time matters: then the sources have watermarks."""
        return self.kind in {Kind.TUMBLING, Kind.SLIDING, Kind.JOIN, Kind.SESSION}

    @property
    def columns(self) -> str:
        """Schema of the input."""
        return f"k {'string' if self.kind is Kind.TEXT_AGGREGATE else 'bigint'}, v bigint, ts timestamp"

    @property
    def baselines(self) -> tuple[Side, ...]:
        return FUNCTIONS if self.kind is Kind.PROCESS else STORES

    @property
    def target(self) -> float:
        """The least ratio to the best baseline that is a goal."""
        if self.kind is Kind.PROCESS:
            return _GOALS_OF_FUNCTIONS[self.keys >= _MILLION]
        if self.keys < _MILLION:
            return _GOAL_FEW_KEYS
        aggregate = self.kind in {Kind.AGGREGATE, Kind.TEXT_AGGREGATE}
        return _GOAL_MANY_KEYS if aggregate and self.keys > _MILLION else _GOALS.get(self.kind, _GOAL)

    # ---- lengths in event time ---------------------------------------------------------------------------------

    @property
    def window_us(self) -> int:
        """A window has three rows of each key, or three million."""
        return 3 * max(self.keys, _MILLION) * ROW_US

    @property
    def slide_us(self) -> int:
        """Every row belongs to three sliding windows."""
        return self.window_us // 3

    @property
    def interval_us(self) -> int:
        """Bounds of a join that include as many rows of both sides as there are keys: each row finds half a partner."""
        return self.keys * ROW_US

    @property
    def session_rows(self) -> int:
        """Number of rows until other keys have their turn; a session ends after as long a silence."""
        return FILE_ROWS * max(1, self.keys // _MILLION)

    @property
    def gap_us(self) -> int:
        return self.session_rows * ROW_US

    def files(self, side: Side, *, quick: bool) -> Files:
        """Return the files of a side: the same for all, unless one side would take minutes for each of them."""
        if self.kind is Kind.PROCESS:
            rows = _FUNCTION_ROWS.get(side, FILE_ROWS) if self.keys >= _MILLION else FILE_ROWS
            return Files(warm=1, warm_rows=rows, measured=2 if quick else 4, rows=rows)
        return Files(warm=2 if quick else 4, warm_rows=max(FILE_ROWS, self.keys // 2), measured=6 if quick else 12)


def cases(*, quick: bool) -> list[Case]:
    """All of them; in a hurry without the largest size."""
    sizes = (10_000, _MILLION) if quick else (10_000, _MILLION, 5 * _MILLION)
    return [Case(kind, keys) for kind in Kind for keys in sizes]
