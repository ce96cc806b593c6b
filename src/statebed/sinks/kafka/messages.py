"""Rows of an epoch as Kafka messages: a key and a value each.

Rows of an append-only stream become one message each. A changelog becomes upserts by key: the new row of the key, or a
tombstone (a message without value) if the key no longer has a row.
"""

import enum
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.errors import InputError, SinkError
from statebed.format.json_values import json_lines
from statebed.format.stream_schema import Changes, Output
from statebed.operators.changelog import group_equal
from statebed.sinks.base import outbox_batches, outbox_rows
from statebed.sinks.debezium import DELETED, Envelope
from statebed.sinks.kafka.avro import AvroEncoder
from statebed.sinks.row_kinds import KeyedChanges, RowKind

BATCH_ROWS = 8_192
"""Number of messages that are encoded and queued at a time."""
Message = dict[str, Any]
"""A message as the client takes it: `key` and `value`, bytes or None."""
RAW_COLUMNS = ("key", "value")


class Encoding(enum.Enum):
    """Encoding of the values of messages."""

    JSON = "json"
    AVRO = "avro"
    DEBEZIUM = "debezium"
    """Envelopes with the row before and after the change, in JSON; a deletion is followed by a tombstone."""
    RAW = "raw"
    """The columns `key` and `value` of an append-only stream, text or binary, as they are."""


class MessageEncoder:
    """Turns the rows of epochs into messages."""

    def __init__(
        self, output: Output, *, encoding: Encoding, envelope: Envelope, schema_id: int | None = None, where: str
    ) -> None:
        self._output = output
        self._encoding = encoding
        self.envelope = envelope
        self._avro: AvroEncoder | None = None
        self._avro_key: AvroEncoder | None = None
        self._check(where)
        if encoding is Encoding.AVRO:
            key = pa.schema([output.columns.field(name) for name in envelope.key])
            self._avro = AvroEncoder(output.columns, name="row", schema_id=schema_id)
            self._avro_key = AvroEncoder(key, name="key", schema_id=None)

    @property
    def is_keyed(self) -> bool:
        """Whether messages have a key."""
        return bool(self.envelope.key) or (self._encoding is Encoding.RAW and "key" in self._output.columns.names)

    @property
    def is_upsert(self) -> bool:
        """Whether messages replace earlier ones of their key, so that a compacted topic holds the current rows."""
        return self._output.changes is Changes.CHANGELOG

    @property
    def described(self) -> str:
        key = f" by {', '.join(self.envelope.key)}" if self.envelope.key else ""
        upserts = " upserts" if self.is_upsert and self._encoding is not Encoding.DEBEZIUM else ""
        return f"{self._encoding.value}{upserts}{key}"

    def messages(self, publication: Publication) -> Iterator[list[Message]]:
        """Yield the messages of an epoch in batches of at most `BATCH_ROWS`."""
        if self.is_upsert or self._encoding is Encoding.DEBEZIUM:
            rows = outbox_rows(publication)
            if rows is not None and rows.num_rows:
                yield from self._changes(rows, publication)
            return
        is_raw = self._encoding is Encoding.RAW
        for rows_batch in outbox_batches(publication, BATCH_ROWS, any_bytes=is_raw):
            yield from self._rows(pa.Table.from_batches([rows_batch]))

    def _rows(self, rows: pa.Table) -> Iterator[list[Message]]:
        for start in range(0, rows.num_rows, BATCH_ROWS):
            batch = rows.slice(start, BATCH_ROWS)
            keys, values = self._keys(batch), self._values(batch)
            yield [{"key": key, "value": value} for key, value in zip(keys, values, strict=True)]

    def _changes(self, rows: pa.Table, publication: Publication) -> Iterator[list[Message]]:
        if self._encoding is Encoding.DEBEZIUM:
            events = self._events(rows, publication)
            while batch := list(islice(events, BATCH_ROWS)):
                yield batch
            return
        changes = KeyedChanges(rows, self.envelope.key)
        written = pa.concat_tables([changes.of(RowKind.INSERT), changes.of(RowKind.UPDATE_AFTER)])
        if not changes.has_unique_keys:
            raise self._ambiguous(written, publication)
        deleted = changes.of(RowKind.DELETE)
        for start in range(0, deleted.num_rows, BATCH_ROWS):
            yield [{"key": key, "value": None} for key in self._keys(deleted.slice(start, BATCH_ROWS))]
        yield from self._rows(written)

    def _events(self, rows: pa.Table, publication: Publication) -> Iterator[Message]:
        for op, key, value in self.envelope.events(rows, publication):
            yield {"key": key, "value": value}
            if op == DELETED:
                yield {"key": key, "value": None}

    def _keys(self, rows: pa.Table) -> Sequence[bytes | None]:
        if self._encoding is Encoding.RAW:
            return _as_bytes(rows.column("key")) if self.is_keyed else [None] * rows.num_rows
        if not self.envelope.key:
            return [None] * rows.num_rows
        columns = rows.select(list(self.envelope.key))
        if self._avro_key is not None:
            return list(self._avro_key.encode(columns))
        return _as_bytes(json_lines(columns))

    def _values(self, rows: pa.Table) -> Sequence[bytes | None]:
        if self._encoding is Encoding.RAW:
            return _as_bytes(rows.column("value"))
        if self._avro is not None:
            return list(self._avro.encode(rows.select(self._output.columns.names)))
        return _as_bytes(json_lines(rows.select(self._output.columns.names)))

    def _ambiguous(self, rows: pa.Table, publication: Publication) -> SinkError:
        """Return the error for several rows with one key, the first of which is named."""
        keys = rows.select(list(self.envelope.key))
        groups = group_equal(keys).group_of_rows()
        firsts = np.unique(groups, return_index=True)[1]
        row = int(np.delete(np.arange(len(groups)), firsts)[0])
        return SinkError(
            f"epoch {publication.epoch} has several rows with the key {keys.slice(row, 1).to_pylist()[0]}",
            where=f"sink {self.envelope.table}",
            fix="declare a key that identifies every row of the stream: write(..., key=[...])",
        )

    def _check(self, where: str) -> None:
        columns, key = self._output.columns, self.envelope.key
        first = columns.names[0] if columns.names else "id"
        if self._encoding is Encoding.RAW:
            texts = [name for name in RAW_COLUMNS if name in columns.names and _is_text(columns.field(name).type)]
            if self.is_upsert or "value" not in texts or set(columns.names) - set(texts) or key:
                raise InputError(
                    f"value='raw' needs an append-only stream of the columns value and, optionally, key (string or "
                    f"binary); got {', '.join(columns.names)}" + (" of a changelog" if self.is_upsert else ""),
                    where=where,
                    fix="select(...) these columns and leave key= out, or use value='json'",
                )
        elif not key and (self.is_upsert or self._encoding is Encoding.DEBEZIUM):
            subject = "messages of a changelog need" if self.is_upsert else "value='debezium' needs"
            raise InputError(
                f"{subject} a key, by which messages replace each other",
                where=where,
                fix=f"write('kafka', ..., key={first!r}), with the columns that identify a row",
            )


def _as_bytes(column: pa.Array | pa.ChunkedArray) -> list[bytes | None]:
    return list(column.cast(pa.large_binary()).to_pylist())


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))
