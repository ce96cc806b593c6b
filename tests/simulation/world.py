"""A world for simulations: one disk, a clock and ids that tests own, processes that die, and an oracle outside.

The oracle keeps what every attempted epoch contains, so that whatever a recovery finds can be held against it.
"""

import datetime as dt
from dataclasses import dataclass, field

from statebed.checkpoint import (
    CheckpointLog,
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
from statebed.checkpoint.objects import fetch, fetch_subtask, store_subtask
from statebed.checkpoint.references import References, markers_of
from statebed.errors import FencedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.ranges import owned_range
from statebed.protocol.publication import PublishStep, decide_delivery
from statebed.protocol.records import data_epoch_of
from statebed.storage import MemoryStore, ObjectStore
from statebed.testing.faults import FaultStore

JOB = "rides"
OPERATORS = ("windows", "join")
PARALLELISM = 2
FILES_PER_TABLE = 3
GRACE_US = 5_000_000
SINKS = ("alpha", "beta")


@dataclass(frozen=True)
class Content:
    """Everything that an epoch holds: state by subtask, source position, outbox."""

    base: int
    batch: int
    state: tuple[tuple[str, int, tuple[bytes, ...]], ...]
    source_logs: tuple[bytes, ...]
    outbox: tuple[bytes, ...]


class TransactionalSink:
    """An exactly-once sink: compares run and epoch in the same step that writes."""

    guarantee = Guarantee.EXACTLY_ONCE

    def __init__(self, sink_id: str) -> None:
        self.sink_id = sink_id
        self.position: SinkPosition | None = None
        self.rows: list[tuple[int, bytes]] = []

    def copied(self) -> "TransactionalSink":
        sink = TransactionalSink(self.sink_id)
        sink.position, sink.rows = self.position, list(self.rows)
        return sink

    def open(self, run: int) -> SinkPosition | None:
        before = self.position
        if before is not None and run < before.run:
            raise FencedError(f"run {before.run} opened sink {self.sink_id}")
        self.position = SinkPosition(run, before.epoch if before else 0)
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        self.rows = [row for row in self.rows if row[0] <= epoch]
        self.position = SinkPosition(run, epoch)

    def publish(self, publication: Publication) -> None:
        rows = [(publication.epoch, publication.read(file)) for file in publication.files]
        match decide_delivery(self.position, run=publication.run, epoch=publication.epoch):
            case PublishStep.REFUSE:
                raise FencedError(f"a newer run opened sink {self.sink_id}")
            case PublishStep.WRITE:
                self.rows.extend(rows)
                self.position = SinkPosition(publication.run, publication.epoch)
            case PublishStep.SKIP:
                pass


@dataclass
class World:
    """The disk and everything that outlives a process."""

    disk: ObjectStore = field(default_factory=lambda: MemoryStore("memory://simulation"))
    seconds: int = 1_000
    ids: int = 0
    attempted: dict[int, list[Content]] = field(default_factory=dict)
    acknowledged: dict[int, Content] = field(default_factory=dict)
    sinks: dict[str, TransactionalSink] = field(default_factory=lambda: {s: TransactionalSink(s) for s in SINKS})

    def copied(self) -> "World":
        """Return a copy, in which a process that is alive here is dead."""
        disk = MemoryStore(self.disk.url)
        for info in self.disk.list(""):
            disk.put(info.path, self.disk.get(info.path))
        return World(
            disk,
            self.seconds,
            self.ids,
            {epoch: list(contents) for epoch, contents in self.attempted.items()},
            dict(self.acknowledged),
            {name: sink.copied() for name, sink in self.sinks.items()},
        )

    def now_us(self) -> int:
        self.seconds += 1
        return self.seconds * 1_000_000

    def fresh_id(self) -> str:
        self.ids += 1
        return f"id{self.ids:06d}"

    def process(self, store: ObjectStore | None = None) -> "Process":
        """A process of its own on the same disk."""
        return Process(self, store or FaultStore(self.disk))

    def log(self) -> CheckpointLog:
        return CheckpointLog(self.disk, JOB, Environment(now_us=self.now_us, fresh_id=self.fresh_id))

    # ---- what must hold --------------------------------------------------------------------------------------

    def read(self, record: pb.CheckpointMetadata) -> Content:
        """The content of an epoch, as a reader finds it on the disk."""
        state = []
        for operator in record.operators:
            for reference in operator.subtasks:
                table = fetch_subtask(self.disk, reference).tables["state"].subtasks[reference.subtask_index]
                files = tuple(fetch(self.disk, f.path, size=f.size, crc=f.crc32c) for f in table.files)
                state.append((operator.operator_id, reference.subtask_index, files))
        position = record.source_position
        return Content(
            base=record.base,
            batch=position.batch_id if position.HasField("batch_id") else -1,
            state=tuple(state),
            source_logs=tuple(fetch(self.disk, f.path, size=f.size, crc=f.crc32c) for f in position.source_logs),
            outbox=tuple(fetch(self.disk, f.path, size=f.size, crc=f.crc32c) for f in record.outbox),
        )

    def check_recovery(self) -> pb.CheckpointMetadata | None:
        """P1, P2: the head is the last acknowledged epoch or a whole attempted one, never a mix, never older."""
        head = self.log().recover().head
        if head is None:
            assert not self.acknowledged
            return None
        epoch = data_epoch_of(head)
        if head.kind == pb.EPOCH:
            assert self.read(head) in self.attempted[epoch]
            assert epoch >= max(self.acknowledged, default=0)
        else:
            shown, base = self.read(head), self.content_of(epoch)
            assert shown.state == (base.state if base else ())
            assert shown.batch == (base.batch if base else -1)
        return head

    def check_retained(self) -> None:
        """P1, P5: every retained acknowledged epoch and every savepoint reads back as it was."""
        log = self.log()
        head = log.head()
        assert head is not None
        for epoch in range(head.min_epoch, head.epoch + 1):
            record = log.read(epoch)
            if record.kind == pb.EPOCH:
                assert self.read(record) in self.attempted[epoch]
        for pin in head.pins:
            assert self.read(log.savepoint(pin)) in self.attempted[pin.epoch]

    def check_sinks(self) -> None:
        """P3: each sink holds the outbox of the present lineage, each epoch once, in order."""
        head = self.log().head()
        assert head is not None
        expected: list[tuple[int, bytes]] = []
        epoch = data_epoch_of(head)
        while content := self.content_of(epoch):
            expected = [(epoch, content.outbox[0]), *expected]  # the sinks listen to the first operator
            epoch = content.base
        for sink in self.sinks.values():
            assert sink.rows == expected

    def check_no_orphans(self) -> None:
        """P5: the disk holds what retained records and pins name, and nothing else."""
        log = self.log()
        references = References(log)
        head = log.head()
        assert head is not None
        wanted = set()
        for epoch in range(min(head.min_epoch, head.epoch - 1), head.epoch + 1):
            record = log.read(epoch)
            wanted |= {names.record(epoch)} | set(references.of(record).sizes) | markers_of(record)
            for pin in record.pins:
                wanted |= {pin.path} | set(references.of(log.savepoint(pin)).sizes)
        assert {info.path for info in self.disk.list("")} <= wanted

    def content_of(self, epoch: int) -> Content | None:
        """Return the contents of the committed epoch, by the oracle."""
        if epoch in self.acknowledged:
            return self.acknowledged[epoch]
        attempts = self.attempted.get(epoch, [])
        return attempts[-1] if attempts else None


class Process:
    """One process: a run, its publisher, and an engine that writes state as a real one does."""

    def __init__(self, world: World, store: ObjectStore) -> None:
        self.world = world
        self.store = store
        self.environment = Environment(
            now_us=world.now_us, fresh_id=world.fresh_id, sleep=lambda _: None, requests_at_once=1
        )
        self.run: Run

    def open(self, *, epochs: int = 3, grace_us: int = GRACE_US, publish: bool = True, **options: object) -> "Process":
        retention = Retention(epochs=epochs, reader_grace=dt.timedelta(microseconds=grace_us))
        chosen = RunOptions(retention=retention, **options)  # type: ignore[arg-type]
        self.run = Run.open(self.store, JOB, options=chosen, environment=self.environment)
        self.publisher = Publisher(self.run, list(self.world.sinks.values()))
        if publish:
            self.publisher.open()
        return self

    def epoch(self, salt: str = "", *, publish: bool = True, clean_up: bool = True) -> pb.CheckpointMetadata:
        """One whole epoch: state, commit, publication, clean-up."""
        record = self.commit(salt)
        if publish:
            self.publisher.publish_pending()
        if clean_up:
            self.run.clean_up()
        return record

    def commit(self, salt: str = "", status: pb.RecordStatus.ValueType = pb.COMPLETE) -> pb.CheckpointMetadata:
        draft, content = self.draft(salt, status)
        epoch = self.run.next_epoch
        self.world.attempted.setdefault(epoch, []).append(content)
        record = self.run.commit(draft)
        self.world.acknowledged[record.epoch] = content
        return record

    def draft(self, salt: str, status: pb.RecordStatus.ValueType = pb.COMPLETE) -> tuple[EpochDraft, Content]:
        """The next step of the engine: some subtasks change, files are added, dropped and merged."""
        head, epoch = self.run.head, self.run.next_epoch
        position = head.source_position
        batch = position.batch_id + 1 if position.HasField("batch_id") else 0
        operators, outbox, state = [], [], []
        for operator_id in OPERATORS:
            old = next((o for o in head.operators if o.operator_id == operator_id), None)
            entry = pb.OperatorEntry(operator_id=operator_id, parallelism=PARALLELISM)
            for index in range(PARALLELISM):
                reference, files = self._subtask(operator_id, index, old, f"{salt}{operator_id}.{index}.{batch}")
                entry.subtasks.append(reference)
                state.append((operator_id, index, files))
            operators.append(entry)
            row = f"{salt}{operator_id} of batch {batch}".encode()
            path = names.outbox_file(epoch, operator_id, "", 0, digest(row))
            self.store.put(path, row)
            outbox.append(pb.OutboxFile(operator_id=operator_id, path=path, size=len(row), rows=1, crc32c=crc32c(row)))
        source_log = f"{salt}source log of batch {batch}".encode()
        path = names.source_log(epoch, digest(source_log))
        self.store.put(path, source_log)
        logs = [
            *position.source_logs[-1:],
            pb.SourceLogFile(name=f"sources/0/{batch}", path=path, size=len(source_log), crc32c=crc32c(source_log)),
        ]
        draft = EpochDraft(
            operators=operators,
            source_position=pb.SourcePosition(kind="spark", query_id="q", batch_id=batch, source_logs=logs),
            outbox=outbox,
            sinks=[pb.SinkEntry(sink_id=sink, operator_id=op) for sink in SINKS for op in OPERATORS[:1]],
            epoch_time_us=self.environment.now_us(),
            parallelism=PARALLELISM,
            status=status,
        )
        content = Content(
            base=data_epoch_of(head),
            batch=batch,
            state=tuple(state),
            source_logs=tuple(fetch(self.world.disk, f.path, size=f.size, crc=f.crc32c) for f in logs),
            outbox=tuple(fetch(self.world.disk, f.path, size=f.size, crc=f.crc32c) for f in outbox),
        )
        return draft, content

    def _subtask(
        self, operator_id: str, index: int, old: pb.OperatorEntry | None, token: str
    ) -> tuple[pb.SubtaskReference, tuple[bytes, ...]]:
        epoch = self.run.next_epoch
        before = old.subtasks[index] if old else None
        files = []
        if before is not None:
            files = list(fetch_subtask(self.store, before).tables["state"].subtasks[index].files)
            if (epoch + index) % 3 == 0:  # nothing changed: the reference is carried over
                return before, tuple(self._bytes(file) for file in files)
        data = token.encode()
        if len(files) >= FILES_PER_TABLE:  # compaction: one file takes the place of all
            data = b"+".join([self._bytes(file) for file in files[1:]] + [data])
            files = []
        path = names.data_file(epoch, operator_id, "state", index, digest(data))
        self.store.put(path, data)
        files.append(pb.FileEntry(path=path, size=len(data), rows=1, crc32c=crc32c(data)))
        metadata = pb.OperatorCheckpointMetadata(
            job_id=JOB,
            operator_id=operator_id,
            epoch=epoch,
            subtask_index=index,
            parallelism=PARALLELISM,
            owned=owned_range(index, PARALLELISM),
        )
        metadata.tables["state"].subtasks[index].files.extend(files)
        return store_subtask(self.store, metadata), tuple(self._bytes(file) for file in files)

    def _bytes(self, file: pb.FileEntry) -> bytes:
        return fetch(self.world.disk, file.path, size=file.size, crc=file.crc32c)

    def finish(self) -> None:
        """Continue until everything old has been deleted: epochs, a quiet time, two sweeps."""
        for _ in range(4):
            self.epoch()
        self.world.seconds += 100
        self.epoch(clean_up=False)
        self.world.seconds += 100
        for _ in range(2):
            self.run._cleanups = 0  # the next clean-up is a sweep
            self.run.clean_up()
