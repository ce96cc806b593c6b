"""Migration of all files of a job to the current columns, and of values of global tables to the current version of
their types.

The engine reads older columns and versions as they are, and rewrites them only when it compacts files. A migration
rewrites all of them now, so that the older definitions are no longer needed. Columns come from the stored definitions;
the types of values are part of the program and are given as `module:Class`.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from statebed.checkpoint import CheckpointLog, Run
from statebed.checkpoint.objects import fetch_subtask
from statebed.errors import InputError, MigrationError, UnknownTableError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import register_schema
from statebed.maintain.rewrite import OPTIONS, OnSubtask, RewriteResult, commit_operators, rewrite
from statebed.maintain.tool_runs import own_run, whole_head
from statebed.operators.labels import stored_label
from statebed.state import CommitData, MigratableState, TableData, TableManager, TaskInfo, operator_entry
from statebed.state.manager.evolved_parts import file_schema
from statebed.state.value_versions import decoder

Types = Mapping[tuple[str, str], Any]
"""Types of values by operator and table."""


@dataclass(frozen=True)
class OutdatedTable:
    """A table that differs from the current definitions."""

    operator_id: str
    table: str
    files: int = 0
    """Number of files with older columns."""
    bytes: int = 0
    versions: tuple[int, ...] = ()
    """Versions of values that are older than the given type."""
    version: int | None = None
    """Version of the given type."""


def find_outdated(log: CheckpointLog, types: Types | None = None) -> list[OutdatedTable]:
    """Return the tables that a migration would rewrite. Reads only metadata. Raise if the stored versions cannot be
    migrated to the given types.
    """
    head = whole_head(log)
    left = dict(types or {})
    tables = []
    for entry in head.operators:
        parts = [fetch_subtask(log.store, reference) for reference in entry.subtasks]
        for name in sorted({name for part in parts for name in part.tables}):
            declared = left.pop((entry.operator_id, name), None)
            outdated = _outdated(entry, name, parts, declared)
            if outdated is not None:
                tables.append(outdated)
    if left:
        (operator, table), *_ = left
        raise UnknownTableError(
            f"operator {operator!r} of the job has no table {table!r}",
            where=f"job {log.job_id}",
            fix="`statebed show` lists operators and tables",
        )
    return tables


def migrate_offline(
    log: CheckpointLog,
    *,
    types: Types | None = None,
    memory: int | None = None,
    on_subtask: OnSubtask | None = None,
    only_after: int | None = None,
) -> tuple[list[OutdatedTable], RewriteResult]:
    """Rewrite all outdated tables in a separate run: first values, then columns, with one record each.

    See `own_run` for `only_after`.
    """
    tables = find_outdated(log, types)
    done = RewriteResult(None)
    values = {(outdated.operator_id, outdated.table) for outdated in tables if outdated.versions}
    if values:
        run = own_run(log, only_after=only_after)
        done = _migrate_values(run, {key: kind for key, kind in (types or {}).items() if key in values})
    columns: dict[str, set[str]] = {}
    for outdated_table in tables:
        if outdated_table.files:
            columns.setdefault(outdated_table.operator_id, set()).add(outdated_table.table)
    if columns:
        if only_after is not None and done.changed is not None:
            only_after = done.changed.epoch
        rewritten = rewrite(log, columns, memory=memory, on_subtask=on_subtask, only_after=only_after)
        done = RewriteResult(rewritten.changed or done.changed, rewritten.tables)
    return tables, done


def load_type(text: str) -> Any:
    """Import the type given as `module:Class`."""
    module, _, name = text.partition(":")
    try:
        imported: Any = importlib.import_module(module)
        for part in name.split("."):
            imported = getattr(imported, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"cannot import the type {text!r}: {error}",
            fix="pass it as module:Class, and run where the module can be imported (PYTHONPATH)",
        ) from error
    if not isinstance(imported, MigratableState):
        raise InputError(
            f"{text} does not define how to migrate from the previous version",
            fix="define VERSION, PREVIOUS and migrate (MigratableState)",
        )
    return imported


def _outdated(
    entry: pb.OperatorEntry, name: str, parts: list[pb.OperatorCheckpointMetadata], declared: Any
) -> OutdatedTable | None:
    tables = [part.tables[name] for part in parts if name in part.tables]
    operator_id = entry.operator_id
    where = f"{stored_label(operator_id, entry.definition)}, table {name!r}"
    if tables[0].config.WhichOneof("kind") == "global_keyed":
        if declared is None:
            return None
        stored = {
            table.config.state_version for table in tables if any(subtask.files for subtask in table.subtasks.values())
        }
        for version in stored:
            decoder(declared, stored=version, current=declared.VERSION, where=where)
        older = tuple(sorted(version for version in stored if version != declared.VERSION))
        return OutdatedTable(operator_id, name, versions=older, version=declared.VERSION) if older else None
    if declared is not None:
        raise MigrationError(
            f"the table {name!r} has columns, not values of a type", where=where, fix="leave out its type"
        )
    files: dict[str, int] = {}
    for table in tables:
        for part in table.subtasks.values():
            current = register_schema(part.schemas, file_schema(table.config))[0]
            files |= {file.path: int(file.size) for file in part.files if file.schema_id != current}
    return OutdatedTable(operator_id, name, len(files), sum(files.values())) if files else None


def _migrate_values(run: Run, types: Types) -> RewriteResult:
    """Read the values of global tables through their older types and store them as the current ones."""
    entries = []
    for stored in run.head.operators:
        mine = {table: kind for (operator, table), kind in types.items() if operator == stored.operator_id}
        entries.append(_migrated(run, stored, mine) if mine else stored)
    return RewriteResult(commit_operators(run, entries))


def _migrated(run: Run, stored: pb.OperatorEntry, types: Mapping[str, Any]) -> pb.OperatorEntry:
    completed = []
    metadata = fetch_subtask(run.store, stored.subtasks[0])
    configs: dict[str, pb.TableConfig] = {}
    for name, table in metadata.tables.items():
        configs[name] = pb.TableConfig()
        configs[name].CopyFrom(table.config)
        if name in types:
            configs[name].state_version = types[name].VERSION
    for index in range(stored.parallelism):
        task = TaskInfo(run.job_id, stored.operator_id, index, stored.parallelism)
        with TableManager(task, configs, run.store, restore_from=run.head, options=OPTIONS) as manager:
            for name, kind in types.items():
                manager.get_global_keyed_state(name, value_type=kind)
            for name in configs:
                for piece in manager.commit_data(name):
                    manager.send(TableData(name, CommitData(piece)))
            taken = manager.checkpoint(run.next_epoch, 0, manager.watermark_us, time=run.head.epoch_time_us or None)
            done = taken.result(OPTIONS.timeout_seconds)
            completed.append(replace(done, watermark_us=manager.watermark_us))
    entry = pb.OperatorEntry()
    entry.CopyFrom(stored)
    del entry.subtasks[:]
    entry.subtasks.extend(operator_entry(completed).subtasks)
    return entry
