"""Spark's clock: one watermark for all sources of a query, as in Structured Streaming.

Each `withWatermark` of the query observes the greatest event time of the rows that pass it, in whole milliseconds. The
query's watermark is the least (or, by policy, the greatest) of these times minus their delays, and 0 as long as one is
missing. It reaches every operator unchanged; after a join it is the least watermark of the join's state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from statebed.operators.joins import IntervalJoin
from statebed.operators.joins.matches import MAX_BOUND_US
from statebed.operators.operator import Operator

MILLISECOND_US = 1_000


@dataclass(frozen=True)
class SparkWatermark:
    """One `withWatermark` of a query."""

    node_id: str
    """Id of the node in Spark's plan; it differs in every run of the program."""
    delay_ms: int


@dataclass(frozen=True)
class SparkClock:
    """The clock of one query."""

    watermarks: tuple[SparkWatermark, ...]
    policy: str = "min"
    """Value of spark.sql.streaming.multipleWatermarkPolicy: "min" or "max"."""

    def watermark_us(self, observed_ms: Sequence[int | None]) -> int:
        """Return the watermark of the query, from the greatest event time at each of its watermarks."""
        reached = [
            0 if latest is None else latest - watermark.delay_ms
            for watermark, latest in zip(self.watermarks, observed_ms, strict=True)
        ]
        if not reached:
            return 0
        return max(0, max(reached) if self.policy == "max" else min(reached)) * MILLISECOND_US


def watermark_behind(operator: Operator, watermark_us: int) -> int:
    """Return the watermark of an operator's results by Spark's rule."""
    if not isinstance(operator, IntervalJoin):
        return watermark_us
    sides = [watermark_us - bound for bound in (operator.upper_us, -operator.lower_us) if bound < MAX_BOUND_US]
    return min([watermark_us, *sides])
