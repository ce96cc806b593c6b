"""Results of a verification: damaged and missing objects with what needs them, orphans, and what was read."""

import enum
from dataclasses import dataclass

from statebed.protocol.sink_history import AcceptedLoss

_FILE_TABLES = {"parquet", "debezium"}
"""Kinds of sinks that write tables of files with a manifest."""


class ObjectKind(enum.Enum):
    """Kind of an object in a job's folder."""

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


class DamageKind(enum.Enum):
    """Kind of damage."""

    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True)
class Finding:
    """An object that violates the format or differs from the metadata that refers to it."""

    path: str
    """Path relative to the job's folder."""
    kind: ObjectKind
    trouble: DamageKind
    problem: str
    epochs: tuple[int, ...] = ()
    """Records that need it, in ascending order."""
    savepoints: tuple[str, ...] = ()
    """Savepoints that need it."""


class OrphanKind(enum.Enum):
    """Reason why nothing refers to an object."""

    GARBAGE = "garbage"
    """The next clean-up of the live run removes it."""
    UNFINISHED = "unfinished"
    """Part of an epoch that is not committed, or of a compaction that the live run may still apply."""
    FOREIGN = "foreign"
    """Not written by statebed; never removed."""


@dataclass(frozen=True)
class Orphan:
    """An object that no record, savepoint or metadata refers to. Not an error."""

    path: str
    size: int
    kind: OrphanKind


@dataclass(frozen=True)
class UnprovenLoss:
    """An object that is missing, perhaps legitimately: it cannot be known whether it was removed. Not an error."""

    path: str
    kind: ObjectKind
    reason: str


@dataclass(frozen=True)
class SinkTable:
    """The target of a sink of the job: a table or topic outside the job's folder."""

    sink_id: str
    kind: str
    """"parquet", "sqlite", ...; empty for a user-defined sink."""
    target: str
    published: int
    """Newest epoch with rows that was published to the sink; 0 if none."""
    accepted: AcceptedLoss | None = None
    """Epochs that the user gave up at a start."""


@dataclass(frozen=True)
class Verification:
    """Result of verifying a job."""

    job: str
    where: str
    head: int | None
    """Newest readable record, or None if there is none."""
    data_epoch: int
    """Epoch whose state the head shows."""
    min_epoch: int
    epochs: tuple[int, ...]
    """Records that were checked, with everything that they refer to."""
    savepoints: tuple[str, ...]
    objects: int
    """Number of objects read and checked."""
    bytes: int
    findings: tuple[Finding, ...] = ()
    awaited: tuple[UnprovenLoss, ...] = ()
    orphans: tuple[Orphan, ...] = ()
    orphans_known: bool = True
    """Whether orphans are known. If metadata is damaged, its references cannot be distinguished from orphans, and none
    are listed.
    """
    sink_tables: tuple[SinkTable, ...] = ()
    """Targets of the job's sinks that keep a position. They are checked by `sinks.verification`, not here."""

    @property
    def file_tables(self) -> tuple[SinkTable, ...]:
        """Tables of files with a manifest, which `sinks.manifest.verify_table` checks."""
        return tuple(table for table in self.sink_tables if table.kind in _FILE_TABLES)

    @property
    def other_targets(self) -> tuple[SinkTable, ...]:
        """All other targets, which `sinks.verification.verify_sinks` compares with the log."""
        return tuple(table for table in self.sink_tables if table.kind not in _FILE_TABLES)

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged or missing."""
        return not self.findings

    @property
    def head_whole(self) -> bool:
        """Whether the job can resume from its newest record: all it refers to is intact, and the log has no gap."""
        return self.head is not None and not self.findings_of(self.head) and not self._log_is_broken(self.head)

    @property
    def damaged_epochs(self) -> tuple[int, ...]:
        return tuple(sorted({epoch for finding in self.findings for epoch in finding.epochs}))

    def findings_of(self, epoch: int) -> tuple[Finding, ...]:
        """Return the findings because of which a record is not intact."""
        return tuple(finding for finding in self.findings if epoch in finding.epochs)

    def findings_of_savepoint(self, name: str) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if name in finding.savepoints)

    def _log_is_broken(self, head: int) -> bool:
        """Return whether a newer record is damaged, or any record is missing."""
        records = [finding for finding in self.findings if finding.kind is ObjectKind.RECORD]
        return any(record.trouble is DamageKind.MISSING or max(record.epochs) > head for record in records)
