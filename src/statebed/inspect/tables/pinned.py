"""One table of an operator at one epoch, found from what the user specifies.

Anything left out is filled in if there is only one choice. The epoch is pinned here: its files are known from now on,
and they are read regardless of what the job does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from statebed.arrays.key_hash import HASH_NAME, HASH_VERSION
from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch_range, fetch_subtask
from statebed.errors import (
    EpochNotRetainedError,
    InputError,
    JobNotFoundError,
    MissingFileError,
    NewerFormatError,
    StateNotFoundError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.inspect.jobs import job_names
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import record_at
from statebed.inspect.savepoints import savepoint_record
from statebed.inspect.tables.broadcast_rows import broadcast_columns
from statebed.inspect.tables.parallel_reads import map_concurrently
from statebed.inspect.tables.table_shape import TableShape
from statebed.operators.finished_results import result_table
from statebed.operators.labels import stored_label
from statebed.storage import ScopedStore, get_storage_provider

ATTEMPTS = 3
"""Number of attempts to read the metadata of the newest epoch, which clean-up may remove in the meantime."""


@dataclass(frozen=True)
class JobLocation:
    """Location of a job's state; can be pickled."""

    url: str
    job: str
    storage_options: tuple[tuple[str, str], ...] = ()

    @cached_property
    def log(self) -> CheckpointLog:
        store = get_storage_provider(self.url, dict(self.storage_options))
        return CheckpointLog(ScopedStore(store, names.job_folder(self.job)), self.job)

    def __reduce__(self) -> tuple[object, ...]:
        return (JobLocation, (self.url, self.job, self.storage_options))


@dataclass(frozen=True)
class Pinned:
    """An epoch, or the copy of one that a savepoint retains."""

    location: JobLocation
    number: int
    """Number of the record."""
    epoch: int
    """Epoch whose state the record has: a run_start has that of its base."""
    savepoint: str | None
    finish_time_us: int

    def fetch(self, path: str, start: int, length: int) -> bytes:
        """Read a range of a data file of the epoch."""
        try:
            return fetch_range(self.location.log.store, path, start, length)
        except MissingFileError as error:
            if self.savepoint is None and not is_retained(self.location.log, self.number):
                raise _cleaned_up(self.number, error) from error
            raise


@dataclass(frozen=True)
class PinnedTable:
    """A table at the pinned epoch."""

    pinned: Pinned
    operator: str
    table: str
    entry: pb.OperatorEntry
    """Operator in the record: its definition and the watermarks of its inputs."""
    config: pb.TableConfig
    parts: tuple[pb.TableSubtaskCheckpointMetadata, ...]
    """Parts of its subtasks, sorted by hash range."""
    others: "Tables"
    """All tables of the operator, by name."""

    @cached_property
    def shape(self) -> TableShape:
        """Columns of the table."""
        return TableShape(self.config, broadcast_columns(self.entry.definition, self.table))


def find_location(
    url: str | Path, job: str | None = None, *, storage_options: Mapping[str, str] | None = None
) -> JobLocation:
    """Return the location of the requested job, or of the only one."""
    store = get_storage_provider(url, storage_options)
    options = tuple(sorted((storage_options or {}).items()))
    if job is not None:
        location = JobLocation(store.url, names.check_name("job", job), options)
        if location.log.numbers():
            return location
    jobs = job_names(store)
    if job is not None or not jobs:
        raise JobNotFoundError(
            f"there is no record of {'any job' if job is None else f'the job {job!r}'} (jobs here: "
            f"{', '.join(jobs) or 'none'})",
            where=store.url,
            fix="pass the location that the job uses as state=, and the name of one of its jobs",
        )
    return JobLocation(store.url, _only(jobs, None, "job", where=store.url), options)


def pin(location: JobLocation, *, epoch: int | None = None, savepoint: str | None = None) -> pb.CheckpointMetadata:
    """Return the record of an epoch, of a savepoint, or the newest one."""
    if epoch is not None and savepoint is not None:
        raise InputError("`epoch` and `savepoint` cannot both be set", fix="pass only one of them")
    log = location.log
    if savepoint is None:
        return record_at(log, epoch)
    return savepoint_record(log, record_at(log, None), savepoint)


def find_table(
    location: JobLocation,
    *,
    operator: str | None = None,
    table: str | None = None,
    epoch: int | None = None,
    savepoint: str | None = None,
    results: bool = False,
) -> PinnedTable:
    """Return the requested table, or the only one, with the metadata of its rows.

    With `results`, the only table of an operator is the one from which its results are computed.
    """
    for attempt in range(ATTEMPTS):
        record = pin(location, epoch=epoch, savepoint=savepoint)
        try:
            return _table_of(location, record, operator=operator, table=table, savepoint=savepoint, results=results)
        except MissingFileError as error:
            if savepoint is not None or is_retained(location.log, record.epoch):
                raise
            if epoch is not None or attempt == ATTEMPTS - 1:
                raise _cleaned_up(record.epoch, error) from error
    raise AssertionError("the last attempt returns or raises")


def is_retained(log: CheckpointLog, epoch: int) -> bool:
    """Return whether all files of an epoch must exist. Files of an epoch that is not retained are removed before its
    record.
    """
    head = log.head()
    return log.exists(epoch) and (head is None or epoch >= head.min_epoch)


def _cleaned_up(epoch: int, error: MissingFileError) -> EpochNotRetainedError:
    return EpochNotRetainedError(
        f"epoch {epoch} is no longer retained: clean-up has removed its files, or is removing them",
        where=error.where,
        fix="read a newer epoch, retain more epochs, or create a savepoint in time",
    )


def _table_of(
    location: JobLocation,
    record: pb.CheckpointMetadata,
    *,
    operator: str | None,
    table: str | None,
    savepoint: str | None,
    results: bool,
) -> PinnedTable:
    where = f"{location.log.store.url}, epoch {record.epoch}"
    if (record.hash_name, record.hash_version) != (HASH_NAME, HASH_VERSION):
        raise NewerFormatError(
            f"keys are hashed with {record.hash_name!r}, version {record.hash_version}, which is not supported",
            where=where,
            fix="upgrade statebed",
        )
    entries = {entry.operator_id: entry for entry in record.operators}
    written = OperatorNames.of(record)
    if operator is not None and entries:
        operator = written.id_of(operator, where=where)
    if operator is None and table is not None and len(entries) > 1:
        holding = [name for name, entry in entries.items() if table in _tables(location, entry)]
        entries = {name: entries[name] for name in holding or entries}
    if not entries:
        raise StateNotFoundError("the epoch has no operators", where=where, fix="read an epoch after the first")
    if operator is None and len(entries) > 1:
        raise InputError(
            f"there are {len(entries)} operators: {written.listed(sorted(entries))}",
            where=where,
            fix="choose one: operator=...",
        )
    chosen = entries[operator or next(iter(entries))]
    tables = _tables(location, chosen)
    if results and table is None and (made_of := result_table(chosen.definition)) in tables:
        table = made_of
    name = _only(
        sorted(tables), table, "table", where=f"{where}, {stored_label(chosen.operator_id, chosen.definition)}"
    )
    config, parts = tables[name]
    return PinnedTable(
        pinned=Pinned(location, record.epoch, _shown_epoch(location.log, record), savepoint, record.finish_time_us),
        operator=chosen.operator_id,
        table=name,
        entry=chosen,
        config=config,
        parts=tuple(sorted(parts, key=lambda part: part.owned.first)),
        others=tables,
    )


Tables = dict[str, tuple[pb.TableConfig, list[pb.TableSubtaskCheckpointMetadata]]]


def _tables(location: JobLocation, entry: pb.OperatorEntry) -> Tables:
    store = location.log.store
    tables: Tables = {}
    for metadata in map_concurrently(lambda reference: fetch_subtask(store, reference), entry.subtasks):
        for name, stored in metadata.tables.items():
            # All subtasks of an epoch have the same definition.
            tables.setdefault(name, (stored.config, []))[1].extend(stored.subtasks.values())
    return tables


def _shown_epoch(log: CheckpointLog, record: pb.CheckpointMetadata) -> int:
    """Return the epoch whose state a record has: for a run_start, that of its base, which may be a run_start too."""
    while record.kind == pb.RUN_START and record.base:
        try:
            record = log.read(record.base)
        except EpochNotRetainedError:
            return int(record.base)
    return int(record.epoch)


def _only(existing: list[str], wanted: str | None, what: str, *, where: str) -> str:
    if wanted is not None and wanted not in existing:
        raise StateNotFoundError(
            f"there is no {what} {wanted!r} (there are: {', '.join(existing) or 'none'})",
            where=where,
            fix=f"choose one of these {what}s",
        )
    if wanted is None and len(existing) != 1:
        raise InputError(
            f"there are {len(existing)} {what}s: {', '.join(existing) or 'none'}",
            where=where,
            fix=f"choose one: {what}=...",
        )
    return existing[0] if wanted is None else wanted
