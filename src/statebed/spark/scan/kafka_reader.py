"""Reads ranges of messages from Kafka as Spark's connector would, or refuses.

Spark decides which offsets a batch has. A task reads them with Kafka's own client into columns, which costs a fraction
of the way through the JVM. Messages that are gone, settings that only Java's client knows and everything unexpected
raise ScanRefusedError: Spark then reads the batch, and its error or its way out is what users expect.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pyarrow as pa

from statebed.errors import MissingDependencyError
from statebed.sinks.kafka.topic import driver
from statebed.spark.scan.kafka_library import LibraryConsumer, Messages, library
from statebed.spark.scan.parquet_reader import ROWS_AT_ONCE, FileColumn, ScanRefusedError

_BATCH_BYTES = 8 << 20
"""Bytes of messages that are in memory at once, apart from the client's queue."""
_FIRST_MESSAGES = 16
"""Number of messages that are read before their size is known."""
_MESSAGES_AT_ONCE = 1 << 14
"""Number of messages that are taken from the client at once."""
_QUEUE_KBYTES = 8 << 10
"""Size of the queue of a consumer."""
_QUEUED_MESSAGES = 1_000
"""Number of messages in the queue below which more are fetched.

What was fetched beyond a range is wasted if another worker reads the next one; a long queue also takes a third more
processor time.
"""
_FETCH_BYTES = 1 << 20
_BACKOFF_MS = 10
"""Milliseconds after which a full queue is looked at again: with 1, a consumer that waits takes 2 % of a core."""
_POLL_SECONDS = 0.2
_STALLED_SECONDS = 30.0
"""Longest time without a message until Spark is left to find out why."""
_MAX_CONSUMERS = 4
"""Number of consumers that a worker keeps between epochs, one for each client."""
_MILLISECOND_US = 1_000
_OPTIONS = {
    "kafka.bootstrap.servers": "bootstrap.servers",
    "kafka.group.id": "group.id",
    "kafka.isolation.level": "isolation.level",
}
"""Options of a source that Kafka's client needs, by the name of the client's setting."""
_WITHOUT_EFFECT = frozenset(
    {
        "assign",
        "endingoffsets",
        "endingoffsetsbytimestamp",
        "endingtimestamp",
        "failondataloss",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "maxoffsetspertrigger",
        "maxtriggerdelay",
        "minoffsetspertrigger",
        "minpartitions",
        "startingoffsets",
        "startingoffsetsbytimestamp",
        "startingoffsetsbytimestampstrategy",
        "startingtimestamp",
        "subscribe",
        "subscribepattern",
    }
)
"""Options that choose messages, and say nothing about reading them."""
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@dataclass(frozen=True)
class KafkaClient:
    """Settings of the client that reads a source."""

    settings: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "KafkaClient":
        """Return the client for the options of a source; raise ScanRefusedError if only Java's client has them."""
        settings = {"isolation.level": "read_uncommitted", "group.id": "statebed.scan"}
        for name, value in options.items():
            if name.lower() in _OPTIONS:
                settings[_OPTIONS[name.lower()]] = str(value)
            elif name.lower() not in _WITHOUT_EFFECT:
                raise ScanRefusedError(f"the option {name} is for Spark's connector")
        try:
            library()
        except MissingDependencyError as error:
            raise ScanRefusedError(error.what) from error
        return cls(tuple(sorted(settings.items())))

    def consumer(self) -> LibraryConsumer:
        """Return a consumer that joins no group and stores no offsets."""
        own = {
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "fetch.queue.backoff.ms": _BACKOFF_MS,
            "log_level": 0,
            "queued.max.messages.kbytes": _QUEUE_KBYTES,
            "queued.min.messages": _QUEUED_MESSAGES,
        }
        return LibraryConsumer(dict(self.settings) | own)


@dataclass(frozen=True)
class KafkaRange:
    """Messages of a partition, from one offset up to, but not including, another one."""

    client: KafkaClient
    topic: str
    partition: int
    start: int
    end: int

    @property
    def path(self) -> str:
        return f"topic {self.topic}, partition {self.partition}"

    def batches(self, columns: Sequence[FileColumn], *, case_sensitive: bool) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - as for files
        """Yield the messages, with the columns in this order."""
        schema = pa.schema([column.field for column in columns])
        pieces: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for messages in self._messages():
            arrays = [_column(column, messages, self) for column in columns]
            pieces.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            rows, nbytes = rows + len(messages), nbytes + pieces[-1].nbytes
            if rows >= ROWS_AT_ONCE or nbytes >= _BATCH_BYTES:
                yield pa.concat_batches(pieces)
                pieces, rows, nbytes = [], 0, 0
        if pieces:
            yield pa.concat_batches(pieces)

    def _messages(self) -> Iterator[Messages]:
        """Yield the messages in small lists, which stay in the processor's caches."""
        with _RangeReader(self) as reader:
            count = _FIRST_MESSAGES
            while (messages := reader.next(count)) is not None:
                try:
                    size = messages.nbytes // len(messages)
                    yield messages
                finally:
                    messages.release()
                count = min(_MESSAGES_AT_ONCE, max(1, _BATCH_BYTES // max(size, 1)))


@dataclass
class _Kept:
    """A consumer, and the message that it returns next."""

    consumer: LibraryConsumer
    topic: str
    partition: int
    position: int


_kept: OrderedDict[KafkaClient, _Kept] = OrderedDict()
"""Consumers kept between epochs with prefetched messages, least recently used first."""


class _RangeReader:
    """Reads one range."""

    def __init__(self, messages: KafkaRange) -> None:
        self._range = messages
        self._codes: Any = driver().KafkaError

    def __enter__(self) -> Self:
        own = self._range
        kept = _kept.pop(own.client, None)
        if kept is None or (kept.topic, kept.partition, kept.position) != (own.topic, own.partition, own.start):
            consumer = own.client.consumer() if kept is None else kept.consumer
            consumer.assign(own.topic, own.partition, own.start)
        else:
            consumer = kept.consumer
        self._consumer, self._position = consumer, own.start
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is not None:
            self._consumer.close()
            return
        own = self._range
        _kept[own.client] = _Kept(self._consumer, own.topic, own.partition, self._position)
        while len(_kept) > _MAX_CONSUMERS:
            _kept.popitem(last=False)[1].consumer.close()

    def next(self, count: int) -> Messages | None:
        """Return the next messages of the range, at least one and at most `count`; None after the last one."""
        own = self._range
        deadline = time.monotonic() + _STALLED_SECONDS
        while self._position < own.end:
            wanted = min(count, own.end - self._position)
            messages = self._consumer.consume(wanted, timeout=_POLL_SECONDS, expected=own.end - own.start)
            try:
                end = self._take(messages)
            except BaseException:
                messages.release()
                raise
            if end >= own.end:
                self._position = max(self._position, own.end)
            if len(messages):
                return messages
            messages.release()
            if time.monotonic() > deadline:
                where = f"offset {self._position} of {own.end}"
                raise ScanRefusedError(f"{own.path}: nothing came for {_STALLED_SECONDS:g} s at {where}")
        return None

    def _take(self, messages: Messages) -> int:
        """Keep the messages of the range and move on behind them; return the end of the partition if it was reached,
        else 0; raise ScanRefusedError for errors, and for messages that are not in order.
        """
        end, errors = 0, messages.errors
        if errors.any():
            end = self._end_of(messages)
            messages.keep(errors == 0)
        if len(messages):
            offsets = messages.offsets
            if offsets[0] < self._position or (np.diff(offsets) <= 0).any():
                raise ScanRefusedError(f"{self._range.path}: offset {offsets.min()} came twice, or out of order")
            self._position = int(offsets[-1]) + 1
            if self._position > self._range.end:
                # Offsets have gaps, so that the last messages may belong to the next range.
                messages.keep(offsets < self._range.end)
        return end

    def _end_of(self, events: Messages) -> int:
        """Return the end of the partition if it was reached, else 0; raise ScanRefusedError for errors."""
        end, offsets, errors = 0, events.offsets, events.errors
        for place in np.flatnonzero(errors).tolist():
            if errors[place] == self._codes._PARTITION_EOF:  # noqa: SLF001 - the client's public name
                end = int(offsets[place])
            elif errors[place] not in {self._codes._TRANSPORT, self._codes._ALL_BROKERS_DOWN}:  # noqa: SLF001 - likewise
                raise ScanRefusedError(f"{self._range.path}: {events.error_text(place)}")
        return end


def _column(column: FileColumn, messages: Messages, source: KafkaRange) -> pa.Array:  # noqa: PLR0911 - one return per column
    kind, rows = column.field.type, len(messages)
    match column.name:
        case "key":
            return messages.keys().cast(kind)
        case "value":
            return messages.values().cast(kind)
        case "topic":
            return pa.repeat(pa.scalar(source.topic, kind), rows)
        case "partition":
            return pa.repeat(pa.scalar(source.partition, kind), rows)
        case "offset":
            return pa.array(messages.offsets).cast(kind)
        case "timestamp":
            return pa.array(messages.times()[0] * _MILLISECOND_US).cast(kind)
        case "timestampType":
            # Spark's numbers begin with -1, for a message without a time.
            return pa.array(messages.times()[1] - 1).cast(kind)
    raise ScanRefusedError(f"messages have no column {column.name}")
