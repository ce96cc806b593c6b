"""One table of an operator at one epoch, found from what a user says of it.

What is left out is found where there is one choice. The epoch is pinned here: the files that make its state are known
from now on, and whatever the job does, it is these that are read.
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
from statebed.inspect.tables.parallel_reads import at_once
from statebed.operators.finished_results import result_table
from statebed.operators.labels import stored_label
from statebed.storage import ScopedStore, get_storage_provider

ATTEMPTS = 3
"""How often the newest epoch is looked for again, when it was collected while its metadata was read."""


@dataclass(frozen=True)
class JobLocation:
    """Where a job's state is; can be sent to other processes."""

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
    """An epoch, or what a savepoint keeps of one."""

    location: JobLocation
    number: int
    """Of the record."""
    epoch: int
    """Whose state the record has: a run_start has that of its base."""
    savepoint: str | None
    finish_time_us: int

    def fetch(self, path: str, start: int, length: int) -> bytes:
        """A part of a data file that the epoch names."""
        try:
            return fetch_range(self.location.log.store, path, start, length)
        except MissingFileError as error:
            if self.savepoint is None and not is_retained(self.location.log, self.number):
                raise _collected(self.number, error) from error
            raise


@dataclass(frozen=True)
class PinnedTable:
    """A table at that epoch."""

    pinned: Pinned
    operator: str
    table: str
    entry: pb.OperatorEntry
    """The operator in the record: its definition, and how far its inputs came."""
    config: pb.TableConfig
    parts: tuple[pb.TableSubtaskCheckpointMetadata, ...]
    """Of its subtasks, in the order of the hashes that they own."""


def find_location(
    url: str | Path, job: str | None = None, *, storage_options: Mapping[str, str] | None = None
) -> JobLocation:
    """The job that is asked for, or the only one there is."""
    store = get_storage_provider(url, storage_options)
    options = tuple(sorted((storage_options or {}).items()))
    if job is not None:
        location = JobLocation(store.url, names.check_name("job", job), options)
        if location.log.numbers():
            return location
    found = job_names(store)
    if job is not None or not found:
        raise JobNotFoundError(
            f"there is no record of {'any job' if job is None else f'a job {job!r}'} (jobs here: "
            f"{', '.join(found) or 'none'})",
            where=store.url,
            fix="give the location that the job was given as state=, and the name of one of its jobs",
        )
    return JobLocation(store.url, _only(found, None, "job", where=store.url), options)


def pin(location: JobLocation, *, epoch: int | None = None, savepoint: str | None = None) -> pb.CheckpointMetadata:
    """The record of an epoch, of a savepoint, or the newest one."""
    if epoch is not None and savepoint is not None:
        raise InputError("an epoch and a savepoint are asked for", fix="give one of them")
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
    """The table that is asked for, or the only one there is, with all that says where its rows are.

    With `results`, an operator's only table is the one that its results are made of.
    """
    for attempt in range(ATTEMPTS):
        record = pin(location, epoch=epoch, savepoint=savepoint)
        try:
            return _table_of(location, record, operator=operator, table=table, savepoint=savepoint, results=results)
        except MissingFileError as error:
            if savepoint is not None or is_retained(location.log, record.epoch):
                raise
            if epoch is not None or attempt == ATTEMPTS - 1:
                raise _collected(record.epoch, error) from error
    raise AssertionError("the last attempt returns or raises")


def is_retained(log: CheckpointLog, epoch: int) -> bool:
    """Whether all files of an epoch must be there; those of one that may be deleted go before its record."""
    head = log.head()
    return log.exists(epoch) and (head is None or epoch >= head.min_epoch)


def _collected(epoch: int, error: MissingFileError) -> EpochNotRetainedError:
    return EpochNotRetainedError(
        f"epoch {epoch} is not retained any more: its files are being collected, or are gone",
        where=error.where,
        fix="read a newer epoch, keep more of them (retention), or have a savepoint keep this one",
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
            f"keys are hashed by {record.hash_name!r}, version {record.hash_version}, which is not known here",
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
            fix="name one: operator=...",
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
    )


Tables = dict[str, tuple[pb.TableConfig, list[pb.TableSubtaskCheckpointMetadata]]]


def _tables(location: JobLocation, entry: pb.OperatorEntry) -> Tables:
    store = location.log.store
    tables: Tables = {}
    for metadata in at_once(lambda reference: fetch_subtask(store, reference), entry.subtasks):
        for name, stored in metadata.tables.items():
            # All subtasks of an epoch have the same definition.
            tables.setdefault(name, (stored.config, []))[1].extend(stored.subtasks.values())
    return tables


def _shown_epoch(log: CheckpointLog, record: pb.CheckpointMetadata) -> int:
    """A run_start has the state of its base, which may be one, too."""
    while record.kind == pb.RUN_START and record.base:
        try:
            record = log.read(record.base)
        except EpochNotRetainedError:
            return int(record.base)
    return int(record.epoch)


def _only(found: list[str], wanted: str | None, what: str, *, where: str) -> str:
    if wanted is not None and wanted not in found:
        raise StateNotFoundError(
            f"there is no {what} {wanted!r} (there are: {', '.join(found) or 'none'})",
            where=where,
            fix=f"name one of these {what}s",
        )
    if wanted is None and len(found) != 1:
        raise InputError(
            f"there are {len(found)} {what}s: {', '.join(found) or 'none'}", where=where, fix=f"name one: {what}=..."
        )
    return found[0] if wanted is None else wanted
