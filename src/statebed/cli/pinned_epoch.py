"""All tables of a job at one epoch, even while the job continues to commit."""

import dataclasses
from collections.abc import Callable
from typing import TypeVar

import pyarrow as pa

from statebed.errors import EpochNotRetainedError, MissingFileError, StateNotFoundError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect import StateTable, read_state
from statebed.inspect.contents import metadata_of
from statebed.inspect.jobs import open_log
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.positions import positions_of
from statebed.inspect.records import newest, record_at
from statebed.inspect.savepoints import savepoint_record

POSITIONS = (("positions", "sources"), ("positions", "sinks"))
"""Names of the positions of sources and sinks in queries; an operator of the same name is not hidden by them."""
T = TypeVar("T")
ATTEMPTS = 10
"""Number of attempts to read the newest epoch, which clean-up may remove while it is read."""


@dataclasses.dataclass(frozen=True)
class PinnedEpoch:
    """One epoch of a job and its tables."""

    state: str
    job: str
    record: pb.CheckpointMetadata
    savepoint: str | None
    tables: tuple[tuple[str, str], ...]
    """Operator and table names, in the order of the record."""

    @property
    def selectable(self) -> tuple[tuple[str, str], ...]:
        """Names that a query may use: those of the tables, and of the positions of sources and sinks."""
        return (*self.tables, *(name for name in POSITIONS if name not in self.tables))

    def read(self, operator: str, table: str, *, results: bool = False) -> StateTable | pa.Table:
        """Open a table; with `results`, show final results where the table supports it."""
        if (operator, table) not in self.tables and (operator, table) in POSITIONS:
            positions = positions_of(open_log(self.state, self.job), self.record)
            return positions.sources if table == "sources" else positions.sinks
        return read_state(
            self.state,
            job=self.job,
            operator=operator,
            table=table,
            epoch=self.record.epoch if self.savepoint is None else None,
            savepoint=self.savepoint,
            results=results,
        )

    def only(self, operator: str | None, table: str | None) -> "PinnedEpoch":
        """Keep only tables of this operator and with this name; raise StateNotFoundError if there are none."""
        names = OperatorNames.of(self.record)
        where = f"{self.state}, job {self.job!r}, epoch {self.record.epoch}"
        tables = tuple(
            (operator_id, name)
            for operator_id, name in self.tables
            if operator in {None, operator_id, names(operator_id)} and table in {None, name}
        )
        if not tables:
            requested = ".".join(part for part in (operator, table) if part) or "a table"
            there = names.listed(f"{operator_id}.{name}" for operator_id, name in self.tables)
            raise StateNotFoundError(
                f"there is no {requested} (there are: {there or 'no tables'})",
                where=where,
                fix="choose one of these with --operator and --table",
            )
        return dataclasses.replace(self, tables=tables)


def open_epoch(state: str, job: str | None, *, epoch: int | None, savepoint: str | None) -> PinnedEpoch:
    """Return the requested epoch, or the newest."""
    log = open_log(state, job)
    record = record_at(log, epoch) if savepoint is None else savepoint_record(log, newest(log), savepoint)
    tables = [
        (operator, table)
        for operator, subtasks in metadata_of(log, record).items()
        for table in sorted({name for metadata in subtasks for name in metadata.tables})
    ]
    return PinnedEpoch(state, log.job_id, record, savepoint, tuple(tables))


def read_at(
    state: str, job: str | None, *, epoch: int | None, savepoint: str | None, read: Callable[[PinnedEpoch], T]
) -> T:
    """Call `read` with the epoch and return its result. If clean-up removes the newest epoch while it is read, retry
    with a newer one.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return read(open_epoch(state, job, epoch=epoch, savepoint=savepoint))
        except (EpochNotRetainedError, MissingFileError):
            if epoch is not None or savepoint is not None:
                raise
    return read(open_epoch(state, job, epoch=epoch, savepoint=savepoint))
