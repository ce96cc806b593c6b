"""Rescaling of stored state to another number of subtasks: hash ranges are re-assigned in one record, without rewriting
files.

Each new subtask lists the files and deletions of the previous subtasks, clipped to its range, as the engine does on a
start with another parallelism. Later compactions split files that several subtasks share.
"""

from collections.abc import Mapping

from statebed.checkpoint import CheckpointLog, Run
from statebed.checkpoint.objects import fetch_subtask, store_subtask
from statebed.errors import InputError, MigrationError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import check_parallelism
from statebed.maintain.rewrite import commit_operators
from statebed.maintain.tool_runs import CommittedChange, own_run, whole_head
from statebed.state import LiveFiles, TaskInfo
from statebed.state.manager.restore_base import commit_data_of, parts_of, restored_watermark

Parts = Mapping[int, pb.OperatorCheckpointMetadata]


def rescale_offline(log: CheckpointLog, parallelism: int, *, only_after: int | None = None) -> CommittedChange | None:
    """Re-assign the state of every operator in a separate run. Return None if it already has this parallelism.

    See `own_run` for `only_after`. A job that does not set a parallelism keeps this one.
    """
    check_parallelism(parallelism)
    head = whole_head(log)
    wanted = [entry for entry in head.operators if not entry.retired]
    if not wanted:
        raise InputError(
            "the job has no state to re-assign",
            where=f"job {log.job_id}",
            fix="start the job with the parallelism that you want",
        )
    if head.chosen_parallelism == parallelism and all(entry.parallelism == parallelism for entry in wanted):
        return None
    run = own_run(log, only_after=only_after)
    entries = [
        entry if entry.retired or entry.parallelism == parallelism else _rescaled(run, entry, parallelism)
        for entry in run.head.operators
    ]
    return commit_operators(run, entries, parallelism=parallelism)


def _rescaled(run: Run, stored: pb.OperatorEntry, parallelism: int) -> pb.OperatorEntry:
    parts = {reference.subtask_index: fetch_subtask(run.store, reference) for reference in stored.subtasks}
    references = [
        store_subtask(
            run.store, reassigned(parts, TaskInfo(run.job_id, stored.operator_id, index, parallelism), run.next_epoch)
        )
        for index in range(parallelism)
    ]
    entry = pb.OperatorEntry()
    entry.CopyFrom(stored)
    entry.parallelism = parallelism
    del entry.subtasks[:]
    entry.subtasks.extend(references)
    return entry


def reassigned(parts: Parts, task: TaskInfo, epoch: int) -> pb.OperatorCheckpointMetadata:
    """Build the metadata of one subtask of the new parallelism from that of all previous subtasks."""
    metadata = pb.OperatorCheckpointMetadata(
        job_id=task.job_id,
        operator_id=task.operator_id,
        epoch=epoch,
        subtask_index=task.subtask_index,
        parallelism=task.parallelism,
        owned=task.owned,
        watermark_us=restored_watermark(parts.values(), task),
    )
    for name in sorted({name for part in parts.values() for name in part.tables}):
        stored = list(parts_of(parts, name).values())
        versions = {part.config.state_version for part in stored if part.part.files}
        if len(versions) > 1:
            raise MigrationError(
                f"the table {name!r} has values of several versions: {sorted(versions)}",
                where=task.where,
                fix="run `statebed migrate` to bring them to one version, then rescale",
            )
        live = LiveFiles.restore([part.part for part in stored], owned=task.owned)
        table = metadata.tables[name]
        table.config.CopyFrom(next((part.config for part in stored if part.part.files), stored[0].config))
        table.subtasks[task.subtask_index].CopyFrom(
            pb.TableSubtaskCheckpointMetadata(
                subtask_index=task.subtask_index,
                owned=task.owned,
                next_sequence=live.next_sequence,
                files=live.files,
                tombstones=live.tombstones,
                schemas=live.schemas,
                commit_data=[
                    pb.CommitData(subtask_index=task.subtask_index, data=data)
                    for data in commit_data_of(parts, name, task)
                ],
                bytes=sum({file.path: file.size for file in live.files}.values()),
                rows=sum({file.path: file.rows for file in live.files}.values()),
            )
        )
    return metadata
