"""A topic of a Kafka cluster, seen by a sink: its layout, its position, and how it is created and emptied.

The position of a sink is the committed offset of partition 0 of its topic, in a consumer group of its own that is named
after the topic. The offset is the epoch. The metadata of the offset, a JSON text, holds the owner ("job/sink"), the
run, the number of partitions, and the id of the topic, which reveals a re-created topic.
"""

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from statebed.errors import InputError, MissingDependencyError, SinkError, SinkUnavailableError
from statebed.protocol import SinkPosition

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient

GROUP_PREFIX = "statebed.sink."
_RESERVED = frozenset({"transactional.id", "enable.idempotence", "group.id", "isolation.level", "enable.auto.commit"})
_SERVERS = "bootstrap.servers"
_RECONNECT = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 1_000}
_REQUEST_SECONDS = 30.0
_SETTLE_SECONDS = 5.0
"""Time in which Kafka ends a transaction that was committed or aborted; mostly it takes milliseconds."""


class _UnstableOffsetsError(Exception):
    """The position is part of a transaction that is still open."""


@dataclass(frozen=True)
class TopicLayout:
    """Settings for the creation of a missing topic."""

    create: bool = True
    partitions: int = 1
    replication: int = -1
    """Number of replicas; -1 stands for the broker's default."""


@dataclass(frozen=True)
class TopicFacts:
    """An existing topic."""

    topic_id: str
    partitions: int
    policy: str
    """Setting `cleanup.policy`: "delete", "compact" or both."""

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.policy

    @property
    def may_delete(self) -> bool:
        return "delete" in self.policy


class Stored(msgspec.Struct, frozen=True):
    """Metadata of the committed offset."""

    owner: str
    run: int
    topic_id: str
    partitions: int = 0
    """Number of partitions of the topic when the position was committed; 0 if it was not stored."""


@dataclass(frozen=True)
class Position:
    """Position that a topic's group holds, and the sink that it belongs to."""

    owner: str
    at: SinkPosition
    partitions: int
    """Number of partitions of the same topic at that position, or 0 if it is not known."""


@dataclass(frozen=True)
class KafkaCluster:
    """Address of a cluster and the client's settings, which may contain secrets."""

    servers: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_seconds: float = 300.0

    def __post_init__(self) -> None:
        taken = sorted(set(self.settings) & (_RESERVED | {_SERVERS}))
        if taken:
            raise InputError(
                f"kafka= must not contain {', '.join(taken)}: statebed sets it",
                fix="leave it out; servers= names the brokers",
            )
        driver()

    @property
    def place(self) -> str:
        """The servers in a fixed order."""
        return ",".join(sorted(server.strip() for server in self.servers.split(",") if server.strip()))

    def admin(self) -> "AdminClient":
        client: AdminClient = _admin_module().AdminClient(self._config())
        return client

    def producer(self, transactional_id: str) -> "Producer":
        milliseconds = max(int(self.timeout_seconds * 1_000), 1_000)
        settings = {"transaction.timeout.ms": min(milliseconds, 900_000), "linger.ms": 50, **self.settings}
        # Java's partitioner, so that a key is in the partition where Kafka's own tools look for it.
        config = {"partitioner": "murmur2_random", **settings, "transactional.id": transactional_id}
        producer: Producer = driver().Producer(self._config() | config)
        return producer

    def group_reader(self, group: str) -> "Consumer":
        """Return a consumer that never joins its group. It knows what a transaction needs to commit offsets."""
        reader: Consumer = driver().Consumer(self._config() | {"group.id": group, "enable.auto.commit": False})
        return reader

    def read_to_end(self, topic: str, partitions: int) -> "Iterator[Message]":
        """Yield every committed message of a topic that exists now."""
        kafka = driver()
        config = {"group.id": f"{GROUP_PREFIX}{topic}", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = kafka.Consumer(self._config() | config | {"isolation.level": "read_committed"})
        try:
            consumer.assign(
                [kafka.TopicPartition(topic, number, kafka.OFFSET_BEGINNING) for number in range(partitions)]
            )
            waiting = set(range(partitions))
            while waiting:
                for message in consumer.consume(1_000, timeout=0.2):
                    error = message.error()
                    if error is None:
                        yield message
                    elif error.code() == kafka.KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name
                        waiting.discard(message.partition())
                    else:
                        raise kafka.KafkaException(error)
        finally:
            consumer.close()

    def _config(self) -> dict[str, Any]:
        # Errors are raised, so the client need not print them. It must not forget brokers that are down: measured with
        # librdkafka 2.16, a producer that did so while its only broker restarted never found the coordinator again.
        return {_SERVERS: self.servers, "log_level": 0, **_RECONNECT, **self.settings}


class Topic:
    """A topic that belongs to one sink."""

    def __init__(self, cluster: KafkaCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.group = f"{GROUP_PREFIX}{name}"
        self._admin: AdminClient | None = None
        self._group_reader: Consumer | None = None

    @property
    def where(self) -> str:
        return f"Kafka topic {self.name} at {self.cluster.place}"

    def facts(self) -> TopicFacts | None:
        """Describe the topic, or return None if it does not exist."""
        names = driver().TopicCollection([self.name])
        described = self._ask(lambda admin: admin.describe_topics(names)[self.name])
        if described is None:
            return None
        resources = _admin_module().ConfigResource
        resource = resources(resources.Type.TOPIC, self.name)
        config = self._ask(lambda admin: admin.describe_configs([resource])[resource])
        policy = config["cleanup.policy"].value if config else ""
        return TopicFacts(str(described.topic_id), len(described.partitions), policy)

    def position(self, facts: TopicFacts | None, *, is_settled: bool = False) -> Position | None:
        """Return the position, at epoch 0 if the topic was re-created since; None if there is none.

        A transaction that has just been committed or aborted is waited for. One that a killed process left open is not,
        unless `is_settled`: it stays open until the next producer of the sink begins, or Kafka gives it up after
        minutes. The position is then that of the transaction before it.
        """
        if facts is None:
            return None
        kafka = driver()
        request = kafka.ConsumerGroupTopicPartitions(self.group, [kafka.TopicPartition(self.name, 0)])

        def offsets(*, stable: bool, seconds: float | None = None) -> Any:
            return self._ask(
                lambda admin: admin.list_consumer_group_offsets([request], require_stable=stable)[self.group],
                unstable_seconds=seconds,
            )

        try:
            group_offsets = offsets(stable=True, seconds=None if is_settled else _SETTLE_SECONDS)
        except _UnstableOffsetsError:
            group_offsets = offsets(stable=False)
        if group_offsets is None or group_offsets.topic_partitions[0].offset < 0:
            return None
        offset, metadata = group_offsets.topic_partitions[0].offset, group_offsets.topic_partitions[0].metadata
        try:
            stored = msgspec.json.decode(metadata or "", type=Stored)
        except msgspec.DecodeError:
            raise SinkError(
                f"the group {self.group} holds offset {offset} without the metadata of a sink: {metadata!r}",
                where=self.where,
                fix="another client committed offsets for this group; delete the group, and the next start lists the "
                "choices for a sink without a position",
            ) from None
        is_same = stored.topic_id == facts.topic_id
        position = SinkPosition(run=stored.run, epoch=offset if is_same else 0)
        return Position(stored.owner, position, stored.partitions if is_same else 0)

    def position_of(self, owner: str, facts: TopicFacts | None, *, is_settled: bool = False) -> SinkPosition | None:
        """Return the position of a sink, see `position`; raise InputError if the topic belongs to another one."""
        position = self.position(facts, is_settled=is_settled)
        if position is None:
            return None
        if position.owner != owner:
            raise InputError(
                f"the topic belongs to {position.owner}, not to {owner}",
                where=self.where,
                fix="give each job and sink its own topic; a renamed sink keeps its topic with "
                f"write(..., name={position.owner.rpartition('/')[2]!r})",
            )
        return position.at

    def create(self, layout: TopicLayout, *, compacted: bool) -> TopicFacts:
        """Create the topic and wait until it can be described."""
        config = {"cleanup.policy": "compact"} if compacted else {}
        new = _admin_module().NewTopic(
            self.name, num_partitions=layout.partitions, replication_factor=layout.replication, config=config
        )
        self._ask(lambda admin: admin.create_topics([new])[self.name], missing_is_none=False)
        deadline = time.monotonic() + self.cluster.timeout_seconds
        while (facts := self.facts()) is None:
            if time.monotonic() > deadline:
                raise self.unavailable("the new topic cannot be described")
            time.sleep(0.1)
        return facts

    def delete_records(self, facts: TopicFacts) -> None:
        """Delete every message of the topic."""
        kafka = driver()
        partitions = [kafka.TopicPartition(self.name, number, kafka.OFFSET_END) for number in range(facts.partitions)]
        futures = self._connected().delete_records(partitions)
        for future in futures.values():
            self._result(future, missing_is_none=False)

    def unavailable(self, problem: object) -> SinkUnavailableError:
        return SinkUnavailableError(
            f"Kafka is unreachable, or refused a request: {problem}",
            where=self.where,
            fix="check that the brokers run, servers=, and the client's settings in kafka=; then start the job again",
        )

    def group_metadata(self) -> object:
        """Return what a transaction needs to commit offsets of the group."""
        if self._group_reader is None:
            # Kept open: librdkafka 2.16 may crash if a consumer is closed while it looks for its coordinator.
            self._group_reader = self.cluster.group_reader(self.group)
        return self._group_reader.consumer_group_metadata()

    def _connected(self) -> "AdminClient":
        if self._admin is None:
            self._admin = self.cluster.admin()
        return self._admin

    def _ask(
        self,
        request: Callable[["AdminClient"], Any],
        *,
        missing_is_none: bool = True,
        unstable_seconds: float | None = None,
    ) -> Any:
        """Send an administrative request; while the brokers are unreachable, repeat it until the timeout.

        Raise _UnstableOffsetsError if offsets have been part of an open transaction for `unstable_seconds`.
        """
        kafka = driver()
        started = time.monotonic()
        deadline = started + self.cluster.timeout_seconds
        while True:
            try:
                return self._result(request(self._connected()), missing_is_none=missing_is_none)
            except (kafka.KafkaException, TimeoutError) as error:
                cause: Any = error.args[0] if error.args else error
                if (
                    unstable_seconds is not None
                    and time.monotonic() - started > unstable_seconds
                    and _is_unstable(cause)
                ):
                    raise _UnstableOffsetsError from error
                retriable = isinstance(error, TimeoutError) or cause.retriable() or is_connection_problem(cause)
                if not retriable or time.monotonic() > deadline:
                    raise self.unavailable(cause) from error
                time.sleep(0.5)

    def _result(self, future: Any, *, missing_is_none: bool) -> Any:
        kafka = driver()
        try:
            result = future.result(min(_REQUEST_SECONDS, self.cluster.timeout_seconds))
        except kafka.KafkaException as error:
            missing = {kafka.KafkaError.UNKNOWN_TOPIC_OR_PART, kafka.KafkaError.GROUP_ID_NOT_FOUND}
            if missing_is_none and error.args[0].code() in missing:
                return None
            raise
        # A request for offsets succeeds as a whole even if the broker refuses to tell those of a partition, as it does
        # while a transaction that commits them is open or not yet settled.
        for partition in getattr(result, "topic_partitions", ()):
            if partition.error is not None:
                raise kafka.KafkaException(partition.error)
        return result


def _is_unstable(error: Any) -> bool:
    codes = driver().KafkaError
    return isinstance(error, codes) and error.code() == codes.UNSTABLE_OFFSET_COMMIT


def is_connection_problem(error: Any) -> bool:
    """Tell whether an error of the client means that brokers are unreachable or busy, so that a retry may succeed."""
    codes = driver().KafkaError
    return error.code() in {
        codes._TRANSPORT,  # noqa: SLF001 - public names of the client
        codes._ALL_BROKERS_DOWN,  # noqa: SLF001
        codes._TIMED_OUT,  # noqa: SLF001
        codes._RESOLVE,  # noqa: SLF001
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.NOT_COORDINATOR,
        codes.REQUEST_TIMED_OUT,
        codes.LEADER_NOT_AVAILABLE,
        codes.CONCURRENT_TRANSACTIONS,
        codes.UNSTABLE_OFFSET_COMMIT,
    }


def driver() -> ModuleType:
    """Return the client library; raise MissingDependencyError if it is not installed."""
    try:
        import confluent_kafka  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingDependencyError(
            "the Kafka sink needs the package confluent-kafka", fix="pip install 'statebed[kafka]'"
        ) from None
    return confluent_kafka


def _admin_module() -> ModuleType:
    return importlib.import_module("confluent_kafka.admin")


def offsets_of(topic: Topic, facts: TopicFacts, *, owner: str, position: SinkPosition) -> "list[TopicPartition]":
    """Return the offset that stores a position."""
    stored = Stored(owner=owner, run=position.run, topic_id=facts.topic_id, partitions=facts.partitions)
    metadata = msgspec.json.encode(stored).decode()
    return [driver().TopicPartition(topic.name, 0, position.epoch, metadata=metadata)]
