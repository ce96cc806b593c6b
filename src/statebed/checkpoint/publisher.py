"""Publisher: delivers committed epochs to the sinks, in order, and marks what each sink has.

A new run publishes what its predecessors left unpublished before it commits anything itself. A sink that compares run
and epoch in its own transaction gets every epoch exactly once; any other may get an epoch again after a crash.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

from statebed.checkpoint.given_up import is_given_up
from statebed.checkpoint.objects import fetch
from statebed.checkpoint.run import Run
from statebed.errors import SinkError, SinkUnavailableError
from statebed.format import checkpoint_pb2 as pb
from statebed.logs import id_logger
from statebed.protocol.publication import Guarantee, SinkPosition
from statebed.protocol.records import data_epoch_of
from statebed.protocol.sink_history import AcceptedLoss, SinkIdentity, history_of, output_files
from statebed.protocol.sink_start import NOT_IN_STATE, SinkPlan, SinkStart, check_choices, check_removed, plan_sink
from statebed.storage import ObjectStore

_logger = id_logger(__name__)


@dataclass(frozen=True)
class Publication:
    """One epoch to deliver to one sink.

    >>> from statebed.format.checkpoint_pb2 import CheckpointMetadata
    >>> from statebed.storage import MemoryStore
    >>> record = CheckpointMetadata(epoch=7)
    >>> empty = sb.Publication(run=1, epoch=7, record=record, files=(), commit_data=(), store=MemoryStore())
    >>> sum(len(empty.read(file)) for file in empty.files)
    0
    """

    run: int
    epoch: int
    record: pb.CheckpointMetadata
    files: tuple[pb.OutboxFile, ...]
    """Outbox files of the sink's operator and stream; empty for an epoch without output."""
    commit_data: tuple[pb.CommitData, ...]
    store: ObjectStore

    def read(self, file: pb.OutboxFile) -> bytes:
        """Return the bytes of an outbox file after checking them."""
        return fetch(self.store, file.path, size=file.size, crc=file.crc32c)


class Sink(Protocol):
    """A destination of output: any object with these properties and methods.

    >>> class FileCounts:
    ...     sink_id, guarantee = "file_counts", sb.Guarantee.AT_LEAST_ONCE
    ...     def open(self, run):
    ...         return None
    ...     def roll_back(self, run, epoch):
    ...         pass
    ...     def publish(self, publication):
    ...         print(f"epoch {publication.epoch}: {len(publication.files)} files")
    >>> sink: sb.Sink = FileCounts()
    >>> sink.guarantee.value
    'at least once'
    """

    @property
    def sink_id(self) -> str:
        """Name of the sink in markers."""

    @property
    def guarantee(self) -> Guarantee:
        """Delivery guarantee."""

    def open(self, run: int) -> SinkPosition | None:
        """Fence older runs, and return the position before that, or None if the sink keeps none.

        Raise FencedError if a newer run has opened the sink; so does `roll_back`.
        """

    def roll_back(self, run: int, epoch: int) -> None:
        """Retract everything after `epoch`, as far as the sink can."""

    def publish(self, publication: Publication) -> None:
        """Write the epoch; do nothing if the sink has it. Raise FencedError if a newer run has opened the sink."""


@dataclass(frozen=True)
class Rebuilt:
    """Finished results of an epoch, as outbox files in a separate store."""

    files: tuple[pb.OutboxFile, ...]
    store: ObjectStore


Rebuild = Callable[[pb.CheckpointMetadata], AbstractContextManager[Rebuilt]]
"""Computes the finished results of a record's state for one sink. They exist until the context exits."""
_NO_CHOICES: Mapping[str, SinkStart] = MappingProxyType({})
_NO_EPOCHS: Mapping[str, int] = MappingProxyType({})
_NO_REBUILDS: Mapping[str, Rebuild | str] = MappingProxyType({})


class Publisher:
    """Publishes the epochs of one run to the sinks of its job.

    `starts` tells, by sink, what to do if it lacks epochs that are no longer retained. `abandon` lists sinks that the
    job no longer has and whose unpublished epochs are given up; `skip` gives up, by sink, an epoch and those before it
    that were never published.
    `rebuilds` holds, by sink, a function that rebuilds it from state, or the reason why that is impossible.
    """

    def __init__(
        self,
        run: Run,
        sinks: Sequence[Sink],
        *,
        starts: Mapping[str, SinkStart] = _NO_CHOICES,
        abandon: Collection[str] = (),
        skip: Mapping[str, int] = _NO_EPOCHS,
        rebuilds: Mapping[str, Rebuild | str] = _NO_REBUILDS,
    ) -> None:
        self._run = run
        self._sinks = {sink.sink_id: sink for sink in sinks}
        self._starts = starts
        self._abandon = frozenset(abandon)
        self._skip = skip
        self._rebuilds = rebuilds
        self._published_before: dict[str, int] = {}
        """Newest epoch that each sink got from earlier runs."""
        self._logger = _logger.about(job=run.job_id, run=run.number)
        check_choices(starts, self._abandon, skip, sinks=self._sinks, newest=data_epoch_of(run.head), job_id=run.job_id)

    def check(self) -> None:
        """Raise what `open` would raise, as far as that can be told without writing."""
        check_removed(self._run.waiting_epochs(), sinks=self._sinks, abandon=self._abandon, job_id=self._run.job_id)
        for sink in self._sinks.values():
            peek = getattr(sink, "peek", None)
            if peek is not None:
                self._plan(sink, peek())

    def open(self) -> None:
        """Fence older runs in every sink, then publish what they left unpublished."""
        run = self._run
        run.check_live()
        self.check()
        for sink_id, epochs in run.waiting_epochs().items():
            if sink_id not in self._sinks:
                logger = self._logger.about(sink=sink_id)
                logger.warning("sink %s is abandoned: epochs %s stay unpublished", sink_id, epochs)
                run.abandon_sink(sink_id)
        for history in run.head.sink_histories:
            if history.sink_id not in self._sinks and not history.absent_since:
                logger = self._logger.about(sink=history.sink_id)
                place = f" ({history.target})" if history.target else ""
                logger.warning("the job no longer writes to sink %s%s, which keeps what it has", history.sink_id, place)
        identities = {}
        for sink in self._sinks.values():
            position = sink.open(run.number)
            identities[sink.sink_id] = self._identity(sink, position)
            self._begin(sink, self._plan(sink, position), position)
        run.declare_sinks(identities)
        self.publish_pending()

    def _identity(self, sink: Sink, position: SinkPosition | None) -> SinkIdentity:
        """Return the identity of a sink. A sink without one counts as keeping a position if it ever had one."""
        identity = getattr(sink, "identity", None)
        if isinstance(identity, SinkIdentity):
            return identity
        history = history_of(self._run.head.sink_histories, sink.sink_id)
        return SinkIdentity(keeps_position=position is not None or (history is not None and history.keeps_position))

    def _plan(self, sink: Sink, position: SinkPosition | None) -> SinkPlan:
        facts = self._run.sink_facts(sink.sink_id, self._identity(sink, position), position)
        self._published_before[sink.sink_id] = facts.published
        rebuild = self._rebuilds.get(sink.sink_id, NOT_IN_STATE)
        return plan_sink(
            facts,
            choice=self._starts.get(sink.sink_id),
            rollback_allowed=self._run.rollback_allowed,
            no_rebuild=rebuild if isinstance(rebuild, str) else "",
        )

    def _begin(self, sink: Sink, plan: SinkPlan, position: SinkPosition | None) -> None:
        """Bring the sink to the state that the run continues from. Afterwards all epochs it lacks are pending.

        Markers are ignored: they stay when a sink retracts an epoch, and the lineage may return to that epoch later.
        """
        run = self._run
        logger = self._logger.about(sink=sink.sink_id, epoch=plan.after or 0)
        if plan.problem:
            logger.warning("%s; continuing as chosen at the start", plan.problem)
        if plan.clear:
            clear = getattr(sink, "clear", None)
            if clear is not None:
                clear(run.number)
            else:
                sink.roll_back(run.number, 0)
            run.forget_losses(sink.sink_id)
        elif plan.roll_back_to is not None:
            held = position.epoch if position else 0
            logger.warning(
                "sink %s is rolled back from epoch %d to %d, as requested", sink.sink_id, held, plan.roll_back_to
            )
            sink.roll_back(run.number, plan.roll_back_to)
        if plan.from_state and plan.after is not None:
            self._write_results(sink, plan.after)
        if plan.accepted is not None:
            run.accept_loss(sink.sink_id, plan.accepted)
        if plan.after is None:
            return
        for epoch in run.waiting_epochs().get(sink.sink_id, []):
            if position is not None and epoch <= min(position.epoch, plan.after):
                # The process died after the sink's commit, before the marker was written.
                self._mark(run.record(epoch), sink.sink_id)
        run.await_sink(sink.sink_id, after=plan.after)

    def _write_results(self, sink: Sink, epoch: int) -> None:
        """Write the finished results of the base as its epoch. A crash before that leaves the sink empty."""
        run = self._run
        rebuild = self._rebuilds[sink.sink_id]
        assert not isinstance(rebuild, str), "planned only if a rebuild is possible"
        with rebuild(run.head) as rebuilt:
            if not rebuilt.files:
                run.accept_loss(
                    sink.sink_id, AcceptedLoss(held=0, until=epoch)
                )  # an empty target is correct from now on
            sink.publish(
                Publication(
                    run=run.number,
                    epoch=epoch,
                    record=run.head,
                    files=rebuilt.files,
                    commit_data=(),
                    store=rebuilt.store,
                )
            )
            rows = sum(file.rows for file in rebuilt.files)
        logger = self._logger.about(sink=sink.sink_id, epoch=epoch)
        logger.info("sink %s was rebuilt with %d rows of epoch %d", sink.sink_id, rows, epoch)

    def publish_pending(self) -> int:
        """Publish every unpublished epoch of the lineage, oldest first, and return the number of deliveries."""
        delivered = 0
        for record, waiting in self._run.pending():
            for entry in record.sinks:
                if entry.sink_id in waiting:
                    delivered += self._deliver(record, entry)
        return delivered

    def _deliver(self, record: pb.CheckpointMetadata, entry: pb.SinkEntry) -> int:
        run = self._run
        sink = self._sinks.get(entry.sink_id)
        logger = self._logger.about(sink=entry.sink_id, epoch=record.epoch)
        if sink is None:
            check_removed({entry.sink_id: [record.epoch]}, sinks=self._sinks, abandon=self._abandon, job_id=run.job_id)
            run.abandon_sink(entry.sink_id)
            return 0
        run.check_live()
        files = output_files(record, entry.operator_id, entry.stream)
        publication = Publication(
            run=run.number,
            epoch=record.epoch,
            record=record,
            files=tuple(files),
            commit_data=tuple(entry.commit_data),
            store=run.store,
        )
        if self._is_skipped(record, entry.sink_id):
            rows = sum(file.rows for file in files)
            logger.warning(
                "sink %s does not get the %d rows of epoch %d, as requested", sink.sink_id, rows, record.epoch
            )
            _skip(sink, publication)
        else:
            _publish(sink, publication)
        self._mark(record, entry.sink_id)
        logger.debug("epoch %d is published to sink %s", record.epoch, entry.sink_id)
        return 1

    def _is_skipped(self, record: pb.CheckpointMetadata, sink_id: str) -> bool:
        """Return whether the user gave up the epoch. One that the sink had, and lost since, is published again."""
        epoch, last = record.epoch, self._skip.get(sink_id, 0)
        if epoch >= last:
            return epoch == last
        return epoch > self._published_before.get(sink_id, 0) or is_given_up(self._run.store, epoch, sink_id)

    def _mark(self, record: pb.CheckpointMetadata, sink_id: str) -> None:
        entry = next(entry for entry in record.sinks if entry.sink_id == sink_id)
        files = output_files(record, entry.operator_id, entry.stream)
        if self._is_skipped(record, sink_id) and files:
            self._run.mark_given_up(record.epoch, sink_id, rows=sum(file.rows for file in files))
        else:
            self._run.mark_published(record.epoch, sink_id)


def _publish(sink: Sink, publication: Publication) -> None:
    try:
        sink.publish(publication)
    except SinkUnavailableError:
        raise
    except SinkError as error:
        if error.is_of_target:
            raise  # other rows would fail, too
        name, epoch = sink.sink_id, publication.epoch
        error.fix += (
            f"; to leave the rows of this epoch out of the sink for good: job.start(skip={{{name!r}: {epoch}}}), or "
            f"statebed sql --skip {name}={epoch}"
        )
        raise


def _skip(sink: Sink, publication: Publication) -> None:
    """Let the sink advance to an epoch without its rows."""
    skip = getattr(sink, "skip", None)
    if skip is not None:
        skip(publication)
    else:
        sink.publish(replace(publication, files=(), commit_data=()))
