"""A run: one start of a job, from its run_start record until it stops or is fenced.

Only the run appends to the log. Every method may raise FencedError (a newer run owns the job) or StateGoneError (the
log lost this run's records); after that the run is dead and each further call raises the same error. Not thread-safe:
the controller serialises its calls.
"""

from collections.abc import Container, Mapping, Sequence

from statebed.checkpoint.cleanup import Cleaner, CleanupResult, PreparedCleanup
from statebed.checkpoint.environment import Environment
from statebed.checkpoint.given_up import given_up_since, is_given_up
from statebed.checkpoint.log import CheckpointLog
from statebed.checkpoint.open_run import Opening, RunOptions, markers, prepare_opening, walk_chain
from statebed.checkpoint.references import References
from statebed.checkpoint.requests import PendingRequests
from statebed.checkpoint.run_status import undelivered_sinks
from statebed.errors import (
    CleanupError,
    CorruptRecordError,
    FencedError,
    OpenContentionError,
    OutcomeUnknownError,
    StatebedError,
    StateGoneError,
)
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.sealed import seal
from statebed.logs import id_logger
from statebed.protocol.base_choice import RollbackPolicy
from statebed.protocol.commit import fenced
from statebed.protocol.publication import SinkPosition, common_epoch, oldest_unpublished, pending_sinks
from statebed.protocol.records import Commit, EpochDraft, build_epoch, build_run_start, data_epoch_of
from statebed.protocol.requests import Effect
from statebed.protocol.retention import LineageEpoch, next_min_epoch
from statebed.protocol.sink_history import (
    AcceptedLoss,
    GivenUpEpochs,
    SinkIdentity,
    has_rows,
    histories_after,
    history_of,
    mentions,
)
from statebed.protocol.sink_start import SinkFacts
from statebed.storage import ObjectStore, PutOutcome

OPEN_ATTEMPTS = 100
"""Number of attempts to open a run while the run it fences keeps committing."""
SWEEP_EVERY = 64
"""Number of clean-ups per sweep of the whole job folder; the first clean-up of a run is always a sweep."""

_logger = id_logger(__name__)


class Run:
    """Live run of a job, created by `Run.open`."""

    def __init__(
        self,
        log: CheckpointLog,
        references: References,
        options: RunOptions,
        opening: Opening,
        start: pb.CheckpointMetadata,
    ) -> None:
        self.options = options
        self.recovery = opening.recovery
        self.head = start
        """Newest record that this run committed."""
        self._log = log
        self._references = references
        self._view = {**opening.view, start.epoch: start}
        self._damaged = opening.damaged
        chain = [epoch for epoch in walk_chain(self._view, start) if epoch >= start.min_epoch]
        self._chain = [LineageEpoch(epoch, self._view[epoch].finish_time_us) for epoch in reversed(chain)]
        self._identities: Mapping[str, SinkIdentity] = {}
        self._accepted: dict[str, AcceptedLoss] = {}
        self._published = {history.sink_id: history.published for history in start.sink_histories}
        self._pending = self._find_unpublished()
        self._given_up = given_up_since(log.store, start, (self._view[epoch] for epoch in chain))
        self._requests = PendingRequests(log)
        self._cleanups = 0
        self._rollback_allowed = bool(start.rollback_allowed)
        self._death: StatebedError | None = None
        self._logger = _logger.about(job=log.job_id, run=start.run)

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        job_id: str,
        *,
        options: RunOptions | None = None,
        environment: Environment | None = None,
    ) -> "Run":
        """Fence every earlier run and take over; `store` is scoped to the job's folder."""
        log = CheckpointLog(store, job_id, environment)
        references = References(log)
        options = options or RunOptions()
        for _ in range(OPEN_ATTEMPTS):
            opening = prepare_opening(log, references, options)
            if options.only_after is not None and opening.recovery.last_number != options.only_after:
                raise OpenContentionError(
                    f"record {opening.recovery.last_number} was appended after record {options.only_after}",
                    where=f"job {job_id}",
                    fix="the job is running: send it a request, or open without `only_after`",
                )
            start = _run_start(log, opening, options)
            other = log.append(start, follows=opening.recovery.head)
            if other is None and len(opening.recovery.lost) > 1:
                continue  # each lost number gets a record; the newest one becomes this run's
            if other is None:
                logger = _logger.about(job=job_id, run=start.run, epoch=start.epoch)
                logger.info("run %d starts from the state of epoch %d", start.run, start.base)
                return cls(log, references, options, opening, start)
            if other.kind != pb.EPOCH:
                raise fenced(start.epoch, run=start.epoch, by=other)
        raise OpenContentionError(
            f"the job's live run committed {OPEN_ATTEMPTS} epochs while this one tried to open",
            where=f"job {job_id}",
            fix="stop the live run first, then start again",
        )

    @classmethod
    def preview(
        cls,
        store: ObjectStore,
        job_id: str,
        *,
        options: RunOptions | None = None,
        environment: Environment | None = None,
    ) -> "Run":
        """Build the run that `open` would open now, without writing anything, for checks in advance.

        Use it only to read records and plans; commit, publish or clean up nothing with it.
        """
        log = CheckpointLog(store, job_id, environment)
        references = References(log)
        options = options or RunOptions()
        opening = prepare_opening(log, references, options)
        return cls(log, references, options, opening, _run_start(log, opening, options))

    # ---- epochs ----------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        return self.head.run

    @property
    def job_id(self) -> str:
        return self._log.job_id

    @property
    def store(self) -> ObjectStore:
        """Store, scoped to the job's folder."""
        return self._log.store

    @property
    def environment(self) -> Environment:
        return self._log.environment

    @property
    def lineage(self) -> str:
        return self.head.lineage

    @property
    def rollback_allowed(self) -> bool:
        """Whether sinks may retract epochs of other lineages, allowed by this run or by the fork that started the
        lineage.
        """
        return self._rollback_allowed

    @property
    def next_epoch(self) -> int:
        return self.head.epoch + 1

    @property
    def chain(self) -> tuple[int, ...]:
        """Retained data epochs of this lineage, ascending."""
        return tuple(link.epoch for link in self._chain)

    def ancestry(self, epoch: int) -> tuple[int, ...]:
        """Return the data epochs that lead to `epoch`, newest first, up to the first whose record is not retained."""
        retained = list(walk_chain(self._view, self._view.get(epoch)))
        oldest = self._view[retained[-1]].base if retained else epoch
        return (*retained, oldest) if oldest else tuple(retained)

    def record(self, epoch: int) -> pb.CheckpointMetadata:
        """Return a retained record."""
        return self._view[epoch] if epoch in self._view else self._log.read(epoch)

    def carry_over(self, status: pb.RecordStatus.ValueType = pb.COMPLETE) -> EpochDraft:
        """Return a draft that changes nothing, for requests and stops without input."""
        head = self.head
        return EpochDraft(
            operators=[_without_rows(entry) for entry in head.operators],
            source_position=head.source_position,
            sources=list(head.sources),
            epoch_time_us=head.epoch_time_us,
            parallelism=head.parallelism,
            status=status,
        )

    def commit(self, draft: EpochDraft) -> pb.CheckpointMetadata:
        """Make the epoch durable and visible. Once this returns, it survives the failure of every process."""
        self._check_alive()
        pins = self._requests.pins(self.head, self.next_epoch)
        granted = [request_id for request_id, _ in self._requests.granted() if request_id]
        commit = _attempt(self._log, granted_requests=granted)
        chain = [*self._chain, LineageEpoch(self.next_epoch, commit.now_us)]
        min_epoch = next_min_epoch(
            chain,
            policy=self.options.retention,
            now_us=commit.now_us,
            current=self.head.min_epoch,
            oldest_unpublished=oldest_unpublished(self._pending),
        )
        record = build_epoch(
            head=self.head,
            draft=draft,
            min_epoch=min_epoch,
            pins=pins,
            commit=commit,
            identities=self._identities,
            published=self._published,
            accepted=self._accepted,
            given_up=self._given_up,
        )
        self._append(record)
        self._given_up = {}
        self._logger.debug("epoch %d is committed", record.epoch, extra={"epoch": record.epoch})
        self.head = record
        self._view[record.epoch] = record
        self._chain = [link for link in chain if link.epoch >= min_epoch]
        self._pending[record.epoch] = [sink.sink_id for sink in record.sinks]
        self._requests.settle(record)
        self._requests.answer(record)
        return record

    def check_live(self) -> None:
        """Raise FencedError if a newer run has started, StateGoneError if the log lost this run's head.

        A newer run may start right afterwards, so commits do not rely on this check.
        """
        self._check_alive()
        if self._log.exists(self.next_epoch):
            self._die(fenced(self.next_epoch, run=self.number, by=self._log.record_at_number(self.next_epoch)))
        # The next number of a superseded run may have been cleaned up since; then so was its head.
        if not self._log.is_current(self.head):
            self._die(self._log.explain_loss(self.head.epoch, known=self.head, written=self.head))

    def _append(self, record: pb.CheckpointMetadata) -> None:
        try:
            other = self._log.append(record, follows=self.head)
        except (FencedError, StateGoneError, OutcomeUnknownError, CorruptRecordError) as error:
            self._die(error)
        if other is not None:
            self._die(fenced(record.epoch, run=self.number, by=other))

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death

    def _die(self, error: StatebedError) -> None:
        self._death = error
        self._logger.warning("run %d ends before epoch %d: %s", self.number, self.next_epoch, error.what)
        raise error

    # ---- publication -----------------------------------------------------------------------------------------

    def pending(self) -> list[tuple[pb.CheckpointMetadata, tuple[str, ...]]]:
        """Return the epochs of this lineage with pending sinks, oldest first, and these sinks."""
        self._check_alive()
        return [(self.record(epoch), tuple(sinks)) for epoch, sinks in sorted(self._pending.items()) if sinks]

    @property
    def undelivered(self) -> list[pb.UndeliveredSink]:
        """Sinks that lack committed epochs; also available after the run has died."""
        return undelivered_sinks(sorted(self._pending.items()))

    def mark_published(self, epoch: int, sink_id: str) -> None:
        """Write the marker that the sink has the epoch."""
        self._mark(epoch, sink_id, given_up=False)

    def mark_given_up(self, epoch: int, sink_id: str, *, rows: int) -> None:
        """Write the marker that the sink has the epoch without its rows; the next record counts them, once."""
        counts = self._given_up.setdefault(sink_id, GivenUpEpochs())
        if counts.anew or not is_given_up(self._log.store, epoch, sink_id):
            counts.add(epoch, rows)
        self._mark(epoch, sink_id, given_up=True)

    def _mark(self, epoch: int, sink_id: str, *, given_up: bool) -> None:
        now_us = self.environment.now_us()
        marker = pb.PublishedMarker(sink_id=sink_id, epoch=epoch, run=self.number, time_us=now_us, given_up=given_up)
        path, data = names.published(epoch, sink_id), seal(marker)
        outcome = self._log.store.put_if_absent(path, data)
        if outcome is PutOutcome.EXISTS and is_given_up(self._log.store, epoch, sink_id) != given_up:
            self._log.store.put(path, data)  # after a rollback of the sink, the epoch is published again, or given up
        self._published[sink_id] = epoch
        self.release_sink(epoch, sink_id)

    def release_sink(self, epoch: int, sink_id: str) -> None:
        """Remove the sink from the pending sinks of the epoch."""
        waiting = self._pending.get(epoch, [])
        self._pending[epoch] = [sink for sink in waiting if sink != sink_id]
        if not self._pending[epoch]:
            del self._pending[epoch]

    def abandon_sink(self, sink_id: str) -> None:
        """Remove the sink from the pending sinks of all epochs so far; the next record stores this."""
        self._published[sink_id] = data_epoch_of(self.head)
        for epoch in list(self._pending):
            self.release_sink(epoch, sink_id)

    def forget_losses(self, sink_id: str) -> None:
        """Store in the next record that the sink was rebuilt, so that it lacks nothing that was given up before."""
        self._given_up[sink_id] = GivenUpEpochs(anew=True)
        self._accepted[sink_id] = AcceptedLoss(held=0, until=0)

    def accept_loss(self, sink_id: str, loss: AcceptedLoss) -> None:
        """Store in the next record what the user gave up."""
        self._accepted[sink_id] = loss

    def await_sink(self, sink_id: str, *, after: int) -> None:
        """Make the sink pending for exactly the epochs of this lineage after `after`, whatever the markers say."""
        for link in self._chain:
            self.release_sink(link.epoch, sink_id)
            if link.epoch > after and sink_id in [entry.sink_id for entry in self._view[link.epoch].sinks]:
                self._pending[link.epoch] = [*self._pending.get(link.epoch, ()), sink_id]

    def declare_sinks(self, identities: Mapping[str, SinkIdentity]) -> None:
        """Set the identities of the job's sinks; the next record stores them."""
        self._identities = dict(identities)

    def known_sinks(self) -> list[pb.SinkHistory]:
        """Return the histories of the sinks that this lineage knows, from the newest record that has any.

        For a sink behind steps, the record does not name the operator; it is taken from its output files.
        """
        records = [self.head, *(self._view[link.epoch] for link in reversed(self._chain))]
        histories = histories_after(next((r for r in records if r.sink_histories or r.sinks), self.head))
        for history in histories:
            streams = {(file.operator_id, file.stream) for record in records for file in record.outbox}
            operators = {operator for operator, stream in streams if stream and stream == history.stream}
            if not history.operator_id and len(operators) == 1:
                history.operator_id = operators.pop()
        return histories

    def sink_facts(self, sink_id: str, identity: SinkIdentity, position: SinkPosition | None) -> SinkFacts:
        """Return what the log knows about a sink of this job at `position`, before the first epoch."""
        base = data_epoch_of(self.head)
        common = 0
        if position is not None and position.epoch:
            common = common_epoch(position, held=self.ancestry(position.epoch), lineage=self.ancestry(base))
        records = [self._view[link.epoch] for link in self._chain]
        history = history_of(self.head.sink_histories, sink_id)
        before = history_of((records or [self.head])[0].sink_histories, sink_id)
        entries = {record.epoch: e for record in records for e in record.sinks if e.sink_id == sink_id}
        opened = self._view.get(position.run) if position is not None else None
        newest = self._view.get(position.epoch) if position is not None else None
        waiting = self.waiting_epochs().get(sink_id, [])
        mentioned = any(mentions(record, sink_id) for record in self._view.values())
        return SinkFacts(
            sink_id=sink_id,
            identity=identity,
            position=position,
            history=history,
            common=common,
            base=base,
            last_number=self.recovery.last_number,
            outputs=[
                record.epoch
                for record in records
                if (entry := entries.get(record.epoch)) and has_rows(record, entry.operator_id, entry.stream)
            ],
            gone_output=before.last_output if before is not None else 0,
            oldest=self.chain[0] if self._chain else 0,
            published=self._published.get(sink_id, 0),
            # An epoch is marked before the next one is published, so a sink cannot be past its first epoch without a
            # marker.
            foreign=(opened is not None and opened.kind != pb.RUN_START)
            # A state that was restored from a backup gives numbers again that the sink has from the log before.
            or (position is not None and newest is not None and newest.kind == pb.EPOCH and newest.run > position.run)
            or (bool(waiting) and common > waiting[0])
            or (common > 0 and not mentioned),
        )

    def waiting_epochs(self) -> dict[str, list[int]]:
        """Map each sink to its pending epochs of this lineage, ascending."""
        waiting: dict[str, list[int]] = {}
        for epoch, sinks in sorted(self._pending.items()):
            for sink_id in sinks:
                waiting.setdefault(sink_id, []).append(epoch)
        return waiting

    def _find_unpublished(self) -> dict[int, list[str]]:
        # Publication is in order: each sink has everything up to its newest marker, and everything the newest record
        # lists as published.
        pending: dict[int, list[str]] = {}
        done: set[str] = set()
        for link in reversed(self._chain):
            record = self._view[link.epoch]
            done |= {sink_id for sink_id, epoch in self._published.items() if epoch >= link.epoch}
            wanted = [entry.sink_id for entry in record.sinks if entry.sink_id not in done]
            published_sinks = markers(self._log, record) if wanted else []
            done.update(published_sinks)
            self._published |= {
                sink_id: max(link.epoch, self._published.get(sink_id, 0)) for sink_id in published_sinks
            }
            if waiting := pending_sinks(wanted, published_sinks):
                pending[link.epoch] = waiting
        return pending

    # ---- requests --------------------------------------------------------------------------------------------

    def serve_requests(self) -> list[Effect]:
        """Read new requests, which take effect with the next commit, and return the effects waiting for it."""
        self._check_alive()
        self._requests.read(self.head, self._view.values())
        return self.waiting_effects

    @property
    def waiting_effects(self) -> list[Effect]:
        return [effect for _, effect in self._requests.granted()]

    def add_request(self, request: pb.Request) -> None:
        """Add a request of this run itself, without an object in the store. It takes effect with the next commit."""
        self._requests.add(request, self.head)

    # ---- garbage ---------------------------------------------------------------------------------------------

    def clean_up(self, *, in_flight: Container[str] = (), dry_run: bool = False) -> CleanupResult:
        """Delete what the committed records allow. Safe at any time; resumes after an interruption."""
        cleanup = self.prepare_cleanup(in_flight=in_flight)
        result = cleanup.run(dry_run=dry_run)
        if not dry_run:
            self.settle_cleanup(cleanup, result)
        return result

    def prepare_cleanup(self, *, in_flight: Container[str] = ()) -> PreparedCleanup:
        """Return a clean-up of what the records committed so far allow. Only one may be prepared at a time.

        It may run on another thread. Pass its result to `settle_cleanup` on the thread of this run.
        """
        self._check_alive()
        # Only a sweep sees unreadable records, which must be deleted in order, too.
        sweep = self._cleanups % SWEEP_EVERY == 0 or bool(self._damaged)
        records = [self._view[epoch] for epoch in sorted(self._view)]
        self._check_nothing_damaged(records)
        return PreparedCleanup(
            Cleaner(self._log, self._references),
            records,
            grace_us=self.options.retention.reader_grace_us,
            sweep=sweep,
            in_flight=in_flight,
        )

    def settle_cleanup(self, cleanup: PreparedCleanup, result: CleanupResult) -> None:
        """Forget the records that a clean-up deleted."""
        # A sweep that no record permits yet is still due.
        self._cleanups += result.swept or not cleanup.sweep
        for number in result.records:
            self._view.pop(number, None)
        self._damaged -= set(result.records)

    def _check_nothing_damaged(self, records: Sequence[pb.CheckpointMetadata]) -> None:
        kept = [number for number in self._damaged if number >= records[-1].min_epoch]
        if kept:
            raise CleanupError(
                f"nothing was deleted: the records {kept} are retained but cannot be read",
                where=f"job {self.job_id}",
                fix="repair them, or wait until they are no longer retained; clean-up then continues by itself",
            )


def _without_rows(entry: pb.OperatorEntry) -> pb.OperatorEntry:
    """Return the entry of an operator for an epoch without rows."""
    kept = pb.OperatorEntry()
    kept.CopyFrom(entry)
    for field in ("rows_in", "rows_late", "rows_out", "then_stop"):
        kept.ClearField(field)
    return kept


def _run_start(log: CheckpointLog, opening: Opening, options: RunOptions) -> pb.CheckpointMetadata:
    return build_run_start(
        job_id=log.job_id,
        number=opening.recovery.next_number,
        head=opening.recovery.head,
        base=opening.base,
        fork=opening.fork,
        commit=_attempt(log),
        min_epoch=opening.min_epoch,
        rollback_allowed=options.rollback is RollbackPolicy.ALLOW,
    )


def _attempt(log: CheckpointLog, granted_requests: Sequence[str] = ()) -> Commit:
    environment = log.environment
    return Commit(
        nonce=environment.fresh_id(),
        now_us=environment.now_us(),
        written_by=environment.written_by,
        granted_requests=granted_requests,
    )
