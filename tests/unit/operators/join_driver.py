"""Runs a join over epochs in all its subtasks, with real checkpoints, restarts and rescales, on a store in memory."""

import collections
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.arrays.key_hash import HASH_SEED, hash_columns, normalise_key
from statebed.checkpoint import EpochDraft, Retention, Run, RunOptions
from statebed.format.ranges import in_range, owned_range
from statebed.format.schema import KEY_HASH, TIMESTAMP
from statebed.format.stream_schema import Input
from statebed.operators.operator import MAIN, Clock, Operator, StepResult
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    TableManager,
    TaskInfo,
    Tiers,
    operator_entry,
)
from statebed.storage import MemoryStore, ScopedStore

JOB = "joined"
LEFT = Input("bids", pa.schema([("auction", pa.int64()), ("price", pa.int64())]), ("auction",))
RIGHT = Input("auctions", pa.schema([("id", pa.int64()), ("price", pa.int64())]), ("id",))
YEAR_20000 = 568_971_820_800_000_000
OPTIONS = RunOptions(retention=Retention(epochs=3, reader_grace="0 s"))


@dataclass(frozen=True)
class Above:
    """A condition on pairs."""

    text = "price > price_right"
    type = pa.bool_()
    columns = frozenset({"price", "price_right"})

    def evaluate(self, batch: pa.Table) -> pa.Array:
        return pc.greater(batch["price"], batch["price_right"]).combine_chunks()


def left(time: int | None, key: int | None, price: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"_time": time, "auction": key, "price": price, **more}


def right(time: int | None, key: int | None, price: int | None = 0, **more: Any) -> dict[str, Any]:
    return {"_time": time, "id": key, "price": price, **more}


def shown(rows: Sequence[dict[str, Any]]) -> "collections.Counter[tuple[Any, ...]]":
    """The rows as a multiset."""
    return collections.Counter(tuple(row.values()) for row in rows)


def routed(rows: Sequence[dict[str, Any]], one: Input) -> pa.Table:
    """Rows (dicts with `_time` in microseconds) as an input has them."""
    times = pa.array([row.get("_time") for row in rows], pa.int64()).cast(TIMESTAMP)
    plain = [{name: row.get(name) for name in one.columns.names} for row in rows]
    columns = pa.Table.from_pylist(plain, schema=one.columns)
    hashes = np.full(len(rows), HASH_SEED, dtype=np.uint64)
    if one.keys:
        hashes = hash_columns([normalise_key(columns[key].combine_chunks()) for key in one.keys])
    extra = [columns[name] for name in one.columns.names]
    weights = [pa.array([row.get("_weight", 1) for row in rows], pa.int64())] if "_weight" in one.schema.names else []
    hashed = from_numpy(hashes, pa.uint64()).view(pa.int64())
    return pa.Table.from_arrays([hashed, times, *extra, *weights], schema=one.schema)


class Driver:
    """A join at work."""

    def __init__(self, operator: Operator, parallelism: int = 1, *, budget: int | None = None) -> None:
        self.operator = operator
        self.store = ScopedStore(MemoryStore(), JOB)
        self.watermark: int | None = None
        self.time = 0
        self.steps: list[list[StepResult]] = []
        self._tiers = None if budget is None else Tiers(MemoryController(budget=budget))
        self._managers: list[TableManager] = []
        self.restart(parallelism)

    def restart(self, parallelism: int) -> None:
        """Forget everything in memory and restore from the last record, perhaps with another number of subtasks."""
        self.close()
        self._run = Run.open(self.store, JOB, options=OPTIONS)
        more: dict[str, Any] = {} if self._tiers is None else {"tiers": self._tiers}
        self._managers = [
            TableManager(
                TaskInfo(JOB, self.operator.operator_id, index, parallelism),
                self.operator.tables,
                self.store,
                restore_from=self._run.head,
                combines=self.operator.combines,
                options=ManagerOptions(compaction=CompactionMode.IN_LINE),
                **more,
            )
            for index in range(parallelism)
        ]

    def close(self) -> None:
        for manager in self._managers:
            manager.close()

    def epoch(
        self, *inputs: Sequence[dict[str, Any]] | pa.Table, watermark: int | None = None, time: int | None = None
    ) -> list[dict[str, Any]]:
        """One epoch, committed; gives the rows of the main output, their times in microseconds."""
        return self.rows(MAIN, self.step(*inputs, watermark=watermark, time=time))

    def step(
        self, *inputs: Sequence[dict[str, Any]] | pa.Table, watermark: int | None = None, time: int | None = None
    ) -> list[StepResult]:
        """One epoch, committed; gives the results of its subtasks."""
        late, self.time = self.watermark, self.time + 1 if time is None else time
        self.watermark = watermark if late is None else max(late, watermark if watermark is not None else late)
        clock = Clock(late_us=late, watermark_us=self.watermark, epoch_time_us=self.time)
        tables = [
            rows if isinstance(rows, pa.Table) else routed(rows, one)
            for rows, one in zip(inputs, self.operator.inputs, strict=True)
        ]
        results = []
        for index, manager in enumerate(self._managers):
            manager.advance(time=self.time)
            parts = [
                _owned(rows, index, len(self._managers)).to_batches(max_chunksize=max(3, rows.num_rows // 8))
                for rows in tables
            ]
            results.append(self.operator.step(manager, parts, clock))
        for result in results:
            for name, rows in result.outputs.items():
                assert rows.schema.equals(self.operator.outputs[name].schema), name
        self.steps.append(results)
        epoch = self._run.next_epoch
        waiting = [one.checkpoint(epoch, watermark=self.watermark, time=self.time) for one in self._managers]
        done = [one.result(timeout=30) for one in waiting]
        self._run.commit(EpochDraft(operators=[operator_entry(done)], epoch_time_us=self.time))
        return results

    def rows(self, name: str, results: Sequence[StepResult] | None = None) -> list[dict[str, Any]]:
        """Rows of an output, of these results or of all epochs."""
        some = [result for step in self.steps for result in step] if results is None else results
        return [row for result in some if name in result.outputs for row in as_rows(result.outputs[name])]

    def used_memory(self) -> int:
        """Bytes that all tables hold in memory."""
        return max((one.metrics().memory.used for one in self._managers), default=0)

    def state_rows(self) -> int:
        """Rows in all tables."""
        return sum(self.table_rows(name) for name in self.operator.tables)

    def table_rows(self, name: str) -> int:
        kind = self.operator.tables[name].WhichOneof("kind")
        views = [one.get_keyed(name) if kind == "keyed" else one.get_time_keyed(name) for one in self._managers]
        return sum(piece.num_rows for view in views for piece in view.scan())


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows with times as microseconds: Python's own do not reach as far."""
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type) else column
        for column in table.columns
    ]
    rows: list[dict[str, Any]] = pa.Table.from_arrays(columns, names=table.column_names).to_pylist()
    return rows


def output_bytes(result: StepResult) -> dict[str, bytes]:
    """All outputs of a step, byte by byte."""
    found = {}
    for name, rows in result.outputs.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows.combine_chunks())
        found[name] = sink.getvalue().to_pybytes()
    return found


def _owned(rows: pa.Table, index: int, parallelism: int) -> pa.Table:
    hashes = rows[KEY_HASH].combine_chunks().view(pa.uint64())
    mine = in_range(uint64_values(hashes), owned_range(index, parallelism))
    return rows.take(from_numpy(np.flatnonzero(mine), pa.int64()))


def output_in_any_order(
    driver: Driver, rows: Sequence[list[Any]], chance: random.Random, *, epochs: int, span: int
) -> list[dict[str, bytes]]:
    """Return the output of epochs of 50 rows a side, which are shuffled; the watermark advances by `span` each time."""
    for number in range(epochs):
        sides = [side[number * 50 : number * 50 + 50] for side in rows]
        for side in sides:
            chance.shuffle(side)
        driver.epoch(*sides, watermark=number * span)
    output = [output_bytes(result) for step in driver.steps for result in step]
    driver.close()
    return output
