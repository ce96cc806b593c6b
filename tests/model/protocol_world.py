"""A world for the protocol's model tests: one disk, one clock, several runs, and an oracle outside the store.

The oracle sees every record at the moment it is created and every object at the moment it is deleted, so a breach is
found where it happens. It knows what each attempt at an epoch consisted of by a tag that the attempt puts into its
source position.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from statebed.checkpoint import (
    Environment,
    EpochDraft,
    Guarantee,
    ParquetBackend,
    Publication,
    Publisher,
    Run,
    RunOptions,
    SinkPosition,
)
from statebed.checkpoint.objects import fetch_subtask, store_subtask
from statebed.errors import FencedError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.ranges import owned_range
from statebed.protocol import PublishStep
from statebed.protocol.publication import decide_delivery
from statebed.storage import MemoryStore, ObjectStore, PutOutcome, ScopedStore

JOB = "job"
OPERATOR = "op"
TABLE = "t"
SINK = "out"
PARALLELISM = 2
SECOND_US = 1_000_000
GRACE_US = 10 * SECOND_US


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now_us = 1_000 * SECOND_US
        self._ids = 0

    def environment(self) -> Environment:
        return Environment(
            now_us=lambda: self.now_us, fresh_id=self._fresh_id, sleep=lambda _: None, written_by="model"
        )

    def _fresh_id(self) -> str:
        self._ids += 1
        return f"id{self._ids}"


@dataclass
class Content:
    """Contents of an epoch, as known to its writer."""

    files: dict[int, list[bytes]]
    """The bytes of every live data file, by subtask."""
    outbox: bytes


class Oracle:
    """Facts that must hold, known from the writers only."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.attempts: dict[bytes, Content] = {}
        self.log: dict[int, pb.CheckpointMetadata] = {}
        """Every record by number, as first created; including deleted ones."""
        self.named: dict[int, frozenset[str]] = {}
        self.acknowledged: dict[int, bytes] = {}
        self.broken: dict[str, bytes] = {}
        """Files that somebody damaged, with what they held."""

    @property
    def head(self) -> pb.CheckpointMetadata:
        return self.log[max(self.log)]

    def created(self, number: int, record: pb.CheckpointMetadata, named: frozenset[str]) -> None:
        if number in self.log:
            return  # a superseded run put it again after it was deleted; it must never hear success
        assert number == max(self.log, default=0) + 1, f"record {number} leaves a gap in the log"
        assert number == 1 or record.run >= self.head.run, f"P3: run {record.run} committed {number} though fenced"
        assert number == 1 or record.min_epoch >= self.head.min_epoch, "min_epoch fell"
        assert record.previous == number - 1
        self.log[number] = record
        self.named[number] = named

    def acknowledge(self, record: pb.CheckpointMetadata) -> None:
        assert self.log[record.epoch].nonce == record.nonce, f"P3: {record.epoch} acknowledged, another stands there"
        self.acknowledged[record.epoch] = record.source_position.opaque

    def ancestry(self, epoch: int) -> list[int]:
        """The data epochs that lead to `epoch`, oldest first."""
        chain: list[int] = []
        while epoch:
            record = self.log[epoch]
            if record.kind == pb.EPOCH:
                chain.append(epoch)
            epoch = record.base
        return chain[::-1]

    def was_abandoned(self, epoch: int) -> bool:
        """Whether some later run began on a lineage without it."""
        starts = [n for n, record in self.log.items() if n > epoch and record.kind == pb.RUN_START]
        return any(epoch not in self.ancestry(start) for start in starts)

    def retained(self) -> list[int]:
        return [number for number in self.log if number >= self.head.min_epoch]

    def protected(self) -> set[str]:
        """Return what may not be deleted now: kept by the licence whose grace period is over, or pinned since."""
        horizon = self.clock.now_us - GRACE_US
        licence = max((n for n, record in self.log.items() if record.finish_time_us <= horizon), default=0)
        lowest = self.log[licence].min_epoch if licence else 1
        paths = set().union(*(named for number, named in self.named.items() if number >= lowest))
        paths.update(names.record(number) for number in self.log if number >= lowest)
        for number, record in self.log.items():
            if number >= licence:
                for pin in record.pins:
                    paths.add(pin.path)
                    paths |= self.named[pin.epoch]
        return paths

    def story(self) -> str:
        """The log as it stands, for the message of a breach."""
        return "\n".join(
            f"{n}: {pb.RecordKind.Name(r.kind)} run {r.run} base {r.base} min_epoch {r.min_epoch} "
            f"at {r.finish_time_us // SECOND_US} pins {[(pin.savepoint, pin.epoch) for pin in r.pins]}"
            for n, r in self.log.items()
        )

    def deleted(self, path: str) -> None:
        if not path.startswith((names.CHECKPOINTS, names.COMPACTIONS)):
            return
        assert path not in self.protected(), f"P5: {path} was deleted\n{self.story()}"
        number = names.epoch_of(path)
        if number and path == names.record(number):
            assert number < max(self.log) - 1, f"P5: record {number} next to the head was deleted"


class Disk(MemoryStore):
    """The one disk of the world; tells the oracle what happens to it."""

    def __init__(self, oracle: Oracle) -> None:
        super().__init__(now_us=lambda: oracle.clock.now_us)
        self._oracle = oracle

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        outcome = super().put_if_absent(path, data)
        inner = path.removeprefix(f"{JOB}/")
        number = names.epoch_of(inner)
        if outcome is PutOutcome.CREATED and number and inner == names.record(number):
            record = pb.CheckpointMetadata.FromString(data)
            self._oracle.created(number, record, frozenset(self._names(record)))
        return outcome

    def delete(self, path: str) -> None:
        if self.head(path) is not None:
            self._oracle.deleted(path.removeprefix(f"{JOB}/"))
        super().delete(path)

    def _names(self, record: pb.CheckpointMetadata) -> Iterator[str]:
        yield from (file.path for file in record.outbox)
        for operator in record.operators:
            for reference in operator.subtasks:
                yield reference.path
                data = self._objects.get(f"{JOB}/{reference.path}")
                if data is None:  # only the put of a run that was superseded long ago
                    continue
                metadata = pb.OperatorCheckpointMetadata.FromString(data.data)
                yield from (file.path for file in metadata.tables[TABLE].subtasks[metadata.subtask_index].files)


@dataclass
class ExactSink:
    """Keeps rows and position in one place, as a sink with transactions does."""

    sink_id: str = SINK
    guarantee: Guarantee = Guarantee.EXACTLY_ONCE
    position: SinkPosition | None = None
    rows: dict[int, bytes] = field(default_factory=dict)

    def open(self, run: int) -> SinkPosition | None:
        before = self.position
        if before is not None and before.run > run:
            raise FencedError(f"the sink belongs to run {before.run}")
        self.position = SinkPosition(run=run, epoch=before.epoch if before else 0)
        return before

    def roll_back(self, run: int, epoch: int) -> None:
        assert self.position is not None
        if self.position.run != run:
            raise FencedError(f"the sink belongs to run {self.position.run}")
        self.position = SinkPosition(run=run, epoch=epoch)
        self.rows = {number: row for number, row in self.rows.items() if number <= epoch}

    def publish(self, publication: Publication) -> None:
        rows = b"".join(publication.read(file) for file in publication.files)
        delivery = decide_delivery(self.position, run=publication.run, epoch=publication.epoch)
        if delivery is PublishStep.REFUSE:
            raise FencedError("the sink belongs to a newer run")
        if delivery is PublishStep.WRITE:
            self.rows[publication.epoch] = rows
            self.position = SinkPosition(run=publication.run, epoch=publication.epoch)


class Engine:
    """One process: opens a run on its own way to the disk and writes epochs as an engine does."""

    def __init__(self, world: "World", store: ObjectStore, options: RunOptions) -> None:
        self._world = world
        self._store = ScopedStore(store, JOB)
        self.run = Run.open(self._store, JOB, options=options, environment=world.clock.environment())
        world.oracle.acknowledge(self.run.head)
        self.publisher = Publisher(self.run, [world.sink])

    def open_sinks(self) -> None:
        self.publisher.open()

    def commit(self, tag: str, *, changed: set[int], dropped: int = 0, compact: bool = False) -> None:
        """Write the epoch that follows the head: `changed` subtasks get a file, the others are carried over."""
        run, epoch = self.run, self.run.next_epoch
        references = {r.subtask_index: r for operator in run.head.operators for r in operator.subtasks}
        files: dict[int, list[bytes]] = {}
        new: list[pb.SubtaskReference] = []
        for index in range(PARALLELISM):
            entries = self._entries(references.get(index))
            if index in changed or index not in references:
                entries = entries[dropped:]
                if compact and entries:
                    entries = [self._compacted(index, entries)]
                entries = [*entries, self._write_file(epoch, index, f"{tag}-{index}".encode())]
                new.append(self._write_metadata(epoch, index, entries))
            else:
                new.append(references[index])
            broken = self._world.oracle.broken
            files[index] = [broken.get(entry.path) or self._store.get(entry.path) for entry in entries]
        row = f"{tag};".encode()
        outbox = names.outbox_file(epoch, OPERATOR, "", 0, digest(row))
        self._store.put(outbox, row)
        opaque = f"{tag}@{run.number}".encode()
        self._world.oracle.attempts[opaque] = Content(files, row)
        draft = EpochDraft(
            operators=[pb.OperatorEntry(operator_id=OPERATOR, parallelism=PARALLELISM, subtasks=new)],
            source_position=pb.SourcePosition(kind="model", opaque=opaque),
            outbox=[
                pb.OutboxFile(operator_id=OPERATOR, path=outbox, size=len(row), rows=1, crc32c=crc32c(row)),
            ],
            sinks=[pb.SinkEntry(sink_id=SINK, operator_id=OPERATOR)],
            parallelism=PARALLELISM,
        )
        self._world.oracle.acknowledge(run.commit(draft))

    def _entries(self, reference: pb.SubtaskReference | None) -> list[pb.FileEntry]:
        if reference is None:
            return []
        return list(fetch_subtask(self._store, reference).tables[TABLE].subtasks[reference.subtask_index].files)

    def _write_file(self, epoch: int, index: int, data: bytes) -> pb.FileEntry:
        path = names.data_file(epoch, OPERATOR, TABLE, index, digest(data))
        self._store.put(path, data)
        return pb.FileEntry(path=path, size=len(data), rows=1, crc32c=crc32c(data))

    def _compacted(self, index: int, entries: list[pb.FileEntry]) -> pb.FileEntry:
        data = b"+".join(self._store.get(entry.path) for entry in entries)
        path = names.compacted_file(self.run.number, OPERATOR, TABLE, index, digest(data))
        self._store.put(path, data)
        return pb.FileEntry(path=path, size=len(data), rows=1, crc32c=crc32c(data), level=1)

    def _write_metadata(self, epoch: int, index: int, entries: list[pb.FileEntry]) -> pb.SubtaskReference:
        subtask = pb.TableSubtaskCheckpointMetadata(subtask_index=index, files=entries)
        metadata = pb.OperatorCheckpointMetadata(
            job_id=JOB,
            operator_id=OPERATOR,
            epoch=epoch,
            subtask_index=index,
            parallelism=PARALLELISM,
            owned=owned_range(index, PARALLELISM),
            tables={TABLE: pb.TableCheckpointMetadata(subtasks={index: subtask})},
        )
        return store_subtask(self._store, metadata)


class World:
    """One disk, one clock, one sink, the oracle."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.oracle = Oracle(self.clock)
        self.disk = Disk(self.oracle)
        self.sink = ExactSink()

    @property
    def store(self) -> ScopedStore:
        return ScopedStore(self.disk, JOB)

    def engine(self, store: ObjectStore, options: RunOptions) -> Engine:
        return Engine(self, store, options)

    def check(self) -> None:
        """Every promise that must hold between any two steps."""
        if not self.oracle.log:
            return
        head = self.oracle.head
        for number in self.oracle.retained():
            self._check_epoch(number)
        for pin in head.pins:
            record = pb.CheckpointMetadata.FromString(self.store.get(pin.path))
            assert record.nonce == self.oracle.log[pin.epoch].nonce
            self._check_content(record)
        self.check_sink()

    def check_sink(self) -> None:
        """P2, P3: the sink holds the outbox of one lineage up to its position, each epoch once, nothing else."""
        position = self.sink.position
        expected = set(self.oracle.ancestry(position.epoch)) if position else set()
        held = set(self.sink.rows)
        # What was abandoned, and dropped by retention since, cannot be had again, whatever savepoint is gone back to.
        assert held <= expected, f"the sink holds {sorted(held)}, its lineage is {sorted(expected)}"
        lost = {epoch for epoch in expected - held if not self.oracle.was_abandoned(epoch)}
        assert not lost, f"the sink holds {sorted(held)} of {sorted(expected)}"
        for epoch, row in self.sink.rows.items():
            opaque = self.oracle.log[epoch].source_position.opaque
            assert row == self.oracle.attempts[opaque].outbox

    def orphans(self) -> set[str]:
        """Objects that neither a record from min_epoch on, nor a pin of the head names."""
        known = {path for number in self.oracle.retained() for path in self.oracle.named[number]}
        known |= {names.record(number) for number in self.oracle.log}
        known |= {names.published(number, SINK) for number in self.oracle.retained()}
        for pin in self.oracle.head.pins:
            known |= {pin.path} | self.oracle.named[pin.epoch]
        return {info.path for info in self.store.list("")} - known

    def _check_epoch(self, number: int) -> None:
        record = ParquetBackend(self.disk).load_checkpoint_metadata(JOB, number)
        assert record.nonce == self.oracle.log[number].nonce, f"P3: another record stands at {number}"
        if number in self.oracle.acknowledged:
            assert record.source_position.opaque == self.oracle.acknowledged[number]
        self._check_content(record)

    def _check_content(self, record: pb.CheckpointMetadata) -> None:
        opaque = record.source_position.opaque
        if not opaque or self.oracle.named[record.epoch].intersection(self.oracle.broken):
            return
        content = self.oracle.attempts[opaque]
        found: dict[int, list[bytes]] = {}
        for operator in record.operators:
            for reference in operator.subtasks:
                metadata = fetch_subtask(self.store, reference)
                entries = metadata.tables[TABLE].subtasks[reference.subtask_index].files
                found[reference.subtask_index] = [self.store.get(entry.path) for entry in entries]
        assert found == content.files, f"P1, P2: epoch {record.epoch} reads back as something else"
        assert all(self.store.get(file.path) == content.outbox for file in record.outbox)
