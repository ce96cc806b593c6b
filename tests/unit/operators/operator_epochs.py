"""One operator on several subtasks, epoch after epoch: rows are routed, stepped, checkpointed; restarts, rescaling."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.key_hash import HASH_SEED, hash_columns
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input
from statebed.operators.operator import Clock, Operator, StepResult
from statebed.state import CompactionMode, ManagerOptions, TableManager, TaskInfo, Tiers, operator_entry
from statebed.storage import MemoryStore

JOB = "job"
OPTIONS = ManagerOptions(compaction=CompactionMode.IN_LINE)


def rows_of(one: Input, rows: Sequence[Mapping[str, Any]], times: Sequence[int | None]) -> pa.Table:
    """Rows as an operator's input has them; times are microseconds, so that any year will do."""
    valid = np.array([time is not None for time in times], dtype=np.bool_)
    micros = np.array([time or 0 for time in times], dtype=np.int64)
    columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in one.columns]
    keys = [columns[one.columns.get_field_index(name)] for name in one.keys]
    hashes = hash_columns(keys) if keys else np.full(len(rows), HASH_SEED, dtype=np.uint64)
    leading = [from_numpy(hashes.view(np.int64), pa.int64()), from_numpy(micros, TIMESTAMP, valid=valid)]
    weights = [pa.array([row.get(WEIGHT, 1) for row in rows], pa.int64())] if one.changes is Changes.CHANGELOG else []
    return pa.Table.from_arrays([*leading, *columns, *weights], schema=one.schema)


class Epochs:
    """The live subtasks of an operator."""

    def __init__(
        self,
        operator: Operator,
        *,
        parallelism: int = 1,
        tiers: Tiers | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.operator = operator
        self.store = MemoryStore()
        self.tiers = tiers
        self.chance = chance or random.Random(0)
        """Order and batches of rows."""
        self.record: pb.CheckpointMetadata | None = None
        self.late_us: int | None = None
        self.epoch_time_us = 0
        self.managers: list[TableManager] = []
        self.results: list[StepResult] = []
        """Results of the last epoch, by subtask."""
        self.restart(parallelism)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for manager in self.managers:
            manager.close()

    def restart(self, parallelism: int) -> None:
        """Forget everything in memory, and continue from the last epoch with this parallelism."""
        self.close()
        self.managers = [
            TableManager(
                TaskInfo(JOB, self.operator.operator_id, index, parallelism),
                self.operator.tables,
                self.store,
                restore_from=self.record,
                options=OPTIONS,
                tiers=self.tiers,
                combines=self.operator.combines,
            )
            for index in range(parallelism)
        ]

    def feed(
        self, *inputs: pa.Table, watermark_us: int | None = None, epoch_time_us: int | None = None
    ) -> dict[str, pa.Table]:
        """One epoch: the outputs of all subtasks, one after the other."""
        known = [one for one in (watermark_us, self.late_us) if one is not None]
        self.epoch_time_us = max(self.epoch_time_us + 1, epoch_time_us or 0)
        clock = Clock(self.late_us, max(known, default=None), self.epoch_time_us)
        self.results = []
        for index, manager in enumerate(self.managers):
            manager.advance(time=clock.epoch_time_us)
            mine = [self._share(rows, index) for rows in inputs]
            self.results.append(self.operator.step(manager, mine, clock))
        self._commit(clock)
        self.late_us = clock.watermark_us
        return {
            name: pa.concat_tables(
                [output.schema.empty_table(), *(one.outputs[name] for one in self.results if name in one.outputs)]
            )
            for name, output in self.operator.outputs.items()
        }

    def state_rows(self, table: str) -> int:
        """Rows that can be seen in a table."""
        config = self.operator.tables[table]
        total = 0
        for manager in self.managers:
            keyed = config.WhichOneof("kind") == "keyed"
            view = manager.get_keyed(table) if keyed else manager.get_time_keyed(table)
            total += sum(piece.num_rows for piece in view.scan())
        return total

    def _share(self, rows: pa.Table, index: int) -> list[pa.RecordBatch]:
        hashes = one_chunk(rows[KEY_HASH]).cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
        owners = ((hashes >> np.uint64(32)) * np.uint64(len(self.managers))) >> np.uint64(32)
        order = np.flatnonzero(owners == index).tolist()
        self.chance.shuffle(order)
        cuts = sorted(self.chance.randrange(len(order) + 1) for _ in range(2))
        pieces = [order[: cuts[0]], order[cuts[0] : cuts[1]], order[cuts[1] :]]
        return [batch for piece in pieces for batch in rows.take(pa.array(piece, pa.int64())).to_batches()]

    def _commit(self, clock: Clock) -> None:
        epoch = 1 if self.record is None else self.record.epoch + 1
        waiting = [
            manager.checkpoint(epoch, 0, clock.watermark_us, time=clock.epoch_time_us) for manager in self.managers
        ]
        entry = operator_entry([one.result(timeout=60) for one in waiting])
        self.record = pb.CheckpointMetadata(
            job_id=JOB, epoch=epoch, operators=[entry], epoch_time_us=clock.epoch_time_us
        )


def plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Rows as dicts, with `_time` in microseconds."""
    at = rows.schema.get_field_index(TIME)
    shown = rows.set_column(at, TIME, rows[TIME].cast(pa.int64())) if at >= 0 else rows
    found: list[dict[str, Any]] = shown.to_pylist()
    return found
