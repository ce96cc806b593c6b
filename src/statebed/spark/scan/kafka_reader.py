"""Reads ranges of messages from Kafka as Spark's connector would, or refuses.

Spark decides which offsets a batch has. A task reads them with Kafka's own client into columns, which costs a fraction
of the way through the JVM. Messages that are gone, settings that only Java's client knows and everything unexpected
raise ScanRefusedError: Spark then reads the batch, and its error or its way out is what users expect.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa

from statebed.errors import MissingDependencyError
from statebed.sinks.kafka.topic import driver
from statebed.spark.scan.parquet_reader import ROWS_AT_ONCE, FileColumn, ScanRefusedError

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_BATCH_BYTES = 8 << 20
"""Bytes of messages that are in memory at once, apart from the client's queue."""
_FIRST_MESSAGES = 16
"""Number of messages that are read before their size is known."""
_MESSAGES_AT_ONCE = 1_024
"""Number of messages that are objects of Python at once: with 65,536, reading took 1.5 to 2 times as long."""
_QUEUE_KBYTES = 8 << 10
"""Size of the queue of a consumer."""
_QUEUED_MESSAGES = 1_000
"""Number of messages in the queue below which more are fetched.

What was fetched beyond a range is wasted if another worker reads the next one; a long queue also takes a third more
processor time.
"""
_FETCH_BYTES = 1 << 20
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
            driver()
        except MissingDependencyError as error:
            raise ScanRefusedError(error.what) from error
        return cls(tuple(sorted(settings.items())))

    def consumer(self) -> "Consumer":
        """Return a consumer that joins no group and stores no offsets."""
        own = {
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": _FETCH_BYTES,
            "fetch.queue.backoff.ms": 1,
            "log_level": 0,
            "queued.max.messages.kbytes": _QUEUE_KBYTES,
            "queued.min.messages": _QUEUED_MESSAGES,
        }
        consumer: Consumer = driver().Consumer(dict(self.settings) | own)
        return consumer


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
            pieces.append(pa.record_batch([_column(column, messages) for column in columns], schema=schema))
            rows, nbytes = rows + len(messages), nbytes + pieces[-1].nbytes
            if rows >= ROWS_AT_ONCE or nbytes >= _BATCH_BYTES:
                yield pa.concat_batches(pieces)
                pieces, rows, nbytes = [], 0, 0
        if pieces:
            yield pa.concat_batches(pieces)

    def _messages(self) -> "Iterator[list[Message]]":
        """Yield the messages in small lists, which stay in the processor's caches."""
        with _RangeReader(self) as reader:
            count = _FIRST_MESSAGES
            while messages := reader.next(count):
                size = sum(map(len, messages)) // len(messages)
                count = min(_MESSAGES_AT_ONCE, max(1, _BATCH_BYTES // max(size, 1)))
                yield messages


@dataclass
class _Kept:
    """A consumer, and the message that it returns next."""

    consumer: "Consumer"
    topic: str
    partition: int
    position: int


_kept: OrderedDict[KafkaClient, _Kept] = OrderedDict()
"""Consumers kept between epochs with prefetched messages, least recently used first."""


class _RangeReader:
    """Reads one range."""

    def __init__(self, messages: KafkaRange) -> None:
        self._range = messages
        self._kafka: Any = driver()

    def __enter__(self) -> Self:
        own = self._range
        kept = _kept.pop(own.client, None)
        if kept is None or (kept.topic, kept.partition, kept.position) != (own.topic, own.partition, own.start):
            consumer = own.client.consumer() if kept is None else kept.consumer
            consumer.assign([self._kafka.TopicPartition(own.topic, own.partition, own.start)])
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

    def next(self, count: int) -> "list[Message]":
        """Return the next messages of the range, at most `count`; an empty list after the last one."""
        deadline = time.monotonic() + _STALLED_SECONDS
        while self._position < self._range.end:
            wanted = min(count, self._range.end - self._position)
            messages = self._consumer.consume(wanted, timeout=_POLL_SECONDS)
            errors, end = [message.error() for message in messages], 0
            if any(error is not None for error in errors):  # comparing errors by == raises
                end = self._end_of(messages)
                messages = [message for message, error in zip(messages, errors, strict=True) if error is None]
            if messages:
                if (messages[0].offset() or 0) < self._position:
                    raise ScanRefusedError(f"{self._range.path}: offset {messages[0].offset()} came twice")
                self._position = int(messages[-1].offset() or 0) + 1
                if self._position > self._range.end:
                    # Offsets have gaps, so that the last messages may belong to the next range.
                    messages = [message for message in messages if (message.offset() or 0) < self._range.end]
            if end >= self._range.end:
                self._position = max(self._position, self._range.end)
            if messages:
                return messages
            if time.monotonic() > deadline:
                raise ScanRefusedError(f"{self._range.path}: nothing came for {_STALLED_SECONDS:g} s")
        return []

    def _end_of(self, events: "Sequence[Message]") -> int:
        """Return the end of the partition if it was reached, else 0; raise ScanRefusedError for errors."""
        end = 0
        codes = self._kafka.KafkaError
        for event in events:
            error = event.error()
            if error is None:
                continue
            if error.code() == codes._PARTITION_EOF:  # noqa: SLF001 - the client's public name
                end = int(event.offset() or 0)
            elif error.code() not in {codes._TRANSPORT, codes._ALL_BROKERS_DOWN}:  # noqa: SLF001 - likewise
                raise ScanRefusedError(f"{self._range.path}: {error.str()}")
        return end


def _column(column: FileColumn, messages: "Sequence[Message]") -> pa.Array:  # noqa: PLR0911 - one return per column
    kind = column.field.type
    match column.name:
        case "key":
            return pa.array([message.key() for message in messages], kind)
        case "value":
            return pa.array([message.value() for message in messages], kind)
        case "topic":
            return pa.repeat(pa.scalar(messages[0].topic(), kind), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(messages[0].partition(), kind), len(messages))
        case "offset":
            return pa.array([message.offset() for message in messages], kind)
        case "timestamp":
            times = np.array([message.timestamp()[1] for message in messages], dtype=np.int64)
            return pa.array(times * _MILLISECOND_US).cast(kind)
        case "timestampType":
            # Spark's numbers begin with -1, for a message without a time.
            return pa.array([message.timestamp()[0] - 1 for message in messages], kind)
    raise ScanRefusedError(f"messages have no column {column.name}")
