"""`make demo-kafka`: a job from a Kafka topic to a Kafka topic, killed again and again, and compared at the end.

It starts a broker on loopback, sends rides, runs a job that counts them per driver and writes the counts to another
topic, and kills the driver, Python workers and the broker with SIGKILL. At the end a `read_committed` reader of the
output must see the counts of every driver grow by what was sent, each epoch once.

Tests also let the job write Delta and Iceberg tables (`lake`), which must equal DuckDB's answer over the input topic,
and kill executors: then the job runs on a `local-cluster`, whose executors are processes of their own.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic
from deltalake import DeltaTable
from pyspark.sql import SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import statebed as sb
from scripts.kafka_broker import QUIET, ROOT, KafkaBroker, class_path
from statebed.demo.child import Child
from statebed.sinks.lake import folder_catalog

INPUT, OUTPUT, JOB = "rides", "totals", "kafka-demo"
DRIVERS = 50
FAULTS = ("driver", "worker", "broker")
DAEMONS = (b"pyspark.daemon", b"statebed.spark.epoch.worker_daemon")
"""Modules that fork Python workers: Spark's own, or ours where `spark.python.daemon.module` names it."""
EXECUTOR = "executor"
RIDE = "driver string, cents bigint, at bigint, number bigint"
STEP_SECONDS = 300.0
"""Timeout for the start and two epochs of the job, or for its end: most of it starts Java and imports packages, six
processes at once on a `local-cluster`. On two busy cores that takes minutes."""


class Rides(threading.Thread):
    """Sends rides until `stop` is called, and counts them per driver."""

    def __init__(self, servers: str, *, per_second: int) -> None:
        super().__init__(daemon=True)
        self._settings = {"bootstrap.servers": servers, "enable.idempotence": True, **QUIET}
        self._pause = 0.1
        self._batch = max(1, round(per_second * self._pause))
        self._stopping = threading.Event()
        self.trips: dict[str, int] = defaultdict(int)
        self.cents: dict[str, int] = defaultdict(int)

    def run(self) -> None:
        producer = Producer(self._settings)
        chance = random.Random(7)
        number = 0
        while not self._stopping.wait(self._pause):
            for _ in range(self._batch):
                driver, cents = f"driver-{chance.randrange(DRIVERS)}", chance.randrange(100, 5_000)
                second = 1_767_225_600 + number // 20
                ride = {"driver": driver, "cents": cents, "at": second, "number": number}
                producer.produce(INPUT, json.dumps(ride), key=driver)
                self.trips[driver] += 1
                self.cents[driver] += cents
                number += 1
            producer.poll(0)
        if producer.flush(60):
            raise RuntimeError("not all rides were delivered")

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def run_job(servers: str, state: str, *, until_the_end: bool, lake: str) -> None:
    """Run the job: the process that is killed. With a folder `lake`, it also writes Delta and Iceberg tables."""
    # The master is that of PYSPARK_SUBMIT_ARGS.
    session = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
    job = sb.Job(JOB, state=state, parallelism=2, spark=session)
    rides = job.kafka(
        INPUT,
        servers=servers,
        schema=RIDE,
        name=INPUT,
        options={"maxOffsetsPerTrigger": 1_000_000 if until_the_end else 2_000},
    )
    totals = rides.key_by("driver", name="totals").agg(trips=sb.count(), cents=sb.sum("cents"))
    totals.write("kafka", servers=servers, topic=OUTPUT, key="driver", partitions=2, timeout="2 minutes")
    if lake:
        for name, stream, key in (("rides", rides, None), ("totals", totals, "driver")):
            # Rides are appended, totals have one row per driver.
            stream.write("delta", name=f"{name}_delta", path=f"{lake}/delta/{name}", key=key)
            stream.write("iceberg", name=f"{name}_iceberg", path=f"{lake}/iceberg", table=f"lake.{name}", key=key)
    job.start(available_now=until_the_end).await_termination()


@dataclass(frozen=True)
class JobFolder:
    """Folder of the state, log and tables of the job that is killed, and the master that it runs on."""

    folder: Path
    master: str = "local[2]"
    with_lake: bool = False

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def log(self) -> Path:
        return self.folder / "job.log"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"


@contextmanager
def job_process(servers: str, job: JobFolder, *, until_the_end: bool = False) -> Iterator[Child]:
    """Start the job as a process; kill it and everything it started at the end of the block."""
    jars = class_path("kafka-source", separator=",")
    settings = (
        "--conf spark.ui.enabled=false --conf spark.deploy.maxExecutorRetries=-1 --conf spark.driver.host=127.0.0.1"
    )
    submit = f"--master {job.master} {settings} --jars {jars} pyspark-shell"
    environment = [
        "env",
        "SPARK_LOCAL_IP=127.0.0.1",
        f"PYSPARK_PYTHON={sys.executable}",
        f"PYSPARK_SUBMIT_ARGS={submit}",
    ]
    lake = str(job.lake) if job.with_lake else ""
    program = [sys.executable, __file__, "job", servers, str(job.state), "end" if until_the_end else "on", lake]
    with job.log.open("ab") as output:
        child = Child([*environment, str(ROOT / "scripts" / "with-java"), *program], output=output)
    try:
        yield child
    finally:
        child.kill()


def wait_for_epochs(state: Path, job: Child, log: Path, count: int = 2) -> int:
    """Wait until the job has committed `count` more epochs; return the newest."""
    first = newest_epoch(state)
    deadline = time.monotonic() + STEP_SECONDS
    while newest_epoch(state) < first + count:
        if job.exit_code() is not None or time.monotonic() > deadline:
            ended = "stopped" if job.exit_code() is not None else "does not commit"
            raise RuntimeError(f"the job {ended}; the end of its log:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
    return newest_epoch(state)


def wait_for_end(job: Child, log: Path) -> None:
    deadline = time.monotonic() + STEP_SECONDS
    while job.exit_code() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    if job.exit_code() != 0:
        raise RuntimeError(f"the job failed:\n{log.read_text(errors='replace')[-3000:]}")


def newest_epoch(state: Path) -> int:
    records = (state / JOB / "checkpoints").glob("*/checkpoint.metadata")
    return max((int(record.parent.name) for record in records), default=0)


def kill_process(job: Child, fault: str) -> None:
    """Kill a Python worker or an executor; wait until there is one, so that every fault happens."""
    deadline = time.monotonic() + STEP_SECONDS
    while not (kill_executor(job) if fault == EXECUTOR else kill_worker(job)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the job has no {fault} to kill")
        time.sleep(0.05)


def kill_worker(job: Child) -> bool:
    """Kill a Python worker of Spark; return whether there was one."""
    daemons = {pid for pid in job.members() if any(name in _text(pid, "cmdline") for name in DAEMONS)}
    # The daemon forks the workers, so the parent of a worker is a daemon.
    parents = {f"PPid:\t{daemon}\n".encode() for daemon in daemons}
    return _kill_one(pid for pid in daemons if any(parent in _text(pid, "status") for parent in parents))


def kill_executor(job: Child) -> bool:
    """Kill an executor of a `local-cluster`; return whether there was one."""
    return _kill_one(pid for pid in job.members() if b"CoarseGrainedExecutorBackend" in _text(pid, "cmdline"))


def _kill_one(processes: Iterable[int]) -> bool:
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _text(pid: int, name: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def soak(folder: Path, faults: Sequence[str], *, per_second: int = 500, lake: bool = False, say: bool = True) -> int:
    """Run the demo with these faults; raise AssertionError if the output is wrong. Return the number of messages."""
    broker = KafkaBroker(folder)
    broker.start()
    place = JobFolder(folder, "local-cluster[2,1,1024]" if EXECUTOR in faults else "local[2]", with_lake=lake)
    state, log = place.state, place.log
    chance = random.Random(len(faults))
    tell = print if say else (lambda *_: None)
    try:
        topic = NewTopic(INPUT, num_partitions=3, replication_factor=1)
        broker.admin.create_topics([topic])[INPUT].result(20)
        tell(f"broker at {broker.servers}; sending {per_second} rides per second")
        rides = Rides(broker.servers, per_second=per_second)
        rides.start()
        left = list(faults)
        while left:
            with job_process(broker.servers, place) as job:
                tell(f"job started, at epoch {wait_for_epochs(state, job, log)}")
                while left:
                    time.sleep(chance.random())
                    fault = left.pop(0)
                    if fault == "driver":
                        tell(f"kill the driver at epoch {newest_epoch(state)}")
                        break
                    if fault == "broker":
                        tell(f"kill the broker at epoch {newest_epoch(state)}, and start it again")
                        broker.kill()
                        broker.start()
                    else:
                        tell(f"kill: {fault}, at epoch {newest_epoch(state)}")
                        kill_process(job, fault)
                    wait_for_epochs(state, job, log)
        rides.stop()
        tell(f"{sum(rides.trips.values())} rides sent; reading the rest")
        with job_process(broker.servers, place, until_the_end=True) as job:
            wait_for_end(job, log)
        if lake:
            compare_lake(broker.servers, place.lake, say=say)
        return compare(broker.servers, rides, say=say)
    finally:
        broker.kill()


def compare_lake(servers: str, lake: Path, *, say: bool) -> None:
    """Compare the Delta and Iceberg tables with DuckDB's answer over the input topic."""
    sent = pa.Table.from_pylist([json.loads(value) for value in _committed(servers, INPUT)])
    catalog = folder_catalog(str(lake / "iceberg")).load()
    with duckdb.connect() as connection:
        connection.register("sent", sent)
        expected = {
            "rides": 'select driver, cents, "at", number from sent',
            "totals": "select driver, count(*) as trips, sum(cents)::bigint as cents from sent group by driver",
        }
        for name, query in expected.items():
            delta = pa.table(DeltaTable(str(lake / "delta" / name)).to_pyarrow_table())
            for kind, table in (("delta", delta), ("iceberg", catalog.load_table(f"lake.{name}").scan().to_arrow())):
                connection.register("stored", table)
                columns = 'driver, cents, "at", number' if name == "rides" else "driver, trips, cents"
                stored = f"select {columns} from stored"  # noqa: S608 - names from above
                for left, right in ((query, stored), (stored, query)):
                    differing = connection.execute(f"{left} except all {right}").fetchall()
                    assert not differing, f"rows of {name} in {kind} and DuckDB's answer differ: {differing[:5]}"
                if say:
                    print(f"equal: {table.num_rows} rows of {name} in {kind}")


def compare(servers: str, rides: Rides, *, say: bool) -> int:
    """Compare what a `read_committed` reader sees with what was sent; return the number of messages."""
    trips: dict[str, list[int]] = defaultdict(list)
    cents: dict[str, int] = {}
    for value in _committed(servers):
        row = json.loads(value)
        trips[row["driver"]].append(row["trips"])
        cents[row["driver"]] = row["cents"]
    repeated = [driver for driver, seen in trips.items() if seen != sorted(set(seen))]
    assert not repeated, f"counts of {repeated} are repeated or go back"
    newest = {driver: seen[-1] for driver, seen in trips.items()}
    assert newest == rides.trips, "the counts differ from the rides that were sent"
    assert cents == rides.cents, "the sums differ from the rides that were sent"
    messages = sum(map(len, trips.values()))
    if say:
        print(f"equal: {messages} committed messages, {len(newest)} drivers, {sum(newest.values())} rides, none twice")
    return messages


def _committed(servers: str, topic: str = OUTPUT) -> Iterator[bytes]:
    """Yield the values of all committed messages of a topic, those of each partition in order."""
    settings = {"bootstrap.servers": servers, "group.id": "demo", "enable.partition.eof": True, **QUIET}
    reader = Consumer(settings | {"isolation.level": "read_committed", "enable.auto.commit": False})
    waiting = set(reader.list_topics(topic, timeout=10).topics[topic].partitions)
    reader.assign([TopicPartition(topic, number, 0) for number in waiting])
    while waiting:
        for message in reader.consume(10_000, timeout=0.5):
            if message.error() is None:
                yield message.value() or b""
            else:
                waiting.discard(message.partition() or 0)
    reader.close()


def main() -> None:
    if sys.argv[1:2] == ["job"]:
        servers, state, mode, lake = sys.argv[2:]
        run_job(servers, state, until_the_end=mode == "end", lake=lake)
        return
    parser = argparse.ArgumentParser(description="from Kafka to Kafka, exactly once, through kills")
    parser.add_argument("--kills", type=int, default=3, help="driver, worker and broker in turn (default 3)")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # so that broker and job end, too
    with tempfile.TemporaryDirectory(prefix="statebed-kafka-") as folder:
        begin = time.monotonic()
        soak(Path(folder), [FAULTS[number % len(FAULTS)] for number in range(arguments.kills)])
        print(f"{arguments.kills} kills in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
