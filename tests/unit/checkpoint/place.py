"""One job in memory, a clock that tests own, and epochs as an engine writes them."""

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field

from statebed.checkpoint import (
    DamagePolicy,
    Environment,
    EpochDraft,
    Guarantee,
    Origin,
    ParquetBackend,
    Publication,
    Retention,
    RollbackPolicy,
    Run,
    RunOptions,
    SinkPosition,
)
from statebed.errors import FencedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.protocol import PublishStep
from statebed.protocol.publication import decide_delivery
from statebed.storage import MemoryStore, ObjectStore, ScopedStore

JOB = "job"
SECOND_US = 1_000_000


class Place:
    """A state location with one job in it."""

    def __init__(self) -> None:
        self.now_us = 1_000 * SECOND_US
        self.disk = MemoryStore(now_us=lambda: self.now_us)
        self.store = ScopedStore(self.disk, JOB)
        self.backend = ParquetBackend(self.disk, self.environment)
        self._ids = 0

    @property
    def environment(self) -> Environment:
        return Environment(
            now_us=lambda: self.now_us,
            steady_seconds=lambda: self.now_us / SECOND_US,
            fresh_id=self.fresh_id,
            sleep=self.sleep,
            written_by="test",
        )

    def fresh_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"

    def sleep(self, seconds: float) -> None:
        self.now_us += int(seconds * SECOND_US)

    def contents(self) -> dict[str, bytes]:
        return {info.path: self.disk.get(info.path) for info in self.disk.list("")}

    def open(
        self,
        *,
        through: ObjectStore | None = None,
        origin: Origin | None = None,
        epochs: int = 10,
        grace_s: int = 0,
        damage: DamagePolicy = DamagePolicy.REFUSE,
        rollback: RollbackPolicy = RollbackPolicy.REFUSE,
    ) -> Run:
        options = RunOptions(
            origin=origin or Origin(),
            retention=Retention(epochs=epochs, reader_grace=dt.timedelta(seconds=grace_s)),
            damage=damage,
            rollback=rollback,
        )
        store = ScopedStore(through, JOB) if through else self.store
        return Run.open(store, JOB, options=options, environment=self.environment)

    def draft(self, run: Run, text: str, *, sinks: tuple[str, ...] = (), parallelism: int = 2) -> EpochDraft:
        """Two subtasks with one new file each, and an outbox file that holds `text`."""
        epoch = run.next_epoch
        references = [self.subtask(run.store, epoch, index, text) for index in range(parallelism)]
        row = text.encode()
        path = names.outbox_file(epoch, "op", "", 0, digest(row))
        run.store.put(path, row)
        return EpochDraft(
            operators=[pb.OperatorEntry(operator_id="op", parallelism=parallelism, subtasks=references)],
            source_position=pb.SourcePosition(kind="test", opaque=row),
            outbox=[pb.OutboxFile(operator_id="op", path=path, size=len(row), rows=1, crc32c=crc32c(row))],
            sinks=[pb.SinkEntry(sink_id=sink, operator_id="op") for sink in sinks],
            parallelism=parallelism,
        )

    def subtask(self, store: ObjectStore, epoch: int, index: int, text: str) -> pb.SubtaskReference:
        data = f"{text}/{index}".encode()
        path = names.data_file(epoch, "op", "t", index, digest(data))
        store.put(path, data)
        file = pb.FileEntry(path=path, size=len(data), rows=1, crc32c=crc32c(data))
        table = pb.TableCheckpointMetadata(
            config=pb.TableConfig(name="t"), subtasks={index: pb.TableSubtaskCheckpointMetadata(files=[file])}
        )
        return self.backend.write_operator_checkpoint_metadata(
            pb.OperatorCheckpointMetadata(
                job_id=JOB, operator_id="op", epoch=epoch, subtask_index=index, tables={"t": table}
            )
        )

    def commit(self, run: Run, text: str = "", *, sinks: tuple[str, ...] = ()) -> pb.CheckpointMetadata:
        self.now_us += SECOND_US
        return run.commit(self.draft(run, text or f"epoch {run.next_epoch}", sinks=sinks))


@dataclass
class TableSink:
    """Exactly once: rows and position change together."""

    sink_id: str
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    position: SinkPosition | None = None
    rows: dict[int, str] = field(default_factory=dict)
    before_publish: Callable[[int], None] = lambda _: None

    def open(self, run: int) -> SinkPosition | None:
        before = self.position
        if before and before.run > run:
            raise FencedError(f"the sink belongs to run {before.run}")
        self.position = SinkPosition(run=run, epoch=before.epoch if before else 0)
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        self.position = SinkPosition(run=run, epoch=epoch)
        self.rows = {number: row for number, row in self.rows.items() if number <= epoch}

    def publish(self, publication: Publication) -> None:
        self.before_publish(publication.epoch)
        row = b"".join(publication.read(file) for file in publication.files).decode()
        delivery = decide_delivery(self.position, run=publication.run, epoch=publication.epoch)
        if delivery is PublishStep.REFUSE:
            raise FencedError("the sink belongs to a newer run")
        if delivery is PublishStep.WRITE:
            self.rows[publication.epoch] = row
            self.position = SinkPosition(run=publication.run, epoch=publication.epoch)


@dataclass
class MailSink:
    """At least once: what was sent cannot be taken back, and nothing is remembered."""

    sink_id: str
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    sent: list[int] = field(default_factory=list)
    before_publish: Callable[[int], None] = lambda _: None

    def open(self, run: int) -> SinkPosition | None:
        return None

    def roll_back(self, run: int, epoch: int) -> None:
        raise AssertionError("a sink without position is never asked to go back")

    def publish(self, publication: Publication) -> None:
        self.before_publish(publication.epoch)
        self.sent.append(publication.epoch)
