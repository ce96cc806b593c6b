"""Cases measured over Kafka: running count and sum per key, over how many keys, and who does the work.

Every side reads the same topic of JSON messages, by offsets that Spark's own connector chooses, and writes the new
totals of a batch as JSON messages by key. Spark's sides read with the connector, and our tasks with Kafka's own client.
"""

import enum
from dataclasses import dataclass

PARTITIONS = 2
"""Partitions of every topic: both cores read."""
SCHEMA = "k bigint, v bigint"
SMALL_ROWS = 5_000
"""Rows of a batch that warms up."""
SMALL_BATCHES = 4
_MILLION = 1_000_000


class Side(enum.Enum):
    """Implementation that does the work."""

    OURS = "statebed"
    """Our state and our Kafka sink: exactly once."""
    OURS_PLAIN = "statebed, Spark's sink"
    """Our state, and the rows of an epoch written by Spark's Kafka sink in the JVM: at least once."""
    ROCKSDB = "Spark RocksDB"
    """Spark's state in RocksDB and Spark's Kafka sink: at least once."""
    HDFS = "Spark HDFS-backed"
    """Spark's default store and its Kafka sink: at least once."""


BASELINES = (Side.ROCKSDB, Side.HDFS)


@dataclass(frozen=True)
class Case:
    """Totals over a number of keys. Batches that warm up fill the state first."""

    keys: int
    batch_rows: int
    warm: int
    measured: int

    @property
    def name(self) -> str:
        size = f"{self.keys // _MILLION}M" if self.keys >= _MILLION else f"{self.keys // 1000}k"
        return f"Kafka to Kafka {size} keys"

    @property
    def batches(self) -> int:
        return self.warm + self.measured

    @property
    def rows(self) -> int:
        return self.batches * self.batch_rows


def cases(*, quick: bool) -> list[Case]:
    """Return all cases; a quick run has smaller batches and fewer of them."""
    if quick:
        return [Case(10_000, 100_000, warm=2, measured=4), Case(_MILLION, 250_000, warm=4, measured=4)]
    return [Case(10_000, 250_000, warm=4, measured=8), Case(_MILLION, 250_000, warm=6, measured=8)]
