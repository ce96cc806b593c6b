"""Runs the levels of an epoch whose rows never enter a DataFrame: pieces go from task to task as plain bytes.

Each level is a stage of Spark's, and Spark's shuffle moves the pieces between stages. A plan of DataFrames would do the
same, but planning it, and converting every piece to a row and back, took most of the time of a small epoch. A stage has
one task per subtask even if no piece arrives, so that no heartbeats are needed.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from pyspark import SparkContext
from pyspark.core.rdd import RDD, PipelinedRDD
from pyspark.serializers import NoOpSerializer, Serializer, SpecialLengths

from statebed.spark.epoch.level_task import StageFunction
from statebed.spark.plan.pieces import Piece

_LENGTH = ">i"
_KEYED = ">iq"
"""The key by which the JVM places a piece, a long, has a length of its own."""
_HEADER = ">ii"
_HEADER_BYTES = struct.calcsize(_HEADER)
_KEY_BYTES = 8


class PieceFrames(Serializer):
    """Writes and reads pieces as PySpark expects the elements of an RDD: length, then bytes.

    Pieces with keys can be shuffled: each is written as its subtask, then its own bytes.
    """

    def __init__(self, *, with_keys: bool = False) -> None:
        self._with_keys = with_keys

    def dump_stream(self, iterator: Iterable[Any], stream: IO[bytes]) -> None:
        """Write the pieces."""
        for subtask, branch, payload in iterator:
            key = struct.pack(_KEYED, _KEY_BYTES, subtask) if self._with_keys else b""
            stream.write(
                key + struct.pack(_LENGTH, _HEADER_BYTES + len(payload)) + struct.pack(_HEADER, subtask, branch)
            )
            stream.write(payload)

    def load_stream(self, stream: IO[bytes]) -> Iterator[Piece]:
        """Yield the pieces up to the end of the data."""
        while True:
            start = stream.read(struct.calcsize(_LENGTH))
            if len(start) < struct.calcsize(_LENGTH):
                return
            (length,) = struct.unpack(_LENGTH, start)
            if length == SpecialLengths.END_OF_DATA_SECTION:
                return
            data = stream.read(length)
            if len(data) < length:
                raise EOFError(f"a piece of {length} bytes ends after {len(data)}")
            subtask, branch = struct.unpack_from(_HEADER, data)
            yield Piece(subtask, branch, memoryview(data)[_HEADER_BYTES:])


def exchange(
    context: SparkContext,
    read: Callable[[int], Iterator[Piece]] | None,
    levels: Sequence[StageFunction],
    *,
    readers: int,
    parallelism: int,
) -> Callable[[], list[Piece]]:
    """Return the action that runs `read` in as many tasks as there are readers, then the levels, and collects what the
    last level yields. Without `read`, no rows arrive.
    """
    rdd = _nothing(context, parallelism)
    if read is not None:
        rdd = placed(reading(context, read, tasks=readers), parallelism)
    for level in levels[:-1]:
        rdd = placed(_stage(rdd, _LevelTask(level), PieceFrames(with_keys=True)), parallelism)
    return _stage(rdd, _LevelTask(levels[-1]), PieceFrames()).collect


def reading(context: SparkContext, read: Callable[[int], Iterator[Piece]], *, tasks: int) -> "RDD[Any]":
    """Return the pieces that tasks read, each by its number."""
    return _stage(_nothing(context, tasks), _ReadTask(read), PieceFrames(with_keys=True))


def placed(rdd: "RDD[Any]", parallelism: int) -> "RDD[Any]":
    """Return the pieces at their subtasks."""
    context = rdd.context
    python: Any = context._jvm.org.apache.spark.api.python  # type: ignore[union-attr]  # noqa: SLF001 - as partitionBy does
    pairs = python.PairwiseRDD(rdd._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001 - as above
    values = python.PythonRDD.valueOfPair(pairs.partitionBy(python.PythonPartitioner(parallelism, 0)))
    return RDD(values, context, PieceFrames())


def _nothing(context: SparkContext, tasks: int) -> "RDD[Any]":
    """Return the input of tasks that need none."""
    java: Any = context._jvm  # noqa: SLF001 - the public way writes a file
    return RDD(context._jsc.parallelize(java.java.util.ArrayList(), tasks), context, NoOpSerializer())  # noqa: SLF001 - as above


def _stage(
    rdd: "RDD[Any]", function: Callable[[int, Iterable[Any]], Iterable[Piece]], frames: PieceFrames
) -> "RDD[Any]":
    stage: PipelinedRDD[Any, Any] = PipelinedRDD(rdd, function)
    stage._jrdd_deserializer = frames  # noqa: SLF001 - the format of its output
    return stage


class _ReadTask:
    """Function of a task that reads."""

    def __init__(self, read: Callable[[int], Iterator[Piece]]) -> None:
        self._read = read

    def __call__(self, number: int, nothing: Iterable[Any]) -> Iterator[Piece]:
        yield from self._read(number)
        _exhaust(nothing)


class _LevelTask:
    """Function of a task that runs subtasks."""

    def __init__(self, level: StageFunction) -> None:
        self._level = level

    def __call__(self, index: int, arrivals: Iterable[Piece]) -> Iterator[Piece]:
        iterator = iter(arrivals)
        yield from self._level.of_pieces(index, iterator)
        _exhaust(iterator)


def _exhaust(iterator: Iterable[Any]) -> None:
    """Read the rest of the input: Spark ends the worker of a task that leaves any."""
    for _ in iterator:
        pass
