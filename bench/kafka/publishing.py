"""One process that sends the messages of an epoch against two that send half of them each.

The sink sends from the driver, in one transaction (decision 0053). The alternative is that subtasks send in parallel,
in a transaction each. This measures what that alternative could gain at best: the same rows, encoded by the sink's own
encoder, sent and committed by one process or by two at the same time, interleaved. Committing from another process,
which the alternative needs, is left out; librdkafka cannot do it.
"""

import multiprocessing as mp
import shutil
import tempfile
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from bench.kafka import topics
from bench.report import Report, faster, smaller
from scripts.kafka_broker import QUIET, KafkaBroker
from statebed.checkpoint import Publication
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.format.stream_schema import Changes, Output
from statebed.sinks.debezium import Envelope
from statebed.sinks.kafka.messages import Encoding, MessageEncoder
from statebed.storage import MemoryStore
from statebed.subtasks.outbox import encode_outbox

NAME = "publisher against parallel writers"
WRITERS = 2
_COLUMNS = pa.schema({"k": pa.int64(), "n": pa.int64(), "total": pa.int64()})
_REQUEST_SECONDS = 60.0


def measure(report: Report, *, quick: bool) -> None:
    """Send epochs with one writer and with two, interleaved."""
    rows, rounds = (100_000, 4) if quick else (500_000, 8)
    folder = Path(tempfile.mkdtemp(prefix="statebed-bench-"))
    broker = KafkaBroker(folder)
    writers: list[Writer] = []
    try:
        broker.start()
        topics.create(broker, "updates")
        writers = [Writer(broker.servers, "publisher", Share(rows, 1, 0))]
        writers += [
            Writer(broker.servers, f"subtask-{number}", Share(rows, WRITERS, number)) for number in range(WRITERS)
        ]
        teams = {"publisher": writers[:1], "parallel": writers[1:]}
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in teams}
        for _ in range(rounds + 1):
            for name, team in teams.items():
                spent[name].append(_send(team))
    finally:
        for writer in writers:
            writer.process.kill()
            writer.process.join()
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
    seconds = {name: sum(clock for clock, _ in of_team[1:]) for name, of_team in spent.items()}
    processor = {name: sum(used for _, used in of_team[1:]) for name, of_team in spent.items()}
    speed = {name: rounds * rows / total for name, total in seconds.items()}
    label = f"{WRITERS} parallel writers"
    report.add(faster(NAME, label, "throughput", ours=speed["publisher"], theirs=speed["parallel"], unit="messages/s"))
    millions = rounds * rows / 1e6
    report.add(
        smaller(
            NAME,
            label,
            "processor time",
            ours=1e3 * processor["publisher"] / millions,
            theirs=1e3 * processor["parallel"] / millions,
            unit="ms/Mmessage",
        )
    )
    for name, of_team in spent.items():
        report.note(f"  {name}: {' '.join(f'{clock:.2f}' for clock, _ in of_team)} s")


def _send(team: "list[Writer]") -> tuple[float, float]:
    """Let the writers of a team send an epoch at the same time; return the seconds, and their processor time."""
    began = time.perf_counter()
    for writer in team:
        writer.pipe.send(True)
    used = [writer.pipe.recv() for writer in team]
    return time.perf_counter() - began, sum(used)


@dataclass(frozen=True)
class Share:
    """The part of an epoch's rows that one of several writers sends."""

    rows: int
    writers: int
    number: int


class Writer:
    """A process that sends its share of an epoch in a transaction at each signal."""

    def __init__(self, servers: str, transactional_id: str, share: Share) -> None:
        spawned = mp.get_context("spawn")
        self.pipe, other = spawned.Pipe()
        self.process = spawned.Process(target=_write, args=(other, servers, transactional_id, share), daemon=True)
        self.process.start()
        self.pipe.recv()


def _write(pipe: Connection, servers: str, transactional_id: str, share: Share) -> None:
    settings = {"linger.ms": 50, "partitioner": "murmur2_random", "transactional.id": transactional_id}
    producer = Producer({"bootstrap.servers": servers, **QUIET, **settings})
    producer.init_transactions(_REQUEST_SECONDS)
    envelope = Envelope(job_id="bench", table="updates", key=("k",))
    encoder = MessageEncoder(
        Output(_COLUMNS, Changes.CHANGELOG), encoding=Encoding.JSON, envelope=envelope, where="bench"
    )
    epoch = _epoch(share)
    pipe.send(None)
    while pipe.recv():
        before = time.process_time()
        producer.begin_transaction()
        for batch in encoder.messages(epoch):
            waiting = batch
            while waiting:
                producer.produce_batch("updates", waiting)
                waiting = [message for message in waiting if message.pop("_error", None) is not None]
                producer.poll(1.0 if waiting else 0)
        if producer.flush(_REQUEST_SECONDS):
            raise SystemExit("the messages were not delivered")
        producer.commit_transaction(_REQUEST_SECONDS)
        pipe.send(time.process_time() - before)


def _epoch(share: Share) -> Publication:
    """Return an epoch that updates every key of a share."""
    keys = np.arange(share.number, share.rows, share.writers)
    before = {"k": keys, "n": keys % 7 + 1, "total": keys * 3, "_weight": np.full(len(keys), -1)}
    after = {"k": keys, "n": keys % 7 + 2, "total": keys * 4, "_weight": np.full(len(keys), 1)}
    table = pa.concat_tables([pa.table(before), pa.table(after)])
    data = encode_outbox(table)
    store = MemoryStore()
    store.put("outbox", data)
    file = pb.OutboxFile(path="outbox", size=len(data), rows=table.num_rows, crc32c=crc32c(data))
    record = pb.CheckpointMetadata(epoch=2, run=1)
    return Publication(run=1, epoch=2, record=record, files=(file,), commit_data=(), store=store)
