"""State that a record passes to the subtasks restored from it, and the entry that a record needs from its subtasks."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from statebed.errors import InputError, SubtaskError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import overlaps
from statebed.state.arguments import check_kind, checked_micros, checked_number
from statebed.state.config import check_configs
from statebed.state.global_keyed.table import StoredPart
from statebed.state.messages import CheckpointCompleted, TaskInfo
from statebed.state.time_keyed.row_merge import Combine
from statebed.storage import ObjectStore

Parts = Mapping[int, pb.OperatorCheckpointMetadata]
"""Metadata of an operator's subtasks, by subtask index."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_EPOCHS_END = 10**names.EPOCH_DIGITS


def operator_entry(completed: Sequence[CheckpointCompleted]) -> pb.OperatorEntry:
    """Return the entry of an operator in the record of an epoch, from the results of all its subtasks.

    It says whether all of them were checkpointed with `then_stop`: a record in which every operator was has the status
    STOPPED.
    """
    if not completed:
        raise SubtaskError("no subtask has completed its checkpoint", fix="wait for the checkpoints of all subtasks")
    for completion in completed:
        fix = "pass the result of each checkpoint: its future's result()"
        check_kind(completion, CheckpointCompleted, "result of a subtask", where="operator_entry", fix=fix)
    first = completed[0]
    indices = sorted(result.task.subtask_index for result in completed)
    alike = {
        (result.task.job_id, result.task.operator_id, result.task.parallelism, result.epoch) for result in completed
    }
    if len(alike) > 1 or indices != list(range(first.task.parallelism)):
        raise SubtaskError(
            f"got results of the subtasks {indices} at parallelism {first.task.parallelism}, for {sorted(alike)}",
            where=first.task.where,
            fix="pass one result of every subtask, all of one operator and epoch",
        )
    watermarks = [result.watermark_us for result in completed]
    known = [watermark for watermark in watermarks if watermark is not None]
    return pb.OperatorEntry(
        operator_id=first.task.operator_id,
        parallelism=first.task.parallelism,
        subtasks=[result.reference for result in sorted(completed, key=lambda result: result.task.subtask_index)],
        output_watermark_us=min(known) if known and len(known) == len(watermarks) else None,
        then_stop=all(result.then_stop for result in completed),
    )


def references_of(record: pb.CheckpointMetadata, task: TaskInfo) -> dict[int, pb.SubtaskReference]:
    """Return the references of the task's operator; empty if the record does not name it."""
    fix = "pass a committed record: run.head, or the result of run.commit"
    check_kind(record, pb.CheckpointMetadata, "record", where=task.where, fix=fix)
    if record.job_id != task.job_id:
        raise InputError(
            f"record {record.epoch} belongs to job {record.job_id!r}", where=task.where, fix="pass a record of this job"
        )
    return {
        reference.subtask_index: reference
        for operator in record.operators
        if operator.operator_id == task.operator_id
        for reference in operator.subtasks
    }


def parts_of(parts: Parts, table: str) -> dict[int, StoredPart]:
    """Return the parts of one table, by subtask."""
    return {
        index: StoredPart(metadata.tables[table].config, part)
        for index, metadata in parts.items()
        if table in metadata.tables
        for part in metadata.tables[table].subtasks.values()
    }


def check_stored(
    parts: Iterable[pb.OperatorCheckpointMetadata], configs: Mapping[str, pb.TableConfig], task: TaskInfo
) -> None:
    """Raise an error if the state is another operator's, or a stored table is not registered or of another kind."""
    for metadata in parts:
        if (metadata.job_id, metadata.operator_id) != (task.job_id, task.operator_id):
            raise SubtaskError(
                f"the base names metadata of operator {metadata.operator_id!r} of job {metadata.job_id!r}",
                where=task.where,
                fix="pass the references of the operator's own entry in the base record",
            )
        for name, table in metadata.tables.items():
            stored = table.config.WhichOneof("kind")
            if name not in configs:
                raise UnknownTableError(
                    f"the restored state has a table {name!r} ({stored}), which is not registered",
                    where=task.where,
                    fix="register it too (it may stay unused), or rename the operator to start with empty state",
                )
            if configs[name].WhichOneof("kind") != stored:
                raise UnknownTableError(
                    f"the table {name!r} is stored as {stored} but registered as {configs[name].WhichOneof('kind')}",
                    where=task.where,
                    fix="register it with the stored kind, or give the new table another name",
                )


def commit_data_of(parts: Parts, table: str, task: TaskInfo) -> tuple[bytes, ...]:
    """Return the commit data of subtasks whose range begins in the task's range: each piece goes to one subtask."""
    return tuple(
        piece.data
        for _, stored in sorted(parts_of(parts, table).items())
        if task.owned.first <= stored.part.owned.first <= task.owned.last
        for piece in stored.part.commit_data
    )


def restored_watermark(parts: Iterable[pb.OperatorCheckpointMetadata], task: TaskInfo) -> int | None:
    """Return the lowest watermark of the subtasks whose range the task takes over, or None if one of them has none."""
    mine = [metadata for metadata in parts if overlaps(metadata.owned, task.owned)]
    marks = [metadata.watermark_us for metadata in mine if metadata.HasField("watermark_us")]
    return min(marks) if mine and len(marks) == len(mine) else None


def stored_alike(
    references: Mapping[int, pb.SubtaskReference], parts: Parts, task: TaskInfo
) -> tuple[pb.OperatorCheckpointMetadata, pb.SubtaskReference] | None:
    """Return the restored metadata of the same subtask, which is reused while nothing changes, or None if there is
    none.
    """
    metadata = parts.get(task.subtask_index)
    if metadata is None or metadata.parallelism != task.parallelism:
        return None
    return metadata, references[task.subtask_index]


def same_state(metadata: pb.OperatorCheckpointMetadata, other: pb.OperatorCheckpointMetadata) -> bool:
    """Return whether two metadata objects of one subtask differ only in their epoch."""
    return (
        metadata.HasField("watermark_us") == other.HasField("watermark_us")
        and metadata.watermark_us == other.watermark_us
        and sorted(metadata.tables) == sorted(other.tables)
        and all(metadata.tables[name] == other.tables[name] for name in metadata.tables)
    )


def check_arguments(
    task: TaskInfo, configs: Mapping[str, pb.TableConfig], store: ObjectStore, combines: Mapping[str, Combine]
) -> None:
    """Check the arguments of a manager."""
    check_configs(configs)
    if not hasattr(store, "put_if_absent"):
        raise InputError(
            f"the store must be an ObjectStore, got {type(store).__name__}",
            where=task.where,
            fix="pass get_storage_provider(url), or a ScopedStore for the job's folder in it",
        )
    kinds = {name: config.WhichOneof("kind") for name, config in configs.items()}
    wrong = sorted(name for name in combines if kinds.get(name) != "time_keyed")
    if wrong:
        raise UnknownTableError(
            f"combines names {wrong}, which are not time-keyed tables among {sorted(kinds)}",
            where=task.where,
            fix="name registered time-keyed tables in combines=",
        )


def micros(time: dt.datetime | int | None, what: str, *, where: str) -> int | None:
    """Return the microseconds since 1970 of a datetime with time zone, or of an integer, whose range is larger."""
    if time is None:
        return None
    if not isinstance(time, dt.datetime):
        return checked_micros(time, what, where=where)
    if time.utcoffset() is None:
        raise InputError(f"the {what} {time} has no time zone", where=where, fix="use datetimes with tzinfo, e.g. UTC")
    return (time - _EPOCH) // _MICROSECOND


def checked_epochs(epoch: int, min_epoch: int, *, last: int, where: str) -> tuple[int, int]:
    """Check the epochs of a checkpoint that follows the last one."""
    fix = "pass run.next_epoch; epochs must increase, and min_epoch must not exceed the epoch"
    epoch = checked_number(epoch, "epoch", where=where, fix=fix)
    min_epoch = checked_number(min_epoch, "min_epoch", where=where, fix=fix)
    if not last < epoch < _EPOCHS_END or min_epoch > epoch:
        raise InputError(
            f"the checkpoint of epoch {epoch} (min_epoch {min_epoch}) cannot follow epoch {last}", where=where, fix=fix
        )
    return epoch, min_epoch
