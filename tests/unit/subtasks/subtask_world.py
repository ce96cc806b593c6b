"""Epochs of one operator as Spark runs them: every subtask restored, stepped, stored and ended, then a real record."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.checkpoint import EpochDraft, Retention, Run, RunOptions
from statebed.checkpoint.objects import fetch_subtask
from statebed.flow.graph import OperatorNode
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import subtask_of
from statebed.format.schema import KEY_HASH, SEQUENCE
from statebed.operators.operator import Operator
from statebed.state import TableManager, TaskInfo, Tiers
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.subtasks import CompactedSubtask, CompactionTask, SubtaskReport, SubtaskTask, compact_subtask, run_subtask

JOB = "job"
RETAINED = 3


@dataclass(frozen=True)
class Told:
    """Information about compactions that subtasks receive."""

    edits: tuple[bytes, ...] = ()
    compacting_epoch: int | None = None


class SubtaskWorld:
    """A job of one operator, with nothing in memory between its epochs but the run."""

    def __init__(
        self, node: OperatorNode, *, parallelism: int = 1, store: ObjectStore | None = None, tiers: Tiers | None = None
    ) -> None:
        self.node = node
        self.parallelism = parallelism
        self.disk = store or MemoryStore()
        self.tiers = tiers
        self.late_us: int | None = None
        self.epoch_time_us = 1
        self.reports: list[SubtaskReport] = []
        """Reports of the last epoch."""
        self.restart()

    @property
    def store(self) -> ObjectStore:
        return ScopedStore(self.disk, JOB)

    @property
    def operator(self) -> Operator:
        return self.node.operator

    def restart(self) -> None:
        retention = Retention(epochs=RETAINED, reader_grace="0 s")
        self.run = Run.open(self.store, JOB, options=RunOptions(retention=retention))

    def epoch(
        self, given: Sequence[pa.Table], *, watermark_us: int | None, told: Told | None = None
    ) -> pb.CheckpointMetadata:
        """Rows of the operator's inputs through all subtasks, and the record."""
        told = told or Told()
        self.epoch_time_us += 1
        fed = [feed.apply(rows) for feed, rows in zip(self.node.feeds, given, strict=True)]
        watermark_us = _greatest(self.late_us, watermark_us)
        self.reports = []
        for index in range(self.parallelism):
            task = SubtaskTask(
                job_id=JOB,
                epoch=self.run.next_epoch,
                operator=self.operator,
                subtask_index=index,
                parallelism=self.parallelism,
                base=tuple(one.SerializeToString() for one in self.references(self.run.head)),
                late_us=self.late_us,
                watermark_us=watermark_us,
                epoch_time_us=self.epoch_time_us,
                edits=told.edits,
                compacting_epoch=told.compacting_epoch,
            )
            mine = [_owned_by(rows, index, self.parallelism).to_batches() for rows in fed]
            self.reports.append(run_subtask(task, self.store, *mine, tiers=self.tiers))
        self.late_us = watermark_us
        entry = pb.OperatorEntry(
            operator_id=self.operator.operator_id,
            parallelism=self.parallelism,
            subtasks=[report.reference for report in self.reports],
        )
        draft = EpochDraft(
            operators=[entry],
            outbox=[file for report in self.reports for file in report.outbox],
            epoch_time_us=self.epoch_time_us,
            parallelism=self.parallelism,
        )
        return self.run.commit(draft)

    def compact(self, *, max_bytes: int = 1 << 30) -> list[CompactedSubtask]:
        """Return the result of a round that begins now and includes every subtask."""
        return [compact_subtask(task, self.store, tiers=self.tiers) for task in self.tasks(max_bytes=max_bytes)]

    def tasks(self, *, max_bytes: int = 1 << 30) -> list[CompactionTask]:
        head = self.run.head
        return [
            CompactionTask(
                job_id=JOB,
                run=self.run.number,
                epoch=head.epoch,
                operator=self.operator,
                parallelism=head.operators[0].parallelism,
                reference=reference.SerializeToString(),
                epoch_time_us=head.epoch_time_us,
                max_bytes=max_bytes,
            )
            for reference in self.references(head)
        ]

    def references(self, record: pb.CheckpointMetadata) -> list[pb.SubtaskReference]:
        return [one for entry in record.operators for one in entry.subtasks]

    def files(self) -> dict[tuple[int, str], list[pb.FileEntry]]:
        """The live files at the head, by subtask and table."""
        found = {}
        for reference in self.references(self.run.head):
            metadata = fetch_subtask(self.store, reference)
            for name, table in metadata.tables.items():
                found[reference.subtask_index, name] = list(table.subtasks[reference.subtask_index].files)
        return found

    def tables(self) -> dict[str, pa.Table]:
        """All rows of all tables at the head; partials of one key and time are combined."""
        with TableManager(
            TaskInfo(JOB, self.operator.operator_id),
            self.operator.tables,
            self.store,
            restore_from=self.run.head,
            combines=self.operator.combines,
        ) as manager:
            found = {}
            for name, config in self.operator.tables.items():
                if config.WhichOneof("kind") == "keyed":
                    view = manager.get_keyed(name)
                    keys, values = view.table.key_schema, view.table.value_schema
                    pieces = list(view.scan()) or [pa.schema([*keys, *values]).empty_table()]
                else:
                    state = manager.get_time_keyed(name)._state
                    rows = state.snapshot(lambda live: live.files).in_order()
                    pieces = [piece.drop_columns([SEQUENCE]) for piece in (state.empty, *rows)]
                found[name] = pa.concat_tables(pieces)
        return found

    def state(self) -> dict[str, list[str]]:
        """The same as text, in one order."""
        return {name: sorted(map(repr, rows.to_pylist())) for name, rows in self.tables().items()}

    def names(self) -> set[str]:
        return {info.path for info in self.store.list("")}


def edits_of(results: Sequence[CompactedSubtask]) -> tuple[bytes, ...]:
    return tuple(edit for one in results for edit in one.edits)


def _owned_by(rows: pa.Table, index: int, parallelism: int) -> pa.Table:
    owners = subtask_of(uint64_values(rows[KEY_HASH]), parallelism)
    return rows.take(from_numpy(np.flatnonzero(owners == index), pa.int64()))


def _greatest(*times: int | None) -> int | None:
    return max((one for one in times if one is not None), default=None)
