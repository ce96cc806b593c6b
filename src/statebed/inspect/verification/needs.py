"""References between objects: records and savepoints, the metadata that they refer to, and the objects that this refers
to in turn.

A need is strict if the object must exist: a retained record or a savepoint refers to it. For records that clean-up may
remove at any time, and for dropped savepoints, only objects that still exist must be intact.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.verification.bytes_check import Expectation
from statebed.inspect.verification.findings import DamageKind, Finding, ObjectKind


@dataclass(frozen=True)
class NeedingRecord:
    """A record, or the copy of one that belongs to the named savepoint."""

    epoch: int
    savepoint: str = ""
    strict: bool = True


@dataclass
class NeededObject:
    """One object, its expected bytes, and what needs it."""

    kind: ObjectKind
    expected: Expectation
    needers: set[NeedingRecord] = field(default_factory=set)

    @property
    def path(self) -> str:
        return self.expected.path

    def finding(self, trouble: DamageKind, problem: str) -> Finding:
        return finding(self.path, self.kind, trouble, problem, self.needers)


class NeededObjects:
    """All objects to check, each once, with everything that needs it."""

    def __init__(self) -> None:
        self._needs: dict[tuple[str, int, int], NeededObject] = {}

    def add(self, kind: ObjectKind, expected: Expectation, needers: Iterable[NeedingRecord]) -> None:
        key = (expected.path, expected.size, expected.crc32c)
        self._needs.setdefault(key, NeededObject(kind, expected)).needers.update(needers)

    def all(self) -> list[NeededObject]:
        return list(self._needs.values())

    @property
    def paths(self) -> set[str]:
        return {need.path for need in self._needs.values()}


def finding(
    path: str, kind: ObjectKind, trouble: DamageKind, problem: str, needers: Iterable[NeedingRecord]
) -> Finding:
    """Build the finding of an object, with the epochs and savepoints that it affects."""
    needers = list(needers)
    return Finding(
        path=path,
        kind=kind,
        trouble=trouble,
        problem=problem,
        epochs=tuple(sorted({needer.epoch for needer in needers if not needer.savepoint})),
        savepoints=tuple(sorted({needer.savepoint for needer in needers if needer.savepoint})),
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
