"""Checks of names and paths in stored metadata, performed whenever it is read.

A checksum shows that bytes are as they were written, not that statebed wrote them. Ids and paths of stored metadata
become parts of object names and of local paths (exported files, Spark's checkpoint), so one that could leave its folder
is refused like damage.
"""

import re
from collections.abc import Callable, Iterator

from google.protobuf.message import Message

from statebed.errors import InvalidNameError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names

_PATH = re.compile(r"(?!\.{1,2}(?:/|\Z))[^/\\\x00\r\n]+(?:/(?!\.{1,2}(?:/|\Z))[^/\\\x00\r\n]+)*")
"""A relative path without empty, '.' and '..' parts. One expression, since a record may name thousands of paths."""
_BATCH = re.compile(r"-?[0-9]+", re.ASCII)


def problem_with_names(message: Message) -> str | None:
    """Return a description of the first invalid name or path of a stored message, or None."""
    check = _CHECKS.get(type(message))
    return None if check is None else next(check(message), None)


def _record_problems(record: pb.CheckpointMetadata) -> Iterator[str]:
    yield from _name("job", record.job_id)
    for operator in record.operators:
        yield from _name("operator", operator.operator_id)
        for reference in operator.subtasks:
            yield from _path(reference.path)
    for file in record.outbox:
        yield from _name("operator", file.operator_id)
        yield from _name("stream", file.stream) if file.stream else ()
        yield from _path(file.path)
    for sink in record.sinks:
        yield from _name("sink", sink.sink_id)
    for pin in record.pins:
        yield from _name("savepoint", pin.savepoint)
        yield from _path(pin.path)
    yield from _position_problems(record.source_position)


def _position_problems(position: pb.SourcePosition) -> Iterator[str]:
    for log in position.source_logs:
        if not _stays_below(log.name):
            yield f"the source log {log.name!r} is not a relative path"
        yield from _path(log.path)
    for entry in (*position.offsets, *position.commits):
        if not _BATCH.fullmatch(entry.name):
            yield f"the batch {entry.name!r} of a source position is not a number"


def _subtask_problems(metadata: pb.OperatorCheckpointMetadata) -> Iterator[str]:
    yield from _name("operator", metadata.operator_id)
    for name, table in metadata.tables.items():
        yield from _name("table", name)
        for subtask in table.subtasks.values():
            for file in subtask.files:
                yield from _path(file.path)


def _name(kind: str, name: str) -> Iterator[str]:
    try:
        names.check_part(kind, name)
    except InvalidNameError as error:
        yield error.what


def _path(path: str) -> Iterator[str]:
    if not _stays_below(path):
        yield f"the path {path!r} is not relative to the job's folder"


def _stays_below(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


_CHECKS: dict[type[Message], Callable[..., Iterator[str]]] = {
    pb.CheckpointMetadata: _record_problems,
    pb.OperatorCheckpointMetadata: _subtask_problems,
}
