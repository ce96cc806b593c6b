"""Kafka topics as sinks, exactly once: one transaction per epoch, with the epoch as an offset of the sink's group."""

from statebed.sinks.kafka.avro import avro_schema
from statebed.sinks.kafka.messages import Encoding, MessageEncoder
from statebed.sinks.kafka.topic import KafkaCluster, TopicLayout
from statebed.sinks.kafka.topic_sink import KafkaTopicSink

__all__ = ["Encoding", "KafkaCluster", "KafkaTopicSink", "MessageEncoder", "TopicLayout", "avro_schema"]
