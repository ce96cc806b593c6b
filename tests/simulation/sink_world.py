"""A job, one real sink, and a model of what the sink must hold: for histories of sinks.

Each epoch with rows replaces the row of one key by the next number, so the table after n such epochs follows from n
alone. The state is in memory; the sink's target is real and can be copied, moved, deleted and emptied by a history.
"""

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from lake_tables import lake_of, lake_sink
from published import debezium_rows

from statebed.checkpoint import (
    EpochDraft,
    Publication,
    Publisher,
    Rebuilt,
    Retention,
    Run,
    RunOptions,
    SinkPosition,
    SinkStart,
)
from statebed.errors import RollbackError, StatebedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.stream_schema import Changes, Output
from statebed.sinks import BaseSink, DebeziumFilesSink, Envelope, MemorySink, ParquetTableSink, read_table
from statebed.sinks.sql import SQLite, SqlTable, SqlTableSink, TableName
from statebed.storage import MemoryStore, ObjectStore, ScopedStore
from statebed.subtasks.outbox import encode_outbox
from statebed.testing.faults import SimulatedCrash

KINDS = ("sqlite", "parquet", "debezium", "memory")
LAKE_KINDS = ("delta", "iceberg by key", "delta by key", "iceberg")
JOB, SINK = "counts", "out"
KEYS = 3
RETAINED = 3
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
OUTPUT = Output(COLUMNS, Changes.CHANGELOG)
SCHEMA = pa.schema([*COLUMNS, pa.field("_weight", pa.int64(), nullable=False)])

Rows = Counter[tuple[str, int]]


def changes(number: int) -> list[tuple[str, int, int]]:
    """Return the changes of the epoch with this number of rows."""
    gone = [(f"k{number % KEYS}", number - KEYS, -1)] if number >= KEYS else []
    return [*gone, (f"k{number % KEYS}", number, 1)]


def model(since: int, count: int) -> Rows:
    """Return the contents of a sink that received the changes from number `since` on."""
    rows: Rows = Counter()
    for number in range(since, count):
        for key, value, weight in changes(number):
            rows[key, value] += weight
    return Counter({row: weight for row, weight in rows.items() if weight})


class Mortal:
    """A sink whose process dies at its n-th call: before the call has an effect, or after it."""

    def __init__(self, sink: BaseSink, *, at: int, after: bool) -> None:
        self._sink, self._left, self._after = sink, at, after
        self.sink_id, self.guarantee, self.identity = sink.sink_id, sink.guarantee, sink.identity
        self.peek = sink.peek

    def open(self, run: int) -> SinkPosition | None:
        before: SinkPosition | None = self._call(lambda: self._sink.open(run))
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        self._call(lambda: self._sink.roll_back(run, epoch))

    def clear(self, run: int) -> None:
        self._call(lambda: self._sink.clear(run))

    def publish(self, publication: Publication) -> None:
        self._call(lambda: self._sink.publish(publication))

    def _call(self, call: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise SimulatedCrash
        done = call()
        if self._left == 0:
            raise SimulatedCrash
        return done


@dataclass
class SinkWorld:
    """Everything that outlives a process."""

    kind: str
    folder: Path
    job: str = JOB
    sink_id: str = SINK
    disk: MemoryStore = field(default_factory=MemoryStore)
    path: Path = Path()
    backups: dict[str, Any] = field(default_factory=dict)
    since: int = 0
    """First number whose changes the sink has to hold; for the memory of a process that died, a later one."""
    refused: StatebedError | None = None
    """Reason why the last start was refused."""
    parallelism: int = 1
    run: Run = field(init=False)
    publisher: Publisher = field(init=False)
    memory: MemorySink = field(init=False)

    def __post_init__(self) -> None:
        self.path = self.folder / "target"
        self.memory = MemorySink(self.sink_id)

    # ---- the job ---------------------------------------------------------------------------------------------

    @property
    def sink(self) -> BaseSink:
        if self.kind == "memory":
            return self.memory
        if self.kind == "parquet":
            return ParquetTableSink(sink_id=self.sink_id, path=str(self.path), job_id=self.job, schema=SCHEMA)
        if self.kind in LAKE_KINDS:
            return lake_sink(self.kind, self.path, job_id=self.job, sink_id=self.sink_id, columns=COLUMNS)
        if self.kind == "debezium":
            envelope = Envelope(self.job, self.sink_id, ("k",))
            return DebeziumFilesSink(sink_id=self.sink_id, path=str(self.path), envelope=envelope)
        database = SQLite(str(self.path), timeout_seconds=60)
        table = SqlTable(TableName("results"), OUTPUT, ("k",), None)
        return SqlTableSink(sink_id=self.sink_id, job_id=self.job, database=database, table=table)

    @property
    def count(self) -> int:
        """Return the number of epochs with rows in the run's lineage."""
        return int(self.run.head.source_position.opaque or b"0")

    def start(
        self,
        *,
        store: ObjectStore | None = None,
        sinks: Sequence[Any] | None = None,
        choice: SinkStart | None = None,
        abandon: Sequence[str] = (),
        retained: int = RETAINED,
        **options: Any,
    ) -> bool:
        """Open a run and its sinks; False: it was refused, before anything was written to the sink."""
        chosen = RunOptions(retention=Retention(epochs=retained, reader_grace="0 s"), **options)
        before = self.snapshot()
        rows = self.rows() if before else None
        try:
            self.run = Run.open(ScopedStore(store or self.disk, self.job), self.job, options=chosen)
            self.publisher = Publisher(
                self.run,
                [self.sink] if sinks is None else sinks,
                starts={} if choice is None else {self.sink_id: choice},
                abandon=abandon,
                rebuilds={self.sink_id: self.rebuild},
            )
            self.publisher.open()
        except StatebedError as error:
            self.refused = error
            # A table that cannot go back says so in its own transaction, after it was opened.
            unchanged = self.rows() == rows if isinstance(error, RollbackError) else self.snapshot() == before
            assert unchanged, "a refused start changed the sink"
            return False
        self.refused = None
        return True

    def commit(self, *, rows: bool = True, sink_ids: Sequence[str] | None = None) -> None:
        """Commit one epoch, not published yet."""
        run, count = self.run, self.count
        parts = [changes(count)[index :: self.parallelism] for index in range(self.parallelism)] if rows else []
        files = []
        for index, part in enumerate(parts):
            if part:
                data = encode_outbox(pa.table([list(column) for column in zip(*part, strict=True)], schema=SCHEMA))
                path = names.outbox_file(run.next_epoch, "op", "", index, digest(data))
                run.store.put(path, data)
                files.append(_file(path, data, len(part), index))
        listed = [self.sink_id] if sink_ids is None else sink_ids
        position = pb.SourcePosition(kind="test", opaque=str(count + bool(rows)).encode())
        entries = [pb.SinkEntry(sink_id=sink_id, operator_id="op") for sink_id in listed]
        run.commit(EpochDraft(operators=[], outbox=files, sinks=entries, source_position=position))

    def epochs(self, count: int = 1, *, rows: bool = True) -> None:
        """Commit, publish and clean up after this many epochs."""
        for _ in range(count):
            self.commit(rows=rows)
            self.publisher.publish_pending()
            self.run.clean_up()

    @contextlib.contextmanager
    def rebuild(self, record: pb.CheckpointMetadata) -> Iterator[Rebuilt]:
        """The finished results of a record's state."""
        rows = model(0, int(record.source_position.opaque or b"0"))
        table = pa.table([[k for k, _ in rows], [n for _, n in rows], list(rows.values())], schema=SCHEMA)
        store, data = MemoryStore(), encode_outbox(table)
        store.put("results.parquet", data)
        yield Rebuilt((_file("results.parquet", data, table.num_rows, 0),) if rows else (), store)

    # ---- the target ------------------------------------------------------------------------------------------

    def backup(self, name: str) -> None:
        self.backups[name] = self.snapshot()

    def restore(self, name: str) -> None:
        self.put(self.backups[name])

    def delete(self) -> None:
        self.put({} if self.kind != "memory" else None)

    def empty(self) -> None:
        """Remove the rows and what the target remembers, and leave the place."""
        if self.kind == "sqlite":
            with sqlite3.connect(self.path) as connection:
                connection.execute("delete from results")
                connection.execute("delete from _statebed_commits")
            connection.close()
        elif self.kind == "memory":
            self.put(None)
        else:
            shutil.rmtree(self.path)
            self.path.mkdir()

    def move(self, *, rows: bool) -> None:
        """Give the sink another path, with or without what it holds."""
        if self.kind == "memory":
            return
        other = self.folder / f"{self.path.name}_moved"
        if rows:
            shutil.move(self.path, other)
        self.path = other

    def snapshot(self) -> Any:
        """Return the target, byte by byte."""
        if self.kind == "memory":
            return (self.memory.peek(), self.memory.epochs)
        if self.path.is_file():
            return {"": self.path.read_bytes()}
        return {str(p.relative_to(self.path)): p.read_bytes() for p in sorted(self.path.rglob("*")) if p.is_file()}

    def put(self, snapshot: Any) -> None:
        """Make the target what it was."""
        if self.kind == "memory":
            self.memory = MemorySink(self.sink_id)  # the memory of a dead process does not come back
            self.since = self.count - len(self.run.waiting_epochs().get(self.sink_id, []))
            return
        if self.path.is_dir():
            shutil.rmtree(self.path)
        self.path.unlink(missing_ok=True)
        for name, data in snapshot.items():
            place = self.path / name if name else self.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)

    def rows(self) -> Rows:
        """Return the rows of the sink, as any reader sees them."""
        if self.kind == "memory":
            found: Rows = Counter()
            for row in self.memory.rows:
                found[row["k"], row["n"]] += row["_weight"]
            return Counter({row: weight for row, weight in found.items() if weight})
        if self.kind == "sqlite":
            connection = sqlite3.connect(self.path)
            try:
                return Counter(connection.execute("select k, n from results").fetchall())
            finally:
                connection.close()
        if self.kind == "parquet" or self.kind in LAKE_KINDS:
            found = Counter()
            is_parquet = self.kind == "parquet"
            for row in (read_table(str(self.path)) if is_parquet else lake_of(self.kind, self.path).read()).to_pylist():
                found[row["k"], row["n"]] += row.get("_weight", 1)
            return Counter({row: weight for row, weight in found.items() if weight})
        return Counter(debezium_rows(str(self.path)).items())

    def check(self) -> None:
        """The sink holds exactly the rows of the model."""
        assert self.rows() == model(self.since, self.count)

    def other(self, folder: str, **changed: Any) -> "SinkWorld":
        """Another job that writes to the same target, with a state of its own."""
        made = SinkWorld(self.kind, self.folder / folder, **{"job": self.job, "sink_id": self.sink_id, **changed})
        made.path, made.memory = self.path, self.memory
        return made


def dies(step: Callable[[], Any]) -> bool:
    """Whether a step ended with the death of its process."""
    try:
        step()
    except SimulatedCrash:
        return True
    return False


def _file(path: str, data: bytes, rows: int, index: int) -> pb.OutboxFile:
    return pb.OutboxFile(
        operator_id="op", subtask_index=index, path=path, size=len(data), rows=rows, crc32c=crc32c(data)
    )
