"""Rewriting of state in a separate run: compacts files, and converts files with older columns to the current ones.

Subtasks are processed one after the other within a memory budget: their tables are restored from the head as stored,
and the engine's compaction rewrites their files. The outputs are in the compaction folder of the run and become visible
only through the one record at the end. A tool that crashes leaves the job unchanged, plus garbage.
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
"""Compactions may take long here, because nothing else runs."""

OnSubtask = Callable[[int, int, str], None]
"""Called with the number of subtasks done, their total, and the name of the last one."""


@dataclass(frozen=True)
class TableRewrite:
    """Files of a table before and after."""

    operator_id: str
    table: str
    files_before: int
    files_after: int
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class RewriteResult:
    """Rewritten tables; `changed` is None if nothing needed to be rewritten."""

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
) -> RewriteResult:
    """Compact all files of a job's tables, or the selected ones, in a separate run; see `own_run` for `only_after`."""
    head = whole_head(log)
    chosen = choose_tables(log, head, operator=operator, table=table)
    if not _is_worth_it(log, head, chosen):
        return RewriteResult(None)
    return rewrite(log, chosen, memory=memory, on_subtask=on_subtask, only_after=only_after)


def rewrite(
    log: CheckpointLog,
    chosen: Mapping[str, Collection[str]],
    *,
    memory: int | None = None,
    on_subtask: OnSubtask | None = None,
    only_after: int | None = None,
) -> RewriteResult:
    """Compact all files of these tables, given by operator, and commit the result as one record."""
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
                after = _compacted(run, reference, before, sorted(chosen[entry.operator_id]), tiers)
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
        return RewriteResult(None)
    return RewriteResult(commit_operators(run, entries), tuple(_summed(tables)))


def commit_operators(
    run: Run, entries: Sequence[pb.OperatorEntry], *, parallelism: int | None = None
) -> CommittedChange:
    """Commit the record that makes the rewritten files visible. A given parallelism applies to later runs that set
    none.
    """
    draft = replace(run.carry_over(pb.STOPPED), operators=list(entries))
    if parallelism is not None:
        draft = replace(draft, parallelism=parallelism, chosen_parallelism=parallelism)
    record = run.commit(draft)
    return CommittedChange(int(record.epoch), int(record.run), Through.OWN_RUN)


def choose_tables(
    log: CheckpointLog, head: pb.CheckpointMetadata, *, operator: str | None = None, table: str | None = None
) -> dict[str, set[str]]:
    """Return all tables of a job by operator, or the selected ones. Raise InputError if nothing matches."""
    by_operator: dict[str, set[str]] = {}
    for entry in head.operators:
        if entry.subtasks and operator in {None, entry.operator_id}:
            names = set(fetch_subtask(log.store, entry.subtasks[0]).tables)
            by_operator[entry.operator_id] = names if table is None else names & {table}
    by_operator = {name: tables for name, tables in by_operator.items() if tables}
    if not by_operator:
        known = ", ".join(entry.operator_id for entry in head.operators) or "none"
        wanted = " of ".join(
            text for text in (f"table {table!r}" if table else "", f"operator {operator!r}" if operator else "") if text
        )
        raise InputError(
            f"the job has no {wanted or 'table'}",
            where=f"job {log.job_id}; operators: {known}",
            fix="`statebed show` lists operators and tables",
        )
    return by_operator


@contextmanager
def _tiers(memory: int | None) -> Iterator[Tiers]:
    tiers = Tiers(MemoryController(memory or budget_of()))
    try:
        yield tiers
    finally:
        tiers.close()


def _is_worth_it(log: CheckpointLog, head: pb.CheckpointMetadata, chosen: Mapping[str, Collection[str]]) -> bool:
    """Return whether anything would be compacted, from metadata alone. Called before a run is fenced."""
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
    """Build the manager of a subtask's tables as they are stored."""
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


def _compacted(
    run: Run,
    reference: pb.SubtaskReference,
    stored: pb.OperatorCheckpointMetadata,
    tables: Sequence[str],
    tiers: Tiers,
) -> pb.OperatorCheckpointMetadata:
    """Return the subtask's metadata after compaction, or the same object if nothing was compacted."""
    index = stored.subtask_index
    with _manager(run.store, run.head, reference, stored, tiers) as manager:
        edits = manager.compact_to_edits(*tables, run=run.number, max_bytes=None)
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
    """Sum the rewrites of all subtasks of each table."""
    groups: dict[tuple[str, str], list[TableRewrite]] = {}
    for rewrite in tables:
        groups.setdefault((rewrite.operator_id, rewrite.table), []).append(rewrite)
    return [
        TableRewrite(
            operator_id,
            table,
            files_before=sum(subtask.files_before for subtask in rewrites),
            files_after=sum(subtask.files_after for subtask in rewrites),
            bytes_before=sum(subtask.bytes_before for subtask in rewrites),
            bytes_after=sum(subtask.bytes_after for subtask in rewrites),
        )
        for (operator_id, table), rewrites in sorted(groups.items())
    ]
