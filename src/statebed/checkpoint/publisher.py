"""The publisher: brings committed epochs to the sinks, in order, and marks what each sink has.

A new run publishes what its predecessors left unpublished before it commits anything itself. A sink that compares run
and epoch in its own transaction gets every epoch exactly once; any other may get one again after a crash.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from statebed.checkpoint.objects import fetch
from statebed.checkpoint.run import Run
from statebed.format import checkpoint_pb2 as pb
from statebed.logs import id_logger
from statebed.protocol.publication import Guarantee, SinkPosition, check_sink_position, common_epoch
from statebed.protocol.records import data_epoch_of
from statebed.storage import ObjectStore

_logger = id_logger(__name__)


@dataclass(frozen=True)
class Publication:
    """One epoch on its way to one sink."""

    run: int
    epoch: int
    record: pb.CheckpointMetadata
    files: tuple[pb.OutboxFile, ...]
    """The outbox files of the operator and stream that the sink listens to; empty for an epoch without output."""
    commit_data: tuple[pb.CommitData, ...]
    store: ObjectStore

    def read(self, file: pb.OutboxFile) -> bytes:
        """The bytes of an outbox file, checked."""
        return fetch(self.store, file.path, size=file.size, crc=file.crc32c)


class Sink(Protocol):
    """Where output goes."""

    @property
    def sink_id(self) -> str:
        """The name under which markers remember it."""

    @property
    def guarantee(self) -> Guarantee:
        """What it promises."""

    def open(self, run: int) -> SinkPosition | None:
        """Refuse older runs from now on; its position before that, or None if it keeps none.

        FencedError when a newer run opened it, here and in `roll_back`.
        """

    def roll_back(self, run: int, epoch: int) -> None:
        """Take back what is newer than `epoch`, as far as it can."""

    def publish(self, publication: Publication) -> None:
        """Take the epoch; one that is there already is no error. FencedError when a newer run opened the sink."""


class Publisher:
    """Publishes the epochs of one run to the sinks of its job."""

    def __init__(self, run: Run, sinks: Sequence[Sink]) -> None:
        self._run = run
        self._sinks = {sink.sink_id: sink for sink in sinks}
        self._told = _logger.about(job=run.job_id, run=run.number)

    def open(self) -> None:
        """Fence older runs at every sink, then publish what they left."""
        self._run.check_live()
        for sink in self._sinks.values():
            position = sink.open(self._run.number)
            if position is not None:
                self._align(sink, position)
        self.publish_pending()

    def _align(self, sink: Sink, position: SinkPosition) -> None:
        """Take back what is not of this lineage; what the sink lacks is pending, whatever markers say.

        Markers stay when a sink takes an epoch back, and the lineage may return to that epoch later.
        """
        run = self._run
        base = data_epoch_of(run.head)
        lineage = run.ancestry(base)
        common = common_epoch(position, held=run.ancestry(position.epoch), lineage=lineage)
        if base not in run.chain and common < min(lineage, default=0):
            self._told.warning(
                "sink %s ends at epoch %d, the savepoint is of epoch %d: output between them is not retained",
                sink.sink_id,
                common,
                base,
                extra={"sink": sink.sink_id, "epoch": common},
            )
        if check_sink_position(
            position,
            sink_id=sink.sink_id,
            common=common,
            base=base,
            rollback_allowed=run.rollback_allowed,
        ):
            told = self._told.about(sink=sink.sink_id, epoch=common)
            told.warning("sink %s goes back from epoch %d to %d, as asked", sink.sink_id, position.epoch, common)
            sink.roll_back(run.number, common)
        run.await_sink(sink.sink_id, after=common)

    def publish_pending(self) -> int:
        """Publish every unpublished epoch of the lineage, oldest first; how many deliveries were made."""
        delivered = 0
        for record, waiting in self._run.pending():
            for entry in record.sinks:
                if entry.sink_id in waiting:
                    delivered += self._deliver(record, entry)
        return delivered

    def _deliver(self, record: pb.CheckpointMetadata, entry: pb.SinkEntry) -> int:
        run = self._run
        sink = self._sinks.get(entry.sink_id)
        told = self._told.about(sink=entry.sink_id, epoch=record.epoch)
        if sink is None:
            told.warning("epoch %d stays unpublished at sink %s: the job no longer has it", record.epoch, entry.sink_id)
            run.release_sink(record.epoch, entry.sink_id)
            return 0
        run.check_live()
        files = [f for f in record.outbox if f.stream == entry.stream and entry.operator_id in {"", f.operator_id}]
        sink.publish(
            Publication(
                run=run.number,
                epoch=record.epoch,
                record=record,
                files=tuple(files),
                commit_data=tuple(entry.commit_data),
                store=run.store,
            )
        )
        run.mark_published(record.epoch, entry.sink_id)
        told.debug("epoch %d is published to sink %s", record.epoch, entry.sink_id)
        return 1
