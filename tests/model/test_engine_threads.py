"""Subtasks on threads of their own, all on one small budget: each evicts what others hold, and none may wait for ever,
miss a row, or see one twice.
"""

import datetime as dt
import random
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from model.engine_model import KEYED, TABLES, TIMED, Model, Row
from model.engine_shape import Shape, micros
from model.engine_world import JOB, OPERATOR, rows_of

from statebed.arrays.key_hash import hash_columns
from statebed.format.ranges import subtask_of
from statebed.state import (
    Compaction,
    DeleteKey,
    DeleteTimeRange,
    DeleteValue,
    ManagerOptions,
    MemoryController,
    Purpose,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    Tiers,
)
from statebed.storage import MemoryStore, ScopedStore

SUBTASKS = 4
BUDGET = 1 << 18
SECONDS = 120
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Subtask(threading.Thread):
    """One subtask and its model; whatever goes wrong is kept for the test to show."""

    def __init__(self, index: int, tiers: Tiers, *, seed: int, steps: int) -> None:
        super().__init__(daemon=True, name=f"subtask {index}")
        task = TaskInfo(JOB, OPERATOR, index, SUBTASKS)
        self.shape = Shape(wide=True)
        self.store = ScopedStore(MemoryStore(), JOB)
        options = ManagerOptions(timeout_seconds=SECONDS)
        self.manager = TableManager(task, self.shape.configs(), self.store, tiers=tiers, options=options)
        self.model = Model()
        self.random = random.Random(seed * SUBTASKS + index)
        owners = subtask_of(hash_columns([pa.array(range(4000), pa.int64())]), SUBTASKS)
        self.keys = np.flatnonzero(owners == index).tolist()
        self.steps = steps
        self.epoch = 1
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            for _ in range(self.steps):
                self.step()
            self.check()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.problem = error

    def step(self) -> None:
        choice = self.random.random()
        table = self.random.choice(TABLES)
        if choice < 0.5:
            batch = self.rows(table, self.random.choice([5, 400, 900]))
            self.send(table, batch)
            self.model.write(table, batch)
        elif choice < 0.6:
            batch = self.rows(self.random.choice(KEYED), 300)
            table = self.random.choice(KEYED)
            batch = [row._replace(time=row.time if table in TIMED else 0) for row in batch]
            self.merge(table, batch)
            self.model.merge(table, batch)
        elif choice < 0.7:
            batch = self.rows(table, 100)
            self.manager.send(TableData(table, RecordBatch(self.shape.batch(table, batch), DeleteKey())))
            self.model.delete_keys(table, {row.key for row in batch})
        elif choice < 0.75:
            batch = self.random.choices(sorted(self.model.rows(table), key=repr) or self.rows(table, 3), k=20)
            self.manager.send(TableData(table, RecordBatch(self.shape.batch(table, batch), DeleteValue())))
            self.model.delete_values(table, batch)
        elif choice < 0.8:
            table, start = self.random.choice(TIMED), self.random.randint(0, 50)
            nothing = RecordBatch(self.shape.batch(table, []), DeleteTimeRange(start, start + 10))
            self.manager.send(TableData(table, nothing))
            self.model.delete_times(table, start, start + 10)
        elif choice < 0.85:
            self.manager.send(Compaction())
        elif choice < 0.95:
            self.epoch += 1
            watermark = EPOCH + micros(self.model.watermark_us or 0)
            answer = self.manager.checkpoint(self.epoch, watermark=watermark)
            self.model.advance(self.model.watermark_us or 0)
            if self.random.random() < 0.5:
                answer.result(timeout=SECONDS)
        else:
            self.check()

    def rows(self, table: str, count: int) -> list[Row]:
        keys = self.random.sample(self.keys, min(count, len(self.keys)))
        return [Row(key, key % 50 if table in TIMED else 0, self.random.randint(0, 9), f"{key:>20}") for key in keys]

    def send(self, table: str, batch: list[Row]) -> None:
        self.manager.send(TableData(table, RecordBatch(self.shape.batch(table, batch))))

    def merge(self, table: str, batch: list[Row]) -> None:
        rows = self.shape.batch(table, batch)
        times = rows.column("_time") if table in TIMED else None
        values = rows.select([field.name for field in self.shape.values])
        self.manager.get_keyed(table).merge(rows.select(["key"]), values, self.shape.add_up, times=times)

    def check(self) -> None:
        for table in TABLES:
            assert rows_of(table, [self.manager], self.shape) == self.model.rows(table), table


def run_together(folder: Path, *, seed: int, steps: int) -> None:
    tiers = Tiers(MemoryController(BUDGET, wait_seconds=SECONDS), folder=folder)
    subtasks = [Subtask(index, tiers, seed=seed, steps=steps) for index in range(SUBTASKS)]
    for subtask in subtasks:
        subtask.start()
    for subtask in subtasks:
        subtask.join(SECONDS)
    assert not [subtask.name for subtask in subtasks if subtask.is_alive()], "it waits for ever"
    for subtask in subtasks:
        if subtask.problem is not None:
            raise AssertionError(f"{subtask.name} failed") from subtask.problem
    memory = tiers.memory.snapshot()
    assert memory.events["spills"] > 0
    assert sum(nbytes for (_, purpose), nbytes in memory.accounts.items() if purpose is not Purpose.MERGES) <= BUDGET
    for subtask in subtasks:
        subtask.manager.close()
    tiers.close()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_p4_subtasks_on_threads_of_their_own_share_a_budget(tmp_path: Path, seed: int) -> None:
    run_together(tmp_path, seed=seed, steps=25)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(100, 130))
def test_p4_subtasks_share_a_budget_for_long(tmp_path: Path, seed: int) -> None:
    run_together(tmp_path, seed=seed, steps=200)
