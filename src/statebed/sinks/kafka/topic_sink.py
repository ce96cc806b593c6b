"""A Kafka topic as a sink, exactly once: each epoch is one transaction that also commits the epoch as an offset.

Readers with `isolation.level=read_committed` see an epoch once, whole, or not at all. A new run initialises the same
transactional id; Kafka then aborts the open transaction of an older run and refuses everything it sends afterwards. The
offset tells a restarted job which epochs are visible.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from statebed.checkpoint import Publication
from statebed.errors import InputError, RollbackError, SinkError
from statebed.logs import id_logger
from statebed.protocol import Guarantee, PublishStep, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.base import BaseSink
from statebed.sinks.kafka.messages import BATCH_ROWS, Message, MessageEncoder
from statebed.sinks.kafka.topic import Topic, TopicFacts, TopicLayout, driver, is_connection_problem, offsets_of

if TYPE_CHECKING:
    from confluent_kafka import Producer

_WAIT_SECONDS = 0.5
_REQUEST_SECONDS = 10.0
_LOOK_SECONDS = 3.0
"""Wait for the delivery of messages before checking whether the topic still exists."""
_REFRESH_SECONDS = 3_600.0
"""Interval at which the position is committed again without output, because brokers forget offsets after some days."""
_logger = id_logger(__name__)


@dataclass
class _Session:
    """An initialised producer, and the position that it last committed."""

    producer: "Producer"
    group: object
    facts: TopicFacts
    position: SinkPosition
    committed_at: float


class KafkaTopicSink(BaseSink):
    """Publishes epochs to a topic."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    keeps_position: ClassVar[bool] = True
    kind: str = "kafka"

    def __init__(
        self, *, sink_id: str, job_id: str, topic: Topic, encoder: MessageEncoder, layout: TopicLayout
    ) -> None:
        super().__init__(sink_id)
        self._owner = f"{job_id}/{sink_id}"
        self._topic = topic
        self._encoder = encoder
        self._layout = layout
        self._session: _Session | None = None

    def rename(self, sink_id: str) -> None:
        super().rename(sink_id)
        self._encoder.envelope = replace(self._encoder.envelope, table=sink_id)

    @property
    def described(self) -> str:
        return f"{self._topic.where}, {self._encoder.described}"

    @property
    def target(self) -> str:
        return f"topic {self._topic.name} at {self._topic.cluster.place}"

    @property
    def _transactional_id(self) -> str:
        return f"statebed.{self._topic.name}.{self._owner}"

    # ---- before a run opens ----------------------------------------------------------------------------------

    def peek(self) -> SinkPosition | None:
        return self._held(self._topic.facts())

    def owner_of_target(self) -> str:
        position = self._topic.position(self._topic.facts())
        return position.owner if position is not None else ""

    def check(self, *, last_number: int) -> None:
        facts = self._topic.facts()
        if facts is None and not self._layout.create:
            raise InputError(
                "the topic does not exist, and create=False",
                where=self._topic.where,
                fix="create the topic, or leave create= out",
            )
        if facts is not None and facts.is_compacted and not self._encoder.is_keyed:
            raise InputError(
                "the topic is compacted (cleanup.policy=compact), so messages need a key",
                where=self._topic.where,
                fix="write('kafka', ..., key=...), or choose a topic with cleanup.policy=delete",
            )
        self._check_partitions(facts)
        position = self._held(facts)
        if position is not None and max(position.epoch, position.run) > last_number:
            raise InputError(
                f"the topic holds epoch {position.epoch} of run {position.run}, but the job's log ends at "
                f"{last_number}: the state was deleted, or is another job's",
                where=self._topic.where,
                fix=f"choose another topic, or delete the topic and the group {self._topic.group}, or restore the "
                "state it belongs to",
            )

    def _check_partitions(self, facts: TopicFacts | None) -> None:
        """Raise InputError if keys may have moved: with more partitions, Kafka puts most keys into other ones."""
        position = self._topic.position(facts)
        if facts is None or position is None or not self._encoder.is_keyed:
            return
        if position.partitions in {0, facts.partitions} or facts.partitions == self._layout.partitions:
            return
        raise InputError(
            f"the topic had {position.partitions} partitions and has {facts.partitions} now: a key may have older "
            "messages in another partition, which readers do not see in order, and which compaction keeps",
            where=self._topic.where,
            fix=f"write to a new topic; or delete this one and start with sinks={{{self.sink_id!r}: 'rebuild'}} if its "
            f"results are kept in state; or continue as it is with write(..., partitions={facts.partitions})",
        )

    def _held(self, facts: TopicFacts | None, *, is_settled: bool = False) -> SinkPosition | None:
        """Return the position, see `Topic.position`; raise InputError if the topic belongs to another sink."""
        return self._topic.position_of(self._owner, facts, is_settled=is_settled)

    # ---- the sink --------------------------------------------------------------------------------------------

    def open(self, run: int) -> SinkPosition | None:
        self._session = None
        facts = self._topic.facts() or self._topic.create(self._layout, compacted=self._encoder.is_upsert)
        self._check_run(run, self._held(facts))
        positions: list[SinkPosition | None] = []

        def opened(_: _Session, before: SinkPosition | None) -> SinkPosition:
            positions.append(before)
            return SinkPosition(run=run, epoch=before.epoch if before else 0)

        self._transacted(run, opened)
        return positions[-1]

    def roll_back(self, run: int, epoch: int) -> None:  # noqa: ARG002 - nothing is written
        """Raise RollbackError if the topic holds later epochs: Kafka cannot retract messages."""
        position = self._held(self._topic.facts())
        if position is None or position.epoch <= epoch:
            return
        raise RollbackError(
            f"the topic holds epoch {position.epoch} and cannot be rolled back to {epoch}, as Kafka cannot retract "
            "messages",
            where=self._topic.where,
            fix=f"start with sinks={{{self.sink_id!r}: 'rebuild'}} if its results are kept in state, or write to a new "
            "topic",
        )

    def clear(self, run: int) -> None:
        """Delete all messages, or write a tombstone for every key if the topic is only compacted."""
        facts: list[TopicFacts] = []

        def cleared(session: _Session, _: SinkPosition | None) -> SinkPosition:
            facts.append(session.facts)
            if not session.facts.may_delete:
                self._bury(session)
            return SinkPosition(run=run, epoch=0)

        self._transacted(run, cleared)
        # Not part of the transaction: if the process dies here, the position tells that the topic counts as empty.
        if facts[-1].may_delete:
            self._topic.delete_records(facts[-1])

    def publish(self, publication: Publication) -> None:
        if publication.files or self._is_due_for_refresh():
            self._publish(publication)

    def skip(self, publication: Publication) -> None:
        """Advance the position only."""
        self._publish(replace(publication, files=()))

    def _publish(self, publication: Publication) -> None:
        run, epoch = publication.run, publication.epoch

        def published(session: _Session, before: SinkPosition | None) -> SinkPosition | None:
            if decide_delivery(before, run=run, epoch=epoch) is not PublishStep.WRITE:
                return None
            for batch in self._encoder.messages(publication):
                self._send(session.producer, batch)
            return SinkPosition(run=run, epoch=epoch)

        self._transacted(run, published)

    def _is_due_for_refresh(self) -> bool:
        session = self._session
        return session is not None and time.monotonic() - session.committed_at > _REFRESH_SECONDS

    # ---- transactions ----------------------------------------------------------------------------------------

    def _transacted(self, run: int, work: Callable[[_Session, SinkPosition | None], SinkPosition | None]) -> None:
        """Run `work` in a transaction that commits the position it returns; if it returns None, abort.

        After a failure the position is read again, so that nothing is written twice.
        """
        deadline = time.monotonic() + self._topic.cluster.timeout_seconds
        kafka = driver()
        while True:
            try:
                session, before = self._ready(run)
                session.producer.begin_transaction()
                after = work(session, before)
                if after is None:
                    session.producer.abort_transaction(_REQUEST_SECONDS)
                    return
                self._commit(session, after, deadline)
            except kafka.KafkaException as error:
                # The outcome of a commit may be unknown: a new producer settles it, and the position tells it. The
                # old one is not used again: after a restart of the broker, it may wait for the coordinator forever.
                self._session = None
                self._check_retry(error, deadline)
            except BaseException:
                self._session = None
                raise
            else:
                session.position, session.committed_at = after, time.monotonic()
                return

    def _commit(self, session: _Session, position: SinkPosition, deadline: float) -> None:
        """Wait until the messages are delivered, then commit them together with the position."""
        producer = session.producer
        while producer.flush(_LOOK_SECONDS):
            if self._topic.facts() is None:
                raise self._gone()
            if time.monotonic() > deadline:
                raise self._topic.unavailable("the messages of the epoch were not delivered in time")
        offsets = offsets_of(self._topic, session.facts, owner=self._owner, position=position)
        producer.send_offsets_to_transaction(offsets, session.group, _REQUEST_SECONDS)
        producer.commit_transaction(_REQUEST_SECONDS)

    def _ready(self, run: int) -> tuple[_Session, SinkPosition | None]:
        """Return a producer without an open transaction, and the position; raise FencedError if a newer run has it."""
        if self._session is not None:
            self._check_run(run, self._session.position)
            return self._session, self._session.position
        facts = self._topic.facts()
        if facts is None:
            raise self._gone()
        # First without fencing: an older run must not disturb a newer one.
        self._check_run(run, self._held(facts))
        producer = self._topic.cluster.producer(self._transactional_id)
        producer.init_transactions(_REQUEST_SECONDS)
        before = self._held(facts, is_settled=True)  # the new producer has ended what the old one left open
        self._check_run(run, before)
        group = self._topic.group_metadata()
        self._session = _Session(producer, group, facts, before or SinkPosition(run=run, epoch=0), time.monotonic())
        return self._session, before

    def _gone(self) -> SinkError:
        return SinkError(
            "the topic no longer exists; it was deleted while the job ran",
            where=self._topic.where,
            fix="start the job again: the epoch is committed; the start lists the choices for an empty sink",
        )

    def _check_run(self, run: int, position: SinkPosition | None) -> None:
        if position is not None and position.run > run:
            raise self.fenced(run, position.run, where=self._topic.where)

    def _check_retry(self, error: Exception, deadline: float) -> None:
        """Wait before a retry; raise the error for users if a retry cannot help or there is no time left."""
        cause = error.args[0]
        codes = driver().KafkaError
        gone = {codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC, codes._UNKNOWN_PARTITION}  # noqa: SLF001
        fenced = {codes._FENCED, codes.INVALID_PRODUCER_EPOCH, codes.INVALID_PRODUCER_ID_MAPPING}  # noqa: SLF001
        again = cause.retriable() or is_connection_problem(cause) or cause.txn_requires_abort() or cause.fatal()
        if cause.code() in gone or ((again or cause.code() in fenced) and time.monotonic() < deadline):
            logger = _logger.about(sink=self.sink_id)
            logger.warning("sink %s will be retried in %g s: %s", self.sink_id, _WAIT_SECONDS, cause)
            time.sleep(_WAIT_SECONDS)
            return
        raise self._topic.unavailable(cause) from error

    def _send(self, producer: "Producer", batch: list[Message]) -> None:
        """Queue messages, waiting while the client's queue is full."""
        kafka = driver()
        while batch:
            producer.produce_batch(self._topic.name, batch)
            left = [message for message in batch if "_error" in message]
            for message in left:
                error: Any = message.pop("_error")
                if error.code() != kafka.KafkaError._QUEUE_FULL:  # noqa: SLF001 - a public name of the client
                    raise kafka.KafkaException(error)
            producer.poll(1.0 if left else 0)
            batch = left

    def _bury(self, session: _Session) -> None:
        """Write a tombstone for every key that has a value."""
        keys: dict[bytes, bool] = {}
        for message in self._topic.cluster.read_to_end(self._topic.name, session.facts.partitions):
            keys[message.key() or b""] = message.value() is not None
        buried = [{"key": key, "value": None} for key, lives in keys.items() if lives]
        for first in range(0, len(buried), BATCH_ROWS):
            self._send(session.producer, buried[first : first + BATCH_ROWS])
