"""Changes as Debezium JSON: a key's row before and after the change, and the epoch that changed it.

    {"before": null, "after": {"driver": "ann", "trips": 2}, "op": "c", "ts_ms": 1767225600000,
     "source": {"connector": "statebed", "name": "rides", "table": "totals", "snapshot": "false",
                "epoch": 12, "ts_ms": 1767225600000}}

`op` is `c` for a new row, `u` for an update, `d` for a deleted row, and `r` for a row of a snapshot. With `snapshot`,
the first epoch of the sink is a snapshot. Times are those of the epoch. There is one message per key and epoch,
provided that the declared key is unique.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.format.json_values import json_objects
from statebed.sinks.row_kinds import KeyedChanges, RowKind

MESSAGES = pa.schema([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=False)])
"""Columns of messages as rows, as Spark's Kafka writer expects them."""
DELETED = "d"
"""`op` of a deleted row."""


@dataclass(frozen=True)
class Envelope:
    """Sender and key columns of the messages."""

    job_id: str
    table: str
    """Name of the stream for readers, which is the sink's name."""
    key: tuple[str, ...]
    one_row: bool = False
    """Whether the stream has at most one row at a time; its key has no columns then."""

    def messages(
        self, rows: pa.Table, publication: Publication, *, snapshot: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield key and value of every message of an epoch; deleted rows come first."""
        for _, key, value in self.events(rows, publication, snapshot=snapshot):
            yield key, value

    def events(
        self, rows: pa.Table, publication: Publication, *, snapshot: bool = False
    ) -> Iterator[tuple[str, bytes, bytes]]:
        """Yield `op`, key and value of every message of an epoch; deleted rows come first."""
        changes = KeyedChanges(rows, self.key)
        milliseconds = publication.record.epoch_time_us // 1_000
        source = {
            "connector": "statebed",
            "name": self.job_id,
            "table": self.table,
            "snapshot": "true" if snapshot else "false",
            "epoch": publication.epoch,
            "ts_ms": milliseconds,
        }
        deleted, before, inserted, after = (json_objects(changes.of(kind)) for kind in RowKind)
        nothing: list[None] = [None]
        for op, old, new in (
            (DELETED, deleted, nothing * len(deleted)),
            ("u", before, after),
            ("r" if snapshot else "c", nothing * len(inserted), inserted),
        ):
            yield from self._encoded(op, old, new, source=source, milliseconds=milliseconds)

    def _encoded(
        self,
        op: str,
        before: Sequence[dict[str, Any] | None],
        after: Sequence[dict[str, Any] | None],
        *,
        source: dict[str, Any],
        milliseconds: int,
    ) -> Iterator[tuple[str, bytes, bytes]]:
        for old, new in zip(before, after, strict=True):
            known = new or old or {}
            value = {"before": old, "after": new, "op": op, "ts_ms": milliseconds, "source": source}
            yield op, msgspec.json.encode({name: known[name] for name in self.key}), msgspec.json.encode(value)

    def table_of(self, rows: pa.Table, publication: Publication) -> pa.Table:
        """Return the messages as rows with the columns `key` and `value`."""
        pairs = list(self.messages(rows, publication))
        columns = [pa.array([pair[place].decode() for pair in pairs], pa.string()) for place in (0, 1)]
        return pa.Table.from_arrays(columns, schema=MESSAGES)
