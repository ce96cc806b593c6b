"""A real Kafka broker for the tests, its data in a temporary folder, gone at the end."""

import time
import uuid
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.cimpl import NewPartitions, NewTopic

from scripts.kafka_broker import QUIET, READY_WITHIN_SECONDS, KafkaBroker, class_path

__all__ = ["Broker", "broker", "class_path"]


class Broker(KafkaBroker):
    """A broker, and what tests do with its topics."""

    def new_topic(self, *, partitions: int = 1, name: str = "", **config: str) -> str:
        """Create a topic and return its name; underscores in names of settings stand for dots."""
        name = name or f"topic-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        self.admin.create_topics([new])[name].result(20)
        while name not in self.admin.list_topics(timeout=10).topics:
            time.sleep(0.05)
        return name

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(20)
        while name in self.admin.list_topics(timeout=10).topics:
            time.sleep(0.05)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Delete the messages below an offset, as retention does."""
        (future,) = self.admin.delete_records([TopicPartition(topic, partition, before)]).values()
        future.result(20)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(20)

    def send(
        self, topic: str, values: Sequence[bytes | str | None], *, key: bytes | str | None = None, partition: int = -1
    ) -> None:
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5, **QUIET})
        for value in values:
            producer.produce(topic, value=value, key=key, partition=partition)
        assert producer.flush(20) == 0

    def messages(self, topic: str, *, isolation: str = "read_committed") -> list[Message]:
        """Return every message of a topic, by partition and offset, as a consumer of this isolation level sees it."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": f"reader-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                **QUIET,
            }
        )
        partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        found: list[Message] = []
        ended: set[int] = set()
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while len(ended) < len(partitions) and time.monotonic() < deadline:
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                if error is None:
                    found.append(message)
                elif error.name() == "_PARTITION_EOF":
                    ended.add(message.partition() or 0)
        consumer.close()
        assert len(ended) == len(partitions), f"{topic} was not read to its end"
        return sorted(found, key=lambda message: (message.partition(), message.offset()))


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start the broker, and end it by its id."""
    server = Broker(tmp_path_factory.mktemp("kafka"))
    server.start()
    try:
        yield server
    finally:
        server.kill()
