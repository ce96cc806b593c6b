"""Tasks read messages with Kafka's own client as Spark's connector would, or leave them to it."""

import _ctypes
import ctypes
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from kafka.server import Broker
from pyspark.sql import SparkSession

import statebed as sb
from scripts.kafka_broker import QUIET
from statebed.arrays import compiled
from statebed.spark.scan import kafka_library, kafka_reader
from statebed.spark.scan.kafka_ranges import ranges_between, ranges_of, tasks_of_ranges
from statebed.spark.scan.kafka_reader import KafkaClient, KafkaRange
from statebed.spark.scan.parquet_reader import FileColumn, ScanRefusedError

SCHEMA = (
    "id bigint, n int, x double, ok boolean, name string, at timestamp, place struct<a: bigint, b: string>, "
    "l array<int>"
)
VALUES: list[str | bytes | None] = [
    '{"id": 1, "n": 2, "x": 1.5, "ok": true, "name": "é\\u0041", "at": "2024-02-29T12:00:00.5Z"}',
    '{"id": 2, "place": {"a": 7, "b": "x", "c": 1}, "l": [1, null, 2], "other": [{}]}',
    '{"id": 9223372036854775807, "n": null, "x": 3, "place": {}, "l": []}',
    '{\n "id": 4,\n "name": "two\\nlines"}',
    '{"id": 5, "n": "7"}',
    '{"id": 6, "n": 3000000000, "x": "Infinity"}',
    '{"id": 7, "x": NaN}',
    '{"id": 8, "id": 9}',
    '{"id": 10}{"id": 11}',
    '{"id": 12} tail',
    '{"id": 13, "name": 5, "place": [1]}',
    '{"id": 14, "name": "Inf: NaN"}',
    '{"id": 15, "at": 1700000000}',
    '{"id": 16, "at": "soon"}',
    '{"id": 17, "l": [1, "x"]}',
    '{"ID": 18}',
    '{"id": 1.0, "x": 1e400}',
    "{'id': 19}",
    '{"id": 20,}',
    "[1]",
    "null",
    "{broken",
    "",
    "  ",
    None,
]
"""Values that Arrow reads and values that it refuses."""
LATIN = b'{"id": 21, "name": "\xe9"}'
"""A value that is no UTF-8."""


def client(broker: Broker, **options: str) -> KafkaClient:
    return KafkaClient.of({"kafka.bootstrap.servers": broker.servers, **options})


COLUMNS = [
    FileColumn(name, pa.field(f"c{place}", kind))
    for place, (name, kind) in enumerate(
        {
            "key": pa.binary(),
            "value": pa.binary(),
            "topic": pa.string(),
            "partition": pa.int32(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "timestampType": pa.int32(),
        }.items()
    )
]


def read(messages: KafkaRange) -> list[tuple[Any, ...]]:
    batches = list(messages.batches(COLUMNS, case_sensitive=False))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read_by_spark(spark: SparkSession, broker: Broker, topic: str, **options: str) -> list[tuple[Any, ...]]:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", broker.servers).option("subscribe", topic)
    rows = reader.options(**options).load().toArrow().select([column.name for column in COLUMNS])
    rows = rows.cast(pa.schema([column.field.with_name(column.name) for column in COLUMNS]))
    return sorted((tuple(row.values()) for row in rows.to_pylist()), key=lambda row: row[4])


@pytest.mark.parametrize("is_compiled", [True, False])
def test_messages_are_read_as_spark_reads_them(
    spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    monkeypatch.setattr(compiled, "_min_rows", lambda: 1 if is_compiled else None)
    topic = broker.new_topic()
    broker.send(topic, [b"", b"\xff\0", None, "x" * 900_000], key=b"\x01")
    broker.send(topic, ["plain"] * 1_000)
    expected = read_by_spark(spark, broker, topic)
    assert read(KafkaRange(client(broker), topic, 0, 0, 1_004)) == expected
    # Kept between epochs: what follows, what came before, and a part.
    for start, end in ((2, 5), (5, 900), (900, 1_004), (0, 3)):
        assert read(KafkaRange(client(broker), topic, 0, start, end)) == expected[start:end]


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_offsets_without_messages_are_passed_over(spark: SparkSession, broker: Broker, isolation: str) -> None:
    topic = broker.new_topic()
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic, **QUIET})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for place in range(3):
            producer.produce(topic, value=f"{number}-{place}", partition=0)
        producer.flush(20)
        producer.abort_transaction(20) if number % 3 == 2 else producer.commit_transaction(20)
    options = {"kafka.isolation.level": isolation}
    reader = client(broker, **options)
    expected = read_by_spark(spark, broker, topic, **options)
    assert len(expected) == (12 if isolation == "read_committed" else 18)
    assert read(KafkaRange(reader, topic, 0, 0, 24)) == expected, "the last offset has a marker, not a message"
    for start, end in ((0, 4), (4, 5), (5, 11), (11, 24), (3, 4)):
        wanted = [row for row in expected if start <= row[4] < end]
        assert read(KafkaRange(reader, topic, 0, start, end)) == wanted, (start, end)


def test_messages_that_are_gone_are_left_to_spark(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = broker.new_topic()
    broker.send(topic, ["a", "b", "c"])
    broker.delete_records(topic, 0, 2)
    with pytest.raises(ScanRefusedError, match=f"topic {topic}, partition 0: .*[Oo]ffset"):
        read(KafkaRange(client(broker), topic, 0, 0, 3))
    assert [row[4] for row in read(KafkaRange(client(broker), topic, 0, 2, 3))] == [2]
    monkeypatch.setattr(kafka_reader, "_STALLED_SECONDS", 0.5)
    with pytest.raises(ScanRefusedError, match=r"nothing came for 0\.5 s"):
        read(KafkaRange(client(broker), topic, 0, 3, 4))
    with pytest.raises(ScanRefusedError, match="partition 7: "):
        read(KafkaRange(client(broker), topic, 7, 0, 1))


def test_messages_that_come_twice_or_out_of_order_are_refused(broker: Broker) -> None:
    messages = KafkaRange(client(broker), "t", 0, 5, 9)
    fields = [kafka_library._Message(payload=None, offset=offset) for offset in (5, 6, 8, 9)]

    def events(*places: int) -> kafka_library.Messages:
        pointers = np.array([ctypes.addressof(fields[place]) for place in places], np.uint64)
        return kafka_library.Messages(kafka_library.library(), pointers, None)

    def taken(*lists: Sequence[int]) -> list[list[int]]:
        reader = kafka_reader._RangeReader(messages)
        reader._position = 5
        kept = [events(*places) for places in lists]
        assert [reader._take(each) for each in kept] == [0] * len(kept)
        return [each.offsets.tolist() for each in kept]

    assert taken([0, 1], [2, 3]) == [[5, 6], [8]], "the last one belongs to the next range"
    for lists in ([[0, 0]], [[1, 0]], [[0, 1], [1]], [[1, 2], [0]]):
        with pytest.raises(ScanRefusedError, match=r"topic t, partition 0: offset [56] came twice, or out of order"):
            taken(*lists)


def test_a_build_that_hides_the_client_is_left_to_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kafka_library, "driver", lambda: SimpleNamespace(cimpl=SimpleNamespace(__file__=_ctypes.__file__))
    )
    with pytest.raises(
        ScanRefusedError, match=r"this build of confluent_kafka does not show Kafka's client: .*rd_kafka"
    ):
        kafka_library.library.__wrapped__()


def test_settings_that_the_client_does_not_know_are_refused() -> None:
    with pytest.raises(ScanRefusedError, match="No such configuration property"):
        kafka_library.LibraryConsumer({"bootstrap.servers": "a:1", "no.such.setting": 1})


def test_options_of_javas_client_are_left_to_spark() -> None:
    for name in ("kafka.security.protocol", "includeHeaders", "kafka.fetch.max.bytes"):
        with pytest.raises(ScanRefusedError, match=f"the option {name} is for Spark's connector"):
            KafkaClient.of({"kafka.bootstrap.servers": "a:1", name: "x"})
    named = KafkaClient.of({"Kafka.Bootstrap.Servers": "a:1", "kafka.group.id": "g", "subscribe": "t"})
    assert dict(named.settings) == {"bootstrap.servers": "a:1", "group.id": "g", "isolation.level": "read_uncommitted"}


def test_ranges_are_those_between_the_offsets_of_a_batch() -> None:
    reader = KafkaClient.of({"kafka.bootstrap.servers": "a:1"})

    def between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
        return [(one.topic, one.partition, one.start, one.end) for one in ranges_between(start, end, reader)]

    start = {"a": {"0": 5, "1": 7}}
    assert between(start, {"a": {"0": 9, "1": 7, "2": 3}, "b": {"0": 1}}) == [
        ("a", 0, 5, 9),
        ("a", 2, 0, 3),
        ("b", 0, 0, 1),
    ]
    with pytest.raises(ScanRefusedError, match="partitions are gone: a/1"):
        between(start, {"a": {"0": 9}})
    with pytest.raises(ScanRefusedError, match="offsets go backwards: topic a, partition 1"):
        between(start, {"a": {"0": 9, "1": 6}})
    with pytest.raises(ScanRefusedError, match="messages are read as LogicalRDD"):
        ranges_of(SimpleNamespace(nodeName=lambda: "LogicalRDD"), reader)
    ranges = [(0, KafkaRange(reader, "a", number, 0, size)) for number, size in enumerate([1, 9, 2, 5])]
    tasks = tasks_of_ranges(ranges, slots=2)
    assert [[one.partition for _, one in task] for task in tasks] == [[1], [3, 2, 0]]
    assert tasks_of_ranges([], slots=2) == []


class World:
    """A topic, and a job that writes its messages and those that are malformed."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.topic = broker.new_topic(partitions=2)

    def job(self, name: str, **options: Any) -> sb.Job:
        scan = {"native_scan": name == "ours"}
        job = sb.Job(name, state=self.folder / "state", parallelism=2, spark=self.spark, settings=scan)
        settings = {
            "schema": SCHEMA,
            "malformed": "dead_letters",
            "metadata": ["key", "partition", "offset", "timestamp"],
            "options": {"maxOffsetsPerTrigger": 90},
        } | options
        rows = job.kafka(self.topic, servers=self.broker.servers, name="rows", **settings)
        rows.write("parquet", path=str(self.folder / name), name="out")
        if settings["malformed"] == "dead_letters":
            rows.dead_letters.write("parquet", path=str(self.folder / f"{name}-dead"), name="dead")
        return job

    def rows(self, name: str, **options: Any) -> list[list[str]]:
        """Run a job of this name, and return what it has written, as text: rows and dead letters."""
        self.job(name, **options).start(available_now=True).await_termination()
        found = []
        for table in (name, f"{name}-dead"):
            path = self.folder / table
            found.append(sorted(map(str, sb.read_table(str(path)).to_pylist())) if path.exists() else [])
        return found


@pytest.fixture
def world(spark: SparkSession, broker: Broker, tmp_path: Path) -> World:
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return World(spark, broker, tmp_path)


def refusals(caplog: pytest.LogCaptureFixture) -> Sequence[str]:
    return [record.getMessage() for record in caplog.records if "Spark reads the sources" in record.getMessage()]


def test_jobs_decode_messages_as_spark_decodes_them(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="statebed")
    world.broker.send(world.topic, VALUES, partition=0)
    world.broker.send(world.topic, VALUES[:4] * 40, key="k", partition=1)
    assert "native scan" in str(world.job("ours").explain())
    rows, dead = world.rows("ours")
    assert len(rows) + len(dead) == len(VALUES) + 160
    assert len(dead) > 10
    # Another start continues, and a partition that is new since is read from its beginning.
    world.broker.add_partitions(world.topic, 3)
    world.broker.send(world.topic, VALUES, partition=2)
    ours = world.rows("ours")
    assert not refusals(caplog)
    assert ours == world.rows("theirs")
    assert sum(map(len, ours)) == 2 * len(VALUES) + 160


def test_values_that_only_spark_decodes_are_left_to_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="statebed")
    world.broker.send(world.topic, [LATIN, *VALUES], partition=0)
    assert world.rows("ours") == world.rows("theirs")
    assert ["not UTF-8" in refusal for refusal in refusals(caplog)[:1]] == [True]


def test_a_malformed_message_that_must_not_be_is_named_by_spark(world: World) -> None:
    world.broker.send(world.topic, [*VALUES[:3], "no json"], partition=0)
    errors = []
    for name in ("ours", "theirs"):
        with pytest.raises(sb.InputError, match=f"topic {world.topic}, partition 0, offset 3") as caught:
            world.rows(name, malformed="fail")
        errors.append(str(caught.value).replace("ours", "theirs"))
    assert errors[0] == errors[1]


@pytest.mark.filterwarnings("ignore::statebed.UnboundedStateWarning")
def test_a_query_of_spark_reads_messages_in_tasks(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="statebed")
    values = [json.dumps({"k": number % 7, "v": number}) for number in range(5_000)]
    world.broker.send(world.topic, values)
    reader = world.spark.readStream.format("kafka").option("kafka.bootstrap.servers", world.broker.servers)
    messages = reader.option("subscribe", world.topic).option("startingOffsets", "earliest").load()
    df = messages.selectExpr("from_json(cast(value as string), 'k int, v bigint') as row").selectExpr("row.*")
    found: list[Any] = []
    writer = sb.write_stream(df.groupBy("k").sum("v")).outputMode("complete").option("checkpointLocation", world.folder)
    query = writer.foreachBatch(lambda rows, _: found.append(sorted(map(tuple, rows.collect()))))
    query.trigger(availableNow=True).start().await_termination()
    assert found[-1] == [(key, sum(range(key, 5_000, 7))) for key in range(7)]
    assert not refusals(caplog)
