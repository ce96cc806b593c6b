"""A job with every kind of object, without Spark: what verification, repair and the changing commands are tested on.

Two operators with a table of each kind, at any parallelism; subtasks are restored for each epoch and end with it, as on
Spark. Merged files come from compactions alongside the epochs. What the state must be is kept outside, by epoch.
"""

import datetime as dt
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import (
    Environment,
    EpochDraft,
    Guarantee,
    Publication,
    Publisher,
    Retention,
    Run,
    RunOptions,
    SinkPosition,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.ranges import subtask_of
from statebed.state import (
    CompactionMode,
    ManagerOptions,
    MemoryController,
    TableManager,
    TaskInfo,
    Tiers,
    global_table_config,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.subtasks.outbox import encode_outbox

JOB = "shop"
KEYS = 24
SECOND_US = 1_000_000
TABLES = {
    "totals": {
        "counts": keyed_table_config("counts", "", ["item"], pa.schema([("item", pa.int64()), ("n", pa.int64())])),
        **global_table_config("limits", "of each item"),
    },
    "minutes": {
        "orders": timestamp_table_config(
            "orders",
            "",
            dt.timedelta(days=1),
            generational=False,
            schema=pa.schema([("item", pa.int64()), ("n", pa.int64())]),
            keys=["item"],
            bin_width=dt.timedelta(minutes=1),
        )
    },
}
State = dict[str, Any]
_OFF = ManagerOptions(compaction=CompactionMode.OFF)
_TIMEOUT_S = 60.0


class ListSink:
    """A sink that remembers run and epoch with its rows."""

    guarantee = Guarantee.EXACTLY_ONCE
    sink_id = "table"

    def __init__(self) -> None:
        self.position: SinkPosition | None = None
        self.epochs: list[int] = []

    def open(self, run: int) -> SinkPosition | None:
        before = self.position
        self.position = SinkPosition(run, before.epoch if before else 0)
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        self.epochs = [one for one in self.epochs if one <= epoch]
        self.position = SinkPosition(run, epoch)

    def publish(self, publication: Publication) -> None:
        for file in publication.files:
            publication.read(file)
        self.epochs.append(publication.epoch)
        self.position = SinkPosition(publication.run, publication.epoch)


@dataclass
class MaintainedJob:
    """The job, and what its state must be."""

    tiers: Tiers
    disk: ObjectStore = field(default_factory=MemoryStore)
    parallelism: int = 2
    retained: int = 10
    now_us: int = 1_000 * SECOND_US
    sink: ListSink = field(default_factory=ListSink)
    states: dict[int, State] = field(default_factory=dict)
    """State by data epoch."""
    ids: int = 0
    publishes: bool = True

    @property
    def store(self) -> ScopedStore:
        return ScopedStore(self.disk, JOB)

    @property
    def environment(self) -> Environment:
        return Environment(now_us=self.tick, fresh_id=self.fresh_id, sleep=self.sleep, written_by="test")

    def tick(self) -> int:
        self.now_us += SECOND_US
        return self.now_us

    def sleep(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)

    def fresh_id(self) -> str:
        self.ids += 1
        return f"id{self.ids:06d}"

    def open(self, **options: Any) -> Run:
        """Start the job; publishes what is left."""
        retention = Retention(epochs=self.retained, reader_grace="0 s")
        options = {"retention": retention, **options}
        self.run = Run.open(self.store, JOB, options=RunOptions(**options), environment=self.environment)
        self.publisher = Publisher(self.run, [self.sink])
        if self.publishes:
            self.publisher.open()
        return self.run

    def epoch(self, *, edits: dict[str, tuple[bytes, ...]] | None = None, salt: int = 0) -> pb.CheckpointMetadata:
        """One epoch: counts go up, an order for each item of this minute, an item's limit, output, a source log."""
        number = self.run.next_epoch
        state = self.state_after(self.run.head.epoch if self.run.head.kind == pb.EPOCH else self.run.head.base)
        items = np.random.default_rng(number + 1000 * salt).choice(KEYS, KEYS // 2, replace=False)
        state["counts"] |= {int(item): state["counts"].get(int(item), 0) + 1 for item in items}
        state["orders"] += sorted((int(item), number) for item in items)
        state["limits"][f"item {number % 5}"] = number + salt
        entries = [self._operator(operator, items, state, edits=(edits or {}).get(operator, ())) for operator in TABLES]
        log = f"source log of epoch {number}".encode()
        path = names.source_log(number, digest(log))
        self.store.put(path, log)
        record = self.run.commit(
            EpochDraft(
                operators=entries,
                source_position=pb.SourcePosition(
                    kind="test",
                    opaque=str(number).encode(),
                    source_logs=[pb.SourceLogFile(name="a", path=path, size=len(log), crc32c=crc32c(log))],
                ),
                outbox=[self._outbox(number, items)],
                sinks=[pb.SinkEntry(sink_id=self.sink.sink_id, operator_id="totals")],
                epoch_time_us=self.now_us,
                parallelism=self.parallelism,
            )
        )
        self.states[int(record.epoch)] = state
        if self.publishes:
            self.publisher.publish_pending()
        return record

    def merged(self) -> dict[str, tuple[bytes, ...]]:
        """Compact the files of the head alongside the epochs; return the edits for the next epoch."""
        edits: dict[str, tuple[bytes, ...]] = {}
        for operator in TABLES:
            for manager in self.managers(operator, self.run.head):
                with manager:
                    made = manager.compact_to_edits(run=self.run.number, max_bytes=1 << 30)
                edits[operator] = (*edits.get(operator, ()), *(edit.to_bytes() for edit in made))
        return edits

    def managers(
        self,
        operator: str,
        record: pb.CheckpointMetadata,
        *,
        edits: tuple[bytes, ...] = (),
        parallelism: int | None = None,
    ) -> list[TableManager]:
        """The subtasks of an operator, restored."""
        many = parallelism or self.parallelism
        return [
            TableManager(
                TaskInfo(JOB, operator, index, many),
                TABLES[operator],
                self.store,
                restore_from=record if record.operators else None,
                options=_OFF,
                tiers=self.tiers,
                edits=edits,
            )
            for index in range(many)
        ]

    def state_after(self, epoch: int) -> State:
        state = self.states.get(epoch, {"counts": {}, "orders": [], "limits": {}})
        return {"counts": dict(state["counts"]), "orders": list(state["orders"]), "limits": dict(state["limits"])}

    def read(self, record: pb.CheckpointMetadata, *, parallelism: int | None = None) -> State:
        """The state that a record names, read by its tables."""
        state: State = {"counts": {}, "orders": [], "limits": {}}
        for operator in TABLES:
            for manager in self.managers(operator, record, parallelism=parallelism):
                with manager:
                    self._read_into(state, operator, manager)
        state["orders"] = sorted(state["orders"], key=lambda row: (row[1], row[0]))
        return state

    def _read_into(self, state: State, operator: str, manager: TableManager) -> None:
        if operator == "totals":
            for rows in manager.get_keyed("counts").scan():
                state["counts"] |= dict(zip(rows["item"].to_pylist(), rows["n"].to_pylist(), strict=True))
            state["limits"] |= dict(manager.get_global_keyed_state("limits").items())
            return
        for rows in manager.get_time_keyed("orders").scan():
            state["orders"] += list(zip(rows["item"].to_pylist(), rows["n"].to_pylist(), strict=True))

    def _operator(self, operator: str, items: Any, state: State, *, edits: tuple[bytes, ...]) -> pb.OperatorEntry:
        number = self.run.next_epoch
        owners = subtask_of(hash_columns([pa.array(items, pa.int64())]), self.parallelism)
        stored = []
        for index, manager in enumerate(self.managers(operator, self.run.head, edits=edits)):
            with manager:
                mine = sorted(int(item) for item in items[owners == index])
                if operator == "totals":
                    counts = [state["counts"][item] for item in mine]
                    manager.get_keyed("counts").upsert(
                        pa.table({"item": pa.array(mine, pa.int64())}), pa.table({"n": pa.array(counts, pa.int64())})
                    )
                    limits = manager.get_global_keyed_state("limits")
                    for name, limit in state["limits"].items():
                        if limits.owns(name) and limits.get(name) != limit:
                            limits.insert(name, limit)
                else:
                    times = pa.array([number * 60 * SECOND_US] * len(mine), pa.timestamp("us", tz="UTC"))
                    rows = {"item": pa.array(mine, pa.int64()), "n": pa.array([number] * len(mine), pa.int64())}
                    manager.get_time_keyed("orders").append(pa.table({**rows, "_time": times}))
                stored.append(manager.checkpoint(number, 0, None, time=self.now_us).result(_TIMEOUT_S))
        entry = operator_entry(stored)
        entry.rows_in = len(items)
        return entry

    def _outbox(self, number: int, items: Any) -> pb.OutboxFile:
        data = encode_outbox(pa.table({"item": pa.array(sorted(items), pa.int64())}))
        path = names.outbox_file(number, "totals", "", 0, digest(data))
        self.store.put(path, data)
        return pb.OutboxFile(operator_id="totals", path=path, size=len(data), rows=len(items), crc32c=crc32c(data))


@contextmanager
def maintained_job(**settings: Any) -> Iterator[MaintainedJob]:
    """A job that never ran."""
    with tempfile.TemporaryDirectory(prefix="statebed-test-") as folder:
        tiers = Tiers(MemoryController(64 << 20), folder=folder)
        try:
            yield MaintainedJob(tiers, **settings)
        finally:
            tiers.close()
