"""Builds the stream of `job.kafka`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from statebed.flow.keys import known, quoted
from statebed.quantities import Duration
from statebed.spark.api.dead_letters import DeadLetters
from statebed.spark.plan.kafka_frame import MALFORMED, KafkaRequest, MalformedPolicy, Values, kafka_frame
from statebed.spark.plan.source_frames import Split

if TYPE_CHECKING:
    from statebed.spark.api.job import Job
    from statebed.spark.api.stream import JobStream


def kafka_stream(
    job: "Job",
    *,
    topics: tuple[str, ...],
    servers: str,
    value: str,
    schema: str | StructType | None,
    event_time: str | tuple[str, Duration] | None,
    name: str,
    metadata: tuple[str, ...],
    starting: str,
    malformed: str,
    avro_header: bool,
    idle_after: Duration | None,
    options: Mapping[str, object],
) -> "JobStream":
    """Add the source to the job, and return the stream of its decoded rows."""
    where = f"job {job.name}, source {name!r}"
    policy = MalformedPolicy(known(malformed, MalformedPolicy, "malformed", where=where))
    request = KafkaRequest(
        topics=topics,
        servers=servers,
        values=Values(known(value, Values, "value", where=where)),
        schema=schema,
        metadata=metadata,
        starting=starting,
        malformed=policy,
        avro_header=avro_header,
        options=options,
        where=where,
    )
    df, columns = kafka_frame(job.spark, request)
    watermark = (event_time, "0 seconds") if isinstance(event_time, str) else event_time
    messages = job.source(df, name=name, watermark=watermark, idle_after=idle_after)
    # With "fail" the condition is still evaluated for every message: it raises the error.
    rows = messages.where(f"{MALFORMED} is null").select(*map(quoted, columns))
    if policy is MalformedPolicy.DEAD_LETTERS:
        job.dead_letters[rows.edge] = DeadLetters(name, messages)
        job.splits[rows.edge] = Split(messages.edge, f"{MALFORMED} is null")
    return rows
