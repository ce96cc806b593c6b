"""The Kafka sink on a real broker: exactly once through crashes, fencing, formats, and topics at the start of a job."""

import io
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from effort import examples
from kafka.server import Broker
from unit.sinks.publishing import JOB, SINK, commit, commit_rows, counter_of, expected, kafka_sink, open_run

from statebed.checkpoint import (
    Origin,
    Publication,
    Publisher,
    Retention,
    RollbackPolicy,
    Run,
    RunOptions,
    SinkPosition,
    SinkStart,
)
from statebed.errors import FencedError, InputError, RollbackError, SinkError, SinkStartError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.format.stream_schema import Changes, Output
from statebed.sinks.kafka import Encoding, TopicLayout, avro_schema
from statebed.sinks.kafka.topic import KafkaCluster, Topic, offsets_of
from statebed.storage import LocalStore, MemoryStore, ObjectStore
from statebed.subtasks.outbox import encode_outbox

ROWS = Output(pa.schema([("k", pa.string()), ("n", pa.int64())]), Changes.APPEND)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return LocalStore(tmp_path)


def publisher(run: Run, sink: Any, **choices: Any) -> Publisher:
    made = Publisher(run, [sink], **choices)
    made.open()
    return made


def publish(store: ObjectStore, sink: Any, epochs: int, options: RunOptions | None = None) -> Run:
    run = open_run(store, options)
    published = publisher(run, sink)
    for _ in range(epochs):
        commit(run)
        published.publish_pending()
    return run


def current(broker: Broker, topic: str) -> dict[str, int]:
    """Fold the committed upserts of a topic into its rows, and check that no message is repeated."""
    rows: dict[str, int] = {}
    seen = set()
    for message in broker.messages(topic):
        key, value = json.loads(message.key() or b""), message.value()
        assert (message.key(), value) not in seen, "an epoch is visible twice"
        seen.add((message.key(), value))
        if value is None:
            del rows[key["k"]]
        else:
            rows[key["k"]] = json.loads(value)["n"]
    return rows


def epoch_of(output: Output, rows: list[tuple[Any, ...]], *, run: int = 1, epoch: int = 2) -> Publication:
    """An epoch with these rows, outside of any log."""
    weight = [("_weight", pa.int64())] if output.changes is Changes.CHANGELOG else []
    schema = pa.schema([*output.columns, *weight])
    store = MemoryStore()
    data = encode_outbox(pa.table([list(column) for column in zip(*rows, strict=True)], schema=schema))
    store.put("rows", data)
    file = pb.OutboxFile(path="rows", size=len(data), rows=len(rows), crc32c=crc32c(data))
    record = pb.CheckpointMetadata(epoch=epoch, epoch_time_us=1_700_000_000_000_000)
    return Publication(run=run, epoch=epoch, record=record, files=(file,), commit_data=(), store=store)


# ---- exactly once ----------------------------------------------------------------------------------------------


def test_p2_epochs_are_visible_once_across_runs_and_a_missing_marker(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic(partitions=3)
    sink = kafka_sink(broker.servers, topic)
    run = publish(store, sink, 3)
    store.delete(max(found.path for found in store.list("") if "published-" in found.path))
    assert sink.peek() is not None
    run = publish(store, kafka_sink(broker.servers, topic), 2)
    assert current(broker, topic) == expected(counter_of(run))


def test_p3_a_superseded_run_is_fenced_by_kafka_and_adds_nothing(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic()
    older = open_run(store)
    slow = kafka_sink(broker.servers, topic)
    publisher(older, slow)
    commit(older)
    newer = publish(store, kafka_sink(broker.servers, topic), 1)
    record = older.record(2)
    late = Publication(
        run=older.number, epoch=9, record=record, files=tuple(record.outbox), commit_data=(), store=older.store
    )
    with pytest.raises(FencedError, match=f"was opened by run {newer.number}"):
        slow.publish(late)
    with pytest.raises(FencedError):
        slow.open(older.number)
    assert current(broker, topic) == expected(counter_of(newer))


def test_p2_an_aborted_epoch_is_invisible_and_is_written_again(
    broker: Broker, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.new_topic()
    sink = kafka_sink(broker.servers, topic)
    run = open_run(store)
    published = publisher(run, sink)
    commit(run)

    def dies(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(sink, "_commit", dies)
        with pytest.raises(MemoryError):
            published.publish_pending()
    assert broker.messages(topic) == []
    run = publish(store, kafka_sink(broker.servers, topic), 1)
    assert current(broker, topic) == expected(counter_of(run))


def start_process(state: Path, broker: Broker, topic: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "unit.sinks.publishing", str(state), "kafka"]
    command += [f"{broker.servers}/{topic}", "", "300"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])


def kill_at_random(broker: Broker, topic: str, state: Path, kills: int, *, kill_broker: bool) -> None:
    """Kill a publishing process, and the broker in some rounds, at random moments; then compare."""
    chance = random.Random(7)
    for number in range(kills):
        with start_process(state, broker, topic) as process:
            try:
                assert process.stdout is not None
                assert list(itertools.islice(process.stdout, chance.randrange(1, 4))), "the process publishes"
                time.sleep(chance.random() * 0.1)
                if kill_broker and number % 2:
                    broker.kill()
                    broker.start()
                    list(itertools.islice(process.stdout, 3))
            finally:
                process.send_signal(signal.SIGKILL)
    run = publish(LocalStore(state), kafka_sink(broker.servers, topic), 1)
    rows: dict[str, int] = {}
    values: dict[str, list[int]] = {}
    for message in broker.messages(topic):
        key, value = json.loads(message.key() or b"")["k"], json.loads(message.value() or b"")["n"]
        rows[key] = value
        values.setdefault(key, []).append(value)
    assert rows == expected(counter_of(run), fillers=300) | {f"f{n}": rows[f"f{n}"] for n in range(3, 300)}
    assert all(seen == sorted(set(seen)) for seen in values.values()), "an epoch is visible twice, or out of order"
    assert values["f0"] == list(range(counter_of(run))), "an epoch is missing"


def test_p2_kills_of_the_process_and_the_broker_lose_and_repeat_nothing(broker: Broker, tmp_path: Path) -> None:
    kill_at_random(broker, broker.new_topic(partitions=2), tmp_path, examples(2), kill_broker=True)


@pytest.mark.long
def test_p2_thirty_kills_of_the_process_and_the_broker(broker: Broker, tmp_path: Path) -> None:
    kill_at_random(broker, broker.new_topic(partitions=2), tmp_path, 30, kill_broker=True)


def test_a_broker_that_is_away_for_a_while_is_waited_for(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic()
    run = open_run(store)
    published = publisher(run, kafka_sink(broker.servers, topic))
    commit(run)
    broker.kill()
    back = threading.Timer(2.0, broker.start)
    back.start()
    published.publish_pending()
    back.join()
    assert current(broker, topic) == expected(1)


def test_an_unreachable_broker_is_an_error_after_the_timeout() -> None:
    sink = kafka_sink("127.0.0.1:1", "nothing", timeout_seconds=1)
    with pytest.raises(SinkError, match="Kafka is unreachable") as caught:
        sink.check(last_number=10)
    assert "Kafka topic nothing at 127.0.0.1:1" in str(caught.value)


# ---- states of a topic at the start ----------------------------------------------------------------------------


def test_a_missing_topic_is_created_compacted_for_changelogs_unless_forbidden(
    broker: Broker, store: ObjectStore
) -> None:
    with pytest.raises(InputError, match="does not exist, and create=False"):
        kafka_sink(broker.servers, "absent", layout=TopicLayout(create=False)).check(last_number=1)
    sink = kafka_sink(broker.servers, "made-by-the-sink", layout=TopicLayout(partitions=2))
    publish(store, sink, 1)
    facts = sink._topic.facts()
    assert facts is not None
    assert (facts.partitions, facts.policy) == (2, "compact")


def test_a_topic_that_was_deleted_or_re_created_is_refused_until_a_choice_is_made(
    broker: Broker, store: ObjectStore
) -> None:
    topic = broker.new_topic()
    publish(store, kafka_sink(broker.servers, topic), 2)
    broker.delete_topic(topic)
    with pytest.raises(SinkStartError, match="holds nothing at its target, though epochs up to"):
        publisher(open_run(store), kafka_sink(broker.servers, topic))
    broker.new_topic(name=topic)
    with pytest.raises(SinkStartError, match="holds nothing"):
        publisher(open_run(store), kafka_sink(broker.servers, topic))
    run = open_run(store)
    publisher(run, kafka_sink(broker.servers, topic), starts={SINK: SinkStart.REBUILD})
    assert current(broker, topic) == expected(counter_of(run))


def test_a_topic_that_another_job_owns_is_refused(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic()
    publish(store, kafka_sink(broker.servers, topic), 1)
    other = kafka_sink(broker.servers, topic, job_id="other")
    with pytest.raises(InputError, match=f"the topic belongs to {JOB}/{SINK}, not to other/{SINK}"):
        other.check(last_number=100)
    assert other.owner_of_target() == f"{JOB}/{SINK}"


def test_a_topic_of_a_deleted_state_is_refused(broker: Broker, store: ObjectStore, tmp_path: Path) -> None:
    topic = broker.new_topic()
    publish(store, kafka_sink(broker.servers, topic), 5)
    with pytest.raises(InputError, match="but the job's log ends at 1"):
        kafka_sink(broker.servers, topic).check(last_number=1)


def test_an_older_epoch_cannot_be_taken_back_from_a_topic(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic(cleanup_policy="compact")
    publish(store, kafka_sink(broker.servers, topic), 3)
    back = RunOptions(origin=Origin(epoch=3), rollback=RollbackPolicy.ALLOW)
    with pytest.raises(RollbackError, match="Kafka cannot retract messages"):
        publisher(open_run(store, back), kafka_sink(broker.servers, topic))


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_rebuild_empties_the_topic_first(broker: Broker, store: ObjectStore, policy: str) -> None:
    topic = broker.new_topic(cleanup_policy=policy)
    sink = kafka_sink(broker.servers, topic)
    run = publish(store, sink, 2)
    sink.clear(run.number)
    position = sink.peek()
    assert position is not None
    assert position.epoch == 0
    rows: dict[bytes, bytes | None] = {message.key() or b"": message.value() for message in broker.messages(topic)}
    assert [value for value in rows.values() if value is not None] == []
    assert (rows == {}) == (policy == "delete")


def test_the_position_is_not_told_before_a_pending_transaction_is_settled(broker: Broker, store: ObjectStore) -> None:
    name = broker.new_topic()
    publish(store, kafka_sink(broker.servers, name), 1)
    topic = Topic(KafkaCluster(broker.servers), name)
    facts = topic.facts()
    assert facts is not None
    producer = topic.cluster.producer("of-an-earlier-run")
    producer.init_transactions(60)
    producer.begin_transaction()
    offsets = offsets_of(topic, facts, owner=f"{JOB}/{SINK}", position=SinkPosition(run=1, epoch=7))
    producer.send_offsets_to_transaction(offsets, topic.group_metadata(), 60)
    settled = threading.Timer(2, producer.commit_transaction, [60])
    settled.start()
    position = kafka_sink(broker.servers, name).peek()
    settled.join()
    assert position == SinkPosition(run=1, epoch=7)


def test_a_transaction_that_a_killed_process_left_open_does_not_delay_the_start(
    broker: Broker, store: ObjectStore
) -> None:
    name = broker.new_topic()
    publish(store, kafka_sink(broker.servers, name), 1)
    topic = Topic(KafkaCluster(broker.servers), name)
    facts = topic.facts()
    assert facts is not None
    owner, committed = f"{JOB}/{SINK}", kafka_sink(broker.servers, name).peek()
    assert committed is not None
    producer = topic.cluster.producer(f"statebed.{name}.{owner}")  # its transaction stays open for five minutes
    producer.init_transactions(60)
    producer.begin_transaction()
    offsets = offsets_of(topic, facts, owner=owner, position=SinkPosition(run=1, epoch=committed.epoch + 1))
    producer.send_offsets_to_transaction(offsets, topic.group_metadata(), 60)
    sink = kafka_sink(broker.servers, name)
    started = time.monotonic()
    assert sink.peek() == committed
    publish(store, sink, 1)
    assert time.monotonic() - started < 240  # Kafka would give the transaction up after 300 seconds
    position = sink.peek()
    assert position is not None
    assert position.run > 1


def test_epochs_that_are_no_longer_retained_are_named(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic()
    publish(store, kafka_sink(broker.servers, topic), 1)
    broker.delete_topic(topic)
    broker.new_topic(name=topic)
    options = RunOptions(retention=Retention(epochs=1))
    run = open_run(store, options)
    for _ in range(4):
        commit(run)
    with pytest.raises(SinkStartError, match=r"sinks={'out': 'start_empty'}"):
        publisher(open_run(store, options), kafka_sink(broker.servers, topic))


def test_a_topic_deleted_while_the_job_runs_stops_it_with_a_clear_error(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic()
    run = open_run(store)
    published = publisher(run, kafka_sink(broker.servers, topic, timeout_seconds=30))
    commit(run)
    published.publish_pending()
    broker.delete_topic(topic)
    commit(run)
    with pytest.raises(SinkError, match="the topic no longer exists"):
        published.publish_pending()


def test_a_compacted_topic_needs_keys(broker: Broker) -> None:
    topic = broker.new_topic(cleanup_policy="compact")
    with pytest.raises(InputError, match=r"compacted .* so messages need a key"):
        kafka_sink(broker.servers, topic, output=ROWS, key=()).check(last_number=1)


# ---- formats ---------------------------------------------------------------------------------------------------


def sent(broker: Broker, sink_of: Any, publication: Publication) -> list[tuple[Any, Any]]:
    topic = broker.new_topic()
    sink = sink_of(topic)
    sink.open(publication.run)
    sink.publish(publication)
    return [(message.key(), message.value()) for message in broker.messages(topic)]


CHANGES = Output(ROWS.columns, Changes.CHANGELOG)
UPDATES = [("a", 1, -1), ("a", 2, 1), ("b", 1, -1), ("c", 3, 1)]


def test_a_changelog_becomes_upserts_and_tombstones(broker: Broker) -> None:
    found = sent(broker, lambda topic: kafka_sink(broker.servers, topic), epoch_of(CHANGES, UPDATES))
    assert sorted(found) == [
        (b'{"k":"a"}', b'{"k":"a","n":2}'),
        (b'{"k":"b"}', None),
        (b'{"k":"c"}', b'{"k":"c","n":3}'),
    ]


def test_debezium_envelopes_end_with_a_tombstone_for_a_deleted_row(broker: Broker) -> None:
    found = sent(
        broker,
        lambda topic: kafka_sink(broker.servers, topic, encoding=Encoding.DEBEZIUM),
        epoch_of(CHANGES, UPDATES),
    )
    events = [(json.loads(key)["k"], value and json.loads(value)) for key, value in found]
    assert [(key, event and event["op"]) for key, event in events] == [("b", "d"), ("b", None), ("a", "u"), ("c", "c")]
    update = events[2][1]
    assert (update["before"], update["after"]) == ({"k": "a", "n": 1}, {"k": "a", "n": 2})
    assert update["source"]["epoch"] == 2


@pytest.mark.parametrize("schema_id", [None, 7])
def test_avro_rows_are_read_back_with_the_published_schema(broker: Broker, schema_id: int | None) -> None:
    columns = pa.schema(
        [
            ("k", pa.string()),
            ("n", pa.int64()),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("point", pa.struct([("x", pa.float64())])),
        ]
    )
    row = {"k": "a", "n": None, "price": None, "at": None, "tags": ["x", None], "point": {"x": 1.5}}
    publication = epoch_of(Output(columns, Changes.APPEND), [tuple(row.values())])
    ((key, value),) = sent(
        broker,
        lambda topic: kafka_sink(
            broker.servers,
            topic,
            encoding=Encoding.AVRO,
            output=Output(columns, Changes.APPEND),
            schema_id=schema_id,
        ),
        publication,
    )
    if schema_id is not None:
        assert value[:5] == b"\0\0\0\0\7"
        value = value[5:]
    schema = fastavro.parse_schema(avro_schema(columns))
    assert fastavro.schemaless_reader(io.BytesIO(value), schema, None) == row
    assert key is not None


def test_raw_columns_are_sent_as_they_are(broker: Broker) -> None:
    output = Output(pa.schema([("key", pa.string()), ("value", pa.binary())]), Changes.APPEND)
    rows = [("a", b"\x00\xff"), (None, None), ("b", b"")]
    found = sent(
        broker,
        lambda topic: kafka_sink(broker.servers, topic, encoding=Encoding.RAW, output=output, key=()),
        epoch_of(output, rows),
    )
    assert found == [(b"a", b"\x00\xff"), (None, None), (b"b", b"")]


def test_two_rows_of_one_key_are_refused_and_nothing_is_sent(broker: Broker) -> None:
    topic = broker.new_topic()
    sink = kafka_sink(broker.servers, topic)
    sink.open(1)
    with pytest.raises(SinkError, match=r"several rows with the key {'k': 'a'}"):
        sink.publish(epoch_of(CHANGES, [("a", 1, 1), ("a", 2, 1)]))
    assert broker.messages(topic) == []


def test_an_epoch_that_is_given_up_advances_the_position_and_sends_nothing(broker: Broker, store: ObjectStore) -> None:
    topic = broker.new_topic(partitions=2)
    run = publish(store, kafka_sink(broker.servers, topic), 2)
    before = [(message.key(), message.value()) for message in broker.messages(topic)]
    commit_rows(run, [("k9", 1, 1), ("k9", 2, 1)], count=2)
    refused = run.head.epoch
    for _ in range(2):
        with pytest.raises(SinkError, match="several rows with the key") as error:
            publisher(open_run(store), kafka_sink(broker.servers, topic))
        assert f"skip={{'out': {refused}}}" in error.value.fix
    run = open_run(store)
    sink = kafka_sink(broker.servers, topic)
    published = publisher(run, sink, skip={SINK: refused})
    assert kafka_sink(broker.servers, topic).peek() == SinkPosition(run=run.number, epoch=refused)
    assert [(message.key(), message.value()) for message in broker.messages(topic)] == before
    commit(run)
    published.publish_pending()
    (history,) = run.head.sink_histories
    assert (history.epochs_given_up, history.rows_given_up, history.last_given_up) == (1, 2, refused)
    assert current(broker, topic) == expected(3)


def test_a_large_epoch_waits_for_the_clients_queue(broker: Broker) -> None:
    rows = [(f"k{number}", number) for number in range(150_000)]
    found = sent(broker, lambda topic: kafka_sink(broker.servers, topic, output=ROWS, key=()), epoch_of(ROWS, rows))
    assert len(found) == len(rows)
    assert [json.loads(value)["n"] for _, value in found[:3]] == [0, 1, 2]


def test_a_topic_with_keys_whose_partitions_were_added_is_refused_until_their_number_is_given(
    broker: Broker, store: ObjectStore
) -> None:
    topic = broker.new_topic(partitions=2)
    run = publish(store, kafka_sink(broker.servers, topic), 2)
    last = run.head.epoch
    kafka_sink(broker.servers, topic).check(last_number=last)
    broker.add_partitions(topic, 4)
    with pytest.raises(InputError, match=r"had 2 partitions and has 4 now[\s\S]*new topic[\s\S]*partitions=4"):
        kafka_sink(broker.servers, topic).check(last_number=last)
    accepted = kafka_sink(broker.servers, topic, layout=TopicLayout(partitions=4))
    accepted.check(last_number=last)
    last = publish(store, accepted, 1).head.epoch
    kafka_sink(broker.servers, topic).check(last_number=last)
