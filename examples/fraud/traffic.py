"""Sample traffic: topics, payments, and messages that change the rules."""

import json
import random
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from examples.fraud.job import ALERTS, PAYMENTS, RULES

COUNTRIES = ("DE", "FR", "IN", "JP", "US")
FIRST_SECOND = 1_772_323_200
FIRST_RULES: list[dict[str, Any]] = [
    {"rule": "large", "only_country": None, "min_cents": 90_000, "is_retired": False},
    {"rule": "watched", "only_country": "FR", "min_cents": 50_000, "is_retired": False},
]
SECOND_RULES: list[dict[str, Any]] = [
    {"rule": "large", "only_country": None, "min_cents": 95_000, "is_retired": False},
    {"rule": "watched", "only_country": "FR", "min_cents": 50_000, "is_retired": True},
    {"rule": "new", "only_country": "JP", "min_cents": 70_000, "is_retired": False},
]


def create_topics(servers: str) -> None:
    """Create the input topics; those of the results are created by their sinks. Existing ones are left alone."""
    admin = AdminClient({"bootstrap.servers": servers})
    known = admin.list_topics(timeout=10).topics
    new = [
        NewTopic(PAYMENTS, num_partitions=2, replication_factor=1),
        # Compacted: it keeps the newest message of each rule.
        NewTopic(RULES, num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"}),
    ]
    missing = [topic for topic in new if topic.topic not in known]
    for future in (admin.create_topics(missing) if missing else {}).values():
        future.result(30)


def payments(*, first: int, count: int) -> list[dict[str, Any]]:
    """Return sample payments, numbered from `first`."""
    chance = random.Random(first)
    return [
        {
            "payment": number,
            "card": f"card-{chance.randrange(200)}",
            "country": chance.choice(COUNTRIES),
            "cents": chance.randrange(100, 100_000),
            "ts": FIRST_SECOND + number // 10,
        }
        for number in range(first, first + count)
    ]


def send(servers: str, topic: str, rows: list[dict[str, Any]], *, key: str) -> None:
    """Send rows as JSON, with one of their columns as the key, and wait until the broker has them."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    for row in rows:
        producer.produce(topic, json.dumps(row), key=str(row[key]))
    if producer.flush(60):
        raise RuntimeError(f"not all messages to {topic} were delivered")


def alerts(servers: str) -> list[dict[str, Any]]:
    """Return all committed alerts, in the order of their partitions; none if the topic does not exist yet."""
    settings = {"bootstrap.servers": servers, "group.id": f"reader-{uuid.uuid4().hex}", "enable.partition.eof": True}
    reader = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
    rows = []
    try:
        topic = reader.list_topics(timeout=10).topics.get(ALERTS)
        waiting = set() if topic is None else set(topic.partitions)
        reader.assign([TopicPartition(ALERTS, number, 0) for number in waiting])
        while waiting:
            for message in reader.consume(1_000, timeout=0.5):
                if message.error() is None:
                    rows.append(json.loads(message.value() or b"{}"))
                else:
                    waiting.discard(message.partition() or 0)
    finally:
        reader.close()
    return rows
