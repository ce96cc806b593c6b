"""Cloning of a job: copies everything that an epoch refers to into a separate log.

The clone starts with record 1, which holds the state, the watermarks and the source position of the epoch, but no
outbox, because the epoch's output went to the original job's sinks. Objects get names in the folder of record 1, and
metadata is written again with these names. The record is written last, so an interrupted clone is not a job; the same
call then completes it.
"""

import uuid

from statebed.checkpoint.environment import Environment
from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.objects import fetch, fetch_subtask, store_subtask
from statebed.errors import InputError, JobNotFoundError, MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import digest
from statebed.protocol.base_choice import Origin, resolve_epoch, resolve_savepoint
from statebed.protocol.records import lineage_name
from statebed.storage import ObjectStore, ScopedStore, get_storage_provider, put_verified

_FIRST = 1


def clone_job(state: str, job: str, to: str, *, origin: Origin | None = None, to_state: str | None = None) -> int:
    """Copy job `job` as it was at `origin` (default: its newest epoch) to the new job `to`; return the copied epoch.

    The original job may be running. `to` must not exist. `to_state` is its state location, by default `state`.

    >>> sb.testing.write_example("state")
    >>> sb.clone_job("state", "rides", "rides_copy")
    3
    """
    source = ScopedStore(get_storage_provider(state), names.job_folder(job))
    target = ScopedStore(get_storage_provider(to_state or state), names.job_folder(names.check_name("job", to)))
    return cloned(source, job, target, to, origin=origin or Origin())


def cloned(source: ObjectStore, job: str, target: ObjectStore, to: str, *, origin: Origin) -> int:
    """Do the same as `clone_job`, given the stores of both job folders."""
    log = CheckpointLog(target, to)
    if log.recover().last_number:
        raise _exists(target, to)
    record = _wanted(CheckpointLog(source, job), origin)
    try:
        copy = _copied(record, source, target, to)
    except MissingFileError as error:
        raise MissingFileError(
            f"a file of epoch {record.epoch} is missing: the running job has advanced and cleaned it up",
            where=error.where,
            fix="create a savepoint first (statebed savepoint), and clone that",
        ) from error
    if log.append(copy) is not None:
        raise _exists(target, to)
    return int(record.epoch)


def _exists(target: ObjectStore, job: str) -> InputError:
    return InputError(f"the job {job!r} already exists", where=target.url, fix="choose an unused name")


def _wanted(log: CheckpointLog, origin: Origin) -> pb.CheckpointMetadata:
    recovery = log.recover()
    if recovery.head is None:
        raise JobNotFoundError(
            f"there is no job {log.job_id!r}", where=log.store.url, fix="`statebed ls` lists the jobs"
        )
    if origin.savepoint is not None:
        return log.savepoint(resolve_savepoint(recovery, origin.savepoint, job_id=log.job_id))
    if origin.epoch is not None:
        return log.read(resolve_epoch(recovery, origin.epoch, job_id=log.job_id))
    return recovery.head


def _copied(
    record: pb.CheckpointMetadata, source: ObjectStore, target: ObjectStore, job_id: str
) -> pb.CheckpointMetadata:
    """Copy everything that the record refers to, and return the first record of the clone."""
    now_us = Environment().now_us()
    copy = pb.CheckpointMetadata()
    copy.CopyFrom(record)
    for cleared in ("pins", "outbox", "sinks", "sink_histories", "granted_requests"):
        copy.ClearField(cleared)
    copy.job_id, copy.epoch, copy.kind = job_id, _FIRST, pb.EPOCH
    copy.previous, copy.base, copy.run, copy.min_epoch = 0, 0, _FIRST, _FIRST
    copy.lineage, copy.nonce, copy.status = lineage_name(_FIRST), uuid.uuid4().hex, pb.STOPPED
    copy.start_time_us = copy.finish_time_us = now_us
    if copy.source_position.query_id:
        # Spark does not run two queries with the same id at the same time.
        copy.source_position.query_id = str(uuid.uuid4())
    for log in copy.source_position.source_logs:
        data = fetch(source, log.path, size=log.size, crc=log.crc32c)
        log.path = names.source_log(_FIRST, digest(data))
        put_verified(target, log.path, data)
    copied: set[str] = set()
    for operator in copy.operators:
        for reference in operator.subtasks:
            reference.CopyFrom(_copied_subtask(reference, source, target, job_id, copied))
    return copy


def _copied_subtask(
    reference: pb.SubtaskReference, source: ObjectStore, target: ObjectStore, job_id: str, copied: set[str]
) -> pb.SubtaskReference:
    metadata = fetch_subtask(source, reference)
    metadata.job_id, metadata.epoch = job_id, _FIRST
    for table in metadata.tables.values():
        for subtask in table.subtasks.values():
            for file in subtask.files:
                path = f"{names.epoch_folder(_FIRST)}/data/{file.path.rpartition('/')[2]}"
                if path not in copied:
                    put_verified(target, path, fetch(source, file.path, size=file.size, crc=file.crc32c))
                    copied.add(path)
                file.path = path
    return store_subtask(target, metadata)
