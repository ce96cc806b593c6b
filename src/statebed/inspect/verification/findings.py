"""What a verification found, as values: damaged and missing objects with who needs them, orphans, what was read."""

import enum
from dataclasses import dataclass


class ObjectKind(enum.Enum):
    """What an object of a job's folder is."""

    RECORD = "record"
    SAVEPOINT = "savepoint"
    SUBTASK_METADATA = "subtask metadata"
    DATA = "data file"
    OUTBOX = "outbox file"
    SOURCE_LOG = "source log"
    MARKER = "published marker"
    REQUEST = "request"
    ANSWER = "answer"
    RUN_END = "end of a run"
    HEARTBEAT = "heartbeat of a run"


class Trouble(enum.Enum):
    """What is wrong with an object."""

    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """An object that is not as the format, or whoever names it, says."""

    path: str
    """Relative to the job's folder."""
    kind: ObjectKind
    trouble: Trouble
    problem: str
    epochs: tuple[int, ...] = ()
    """The records that need it, ascending."""
    savepoints: tuple[str, ...] = ()
    """The savepoints that need it."""


class OrphanKind(enum.Enum):
    """Why an object is named by nothing."""

    GARBAGE = "garbage"
    """The next sweep of the live run removes it."""
    UNFINISHED = "unfinished"
    """Of an epoch that is not committed, or of a compaction that the live run may still apply."""
    FOREIGN = "foreign"
    """Not of statebed's making; never removed."""


@dataclass(frozen=True)
class Orphan:
    """An object that no record, savepoint or metadata names. No error."""

    path: str
    size: int
    kind: OrphanKind


@dataclass(frozen=True)
class Awaited:
    """An object that is not there, and may rightly be so: nobody can tell whether it was removed. No error."""

    path: str
    kind: ObjectKind
    reason: str


@dataclass(frozen=True)
class SinkTable:
    """A table of files that a sink of the job writes, outside the job's folder."""

    sink_id: str
    target: str
    published: int
    """Newest epoch that the sink was known to have when the head was committed; 0: none."""


@dataclass(frozen=True)
class Verification:
    """The state of a job's objects."""

    job: str
    where: str
    head: int | None
    """The newest readable record; None: there is none."""
    data_epoch: int
    """The epoch whose state the head shows."""
    min_epoch: int
    epochs: tuple[int, ...]
    """The records that were checked, with all that they name."""
    savepoints: tuple[str, ...]
    objects: int
    """Read and checked."""
    bytes: int
    findings: tuple[Finding, ...] = ()
    awaited: tuple[Awaited, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    orphans_known: bool = True
    """False: metadata is damaged, so what it names cannot be told from orphans, and none are listed."""
    sink_tables: tuple[SinkTable, ...] = ()
    """Tables that the head names. They are not checked here: `sinks.manifest.verify_table` does."""

    @property
    def whole(self) -> bool:
        """Nothing is damaged, nothing is missing."""
        return not self.findings

    @property
    def head_whole(self) -> bool:
        """Whether the job can go on from its newest record: all that it names is whole, and the log has no gap."""
        return self.head is not None and not self.troubles_of(self.head) and not self._log_is_broken(self.head)

    @property
    def damaged_epochs(self) -> tuple[int, ...]:
        return tuple(sorted({epoch for finding in self.findings for epoch in finding.epochs}))

    def troubles_of(self, epoch: int) -> tuple[Finding, ...]:
        """What keeps a record from being whole."""
        return tuple(finding for finding in self.findings if epoch in finding.epochs)

    def troubles_of_savepoint(self, name: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if name in finding.savepoints)

    def _log_is_broken(self, head: int) -> bool:
        """Whether a newer record is damaged, or any is missing."""
        records = [finding for finding in self.findings if finding.kind is ObjectKind.RECORD]
        return any(one.trouble is Trouble.MISSING or max(one.epochs) > head for one in records)
