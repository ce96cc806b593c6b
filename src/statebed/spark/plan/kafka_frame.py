"""Kafka topics as a streaming DataFrame with decoded values, read by Spark's own connector.

A message that cannot be decoded is *malformed*. Its row has null columns and a struct in the column `MALFORMED`: the
reason, the position in its topic, and the message as it is. In all other rows that column is null.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from statebed.errors import InputError, MissingDependencyError
from statebed.spark.causes import cause_of

MALFORMED = "kafka_malformed"
METADATA = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of messages that can be kept besides the decoded ones."""
CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
AVRO = "org.apache.spark:spark-avro_2.13"
_CORRUPT = "kafka_corrupt_value"
_DECODED = "kafka_decoded"
_RESERVED = frozenset(
    {"kafka.bootstrap.servers", "subscribe", "subscribePattern", "assign", "startingOffsets", "failOnDataLoss"}
)


class Values(enum.Enum):
    """Encoding of the values of messages."""

    JSON = "json"
    AVRO = "avro"
    DEBEZIUM = "debezium"
    RAW = "raw"


class MalformedPolicy(enum.Enum):
    """Choice for messages that cannot be decoded."""

    FAIL = "fail"
    DEAD_LETTERS = "dead_letters"


@dataclass(frozen=True)
class KafkaRequest:
    """Arguments of `job.kafka`."""

    topics: tuple[str, ...]
    servers: str
    values: Values
    schema: str | StructType | None
    metadata: tuple[str, ...]
    starting: str
    malformed: MalformedPolicy
    avro_header: bool
    options: Mapping[str, Any] = field(repr=False)  # may contain secrets
    where: str

    def check(self) -> None:
        """Raise InputError for arguments that do not fit together."""
        if not self.topics or not all(self.topics):
            raise self._mistake("`topics` must name at least one topic", "pass topics='orders' or a list of names")
        if self.values is Values.RAW:
            if self.schema is not None:
                raise self._mistake("value='raw' takes no schema", "leave schema= out, or choose another value=")
        elif self.schema is None:
            raise self._mistake(f"value={self.values.value!r} needs schema=", _SCHEMA_EXAMPLES[self.values])
        if self.avro_header and self.values is not Values.AVRO:
            raise self._mistake("avro_header=True needs value='avro'", "leave it out")
        unknown = [name for name in self.metadata if name not in METADATA]
        if unknown:
            raise self._mistake(
                f"`metadata` must list some of {', '.join(METADATA)}, got {unknown}", "leave the others out"
            )
        taken = sorted(set(self.options) & _RESERVED)
        if taken:
            raise self._mistake(
                f"options= must not contain {', '.join(taken)}",
                "use topics=, servers= and starting=; job.source(spark.readStream.format('kafka')...) takes any option",
            )

    def _mistake(self, what: str, fix: str) -> InputError:
        return InputError(what, where=self.where, fix=fix)


_SCHEMA_EXAMPLES = {
    Values.JSON: "pass the columns of the JSON objects: schema='id bigint, at timestamp'",
    Values.AVRO: "pass the writer's Avro schema as JSON text",
    Values.DEBEZIUM: "pass the columns of the table: schema='id bigint, name string'",
}


def kafka_frame(session: SparkSession, request: KafkaRequest) -> tuple[DataFrame, list[str]]:
    """Return the decoded messages, with the column `MALFORMED` last, and the names of the columns for users."""
    request.check()
    reader = (
        session.readStream.format("kafka")
        .option("kafka.bootstrap.servers", request.servers)
        .option("subscribe", ",".join(request.topics))
        .option("startingOffsets", request.starting)
        .option("failOnDataLoss", "true")
        .options(**{name: str(value) for name, value in request.options.items()})
    )
    try:
        raw = reader.load()
    except PySparkException as error:
        raise MissingDependencyError(
            "Spark has no Kafka connector",
            where=request.where,
            fix=f"start Spark with spark.jars.packages={CONNECTOR}:VERSION, with the version of Spark, or the newest "
            "one before it",
        ) from error
    if request.values is Values.RAW:
        columns = ["value", *(name for name in METADATA if name != "value")]
        kept = raw.select(*columns)
        return kept.withColumn(MALFORMED, F.lit(None).cast("string")), columns
    decoded, reason = _decoded(raw, request)
    # A condition on a column is moved below the projection that computes it, where it computes the column again: each
    # message would be decoded three times. No condition is moved below a generator. The array has one element.
    rows = raw.select("*", F.explode_outer(F.array(decoded)).alias(_DECODED))
    fields = _fields(rows.schema[_DECODED].dataType, request.values)
    names = [*fields, *request.metadata]
    check_distinct_names(names, where=request.where)
    dead = F.struct(
        reason.alias("reason"), *(F.col(name) for name in ("topic", "partition", "offset", "timestamp", "key", "value"))
    )
    if request.malformed is MalformedPolicy.FAIL:
        dead = F.raise_error(
            F.concat(
                F.lit("KAFKA_MALFORMED message: "),
                reason,
                F.lit("; topic "),
                F.col("topic"),
                F.lit(", partition "),
                F.col("partition").cast("string"),
                F.lit(", offset "),
                F.col("offset").cast("string"),
            )
        ).cast("string")
    rows = rows.withColumn(MALFORMED, F.when(reason.isNotNull(), dead))
    if request.values is Values.DEBEZIUM:
        rows = rows.where(F.col("value").isNotNull())  # the tombstone after a deletion
    return rows.select(*fields.values(), *request.metadata, MALFORMED), names


def _decoded(raw: DataFrame, request: KafkaRequest) -> tuple[Column, Column]:
    """Return the decoded struct of a message, and the reason why it could not be decoded, else null."""
    if request.values is Values.AVRO:
        return _avro(raw, request)
    row = _struct_type(raw.sparkSession, request)
    if request.values is Values.DEBEZIUM:
        body = [StructField("before", row), StructField("after", row)]
        row = StructType([*body, StructField("op", StringType()), StructField("ts_ms", LongType())])
        row = StructType([*row.fields, StructField("payload", row)])
    schema = StructType([*row.fields, StructField(_CORRUPT, StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    decoded = F.from_json(F.col("value").cast("string"), schema, options)
    corrupt = F.col(_DECODED)[_CORRUPT]
    reason = F.when(F.col("value").isNull(), F.lit("it has no value")).when(
        F.col(_DECODED).isNull() | corrupt.isNotNull(), F.lit("its value is not JSON of this schema")
    )
    if request.values is Values.DEBEZIUM:
        op = F.coalesce(F.col(_DECODED)["op"], F.col(_DECODED)["payload"]["op"])
        reason = F.when(F.col("value").isNull(), F.lit(None)).otherwise(
            F.coalesce(reason, F.when(op.isNull(), F.lit("its value is not a Debezium envelope: it has no op")))
        )
    return decoded, reason


def _avro(raw: DataFrame, request: KafkaRequest) -> tuple[Column, Column]:
    if not isinstance(request.schema, str):
        raise InputError(
            f"value='avro' needs an Avro schema as JSON text, got {type(request.schema).__name__}",
            where=request.where,
            fix=_SCHEMA_EXAMPLES[Values.AVRO],
        )
    value = F.expr("substring(value, 6)") if request.avro_header else F.col("value")
    try:
        decoded = from_avro(value, request.schema, {"mode": "PERMISSIVE"})
        raw.select(decoded).schema  # noqa: B018 - Spark parses the Avro schema only now
    except (PySparkException, Py4JJavaError, TypeError) as error:
        if isinstance(error, TypeError) or "AVRO_NOT_LOADED" in str(error):
            raise MissingDependencyError(
                "Spark has no Avro functions",
                where=request.where,
                fix=f"add {AVRO}:VERSION to spark.jars.packages, with the version of Spark, or the newest one before",
            ) from error
        raise InputError(
            f"the schema is not a valid Avro schema: {cause_of(error)}",
            where=request.where,
            fix=_SCHEMA_EXAMPLES[Values.AVRO],
        ) from error
    reason = F.when(F.col("value").isNull(), F.lit("it has no value")).when(
        F.col(_DECODED).isNull(), F.lit("its value is not Avro of this schema")
    )
    return decoded, reason


def _struct_type(session: SparkSession, request: KafkaRequest) -> StructType:
    if isinstance(request.schema, StructType):
        return request.schema
    try:
        return session.createDataFrame([], str(request.schema)).schema
    except PySparkException as error:
        raise InputError(
            f"`schema` is not a valid list of columns: {request.schema!r}",
            where=request.where,
            fix=_SCHEMA_EXAMPLES[request.values],
        ) from error


def _fields(decoded: DataType, values: Values) -> dict[str, Column]:
    """Return the columns for users, by name."""
    assert isinstance(decoded, StructType)
    names = [name for name in decoded.names if name not in {_CORRUPT, "payload"}]
    if values is not Values.DEBEZIUM:
        names = [name for name in decoded.names if name != _CORRUPT]
        return {name: F.col(_DECODED)[name].alias(name) for name in names}
    # With the converter's schemas enabled, the envelope is in `payload`.
    whole = F.col(_DECODED)
    return {name: F.coalesce(whole[name], whole["payload"][name]).alias(name) for name in names}


def check_distinct_names(names: Sequence[str], *, where: str) -> None:
    """Raise InputError if a decoded column has the name of another, or of a metadata column."""
    lowered = [name.lower() for name in names]
    repeated = sorted({name for name in lowered if lowered.count(name) > 1})
    if repeated or MALFORMED in lowered:
        raise InputError(
            f"two columns are called {(repeated or [MALFORMED])[0]!r}",
            where=where,
            fix="leave it out of metadata=, or rename it in the schema",
        )
