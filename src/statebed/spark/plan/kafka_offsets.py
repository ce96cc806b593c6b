"""Offsets that Kafka has for the topics of a job, asked through the client of Spark's connector."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from statebed.errors import InputError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol.kafka_start import (
    Available,
    TopicState,
    check_source_choices,
    continued,
    lost_partitions,
    offsets_text,
    parse_offsets,
)
from statebed.protocol.projection import offsets_by_name
from statebed.spark.plan.source_plan import stream_leaves

if TYPE_CHECKING:
    from statebed.spark.plan.job_plan import JobPlan

_log = logging.getLogger(__name__)
_SERVERS = "bootstrap.servers"
_PREFIX = "kafka."
_TIMEOUT_MS = 30_000


def kafka_options(df: DataFrame) -> list[Mapping[str, str] | None]:
    """Return the options of each stream of a DataFrame, in Spark's order; None for other sources than Kafka."""
    by_stream: list[Mapping[str, str] | None] = []
    for leaf in stream_leaves(df):
        try:
            is_kafka = str(leaf.sourceName()).lower() == "kafka"
            options = dict(leaf.extraOptions().asCaseSensitiveMap()) if is_kafka else None
        except (Py4JError, TypeError):
            options = None  # another kind of leaf
        by_stream.append(options)
    return by_stream


@dataclass(frozen=True)
class KafkaStart:
    """Findings of a start about the Kafka topics of a job."""

    topic_ids: Mapping[str, str] = field(default_factory=dict)
    moved: Mapping[str, str] = field(default_factory=dict)
    """Offsets to continue from instead of the recorded ones, by the name of the stream."""


def kafka_start(plan: "JobPlan", position: pb.SourcePosition | None) -> KafkaStart:
    """Compare the recorded offsets with those that Kafka has; raise ReplayError if messages are gone."""
    where = f"job {plan.job_id}"
    streams = dict(zip(plan.spark_sources, kafka_options(plan.prepared), strict=True))
    kafka = {name.partition("=")[0]: options for name, options in streams.items() if options is not None}
    check_source_choices(plan.source_starts, sorted({_source(name) for name in kafka}), where=where)
    recorded = offsets_by_name(position) if position is not None else {}
    known = {topic.topic: topic.topic_id for topic in position.kafka_topics} if position is not None else {}
    ids: dict[str, str] = {}
    moved: dict[str, str] = {}
    for name, options in kafka.items():
        offsets = parse_offsets(recorded.get(name, ""))
        topics = sorted({*offsets, *_subscribed(options)})
        available = available_offsets(plan.session, options, topics, where=where)
        ids |= {topic: state.topic_id for topic, state in available.items()}
        wanted = _subscribed(options)
        offsets = {topic: own for topic, own in offsets.items() if not wanted or topic in wanted}
        lost = lost_partitions(offsets, available, topic_ids=known)
        source = _source(name)
        kept = continued(offsets, available, lost, plan.source_starts.get(source), source=source, where=where)
        if lost:
            moved[name] = offsets_text(kept)
            _log.warning(
                "source %s continues without the lost messages, as chosen: %s", source, "; ".join(map(str, lost))
            )
    return KafkaStart(ids, moved)


def _source(stream: str) -> str:
    return stream.partition("#")[0]


def _subscribed(options: Mapping[str, str]) -> list[str]:
    """Return the topics that a source names; empty if it has a pattern."""
    texts = [value for name, value in options.items() if name.lower() == "subscribe"]
    return [topic.strip() for text in texts for topic in text.split(",") if topic.strip()]


def available_offsets(
    session: SparkSession, options: Mapping[str, str], topics: Sequence[str], *, where: str
) -> Available:
    """Return the topics that exist, with the offsets of their partitions."""
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way
    properties = jvm.java.util.Properties()
    for name, value in options.items():
        if name.lower().startswith(_PREFIX):
            properties.setProperty(name[len(_PREFIX) :], str(value))
    properties.setProperty("default.api.timeout.ms", str(_TIMEOUT_MS))
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            return _described(jvm, admin, topics)
        finally:
            admin.close()
    except Py4JJavaError as error:
        cause = str(error.java_exception.getMessage() or error.java_exception)
        raise InputError(
            f"Kafka cannot be asked for the offsets of {', '.join(topics)}: {cause}",
            where=f"{where}, servers {properties.getProperty(_SERVERS)}",
            fix="check that the brokers run, servers=, and the client's settings; then start the job again",
        ) from error


def _described(jvm: Any, admin: Any, topics: Sequence[str]) -> Available:
    existing = admin.listTopics().names().get()
    names = jvm.java.util.ArrayList()
    for topic in topics:
        if existing.contains(topic):
            names.add(topic)
    described = admin.describeTopics(names).allTopicNames().get()
    specs = jvm.org.apache.kafka.clients.admin.OffsetSpec
    states: dict[str, TopicState] = {}
    for topic in names:
        description = described.get(topic)
        numbers = [int(partition.partition()) for partition in description.partitions()]
        ends = {}
        for label, spec in (("first", specs.earliest()), ("end", specs.latest())):
            request = jvm.java.util.HashMap()
            for number in numbers:
                request.put(jvm.org.apache.kafka.common.TopicPartition(topic, number), spec)
            answer = admin.listOffsets(request).all().get()
            ends[label] = {int(key.partition()): int(answer.get(key).offset()) for key in answer.keySet()}
        states[str(topic)] = TopicState(
            str(description.topicId()), {number: (ends["first"][number], ends["end"][number]) for number in numbers}
        )
    return states
