"""What the records say, as plain values for tables and JSON: jobs of a location, epochs of a job."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import (
    BrokenLogError,
    EpochNotRetainedError,
    FormatError,
    InputError,
    JobNotFoundError,
    NewerFormatError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.storage import LocalStore, ObjectStore, ScopedStore, get_storage_provider

KINDS = {pb.RUN_START: "run_start", pb.EPOCH: "epoch"}
STATUSES = {pb.COMPLETE: "complete", pb.STOPPED: "stopped", pb.DRAINED: "drained"}
ABANDONED = "abandoned"
DAMAGED = "damaged"
MISSING = "missing"
NEWER = "newer format"


@dataclass(frozen=True)
class JobSummary:
    """One job of a state location."""

    job: str
    records: int
    head: int | None
    """The newest number that has a record, readable or not."""
    lineage: str | None
    status: str
    finish_time_us: int | None
    problem: str = ""


@dataclass(frozen=True)
class EpochSummary:
    """One number of a job's log."""

    epoch: int
    kind: str
    run: int
    lineage: str
    base: int
    status: str
    finish_time_us: int | None
    duration_us: int
    batch: int | None
    rows_in: int
    rows_late: int
    rows_out: int
    watermark_us: int | None
    bytes: int
    """Of all objects in the epoch's folder."""
    problem: str = ""


def open_log(state: str, job: str) -> CheckpointLog:
    """The log of a job that must exist."""
    store = get_storage_provider(state)
    log = CheckpointLog(ScopedStore(store, names.job_folder(job)), job)
    if not log.numbers():
        found = job_names(store)
        if not found:
            _check_location(store)
        raise JobNotFoundError(
            f"there is no record of a job {job!r} (jobs here: {', '.join(found) or 'none'})",
            where=store.url,
            fix=f"`statebed ls {state}` lists the jobs of this location",
        )
    return log


def job_names(store: ObjectStore) -> list[str]:
    """Folders of the location that hold a log."""
    return [name for name in store.list_level("").folders if store.list_level(f"{name}/{names.CHECKPOINTS}").folders]


def summarise_jobs(state: str) -> list[JobSummary]:
    """Every job at the location, by its name; one that cannot be read does not hide the others."""
    store = get_storage_provider(state)
    found = job_names(store)
    if not found:
        _check_location(store)
    return [_summarise_job(open_log(state, name)) for name in found]


def summarise_epochs(log: CheckpointLog) -> list[EpochSummary]:
    """Every number of the log, ascending; a record that is damaged, removed or too new is listed as such."""
    found: dict[int, pb.CheckpointMetadata | EpochSummary] = {}
    sizes: dict[int | None, int] = {}
    for info in log.store.list(names.CHECKPOINTS):
        epoch = names.epoch_of(info.path)
        sizes[epoch] = sizes.get(epoch, 0) + info.size
    for number in log.numbers():
        try:
            found[number] = log.read(number)
        except NewerFormatError as error:
            found[number] = _unreadable(number, NEWER, sizes.get(number, 0), error.what)
        except FormatError as error:
            found[number] = _unreadable(number, DAMAGED, sizes.get(number, 0), error.what)
        except EpochNotRetainedError:
            continue  # collected, or not committed yet; between records it is looked at below
    readable = {number: record for number, record in found.items() if isinstance(record, pb.CheckpointMetadata)}
    if readable:
        for number in set(range(readable[max(readable)].min_epoch, max(found))) - set(found):
            problem = "its record is not there: something outside statebed removed it"
            found[number] = _unreadable(number, MISSING, sizes.get(number, 0), problem)
    abandoned = _abandoned(readable)
    return [
        item
        if isinstance(item, EpochSummary)
        else summarise(item, held=sizes.get(number, 0), abandoned=number in abandoned)
        for number, item in sorted(found.items())
    ]


def summarise(record: pb.CheckpointMetadata, *, held: int, abandoned: bool = False) -> EpochSummary:
    """One record in one line; `held` is the size of its epoch's folder."""
    is_epoch = record.kind == pb.EPOCH
    marks = [mark for operator in record.operators if (mark := input_watermark(operator)) is not None]
    has_batch = is_epoch and record.source_position.HasField("batch_id")
    # A run_start carries its base's operators unchanged: their counts are of the base.
    counted = record.operators if is_epoch else []
    return EpochSummary(
        epoch=record.epoch,
        kind=KINDS.get(record.kind, "unknown"),
        run=record.run,
        lineage=record.lineage,
        base=record.base,
        status=ABANDONED if abandoned else STATUSES.get(record.status, "unknown"),
        finish_time_us=record.finish_time_us,
        duration_us=record.finish_time_us - record.start_time_us,
        batch=record.source_position.batch_id if has_batch else None,
        rows_in=sum(operator.rows_in for operator in counted),
        rows_late=sum(operator.rows_late for operator in counted),
        rows_out=sum(operator.rows_out for operator in counted),
        watermark_us=min(marks) if marks else None,
        bytes=held,
    )


def input_watermark(operator: pb.OperatorEntry) -> int | None:
    """Up to where windows are closed: the slowest of the operator's inputs."""
    return min((i.watermark_us for i in operator.inputs if i.HasField("watermark_us")), default=None)


def size_of_folder(log: CheckpointLog, epoch: int) -> int:
    return sum(info.size for info in log.store.list(names.epoch_folder(epoch)))


def newest(log: CheckpointLog) -> pb.CheckpointMetadata | None:
    """The newest record, if there is any; a damaged one is an error, never passed over for an older one."""
    recovery = log.recover()
    return log.read(recovery.last_number) if recovery.damaged else recovery.head


def record_at(log: CheckpointLog, epoch: int | None) -> pb.CheckpointMetadata:
    """The record of `epoch`, or the newest."""
    record = newest(log) if epoch is None else log.read(epoch)
    if record is None:
        raise EpochNotRetainedError(
            "the job has folders of epochs but no record",
            where=log.store.url,
            fix="it was never committed, or its records were removed; `statebed ls` shows what is there",
        )
    return record


def _summarise_job(log: CheckpointLog) -> JobSummary:
    records = len(log.numbers())
    try:
        recovery = log.recover()
    except NewerFormatError as error:
        return JobSummary(log.job_id, records, None, None, NEWER, None, problem=error.what)
    except BrokenLogError as error:
        return JobSummary(log.job_id, records, None, None, DAMAGED, None, problem=error.what)
    if recovery.damaged:
        problem = "; ".join(f"record {skipped.epoch}: {skipped.reason}" for skipped in recovery.skipped)
        return JobSummary(log.job_id, records, recovery.last_number, None, DAMAGED, None, problem=problem)
    head = recovery.head
    if head is None:
        return JobSummary(log.job_id, records, None, None, "never committed", None)
    return JobSummary(
        job=log.job_id,
        records=records,
        head=head.epoch,
        lineage=head.lineage,
        status=STATUSES.get(head.status, "unknown"),
        finish_time_us=head.finish_time_us,
    )


def _check_location(store: ObjectStore) -> None:
    """Tell a location without jobs from one that was mistyped."""
    if isinstance(store, LocalStore) and not Path(store.url).is_dir():
        what = "is a file, not a folder" if Path(store.url).exists() else "does not exist"
        raise InputError(
            f"the state location {what}", where=store.url, fix="name the folder or URL that the job was given as state="
        )
    if names.CHECKPOINTS in store.list_level("").folders:
        location, _, job = store.url.rpartition("/")
        raise InputError(
            "this is the folder of a job, not a state location",
            where=store.url,
            fix=f"name the folder above it, then the job: `statebed ls {shlex.quote(location)} {job}`",
        )


def _abandoned(records: dict[int, pb.CheckpointMetadata]) -> set[int]:
    """Data epochs that a fork left behind: the newest state does not build on them."""
    chain: set[int] = set()
    record = records[max(records)] if records else None
    floor = 0
    while record is not None:
        chain.add(record.epoch)
        # Where the chain leaves what can be read (collected or damaged), nothing below is judged.
        floor = record.base
        record = records.get(record.base)
    return {n for n, record in records.items() if record.kind == pb.EPOCH and n > floor and n not in chain}


def _unreadable(epoch: int, status: str, held: int, problem: str) -> EpochSummary:
    return EpochSummary(
        epoch=epoch,
        kind="unknown",
        run=0,
        lineage="",
        base=0,
        status=status,
        finish_time_us=None,
        duration_us=0,
        batch=None,
        rows_in=0,
        rows_late=0,
        rows_out=0,
        watermark_us=None,
        bytes=held,
        problem=problem,
    )
