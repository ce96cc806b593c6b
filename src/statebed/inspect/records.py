"""Records of a job's log as plain values for tables, pages and JSON."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from statebed.checkpoint.log import CheckpointLog
from statebed.errors import EpochNotRetainedError, FormatError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.chain import chain_of
from statebed.inspect.figures import phases_of
from statebed.inspect.sizes import READS_AT_ONCE, sizes_of_folders

KINDS = {pb.RUN_START: "run_start", pb.EPOCH: "epoch"}
STATUSES = {pb.COMPLETE: "complete", pb.STOPPED: "stopped", pb.DRAINED: "drained"}
ABANDONED = "abandoned"
DAMAGED = "damaged"
MISSING = "missing"
NEWER = "newer format"


@dataclass(frozen=True)
class LogEntry:
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
    """Bytes of all objects in the epoch's folder."""
    savepoints: tuple[str, ...] = ()
    """Savepoints that pin it."""
    phases_us: dict[str, int] = field(default_factory=dict)
    """Duration of each phase, if the record has figures."""
    problem: str = ""


@dataclass(frozen=True)
class _Problem:
    status: str
    text: str


def summarise_epochs(log: CheckpointLog, *, limit: int | None = None, before: int | None = None) -> list[LogEntry]:
    """Return the entries of the log in ascending order; a record that is damaged, removed or too new is listed as such.

    With `limit`, read only the newest `limit` entries; with `before`, only those below that number.
    """
    numbers = [number for number in log.numbers() if before is None or number < before]
    wanted = numbers if limit is None else numbers[-limit:] if limit else []
    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="statebed-records") as pool:
        looked = dict(zip(wanted, pool.map(lambda number: _look(log, number), wanted), strict=True))
    items = {number: item for number, item in looked.items() if item is not None}
    if not items:
        return []
    intact = {number: item for number, item in items.items() if isinstance(item, pb.CheckpointMetadata)}
    # Read last: records that it allows clean-up to remove may have been removed in the meantime, and are not missing.
    head = newest_readable(log)
    if head is not None:
        for number in set(range(max(head.min_epoch, min(wanted)), max(items))) - set(items):
            items[number] = _Problem(MISSING, "the record is missing: something other than statebed removed it")
    sizes = sizes_of_folders(log, sorted(items))
    chain = chain_of(head, lambda number: intact.get(number) or readable(log, number), down_to=min(items))
    savepoints = savepoints_by_epoch(head)
    return [
        unreadable(number, status=item.status, problem=item.text, held=sizes[number])
        if isinstance(item, _Problem)
        else summarise(
            item,
            held=sizes[number],
            abandoned=chain.abandons(item),
            following=intact.get(number + 1),
            savepoints=savepoints.get(number, ()),
        )
        for number, item in sorted(items.items())
    ]


def summarise(
    record: pb.CheckpointMetadata,
    *,
    held: int,
    abandoned: bool = False,
    following: pb.CheckpointMetadata | None = None,
    savepoints: tuple[str, ...] = (),
) -> LogEntry:
    """Summarise one record; `held` is the size of its epoch's folder, `following` the record after it."""
    is_epoch = record.kind == pb.EPOCH
    has_batch = is_epoch and record.source_position.HasField("batch_id")
    # A run_start carries the operators of its base unchanged, so their counts belong to the base.
    counted = record.operators if is_epoch else []
    return LogEntry(
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
        watermark_us=slowest_watermark(record),
        bytes=held,
        savepoints=savepoints,
        phases_us=phases_of(record, following),
    )


def slowest_watermark(record: pb.CheckpointMetadata) -> int | None:
    """Return the time up to which every operator has closed its windows."""
    marks = [mark for operator in record.operators if (mark := input_watermark(operator)) is not None]
    return min(marks, default=None)


def input_watermark(operator: pb.OperatorEntry) -> int | None:
    """Return the time up to which windows are closed: the minimum watermark of the operator's inputs."""
    return min((i.watermark_us for i in operator.inputs if i.HasField("watermark_us")), default=None)


def savepoints_by_epoch(head: pb.CheckpointMetadata | None) -> dict[int, tuple[str, ...]]:
    """Return the names of the savepoints that pin each epoch."""
    pinned: dict[int, tuple[str, ...]] = {}
    for pin in head.pins if head else ():
        pinned[pin.epoch] = (*pinned.get(pin.epoch, ()), pin.savepoint)
    return pinned


def newest(log: CheckpointLog) -> pb.CheckpointMetadata | None:
    """Return the newest record, or None if there is none. A damaged one raises and is never skipped."""
    recovery = log.recover()
    return log.read(recovery.last_number) if recovery.damaged else recovery.head


def record_at(log: CheckpointLog, epoch: int | None) -> pb.CheckpointMetadata:
    """Return the record of `epoch`, or the newest."""
    record = newest(log) if epoch is None else _retained(log, epoch)
    if record is None:
        raise EpochNotRetainedError(
            "the job has folders of epochs but no records",
            where=log.store.url,
            fix="it never committed, or its records were removed; `statebed ls` lists the jobs",
        )
    return record


def _retained(log: CheckpointLog, epoch: int) -> pb.CheckpointMetadata:
    try:
        return log.read(epoch)
    except EpochNotRetainedError as error:
        head = newest_readable(log)
        if head is None:
            raise
        raise EpochNotRetainedError(
            f"epoch {epoch} has no record (epochs {head.min_epoch} to {head.epoch} are retained)",
            where=error.where,
            fix=error.fix,
        ) from error


def newest_readable(log: CheckpointLog) -> pb.CheckpointMetadata | None:
    """Return the newest readable record, or None; newer ones are shown as damaged."""
    for number in reversed(log.numbers()):
        if record := readable(log, number):
            return record
    return None


def readable(log: CheckpointLog, epoch: int) -> pb.CheckpointMetadata | None:
    """Return the record of an epoch, or None if it is missing or damaged."""
    item = _look(log, epoch)
    return item if isinstance(item, pb.CheckpointMetadata) else None


def _look(log: CheckpointLog, epoch: int) -> pb.CheckpointMetadata | _Problem | None:
    try:
        return log.read(epoch)
    except NewerFormatError as error:
        return _Problem(NEWER, error.what)
    except FormatError as error:
        return _Problem(DAMAGED, error.what)
    except EpochNotRetainedError:
        return None  # removed by clean-up, or not committed yet


def unreadable(epoch: int, *, status: str, problem: str, held: int = 0) -> LogEntry:
    """Build the entry of a record that cannot be read."""
    return LogEntry(
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
