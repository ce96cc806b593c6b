"""Kafka topics in SQL text: messages of JSON are read as rows, and results are published exactly once."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statebed.flow.keys import quoted
from statebed.queries.text.connectors import Connector, SinkCall, SqlTableRequest, TableOption
from statebed.sinks.kafka import Encoding
from statebed.spark.plan.kafka_frame import MALFORMED, KafkaRequest, MalformedPolicy, Values, kafka_frame

_PREFIX = "kafka."
_WRITING = ("schema_id", "create", "partitions", "replication", "timeout")


def _settings(request: SqlTableRequest) -> dict[str, str]:
    return {name: value for name, value in request.options.items() if name.startswith(_PREFIX)}


def _read(request: SqlTableRequest) -> DataFrame:
    for name in _WRITING:
        if name in request.options:
            raise request.source.mistake(
                f"{name} is an option for writing, but the table {request.name} is read",
                request.statement.option_names[name],
                fix="remove it",
            )
    if request.options.get("value", Values.JSON.value) != Values.JSON.value:
        raise request.mistake(
            "SQL text reads messages of JSON only", "value", fix="remove `value`, or add the source with job.kafka(...)"
        )
    schema = request.physical_schema
    if schema is None:
        raise request.source.mistake(
            f"the table {request.name} declares no columns, and messages have no types",
            request.statement.name.span,
            fix=f"declare them: CREATE TABLE {request.name} (a BIGINT, b STRING) WITH (...)",
        )
    limit = request.options.get("max-offsets-per-trigger")
    options = _settings(request) | ({} if limit is None else {"maxOffsetsPerTrigger": str(limit)})
    frame, columns = kafka_frame(
        request.session,
        KafkaRequest(
            topics=tuple(topic.strip() for topic in request.options["topic"].split(",")),
            servers=request.options["servers"],
            values=Values.JSON,
            schema=schema,
            metadata=(),
            starting=request.options.get("starting", "earliest"),
            malformed=MalformedPolicy.FAIL,
            avro_header=False,
            options=options,
            where=f"table {request.name}",
        ),
    )
    return frame.where(F.col(MALFORMED).isNull()).select(*(F.col(quoted(name)) for name in columns))


def _write(request: SqlTableRequest) -> SinkCall:
    for name in ("starting", "max-offsets-per-trigger"):
        if name in request.options:
            raise request.source.mistake(
                f"{name} is an option for reading, but the table {request.name} is written",
                request.statement.option_names[name],
                fix="remove it",
            )
    options = {name: value for name, value in request.options.items() if not name.startswith(_PREFIX)}
    settings = {name.removeprefix(_PREFIX): value for name, value in _settings(request).items()}
    return SinkCall("kafka", None, options | ({"kafka": settings} if settings else {}), takes_key=True)


KAFKA = Connector(
    {
        "topic": TableOption(is_required=True, example="bids"),
        "servers": TableOption(is_required=True, example="broker:9092"),
        "value": TableOption(choices=tuple(encoding.value for encoding in Encoding)),
        "starting": TableOption(example="earliest"),
        "max-offsets-per-trigger": TableOption(int, example="100000"),
        "schema_id": TableOption(int),
        "create": TableOption(bool, example="true"),
        "partitions": TableOption(int, example="4"),
        "replication": TableOption(int, example="3"),
        "timeout": TableOption(example="5 minutes"),
    },
    _read,
    _write,
    prefixes=(_PREFIX,),
)
