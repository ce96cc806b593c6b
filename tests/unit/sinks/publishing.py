"""A small job that publishes a changelog, as a library and as a process that tests may kill.

Epoch after epoch a counter goes up by one. Of key k{n % 5} the row gets the value n, and each of the keys f0, f1, ...
gets it, too, so that a transaction takes a while. What must be there at the end follows from the counter alone.
"""

import sys
from pathlib import Path

import pyarrow as pa
from lake_tables import lake_sink

from statebed.checkpoint import EpochDraft, Publisher, Run, RunOptions, Sink
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.format.stream_schema import Changes, Output
from statebed.sinks import DebeziumFilesSink, Envelope, ParquetTableSink
from statebed.sinks.kafka import Encoding, KafkaCluster, KafkaTopicSink, MessageEncoder, TopicLayout
from statebed.sinks.kafka.topic import Topic
from statebed.sinks.sql import Postgres, SQLite, SqlTable, SqlTableSink, TableName
from statebed.storage import ObjectStore, ScopedStore, get_storage_provider
from statebed.subtasks.outbox import encode_outbox

JOB, SINK = "counts", "out"
KEYS = 5
COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])
OUTPUT = Output(COLUMNS, Changes.CHANGELOG)
SCHEMA = pa.schema([*COLUMNS, pa.field("_weight", pa.int64(), nullable=False)])


def make_sink(kind: str, place: str, password: str | None = None) -> Sink:
    """Build the sink of the job, with one row per key where the kind has keys."""
    if kind in {"delta", "iceberg"}:
        return lake_sink(f"{kind} by key", Path(place), job_id=JOB, sink_id=SINK, columns=COLUMNS)
    if kind == "kafka":
        servers, _, topic = place.partition("/")
        return kafka_sink(servers, topic)
    if kind == "parquet":
        return ParquetTableSink(sink_id=SINK, path=place, job_id=JOB, schema=SCHEMA)
    if kind == "debezium":
        return DebeziumFilesSink(sink_id=SINK, path=place, envelope=Envelope(JOB, SINK, ("k",)))
    database = (
        SQLite(place, timeout_seconds=60)
        if kind == "sqlite"
        else Postgres(place, password=password, timeout_seconds=60)
    )
    return SqlTableSink(
        sink_id=SINK, job_id=JOB, database=database, table=SqlTable(TableName("results"), OUTPUT, ("k",), None)
    )


def kafka_sink(
    servers: str,
    topic: str,
    *,
    encoding: Encoding = Encoding.JSON,
    output: Output = OUTPUT,
    key: tuple[str, ...] = ("k",),
    job_id: str = JOB,
    sink_id: str = SINK,
    timeout_seconds: float = 60,
    layout: TopicLayout | None = None,
    schema_id: int | None = None,
) -> KafkaTopicSink:
    """The sink of the job on a Kafka topic."""
    envelope = Envelope(job_id, sink_id, key)
    encoder = MessageEncoder(output, encoding=encoding, envelope=envelope, schema_id=schema_id, where="test")
    cluster = KafkaCluster(servers, timeout_seconds=timeout_seconds)
    return KafkaTopicSink(
        sink_id=sink_id, job_id=job_id, topic=Topic(cluster, topic), encoder=encoder, layout=layout or TopicLayout()
    )


def open_run(store: ObjectStore, options: RunOptions | None = None) -> Run:
    return Run.open(ScopedStore(store, JOB), JOB, options=options)


def counter_of(run: Run) -> int:
    """Return the number of epochs."""
    return int(run.head.source_position.opaque or b"0")


def commit(run: Run, fillers: int = 3) -> None:
    """One more epoch, not published yet."""
    count = counter_of(run)
    rows = [(f"k{count % KEYS}", count - KEYS, -1)] if count >= KEYS else []
    rows.append((f"k{count % KEYS}", count, 1))
    if count:
        rows += [(f"f{number}", count - 1, -1) for number in range(fillers)]
    rows += [(f"f{number}", count, 1) for number in range(fillers)]
    commit_rows(run, rows, count=count + 1)


def commit_rows(run: Run, rows: list[tuple[str, int, int]], *, count: int) -> None:
    """Commit an epoch with these rows, after which there were `count` epochs."""
    files = []
    for index, part in enumerate((rows[::2], rows[1::2])):
        data = encode_outbox(pa.table([list(column) for column in zip(*part, strict=True)], schema=SCHEMA))
        path = names.outbox_file(run.next_epoch, "op", "", index, digest(data))
        run.store.put(path, data)
        files.append(
            pb.OutboxFile(
                operator_id="op",
                subtask_index=index,
                path=path,
                size=len(data),
                rows=len(part),
                crc32c=crc32c(data),
            )
        )
    position = pb.SourcePosition(kind="test", opaque=str(count).encode())
    entry = pb.SinkEntry(sink_id=SINK, operator_id="op")
    run.commit(EpochDraft(operators=[], outbox=files, sinks=[entry], source_position=position))


def expected(count: int, fillers: int = 3) -> dict[str, int]:
    """Return the contents of the table after `count` epochs."""
    found = {f"k{number % KEYS}": number for number in range(count)}
    return found | ({f"f{number}": count - 1 for number in range(fillers)} if count else {})


def main(state: str, kind: str, place: str, password: str, fillers: str) -> None:
    """Publish epochs until somebody ends the process."""
    run = open_run(get_storage_provider(state))
    publisher = Publisher(run, [make_sink(kind, place, password)])
    publisher.open()
    while True:
        commit(run, int(fillers))
        publisher.publish_pending()
        print(counter_of(run), flush=True)  # noqa: T201 - tells the test how far it is


if __name__ == "__main__":
    main(*sys.argv[1:])
