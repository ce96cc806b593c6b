"""Runs the levels of an epoch whose rows never enter a DataFrame: pieces go from task to task as plain bytes.

Each level is a stage of Spark's, and Spark's shuffle moves the pieces between stages. A plan of DataFrames would do the
same, but planning it, and converting every piece to a row and back, took most of the time of a small epoch. A stage has
one task per subtask even if no piece arrives, so that no heartbeats are needed. Subtasks can also read small inputs
themselves, which saves the first stage.
"""

import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.core.rdd import RDD, PipelinedRDD
from pyspark.serializers import NoOpSerializer, Serializer, SpecialLengths

from statebed.spark.epoch.level_task import StageFunction
from statebed.spark.java_classes import java_class
from statebed.spark.plan.pieces import Piece

_PYTHON = "org.apache.spark.api.python"
_LENGTH = ">i"
_KEYED = ">iq"
"""The key by which the JVM places a piece, a long, has a length of its own."""
_HEADER = ">ii"
_HEADER_BYTES = struct.calcsize(_HEADER)
_KEY_BYTES = 8
_ALIGNMENT = 64
"""Arrow reads columns in place if they begin at multiples of this."""


ReadPieces = Callable[[int], Iterator[Piece]]
"""Reads the pieces of a task, by its number."""


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
            if not start:
                return
            if len(start) < struct.calcsize(_LENGTH):
                raise EOFError("the length of a piece is incomplete")
            (length,) = struct.unpack(_LENGTH, start)
            if length == SpecialLengths.END_OF_DATA_SECTION:
                return
            data = stream.read(length)
            if len(data) < length:
                raise EOFError(f"a piece of {length} bytes ends after {len(data)}")
            subtask, branch = struct.unpack_from(_HEADER, data)
            yield Piece(subtask, branch, memoryview(data)[_HEADER_BYTES:])


@dataclass(frozen=True)
class PieceFiles:
    """Files in which pieces wait for their subtasks if all tasks share a host: Spark then moves references to them.

    Bytes of rows would pass through two pipes and four copies in the JVM.
    """

    folder: str

    def written(self, pieces: Iterable[Piece], name: str) -> Iterator[Piece]:
        """Yield references to the pieces, after writing them to the file of a task; yield all else as it is."""
        with (Path(self.folder) / name).open("wb") as file:
            for piece in pieces:
                if piece.branch < 0:
                    yield piece
                    continue
                start = file.tell()
                file.write(piece.payload)
                file.write(bytes(-len(piece.payload) % _ALIGNMENT))
                file.flush()
                yield piece._replace(payload=f"{start} {len(piece.payload)} {name}".encode())

    def read(self, references: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces behind references, from mapped files."""
        mapped: dict[str, pa.MemoryMappedFile] = {}
        for piece in references:
            if piece.branch < 0:
                yield piece
                continue
            start, length, name = bytes(piece.payload).decode().split(" ", 2)
            if name not in mapped:
                mapped[name] = pa.memory_map(str(Path(self.folder) / name))
            mapped[name].seek(int(start))
            yield piece._replace(payload=mapped[name].read_buffer(int(length)))


def exchange(
    context: SparkContext,
    levels: Sequence[StageFunction],
    *,
    parallelism: int,
    read: ReadPieces | None = None,
    readers: int = 0,
    read_in_place: ReadPieces | None = None,
) -> Callable[[], list[Piece]]:
    """Return the action that runs `read` in as many tasks as there are readers, then the levels, and collects what the
    last level yields.

    The tasks of the first level can read their own rows instead, by `read_in_place`. Without either, no rows arrive.
    """
    folder = _folder_of(context) if _is_one_host(context) and (read is not None or len(levels) > 1) else None
    files = None if folder is None else PieceFiles(str(folder))
    rdd = _nothing(context, parallelism)
    if read is not None:
        rdd = placed(reading(context, read, tasks=readers, files=files), parallelism)
    tasks = [_LevelTask(level, files) for level in levels]
    tasks[0] = replace(tasks[0], read=read_in_place)
    for place, task in enumerate(tasks[:-1]):
        rdd = placed(_stage(rdd, replace(task, number=place + 1), PieceFrames(with_keys=True)), parallelism)
    last = _stage(rdd, tasks[-1], PieceFrames())

    def run() -> list[Piece]:
        try:
            return last.collect()
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    return run


def reading(context: SparkContext, read: ReadPieces, *, tasks: int, files: PieceFiles | None = None) -> "RDD[Any]":
    """Return the pieces that tasks read, each by its number, or references to them."""
    return _stage(_nothing(context, tasks), _ReadTask(read, files), PieceFrames(with_keys=True))


def placed(rdd: "RDD[Any]", parallelism: int) -> "RDD[Any]":
    """Return the pieces at their subtasks."""
    context = rdd.context
    # As RDD.partitionBy does, but without pickling.
    pairs = java_class(context, f"{_PYTHON}.PairwiseRDD")(rdd._jrdd.rdd()).asJavaPairRDD()  # noqa: SLF001 - no public name
    partitioner = java_class(context, f"{_PYTHON}.PythonPartitioner")(parallelism, 0)
    values = java_class(context, f"{_PYTHON}.PythonRDD").valueOfPair(pairs.partitionBy(partitioner))
    return RDD(values, context, PieceFrames())


def _is_one_host(context: SparkContext) -> bool:
    """Return whether all tasks run on the host of the driver, for certain."""
    return (context.master or "").partition("[")[0] == "local"


def _folder_of(context: SparkContext) -> Path:
    """Return a new folder in Spark's own place for temporary data, which Spark removes with everything else."""
    return Path(tempfile.mkdtemp(prefix="pieces-", dir=context._temp_dir))  # noqa: SLF001 - no public name


def _nothing(context: SparkContext, tasks: int) -> "RDD[Any]":
    """Return the input of tasks that need none."""
    nothing = java_class(context, "java.util.ArrayList")()
    return RDD(context._jsc.parallelize(nothing, tasks), context, NoOpSerializer())  # noqa: SLF001 - the public way writes a file


def _stage(
    rdd: "RDD[Any]", function: Callable[[int, Iterable[Any]], Iterable[Piece]], frames: PieceFrames
) -> "RDD[Any]":
    stage: PipelinedRDD[Any, Any] = PipelinedRDD(rdd, function)
    stage._jrdd_deserializer = frames  # noqa: SLF001 - the format of its output
    return stage


@dataclass(frozen=True)
class _ReadTask:
    """Function of a task that reads."""

    read: ReadPieces
    files: PieceFiles | None

    def __call__(self, number: int, nothing: Iterable[Any]) -> Iterator[Piece]:
        pieces = self.read(number)
        yield from pieces if self.files is None else self.files.written(pieces, _file_name(0))
        _exhaust(nothing)


@dataclass(frozen=True)
class _LevelTask:
    """Function of a task that runs subtasks."""

    level: StageFunction
    files: PieceFiles | None
    read: ReadPieces | None = None
    """Reads the rows of a subtask, if none arrive."""
    number: int | None = None
    """Number of a level whose pieces are for another one."""

    def __call__(self, index: int, arrivals: Iterable[Piece]) -> Iterator[Piece]:
        iterator = iter(arrivals)
        pieces = self.level.of_pieces(index, self._pieces(index, iterator))
        if self.files is not None and self.number is not None:
            pieces = self.files.written(pieces, _file_name(self.number))
        yield from pieces
        _exhaust(iterator)

    def _pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        if self.read is not None:
            return self.read(index)
        return arrivals if self.files is None else self.files.read(arrivals)


def _file_name(level: int) -> str:
    """Return the name of the file of this attempt at a task."""
    context = TaskContext.get()
    assert context is not None
    return f"{level}-{context.taskAttemptId()}"


def _exhaust(iterator: Iterable[Any]) -> None:
    """Read the rest of the input: Spark ends the worker of a task that leaves any."""
    for _ in iterator:
        pass
