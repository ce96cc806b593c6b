"""Files of a micro-batch, as Spark chose them, divided into tasks."""

import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from statebed.spark.scan.parquet_reader import FilePart, ScanRefusedError

_SEPARATOR = "\x01"
_STATUS = re.compile(r"\w*FileStatus\{path=(?P<path>.*); isDirectory=false; length=(?P<length>\d+); .*\}", re.DOTALL)
_LOCAL = "file:"
_NOTHING = "__HIVE_DEFAULT_PARTITION__"
MIN_BYTES = 1 << 20
MAX_BYTES = 128 << 20
OPEN_BYTES = 128 << 10
"""Bytes that could be read in the time that it takes to open a file."""
READ_AGAIN_BYTES = 4 << 20
"""Bytes that could be read in the time that it takes to move rows between tasks, a stage of Spark's more."""


@dataclass(frozen=True)
class BatchFile:
    """A file of a batch."""

    path: str
    nbytes: int
    values: Mapping[str, str | None]
    """Values of its partition columns."""


def leaves_of_batch(session: SparkSession, query_id: str) -> list[Any]:
    """Return what each stream of the plan is read from in the batch that Spark runs, in the order of its leaves."""
    streams: Any = session._jsparkSession.streams()  # noqa: SLF001 - no public way to the plan of a batch
    leaves = streams.get(query_id).streamingQuery().lastExecution().logical().collectLeaves()
    return [leaves.apply(place) for place in range(leaves.size())]


def is_empty(leaf: Any) -> bool:
    """Return whether the batch has nothing of this stream."""
    return str(leaf.nodeName()) == "LocalRelation"


def files_of(leaf: Any) -> list[BatchFile]:
    """Return the files of one stream of a batch; raise ScanRefusedError if they are not local Parquet files."""
    if is_empty(leaf):
        return []
    if str(leaf.nodeName()) != "LogicalRelation":
        raise ScanRefusedError(f"a stream is read as {leaf.nodeName()}")
    relation = leaf.relation()
    location = relation.location()
    schema = json.loads(relation.partitionSchema().json())
    partitions = [str(field["name"]) for field in schema["fields"]]
    listed = str(location.allFiles().mkString(_SEPARATOR))
    return [_file(status, partitions) for status in listed.split(_SEPARATOR) if status]


def _file(status: str, partitions: Sequence[str]) -> BatchFile:
    match = _STATUS.fullmatch(status)
    if match is None or not match["path"].startswith(_LOCAL):
        raise ScanRefusedError("a stream is read from files that are not local")
    path = match["path"].removeprefix(_LOCAL)
    folders = dict(folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder) if partitions else {}
    named = {unquote(name).lower(): unquote(value) for name, value in folders.items()}
    if any(name.lower() not in named for name in partitions):
        raise ScanRefusedError(f"{path} lacks a partition column")
    values = {name: named[name.lower()] for name in partitions}
    return BatchFile(
        path, int(match["length"]), {name: None if value == _NOTHING else value for name, value in values.items()}
    )


Work = tuple[int, FilePart]
"""A part of a file, and the number of its stream."""


def is_read_in_place(files: Sequence[Sequence[BatchFile]], *, slots: int, parallelism: int) -> bool:
    """Return whether it takes less time that every subtask reads all files than that rows move between tasks."""
    slots = max(slots, 1)
    rounds = -(-parallelism // slots)
    return _bytes_of(files) * (rounds * slots - 1) <= READ_AGAIN_BYTES * slots


def tasks_of(files: Sequence[Sequence[BatchFile]], *, slots: int) -> list[tuple[Work, ...]]:
    """Divide the files of all streams into tasks of about the same size, no more than needed to keep all slots busy."""
    total = _bytes_of(files)
    max_bytes = min(MAX_BYTES, max(MIN_BYTES, -(-total // max(slots, 1))))
    parts = [
        (nbytes, (number, part))
        for number, stream in enumerate(files)
        for file in stream
        for nbytes, part in _parts(file, max_bytes)
    ]
    return _packed(parts, max_bytes)


def _bytes_of(files: Sequence[Sequence[BatchFile]]) -> int:
    return sum(file.nbytes + OPEN_BYTES for stream in files for file in stream)


def _parts(file: BatchFile, max_bytes: int) -> Iterator[tuple[int, FilePart]]:
    """Yield the parts of a file with their sizes; the last one includes bytes after the listed length."""
    count = max(1, -(-file.nbytes // max_bytes))
    cuts = [file.nbytes * place // count for place in range(count + 1)]
    for start, end in itertools.pairwise(cuts):
        yield end - start, FilePart(file.path, start, sys.maxsize if end == cuts[-1] else end, file.values)


def _packed(parts: Sequence[tuple[int, Work]], max_bytes: int) -> list[tuple[Work, ...]]:
    tasks: list[tuple[Work, ...]] = []
    waiting: list[Work] = []
    nbytes = 0
    for size, work in parts:
        if waiting and nbytes + size > max_bytes:
            tasks.append(tuple(waiting))
            waiting, nbytes = [], 0
        waiting.append(work)
        nbytes += size + OPEN_BYTES
    if waiting:
        tasks.append(tuple(waiting))
    return tasks
