"""The engine as a job uses it: a run, managers of several subtasks on one budget, crashes, forks, copies.

A `Process` is what dies in a crash: the run, the managers, their memory and local files. The `World` outlives it: the
store, and the model of every epoch that was committed.
"""

import contextlib
import dataclasses
import datetime as dt
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from model.engine_model import COUNTERS, FARES, KEYED, PRICES, TABLES, TIMED, VISITS, Model, Row, Rows
from model.engine_shape import Shape, micros

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import EpochDraft, Origin, Retention, RollbackPolicy, Run, RunOptions
from statebed.checkpoint.clone import cloned
from statebed.checkpoint.log import CheckpointLog
from statebed.errors import IncompatibleSchemaError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import subtask_of
from statebed.protocol.records import data_epoch_of
from statebed.state import (
    CheckpointCompleted,
    CompactionMode,
    DataOperation,
    DeleteTimeRange,
    Insert,
    ManagerOptions,
    MemoryController,
    Purpose,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    Tiers,
    operator_entry,
)
from statebed.storage import MemoryStore, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation

JOB = "job"
OPERATOR = "operator"
BUDGET = 1 << 18
RETAINED = 3
ANOTHER = "another"
SECONDS = 60
SETTLE_SECONDS = 10
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True)
class UnderWay:
    """A checkpoint that was taken and is not committed yet."""

    epoch: int
    answers: list[Future[CheckpointCompleted]]
    model: Model


@dataclass
class Process:
    """One process of the job: everything that a crash takes."""

    store: FaultStore
    run: Run
    tiers: Tiers
    managers: list[TableManager]
    under_way: list[UnderWay] = field(default_factory=list)

    def end(self) -> None:
        """Give up what a process that ended would not have any more."""
        for manager in self.managers:
            manager.close()
        self.tiers.close()


class World:
    """A job with its store, its live process, and what it must hold."""

    def __init__(
        self,
        parallelism: int,
        *,
        budget: int = BUDGET,
        pressure: int = 0,
        compaction: CompactionMode = CompactionMode.IN_LINE,
        arrival: Callable[[Sequence[Row]], Sequence[Row]] = list,
    ) -> None:
        self.disk = MemoryStore()
        self.job, self.clones = JOB, 0
        self.budget = budget
        self.pressure = pressure
        """Bytes of the budget that something else takes."""
        self.compaction = compaction
        self.arrival = arrival
        """Order in which the rows of a batch arrive."""
        self.folder = tempfile.TemporaryDirectory(prefix="statebed-engine-")
        self.model = Model()
        self.shape = Shape()
        self.epochs: dict[int, Model] = {0: Model()}
        """Contents of each epoch that may have been committed."""
        self.savepoints: dict[str, Model] = {}
        self.largest_batch = 0
        self.doomed_at: int | None = None
        self.process = self.start(parallelism)

    # ---- processes ---------------------------------------------------------------------------------------

    def start(self, parallelism: int, origin: Origin | None = None) -> Process:
        """A new process, restored from the head or another origin."""
        store = FaultStore(self.disk, self._fault)
        self.doomed_at = None
        retention = Retention(epochs=RETAINED, reader_grace="0 s")
        options = RunOptions(origin=origin or Origin(), retention=retention, rollback=RollbackPolicy.ALLOW)
        run = Run.open(ScopedStore(store, self.job), self.job, options=options)
        if origin is not None and origin.savepoint is not None:
            self.model = self.savepoints[origin.savepoint].copy()
        else:
            self.model = self.epochs[data_epoch_of(run.head)].copy()
        tiers = Tiers(MemoryController(self.budget, wait_seconds=SECONDS), folder=self.folder.name)
        tiers.memory.charge(ANOTHER, Purpose.INDEXES, self.pressure)
        self.shape, managers = self.restored(run.head, parallelism, ScopedStore(store, self.job), tiers)
        self.model.evolve(has_extra=self.shape.extra)
        self.seen = dict(self.model.counters)
        self.process = Process(store, run, tiers, managers)
        return self.process

    def restored(
        self, record: pb.CheckpointMetadata, parallelism: int, store: ScopedStore, tiers: Tiers
    ) -> tuple[Shape, list[TableManager]]:
        """Managers of all subtasks, and the definition of their tables."""
        try:
            return self.shape, self._managers(self.shape, record, parallelism, store, tiers)
        except IncompatibleSchemaError:
            # Rows that were deleted by a value of a dropped column are still in files: it has to stay for now.
            kept = dataclasses.replace(self.shape, extra=True)
            return kept, self._managers(kept, record, parallelism, store, tiers)

    def _managers(
        self, shape: Shape, record: pb.CheckpointMetadata, parallelism: int, store: ScopedStore, tiers: Tiers
    ) -> list[TableManager]:
        tasks = [TaskInfo(self.job, OPERATOR, index, parallelism) for index in range(parallelism)]
        options = ManagerOptions(compaction=self.compaction, timeout_seconds=SECONDS)
        return [
            TableManager(task, shape.configs(), store, restore_from=record, tiers=tiers, options=options)
            for task in tasks
        ]

    def crash(self) -> None:
        """The process dies at its next operation of the store, and what it had in memory is gone."""
        self.doomed_at = 0
        self.process.end()

    def end(self) -> None:
        self.process.end()
        self.folder.cleanup()

    def _fault(self, operation: Operation) -> Fault | None:
        doomed = self.doomed_at is not None and operation.number >= self.doomed_at
        return Fault.CRASH_BEFORE if doomed else None

    # ---- writing -----------------------------------------------------------------------------------------

    def by_owner(self, table: str, batch: Sequence[Row]) -> Iterator[tuple[TableManager, pa.RecordBatch]]:
        """The rows of a batch, in their order of arrival, by the subtask that owns them."""
        rows = self.shape.batch(table, self.arrival(batch))
        self.largest_batch = max(self.largest_batch, rows.nbytes)
        managers = self.process.managers
        owners = subtask_of(hash_columns([rows.column("key")]), len(managers))
        for index, manager in enumerate(managers):
            mine = rows.take(pa.array(np.flatnonzero(owners == index)))
            if mine.num_rows:
                yield manager, mine

    def send(self, table: str, batch: Sequence[Row], operation: DataOperation | None = None) -> None:
        for manager, rows in self.by_owner(table, batch):
            manager.send(TableData(table, RecordBatch(rows, operation or Insert())))

    def send_range(self, table: str, start_us: int, end_us: int) -> None:
        for manager in self.process.managers:
            nothing = RecordBatch(self.shape.batch(table, []), DeleteTimeRange(start_us, end_us))
            manager.send(TableData(table, nothing))

    def merge(self, table: str, batch: Sequence[Row]) -> None:
        for manager, rows in self.by_owner(table, batch):
            times = rows.column("_time") if table in TIMED else None
            manager.get_keyed(table).merge(
                rows.select(["key"]),
                rows.select([field.name for field in self.shape.values]),
                self.shape.add_up,
                times=times,
            )

    def put_counter(self, key: str, value: int | None) -> None:
        for manager in self.process.managers:
            view = manager.get_global_keyed_state(COUNTERS, key_type=str, value_type=int)
            if view.owns(key) and value is None:
                assert view.remove(key) == self.model.counters.pop(key, None)
            elif view.owns(key) and value is not None:
                view.insert(key, value)
                self.model.counters[key] = value

    def advance(self, watermark_us: int) -> None:
        for manager in self.process.managers:
            manager.get_keyed(VISITS).advance(watermark_us)
            manager.get_time_keyed(FARES).advance(watermark_us)
            manager.get_time_keyed(PRICES).advance(watermark_us)
        self.model.advance(watermark_us)

    def compact(self, *tables: str, wait: bool) -> None:
        """Compact all files of these tables, or of all; without `wait` it may continue in the background."""
        answers = [manager.compact(*tables) for manager in self.process.managers]
        for answer in answers if wait else ():
            answer.result(timeout=SECONDS)

    # ---- epochs ------------------------------------------------------------------------------------------

    def begin_checkpoint(self) -> None:
        process = self.process
        epoch = process.run.next_epoch + len(process.under_way)
        watermark_us = self.model.watermark_us
        watermark = None if watermark_us is None else _EPOCH + micros(watermark_us)
        answers = [manager.checkpoint(epoch, process.run.head.min_epoch, watermark) for manager in process.managers]
        process.under_way.append(UnderWay(epoch, answers, self.model.copy()))

    def finish_checkpoint(self) -> pb.CheckpointMetadata:
        """Commit the oldest checkpoint under way."""
        process = self.process
        oldest = process.under_way.pop(0)
        # The store decides whether it is committed, even if the response is lost.
        self.epochs[oldest.epoch] = oldest.model
        completed = [answer.result(timeout=SECONDS) for answer in oldest.answers]
        record = process.run.commit(EpochDraft(operators=[operator_entry(completed)]))
        assert record.epoch == oldest.epoch
        for manager in process.managers:
            manager.refresh(record)
        self.seen = dict(oldest.model.counters)
        return record

    def commit(self) -> pb.CheckpointMetadata:
        """A whole epoch, after those that are under way."""
        self.begin_checkpoint()
        while len(self.process.under_way) > 1:
            self.finish_checkpoint()
        return self.finish_checkpoint()

    def save(self, name: str) -> None:
        """A savepoint of a new epoch, which the epoch after it brings."""
        epoch = self.commit().epoch
        self.process.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch)))
        self.commit()
        self.savepoints[name] = self.epochs[epoch]

    def stored(self) -> list[str]:
        """The paths of all data files and of the metadata of subtasks, which end in the digests of their bytes."""
        paths = (info.path for info in self.disk.list(""))
        return [path for path in paths if not path.endswith(names.record(1).rpartition("/")[2])]

    def clone(self, parallelism: int) -> None:
        """Continue with a clone of the newest epoch, as another job in another store."""
        self.crash()
        self.clones += 1
        disk, job = MemoryStore(), f"{JOB}-{self.clones}"
        source = ScopedStore(self.disk, self.job)
        head = cloned(source, self.job, ScopedStore(disk, job), job, origin=Origin())
        record = CheckpointLog(source, self.job).read(head)
        self.epochs = {0: Model(), 1: self.epochs[data_epoch_of(record)]}
        self.savepoints = {}
        self.disk, self.job = disk, job
        self.start(parallelism)

    def spill(self) -> None:
        """All that can leave memory does."""
        self.process.tiers.memory.reserve(ANOTHER, Purpose.WRITES, self.budget).release()

    def prefetch(self, table: str, keys: Sequence[int | None]) -> None:
        """Prefetch rows of some keys, without waiting."""
        for manager, batch in self.by_owner(table, [Row(key, 0, 0, None) for key in keys]):
            wanted = batch.select(["key"])
            if table in KEYED:
                manager.get_keyed(table).prefetch(wanted)
            else:
                manager.get_time_keyed(table).prefetch(keys=wanted)

    # ---- checks ------------------------------------------------------------------------------------------

    def check_counters(self) -> None:
        """A subtask sees its own keys as they are, and those of others as of the epoch it was shown last."""
        for manager in self.process.managers:
            view = manager.get_global_keyed_state(COUNTERS, key_type=str, value_type=int)
            own = {key: value for key, value in self.model.counters.items() if view.owns(key)}
            others = {key: value for key, value in self.seen.items() if not view.owns(key)}
            assert dict(view.items()) == own | others

    def check_epoch(self, epoch: int, parallelism: int) -> None:
        """A retained epoch, restored beside the live process at some parallelism, holds what it held."""
        model, record = self.epochs[epoch].copy(), self.process.run.record(epoch)
        with contextlib.closing(Tiers(MemoryController(self.budget), folder=self.folder.name)) as tiers:
            shape, managers = self.restored(record, parallelism, ScopedStore(self.disk, self.job), tiers)
            model.evolve(has_extra=shape.extra)
            for table in TABLES:
                assert rows_of(table, managers, shape) == model.rows(table), table
            for manager in managers:
                assert dict(manager.get_global_keyed_state(COUNTERS).items()) == model.counters
                manager.close()

    def check_memory(self) -> None:
        """Check that what is held between steps fits; compactions in the background have a row group of their own.

        A checkpoint that is written in the background charges a row group before it has made room for it, so the
        budget may be exceeded for as long as segments take to leave memory, but not longer.
        """
        deadline = time.monotonic() + SETTLE_SECONDS
        while (held := self._held_beside_compactions()) > self.budget + self.largest_batch:
            assert time.monotonic() < deadline, (held, self.process.tiers.memory.snapshot())
            time.sleep(0.001)

    def _held_beside_compactions(self) -> int:
        memory = self.process.tiers.memory.snapshot()
        return memory.used - sum(size for (_, purpose), size in memory.accounts.items() if purpose is Purpose.MERGES)

    def check_merges(self) -> None:
        """A merge that fails harms nothing, and is only counted; here nothing may fail."""
        failures = [manager.metrics().compaction.failures for manager in self.process.managers]
        assert not any(failures)

    # ---- reading -----------------------------------------------------------------------------------------

    def rows(self, table: str) -> Rows:
        return rows_of(table, self.process.managers, self.shape)

    def range(self, table: str, start_us: int, end_us: int) -> Rows:
        found: Rows = Counter()
        for manager in self.process.managers:
            found.update(self.shape.rows(manager.get_time_keyed(table).read(start_us, end_us)))
        return found

    def get(self, table: str, keys: Sequence[int | None]) -> dict[int | None, tuple[int, str | None] | None]:
        """Number and text of each key, None where it has none."""
        answer: dict[int | None, tuple[int, str | None] | None] = {}
        batch = [Row(key, 0, 0, None) for key in keys]
        for manager, rows in self.by_owner(table, batch):
            values, found = manager.get_keyed(table).get(rows.select(["key"]))
            names = [self.shape.number, "text"]
            answers = values.select(names).to_pylist()
            for key, held, value in zip(rows["key"].to_pylist(), found, answers, strict=True):
                answer[key] = (value[names[0]], value["text"]) if held else None
        return answer


def rows_of(table: str, managers: Sequence[TableManager], shape: Shape) -> Rows:
    """All rows of all subtasks."""
    found: Rows = Counter()
    for manager in managers:
        if table in KEYED:
            for piece in manager.get_keyed(table).scan():
                found.update(shape.rows(piece))
        else:
            found.update(shape.rows(manager.get_time_keyed(table).read()))
    return found
