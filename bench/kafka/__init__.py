"""Jobs from a Kafka topic to a Kafka topic against Spark's own stateful query, batch by batch."""

from bench.kafka.race import run

__all__ = ["run"]
