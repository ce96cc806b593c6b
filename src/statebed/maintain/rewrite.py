"""State written anew by a run of the tool's own: files merged, and files of older columns brought to the present ones.

One subtask after the other, within a budget of memory: its tables are restored from the head as they are stored, their
files merged by the engine's own compaction. The outputs lie in the folder of the run's compactions, where nobody sees
them before the one record at the end names them. So a tool that dies leaves the job as it was, and garbage.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from statebed.checkpoint import CheckpointLog, Run
from statebed.checkpoint.objects import fetch_subtask, store_subtask
from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.maintain.tool_runs import CommittedChange, Through, end_run, own_run, whole_head
from statebed.operators.labels import written_name
from statebed.state import CompactionMode, ManagerOptions, MemoryController, TableManager, TaskInfo, Tiers
from statebed.state.memory.budget import budget_of
from statebed.state.stored_edit import edited
from statebed.storage import ObjectStore

OPTIONS = ManagerOptions(compaction=CompactionMode.OFF, timeout_seconds=3600.0)
"""A merge may take long here: nothing else goes on."""

OnSubtask = Callable[[int, int, str], None]
"""Done, of how many, and what was done last."""


@dataclass(frozen=True)
class TableRewrite:
    """What became of the files of a table."""

    operator_id: str
    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class Rewritten:
    """What was written anew; `changed` is None where nothing was worth it."""

    changed: CommittedChange | None
    tables: tuple[TableRewrite, ...] = ()


def compact_offline(
    log: CheckpointLog,
    *,
    operator: str | None = None,
    table: str | None = None,
    memory: int | None = None,
    on_subtask: OnSubtask | None = None,
    only_after: int | None = None,
) -> Rewritten:
    """Merge all files of a job's tables, or of some, with a run of its own; see `own_run` for `only_after`."""
    head = whole_head(log)
    chosen = choose_tables(log, head, operator=operator, table=table)
    if not _is_worth_it(log, head, chosen):
        return Rewritten(None)
    return rewrite(log, chosen, memory=memory, on_subtask=on_subtask, only_after=only_after)


def rewrite(
    log: CheckpointLog,
    chosen: Mapping[str, Collection[str]],
    *,
    memory: int | None = None,
    on_subtask: OnSubtask | None = None,
    only_after: int | None = None,
) -> Rewritten:
    """Merge all files of these tables, by operator, and commit the result as one record."""
    run = own_run(log, only_after=only_after)
    entries: list[pb.OperatorEntry] = []
    tables: list[TableRewrite] = []
    wrote = False
    total = sum(len(entry.subtasks) for entry in run.head.operators if entry.operator_id in chosen)
    done = 0
    with _tiers(memory) as tiers:
        for stored in run.head.operators:
            entry = pb.OperatorEntry()
            entry.CopyFrom(stored)
            for reference in entry.subtasks if entry.operator_id in chosen else ():
                before = fetch_subtask(run.store, reference)
                after = _merged(run, reference, before, sorted(chosen[entry.operator_id]), tiers)
                tables += _compared(before, after)
                if after is not before:
                    reference.CopyFrom(store_subtask(run.store, after))
                    wrote = True
                done += 1
                if on_subtask is not None:
                    name = written_name(entry.operator_id, entry.definition)
                    on_subtask(done, total, f"{name}, subtask {reference.subtask_index}")
            entries.append(entry)
    if not wrote:
        end_run(run)
        return Rewritten(None)
    return Rewritten(commit_operators(run, entries), tuple(_summed(tables)))


def commit_operators(
    run: Run, entries: Sequence[pb.OperatorEntry], *, parallelism: int | None = None
) -> CommittedChange:
    """The one record that makes what was written count; a parallelism stays chosen for runs that set none."""
    draft = replace(run.carry_over(pb.STOPPED), operators=list(entries))
    if parallelism is not None:
        draft = replace(draft, parallelism=parallelism, chosen_parallelism=parallelism)
    record = run.commit(draft)
    return CommittedChange(int(record.epoch), int(record.run), Through.OWN_RUN)


def choose_tables(
    log: CheckpointLog, head: pb.CheckpointMetadata, *, operator: str | None = None, table: str | None = None
) -> dict[str, set[str]]:
    """The tables of a job by operator, all or those that are named; a name that finds nothing is refused."""
    found: dict[str, set[str]] = {}
    for entry in head.operators:
        if entry.subtasks and operator in {None, entry.operator_id}:
            names = set(fetch_subtask(log.store, entry.subtasks[0]).tables)
            found[entry.operator_id] = names if table is None else names & {table}
    found = {name: tables for name, tables in found.items() if tables}
    if not found:
        known = ", ".join(entry.operator_id for entry in head.operators) or "none"
        wanted = " of ".join(
            text for text in (f"table {table!r}" if table else "", f"operator {operator!r}" if operator else "") if text
        )
        raise InputError(
            f"the job has no {wanted or 'table'}",
            where=f"job {log.job_id}; operators: {known}",
            fix="`statebed show` lists operators and tables",
        )
    return found


@contextmanager
def _tiers(memory: int | None) -> Iterator[Tiers]:
    tiers = Tiers(MemoryController(memory or budget_of()))
    try:
        yield tiers
    finally:
        tiers.close()


def _is_worth_it(log: CheckpointLog, head: pb.CheckpointMetadata, chosen: Mapping[str, Collection[str]]) -> bool:
    """Whether anything would be merged: asked before a run is fenced, from metadata alone."""
    with _tiers(None) as tiers:
        for entry in head.operators:
            for reference in entry.subtasks if entry.operator_id in chosen else ():
                stored = fetch_subtask(log.store, reference)
                with _manager(log.store, head, reference, stored, tiers) as manager:
                    tables = manager.metrics().tables
                if any(tables[name].compaction_debt_bytes for name in chosen[entry.operator_id] if name in tables):
                    return True
    return False


def _manager(
    store: ObjectStore,
    head: pb.CheckpointMetadata,
    reference: pb.SubtaskReference,
    stored: pb.OperatorCheckpointMetadata,
    tiers: Tiers,
) -> TableManager:
    """The tables of a subtask as they are stored."""
    return TableManager(
        TaskInfo(head.job_id, stored.operator_id, stored.subtask_index, stored.parallelism),
        {name: table.config for name, table in stored.tables.items()},
        store,
        restore_from=pb.CheckpointMetadata(
            job_id=head.job_id,
            epoch=head.epoch,
            epoch_time_us=head.epoch_time_us,
            operators=[pb.OperatorEntry(operator_id=stored.operator_id, subtasks=[reference])],
        ),
        options=OPTIONS,
        tiers=tiers,
    )


def _merged(
    run: Run,
    reference: pb.SubtaskReference,
    stored: pb.OperatorCheckpointMetadata,
    tables: Sequence[str],
    tiers: Tiers,
) -> pb.OperatorCheckpointMetadata:
    """The subtask's metadata after its files were merged; the same object where nothing was."""
    index = stored.subtask_index
    with _manager(run.store, run.head, reference, stored, tiers) as manager:
        edits = manager.merge_apart(*tables, run=run.number, most_bytes=None)
    parts, applied = edited({index: stored}, [edit.to_bytes() for edit in edits])
    if not applied:
        return stored
    changed = parts[index]
    changed.epoch = run.next_epoch
    for table in changed.tables.values():
        for part in table.subtasks.values():
            part.bytes = sum({file.path: file.size for file in part.files}.values())
            part.rows = sum({file.path: file.rows for file in part.files}.values())
    return changed


def _compared(before: pb.OperatorCheckpointMetadata, after: pb.OperatorCheckpointMetadata) -> list[TableRewrite]:
    return [
        TableRewrite(
            before.operator_id,
            name,
            files_before=sum(len(part.files) for part in table.subtasks.values()),
            files_after=sum(len(part.files) for part in after.tables[name].subtasks.values()),
            bytes_before=sum(file.size for part in table.subtasks.values() for file in part.files),
            bytes_after=sum(file.size for part in after.tables[name].subtasks.values() for file in part.files),
        )
        for name, table in sorted(before.tables.items())
    ]


def _summed(tables: Sequence[TableRewrite]) -> list[TableRewrite]:
    """Of all subtasks of a table."""
    groups: dict[tuple[str, str], list[TableRewrite]] = {}
    for one in tables:
        groups.setdefault((one.operator_id, one.table), []).append(one)
    return [
        TableRewrite(
            operator_id,
            table,
            files_before=sum(one.files_before for one in some),
            files_after=sum(one.files_after for one in some),
            bytes_before=sum(one.bytes_before for one in some),
            bytes_after=sum(one.bytes_after for one in some),
        )
        for (operator_id, table), some in sorted(groups.items())
    ]
