"""Messages of Kafka as columns, from the C interface of the client that `confluent_kafka` brings with it.

The Python interface of the client makes objects of each message, which takes twice as much processor time as the client
itself. Here the fields of all messages of a batch are copied out of the client's memory at once.
"""

import ctypes
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.compiled import loops_for
from statebed.sinks.kafka.topic import driver
from statebed.spark.scan.parquet_reader import ScanRefusedError

Words = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

_CONSUMER = 1
_KEEP_GROUP = 8
"""Flag of `rd_kafka_destroy_flags`: the group has been left already."""
_ERROR_BYTES = 512
_MAX_BYTES = (1 << 31) - 1
"""Bytes that a column of Arrow's type binary can hold."""


class _Message(ctypes.Structure):
    """The client's `rd_kafka_message_t`, part of its stable interface."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


_FIELDS = np.dtype(_Message)
_WORD_BYTES = 8
_WORDS = _FIELDS.itemsize // _WORD_BYTES
_bytes_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)(
    ("PyBytes_FromStringAndSize", ctypes.pythonapi)
)
"""Function behind `ctypes.string_at`, without a call of Python around it."""
_POINTER, _TEXT, _INT, _LONG, _SIZE = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_size_t,
)
_FUNCTIONS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "rd_kafka_assign": (_INT, (_POINTER, _POINTER)),
    "rd_kafka_conf_destroy": (None, (_POINTER,)),
    "rd_kafka_conf_new": (_POINTER, ()),
    "rd_kafka_conf_set": (_INT, (_POINTER, _TEXT, _TEXT, _TEXT, _SIZE)),
    "rd_kafka_consume_batch_queue": (ctypes.c_ssize_t, (_POINTER, _INT, _POINTER, _SIZE)),
    "rd_kafka_consumer_close": (_INT, (_POINTER,)),
    "rd_kafka_destroy_flags": (None, (_POINTER, _INT)),
    "rd_kafka_err2str": (_TEXT, (_INT,)),
    "rd_kafka_message_destroy": (None, (_POINTER,)),
    "rd_kafka_message_timestamp": (_LONG, (_POINTER, _POINTER)),
    "rd_kafka_new": (_POINTER, (_INT, _POINTER, _TEXT, _SIZE)),
    "rd_kafka_poll_set_consumer": (_INT, (_POINTER,)),
    "rd_kafka_queue_destroy": (None, (_POINTER,)),
    "rd_kafka_queue_get_consumer": (_POINTER, (_POINTER,)),
    "rd_kafka_topic_partition_list_add": (_POINTER, (_POINTER, _TEXT, _INT)),
    "rd_kafka_topic_partition_list_destroy": (None, (_POINTER,)),
    "rd_kafka_topic_partition_list_new": (_POINTER, (_INT,)),
    "rd_kafka_topic_partition_list_set_offset": (_INT, (_POINTER, _TEXT, _INT, _LONG)),
}
"""Functions of the client by name: the type of the result, and those of the arguments."""


@cache
def library() -> Any:
    """Return the client's functions; raise ScanRefusedError if they cannot be called."""
    if sys.maxsize < 1 << 32:
        raise ScanRefusedError("Kafka's client is called directly in processes of 64 bits only")
    try:
        # The module is linked with the client, so that its names are found through it, wherever the client is.
        functions = ctypes.CDLL(driver().cimpl.__file__)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(functions, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise ScanRefusedError(f"this build of confluent_kafka does not show Kafka's client: {error}") from error
    return functions


class LibraryConsumer:
    """A consumer of one partition at a time."""

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._rd = library()
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        conf = self._rd.rd_kafka_conf_new()
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if self._rd.rd_kafka_conf_set(conf, name.encode(), text.encode(), error, _ERROR_BYTES):
                self._rd.rd_kafka_conf_destroy(conf)
                raise ScanRefusedError(_text(error.value))
        self._handle = self._rd.rd_kafka_new(_CONSUMER, conf, error, _ERROR_BYTES)
        if not self._handle:
            self._rd.rd_kafka_conf_destroy(conf)
            raise ScanRefusedError(_text(error.value))
        self._rd.rd_kafka_poll_set_consumer(self._handle)
        self._queue = self._rd.rd_kafka_queue_get_consumer(self._handle)
        self._expected = 0
        self.close = weakref.finalize(self, _close, self._rd, self._handle, self._queue, os.getpid())

    def assign(self, topic: str, partition: int, start: int) -> None:
        """Read this partition from an offset on."""
        name, rd = topic.encode(), self._rd
        partitions = rd.rd_kafka_topic_partition_list_new(1)
        try:
            rd.rd_kafka_topic_partition_list_add(partitions, name, partition)
            rd.rd_kafka_topic_partition_list_set_offset(partitions, name, partition, start)
            if code := rd.rd_kafka_assign(self._handle, partitions):
                raise ScanRefusedError(f"topic {topic}, partition {partition}: {_text(rd.rd_kafka_err2str(code))}")
        finally:
            rd.rd_kafka_topic_partition_list_destroy(partitions)

    def consume(self, count: int, *, timeout: float, expected: int) -> "Messages":
        """Return at most `count` messages or errors that come within `timeout` seconds; `expected` is the number of
        messages that will be read in all.
        """
        pointers = np.empty(count, np.uint64)
        taken = self._rd.rd_kafka_consume_batch_queue(self._queue, round(timeout * 1e3), pointers.ctypes.data, count)
        return Messages(self._rd, pointers[: max(taken, 0)], loops_for(expected))


def _close(rd: Any, handle: int, queue: int, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child has none of the client's threads
    rd.rd_kafka_consumer_close(handle)
    rd.rd_kafka_queue_destroy(queue)
    rd.rd_kafka_destroy_flags(handle, _KEEP_GROUP)


class Messages:
    """Messages and errors in the client's memory, until they are released."""

    def __init__(self, rd: Any, pointers: Words, loops: Any) -> None:
        self._rd = rd
        self._owned = self._pointers = pointers
        self._loops = loops
        self._fields = _fields_at(pointers)

    def __len__(self) -> int:
        return len(self._fields)

    @property
    def nbytes(self) -> int:
        """Size of keys and values."""
        return int(self._fields["len"].sum() + self._fields["key_len"].sum())

    @property
    def offsets(self) -> Offsets:
        return np.ascontiguousarray(self._fields["offset"])

    @property
    def errors(self) -> npt.NDArray[np.int32]:
        """Code of each error, and 0 for a message."""
        return np.ascontiguousarray(self._fields["err"])

    def error_text(self, place: int) -> str:
        """Return what the client says about an error."""
        event = self._fields[place]
        if event["payload"] and event["len"]:
            return _text(ctypes.string_at(int(event["payload"]), int(event["len"])))
        return _text(self._rd.rd_kafka_err2str(int(event["err"])))

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Forget all others."""
        self._fields, self._pointers = self._fields[chosen], self._pointers[chosen]

    def values(self) -> pa.Array:
        return self._binary("payload", "len")

    def keys(self) -> pa.Array:
        return self._binary("key", "key_len")

    def times(self) -> tuple[Offsets, npt.NDArray[np.int32]]:
        """Return the time of each message in milliseconds, and the client's number of its kind."""
        kinds = np.zeros(len(self), np.int32)
        slots = np.uint64(kinds.ctypes.data) + np.arange(len(self), dtype=np.uint64) * np.uint64(kinds.itemsize)
        return self._called(self._rd.rd_kafka_message_timestamp, self._pointers, slots), kinds

    def release(self) -> None:
        """Give the memory back to the client."""
        self._called(self._rd.rd_kafka_message_destroy, self._owned)
        self._owned = self._owned[:0]

    def _binary(self, start: str, length: str) -> pa.Array:
        starts, lengths = np.ascontiguousarray(self._fields[start]), np.ascontiguousarray(self._fields[length])
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        if ends[-1] > _MAX_BYTES:
            raise ScanRefusedError(f"{len(self)} messages have {ends[-1]:,} bytes, too many to be read at once")
        nulls = len(self) - int(np.count_nonzero(starts))
        bitmap = pa.py_buffer(np.packbits(starts != 0, bitorder="little")) if nulls else None
        buffers = [bitmap, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(self._copied(starts, lengths))]
        return pa.Array.from_buffers(pa.binary(), len(self), buffers, nulls)

    def _copied(self, starts: Words, lengths: Words) -> npt.NDArray[np.uint8]:
        """Return the bytes at these addresses, one after the other."""
        if self._loops is not None:
            result = np.empty(int(lengths.sum()), np.uint8)
            self._loops.copy_memory(starts, lengths, result)
            return result
        return np.frombuffer(b"".join(map(_bytes_at, starts.tolist(), lengths.tolist())), np.uint8)

    def _called(self, function: Any, *arguments: Words) -> Offsets:
        """Return the result of a function of the client for each message."""
        if self._loops is not None:
            address = ctypes.cast(function, ctypes.c_void_p).value
            second = arguments[-1] if len(arguments) > 1 else np.zeros_like(arguments[0])
            results: Offsets = self._loops.call_each(np.uint64(address or 0), arguments[0], second)
            return results
        lists = [column.tolist() for column in arguments]
        return np.fromiter((function(*row) or 0 for row in zip(*lists, strict=True)), np.int64, len(lists[0]))


def _fields_at(pointers: Words) -> npt.NDArray[np.void]:
    """Return the fields of the messages at these addresses."""
    if not len(pointers):
        return np.empty(0, _FIELDS)
    lowest = pointers.min()
    # An array from the first message to the last one, of which only the words of messages are ever touched.
    span = int(pointers.max() - lowest) // _WORD_BYTES + _WORDS
    words = np.ctypeslib.as_array((ctypes.c_uint64 * span).from_address(int(lowest)))
    first = ((pointers - lowest) // np.uint64(_WORD_BYTES)).astype(np.int64)
    rows: npt.NDArray[np.uint64] = words[first[:, np.newaxis] + np.arange(_WORDS)]
    return rows.view(_FIELDS)[:, 0]


def _text(words: bytes) -> str:
    return words.decode(errors="replace")
