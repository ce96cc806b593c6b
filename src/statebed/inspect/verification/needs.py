"""References between objects: records and savepoints, the metadata that they refer to, and the objects that this refers
to in turn.

A need is strict if the object must exist: a retained record or a savepoint refers to it. For records that clean-up may
remove at any time, and for dropped savepoints, only objects that still exist must be intact.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification.bytes_check import Expectation
from statebed.inspect.verification.findings import Finding, ObjectKind, Trouble


@dataclass(frozen=True)
class Needer:
    """A record, or the copy of one that belongs to the named savepoint."""

    epoch: int
    savepoint: str = ""
    strict: bool = True


@dataclass
class Need:
    """One object, its expected bytes, and what needs it."""

    kind: ObjectKind
    expected: Expectation
    needers: set[Needer] = field(default_factory=set)

    @property
    def path(self) -> str:
        return self.expected.path

    def finding(self, trouble: Trouble, problem: str) -> Finding:
        return finding(self.path, self.kind, trouble, problem, self.needers)


class Needs:
    """All objects to check, each once, with everything that needs it."""

    def __init__(self) -> None:
        self._needs: dict[tuple[str, int, int], Need] = {}

    def add(self, kind: ObjectKind, expected: Expectation, needers: Iterable[Needer]) -> None:
        key = (expected.path, expected.size, expected.crc32c)
        self._needs.setdefault(key, Need(kind, expected)).needers.update(needers)

    def all(self) -> list[Need]:
        return list(self._needs.values())

    @property
    def paths(self) -> set[str]:
        return {need.path for need in self._needs.values()}


def finding(path: str, kind: ObjectKind, trouble: Trouble, problem: str, needers: Iterable[Needer]) -> Finding:
    """Build the finding of an object, with the epochs and savepoints that it affects."""
    needers = list(needers)
    return Finding(
        path=path,
        kind=kind,
        trouble=trouble,
        problem=problem,
        epochs=tuple(sorted({one.epoch for one in needers if not one.savepoint})),
        savepoints=tuple(sorted({one.savepoint for one in needers if one.savepoint})),
    )


def metadata_of(record: pb.CheckpointMetadata) -> list[Expectation]:
    """Return the metadata of subtasks that a record refers to."""
    return [
        Expectation(reference.path, int(reference.size), int(reference.crc32c))
        for operator in record.operators
        for reference in operator.subtasks
    ]


def named_directly(record: pb.CheckpointMetadata) -> list[tuple[ObjectKind, Expectation]]:
    """Return the outbox files and source logs that a record refers to."""
    outbox = [(ObjectKind.OUTBOX, file.path, file.size, file.crc32c) for file in record.outbox]
    logs = [(ObjectKind.SOURCE_LOG, log.path, log.size, log.crc32c) for log in record.source_position.source_logs]
    return [(kind, Expectation(path, int(size), int(crc))) for kind, path, size, crc in [*outbox, *logs]]


def data_files_of(metadata: pb.OperatorCheckpointMetadata) -> list[Expectation]:
    """Return the data files that a subtask's metadata refers to."""
    return [
        Expectation(file.path, int(file.size), int(file.crc32c), file)
        for table in metadata.tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    ]
