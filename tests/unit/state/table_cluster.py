"""A job of several subtasks in one process: managers, a run that commits what they store, restarts, rescaling."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from statebed.checkpoint import EpochDraft, Origin, Retention, Run, RunOptions
from statebed.format import checkpoint_pb2 as pb
from statebed.state import (
    CheckpointCompleted,
    GlobalKeyedView,
    TableConfig,
    TableManager,
    TaskInfo,
    global_table_config,
    operator_entry,
)
from statebed.storage import MemoryStore, ObjectStore, ScopedStore

JOB = "rides"
OPERATOR = "count"
TABLE = "counters"
COUNTERS = global_table_config(TABLE, "Counts per driver")
OPTIONS = RunOptions(retention=Retention(epochs=4, reader_grace="0 s"))


def managers_at(
    store: ObjectStore,
    record: pb.CheckpointMetadata | None,
    parallelism: int,
    configs: Mapping[str, TableConfig] = COUNTERS,
    **more: Any,
) -> list[TableManager]:
    """All subtasks of the operator, restored from a record."""
    return [
        TableManager(TaskInfo(JOB, OPERATOR, index, parallelism), configs, store, restore_from=record, **more)
        for index in range(parallelism)
    ]


class Cluster:
    """The live subtasks of a job; `restart` makes new ones, from what is committed."""

    def __init__(
        self,
        parallelism: int = 1,
        configs: Mapping[str, TableConfig] = COUNTERS,
        *,
        store: ObjectStore | None = None,
        **more: Any,
    ) -> None:
        self.store = ScopedStore(store or MemoryStore(), JOB)
        self.configs = configs
        self.more = more
        """Arguments of managers."""
        self.managers: list[TableManager] = []
        self.restart(parallelism)

    def restart(
        self, parallelism: int, configs: Mapping[str, TableConfig] | None = None, *, origin: Origin | None = None
    ) -> None:
        """Forget everything in memory, fence the old run, restore: the head, or another epoch."""
        self.close()
        self.configs = configs or self.configs
        self.run = Run.open(self.store, JOB, options=replace(OPTIONS, origin=origin or Origin()))
        self.managers = managers_at(self.store, self.run.head, parallelism, self.configs, **self.more)

    def close(self) -> None:
        for manager in self.managers:
            manager.close()

    def views(self, **types: Any) -> list[GlobalKeyedView[Any, Any]]:
        return [manager.get_global_keyed_state(TABLE, **types) for manager in self.managers]

    def owner(self, key: Any) -> GlobalKeyedView[Any, Any]:
        """The view of the one subtask that writes the key."""
        (view,) = [view for view in self.views() if view.owns(key)]
        return view

    def store_epoch(self) -> list[CheckpointCompleted]:
        """Every subtask's part of the next epoch, durable, but named by no record yet."""
        epoch, least = self.run.next_epoch, self.run.head.min_epoch
        waiting = [manager.checkpoint(epoch, least) for manager in self.managers]
        return [one.result(timeout=30) for one in waiting]

    def commit(self) -> pb.CheckpointMetadata:
        """One whole epoch, which every subtask then sees."""
        record = self.run.commit(EpochDraft(operators=[operator_entry(self.store_epoch())]))
        for manager in self.managers:
            manager.refresh(record)
        return record
