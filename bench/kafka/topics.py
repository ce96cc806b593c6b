"""Topics of the benchmark: the input is sent before it begins, and outputs are compared with DuckDB's answer."""

import io
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.json as pj
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from bench.kafka.cases import PARTITIONS, Case
from scripts.kafka_broker import QUIET, KafkaBroker

INPUT = "in"
"""Topic of the messages that every side reads."""
_CHUNK = 50_000
_DELIVERY_SECONDS = 300


def create(broker: KafkaBroker, *names: str) -> None:
    """Create topics and wait for them."""
    topics = [NewTopic(name, num_partitions=PARTITIONS, replication_factor=1) for name in names]
    for future in broker.admin.create_topics(topics).values():
        future.result(30)


def rows_of(case: Case) -> pa.Table:
    """Return the rows of a case: every key once as far as the warm batches go, then keys at random."""
    chance = np.random.default_rng(7)
    filled = min(case.warm * case.batch_rows, case.rows)
    keys = np.concatenate(
        [
            chance.permutation(np.arange(filled) % case.keys),
            chance.integers(0, case.keys, case.rows - filled),
        ]
    )
    return pa.table({"k": keys, "v": chance.integers(1, 1_000, case.rows)})


def send(servers: str, topic: str, rows: pa.Table) -> None:
    """Send rows as JSON messages, the same number to each partition, in order."""
    producer = Producer({"bootstrap.servers": servers, "queue.buffering.max.messages": 1_000_000, **QUIET})
    keys, values = rows["k"].to_pylist(), rows["v"].to_pylist()
    for first in range(0, rows.num_rows, _CHUNK):
        pairs = list(zip(keys[first : first + _CHUNK], values[first : first + _CHUNK], strict=True))
        for partition in range(PARTITIONS):
            # The client ignores partitions of single messages in a batch.
            messages: list[dict[str, Any]] = [
                {"value": b'{"k":%d,"v":%d}' % pair} for pair in pairs[partition::PARTITIONS]
            ]
            producer.produce_batch(topic, messages, partition=partition)
            if failed := [message["_error"] for message in messages if "_error" in message]:
                raise SystemExit(f"{len(failed)} messages were not queued: {failed[0]}")
        if producer.flush(_DELIVERY_SECONDS):
            raise SystemExit("not all messages of the input were delivered")
    reader = Consumer({"bootstrap.servers": servers, "group.id": "bench", **QUIET})
    ends = [reader.get_watermark_offsets(TopicPartition(topic, number))[1] for number in range(PARTITIONS)]
    reader.close()
    expected = [len(range(number, rows.num_rows, PARTITIONS)) for number in range(PARTITIONS)]
    if ends != expected:
        raise SystemExit(f"the partitions have {ends} messages instead of {expected}")


def check(servers: str, topic: str, rows: pa.Table) -> int:
    """Compare the newest total of every key with DuckDB's answer; return the number of messages."""
    newest, messages = _newest(servers, topic)
    with duckdb.connect() as db:
        db.register("rows", rows)
        db.register("newest", newest)
        expected = "select k, count(*)::bigint as n, sum(v)::bigint as total from rows group by k"
        db.execute(f"create view expected as {expected}")
        wrong = db.execute("from expected except from newest").fetchall()
        wrong += db.execute("from newest except from expected").fetchall()
    if wrong or not messages:
        raise SystemExit(f"{topic}: {len(wrong)} of {newest.num_rows} totals are wrong: {wrong[:3]}")
    return messages


def _newest(servers: str, topic: str) -> tuple[pa.Table, int]:
    """Return the newest total of every key, and the number of messages. Counts only grow, so the largest is newest."""
    tables, messages = [], 0
    for values in _committed(servers, topic):
        messages += len(values)
        tables.append(pj.read_json(io.BytesIO(b"\n".join(values))).select(["k", "n", "total"]))
    with duckdb.connect() as db:
        db.register("totals", pa.concat_tables(tables))
        return db.sql("select k, max(n) as n, max(total) as total from totals group by k").to_arrow_table(), messages


def _committed(servers: str, topic: str) -> Iterator[list[bytes]]:
    settings = {"bootstrap.servers": servers, "group.id": "bench", "enable.partition.eof": True, **QUIET}
    reader = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
    reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    ended = 0
    while ended < PARTITIONS:
        batch = reader.consume(_CHUNK, timeout=0.5)
        ended += sum(message.error() is not None for message in batch)
        if values := [message.value() or b"" for message in batch if message.error() is None]:
            yield values
    reader.close()
