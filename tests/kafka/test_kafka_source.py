"""Kafka topics as sources of jobs on Spark, read from a real broker by Spark's own connector."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from kafka.server import Broker
from pyspark.sql import SparkSession

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.errors import InputError, ReplayError
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.sources import sources_of
from statebed.spark.plan.kafka_frame import MALFORMED, KafkaRequest, MalformedPolicy, Values, kafka_frame
from statebed.storage import ScopedStore, get_storage_provider

SCHEMA = "driver string, fare bigint, ts timestamp"


def ride(driver: str, fare: int, minute: int, second: int = 0) -> str:
    return json.dumps({"driver": driver, "fare": fare, "ts": f"2026-01-31T12:{minute:02d}:{second:02d}Z"})


def head_of(folder: Path, job: str) -> pb.CheckpointMetadata:
    log = CheckpointLog(ScopedStore(get_storage_provider(str(folder)), job), job)
    head = log.recover().head
    assert head is not None
    return head


def rows_of(path: Path) -> list[dict[str, Any]]:
    return sorted(sb.read_table(str(path)).to_pylist(), key=str)


class World:
    """A topic of rides, and a job that counts them per minute."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = broker.new_topic(partitions=2)

    def job(self, **options: Any) -> sb.Job:
        job = sb.Job("rides", state=self.folder / "state", parallelism=2, spark=self.spark)
        rides = job.kafka(
            self.topic,
            servers=self.broker.servers,
            schema=SCHEMA,
            event_time=("ts", "0 seconds"),
            name="rides",
            **options,
        )
        counts = rides.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(
            trips=sb.count(), total=sb.sum("fare")
        )
        counts.write("parquet", path=str(self.folder / "out"), name="minutes")
        if options.get("malformed") == "dead_letters":
            rides.dead_letters.write("parquet", path=str(self.folder / "dead"), name="dead")
        return job

    def run(self, job: sb.Job, **options: Any) -> None:
        job.start(available_now=True, **options).await_termination()

    @property
    def head(self) -> pb.CheckpointMetadata:
        return head_of(self.folder / "state", "rides")

    def trips(self) -> dict[tuple[str, int], tuple[int, int]]:
        return {
            (row["driver"], row["window_start"].minute): (row["trips"], row["total"])
            for row in rows_of(self.folder / "out")
        }


@pytest.fixture
def world(spark: SparkSession, broker: Broker, tmp_path: Path) -> World:
    return World(spark, broker, tmp_path)


def test_p9_malformed_messages_become_dead_letters_with_reason_and_position_and_are_counted(world: World) -> None:
    # Partition 1 stays idle, and does not hold back the watermark.
    world.broker.send(
        world.topic, [ride("ann", 5, 0), "{broken", ride("ann", 7, 0, 30), None, ride("bob", 1, 2)], partition=0
    )
    world.run(world.job(malformed="dead_letters"))
    assert world.trips() == {("ann", 0): (2, 12)}
    dead = rows_of(world.folder / "dead")
    assert [(row["reason"], row["partition"], row["offset"], row["value"]) for row in dead] == [
        ("it has no value", 0, 3, None),
        ("its value is not JSON of this schema", 0, 1, b"{broken"),
    ]
    assert {row["topic"] for row in dead} == {world.topic}
    records = [
        one
        for epoch in range(1, world.head.epoch + 1)
        if (
            one := CheckpointLog(ScopedStore(get_storage_provider(str(world.folder / "state")), "rides"), "rides").read(
                epoch
            )
        )
    ]
    counted = [o.rows_in for one in records for o in one.operators if o.operator_id == "rides_dead_letters"]
    assert sum(counted) == 2
    # Good and malformed messages come from one read: the query has one offset.
    assert list(world.head.source_position.sources) == ["rides"]


def test_p2_an_older_epoch_takes_the_offsets_back(world: World) -> None:
    world.broker.send(world.topic, [ride("ann", 5, 0)], partition=0)
    world.run(world.job())
    first = world.head
    (source,) = sources_of(first)
    assert json.loads(source.offset) == {world.topic: {"0": 1, "1": 0}}
    world.broker.send(world.topic, [ride("ann", 7, 0), ride("bob", 1, 3)], partition=1)
    world.run(world.job())
    assert json.loads(sources_of(world.head)[0].offset) == {world.topic: {"0": 1, "1": 2}}
    back = sb.RunOptions(origin=sb.Origin(epoch=first.epoch), rollback=sb.RollbackPolicy.ALLOW)
    world.run(world.job(), options=back)
    assert json.loads(sources_of(world.head)[0].offset) == {world.topic: {"0": 1, "1": 2}}
    assert world.trips() == {("ann", 0): (2, 12)}


def test_a_malformed_message_stops_the_job_by_default_and_is_named(world: World) -> None:
    world.broker.send(world.topic, [ride("ann", 5, 0), "no json"], partition=1)
    with pytest.raises(InputError) as caught:
        world.run(world.job())
    assert f"topic {world.topic}, partition 1, offset 1" in str(caught.value)
    assert "malformed='dead_letters'" in str(caught.value)


@pytest.mark.parametrize("policy", MalformedPolicy)
def test_a_message_is_decoded_once_though_malformed_ones_are_filtered(
    spark: SparkSession, policy: MalformedPolicy
) -> None:
    request = KafkaRequest(
        topics=("rides",),
        servers="127.0.0.1:9",  # never asked: the query is only planned
        values=Values.JSON,
        schema=SCHEMA,
        metadata=(),
        starting="earliest",
        malformed=policy,
        avro_header=False,
        options={},
        where="test",
    )
    messages, columns = kafka_frame(spark, request)
    rows: Any = messages.where(f"{MALFORMED} is null").select(*columns)
    optimizer: Any = spark._jsparkSession.sessionState().optimizer()  # a streaming plan is not optimized until it runs
    plan = optimizer.execute(rows._jdf.queryExecution().analyzed()).toString()
    assert plan.count("from_json(") == 1, plan


def test_a_topic_that_lost_messages_is_refused_until_a_choice_is_made(world: World) -> None:
    world.broker.send(world.topic, [ride("ann", 5, 0), ride("ann", 5, 0, 1)], partition=0)
    world.run(world.job())
    head = world.head.epoch
    world.broker.send(world.topic, [ride("ann", 9, 0, 2), ride("ann", 1, 0, 3)], partition=0)
    world.broker.delete_records(world.topic, 0, 3)
    with pytest.raises(ReplayError, match="position 2: offsets 2 to 2 were removed by the topic's retention"):
        world.job().start(available_now=True)
    world.broker.delete_topic(world.topic)
    with pytest.raises(ReplayError, match="the topic no longer exists"):
        world.job().start(available_now=True)
    world.broker.new_topic(name=world.topic, partitions=3)
    # As many messages as before: only the id of the topic tells that it is another one.
    world.broker.send(world.topic, [ride("bob", 1, 1)] * 4, partition=0)
    world.broker.send(world.topic, [ride("cid", 1, 1), ride("ann", 0, 5)], partition=2)
    with pytest.raises(ReplayError, match=r"was deleted and created again.*\n.*\n.*sources={'rides': 'earliest'}"):
        world.job().start(available_now=True)
    assert world.head.epoch == head, "a refused start writes nothing"
    world.run(world.job(), sources={"rides": "earliest"})
    assert world.trips() == {("ann", 0): (2, 10), ("bob", 1): (4, 4), ("cid", 1): (1, 1)}
    # More partitions: the new one is read from its beginning, without any choice.
    world.broker.add_partitions(world.topic, 4)
    world.broker.send(world.topic, [ride("dan", 1, 5), ride("ann", 0, 9)], partition=3)
    world.run(world.job())
    assert ("dan", 5) in world.trips()
    with pytest.raises(InputError, match="sources= names 'x', which is not a source of this job"):
        world.job().start(sources={"x": "latest"})


def test_avro_debezium_and_raw_values_are_decoded(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "n", "type": "string"}],
    }
    avro, changes, raw = broker.new_topic(), broker.new_topic(), broker.new_topic()
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), {"id": 7, "n": "seven"})
    broker.send(avro, [b"\0\0\0\0\1" + buffer.getvalue()], key="k")
    event = {"before": None, "after": {"id": 1, "name": "ann"}, "op": "c", "ts_ms": 5}
    broker.send(changes, [json.dumps(event), json.dumps({"schema": {}, "payload": event | {"op": "u"}}), None])
    broker.send(raw, [b"\xff\x00"], key=b"\x01")
    job = sb.Job("decoded", state=tmp_path / "state", parallelism=1, spark=spark)
    servers = broker.servers
    job.kafka(
        avro,
        servers=servers,
        value="avro",
        schema=json.dumps(schema),
        avro_header=True,
        name="avro",
        metadata=["key", "offset"],
    ).write("parquet", path=str(tmp_path / "avro"), name="avro")
    job.kafka(changes, servers=servers, value="debezium", schema="id bigint, name string", name="changes").write(
        "parquet", path=str(tmp_path / "changes"), name="changes"
    )
    job.kafka(raw, servers=servers, value="raw", name="raw").write("parquet", path=str(tmp_path / "raw"), name="raw")
    job.start(available_now=True).await_termination()
    assert rows_of(tmp_path / "avro") == [{"id": 7, "n": "seven", "key": b"k", "offset": 0}]
    assert [(row["op"], row["before"], row["after"]) for row in rows_of(tmp_path / "changes")] == [
        ("c", None, {"id": 1, "name": "ann"}),
        ("u", None, {"id": 1, "name": "ann"}),
    ]
    (row,) = rows_of(tmp_path / "raw")
    assert (row["key"], row["value"], row["topic"], row["partition"], row["offset"]) == (
        b"\x01",
        b"\xff\x00",
        raw,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": ()}, "`topics` must name at least one topic"),
        ({"value": "xml"}, "`value` must be one of"),
        ({"schema": None}, "value='json' needs schema="),
        ({"value": "raw"}, "value='raw' takes no schema"),
        ({"schema": "id int,, x"}, "`schema` is not a valid list of columns"),
        ({"malformed": "drop"}, "`malformed` must be one of"),
        ({"metadata": ["headers"]}, "`metadata` must list some of key, topic"),
        ({"metadata": ["key"], "schema": "key string"}, "two columns are called 'key'"),
        ({"options": {"subscribe": "x"}}, "options= must not contain subscribe"),
        ({"value": "avro", "schema": "id int"}, "not a valid Avro schema"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    spark: SparkSession, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    job = sb.Job("mistakes", state=tmp_path, spark=spark)
    given = {"topics": "t", "servers": "127.0.0.1:1", "schema": "id int"} | arguments
    with pytest.raises(InputError, match=message):
        job.kafka(**given)


def test_dead_letters_that_go_nowhere_are_refused(world: World) -> None:
    job = sb.Job("rides", state=world.folder / "state", spark=world.spark)
    rides = job.kafka(world.topic, servers=world.broker.servers, schema=SCHEMA, malformed="dead_letters")
    rides.write("parquet", path=str(world.folder / "out"))
    with pytest.raises(InputError, match="no sink gets them"):
        job.explain()


def test_a_plain_dataframe_of_kafka_has_the_same_checks_and_its_lag_is_known(world: World) -> None:
    frame = (
        world.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", world.broker.servers)
        .option("subscribe", world.topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("cast(value as string) as text", "partition")
    )

    def job() -> sb.Job:
        made = sb.Job("plain", state=world.folder / "state", parallelism=1, spark=world.spark)
        made.source(frame, name="lines").key_by("text", name="totals").agg(
            n=sb.count(), ttl="1 day", ttl_clock="epoch_time"
        ).write("kafka", servers=world.broker.servers, topic=f"{world.topic}-out", key="text", name="totals")
        return made

    world.broker.send(world.topic, ["a", "b", "a"], partition=0)
    query = job().start()
    query.spark_query.processAllAvailable()
    world.broker.send(world.topic, ["a"], partition=1)
    query.spark_query.processAllAvailable()
    query.stop()
    found = {m.key(): json.loads(m.value() or b"")["n"] for m in world.broker.messages(f"{world.topic}-out")}
    assert found == {b'{"text":"a"}': 3, b'{"text":"b"}': 1}
    world.broker.delete_topic(world.topic)
    with pytest.raises(ReplayError, match="the topic no longer exists"):
        job().start(available_now=True)
