"""The process that measures the parts of the way of a message: the case as JSON, the broker's address, a folder, jars.

It prints the microseconds per message of each part, as JSON.
"""

import json
import os
import resource
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from bench.anatomy import SETTINGS, Ends, Probe, native_steps
from bench.kafka import topics
from bench.kafka.cases import PARTITIONS, SCHEMA, Case
from bench.spark.child import WITHOUT_ROWS
from bench.spark.ours import MEMORY
from statebed.java import use_java
from statebed.spark.scan.kafka_reader import KafkaRange
from statebed.spark.scan.native_scan import native_scan
from statebed.spark.scan.program import BranchSteps

ALONE = ("client", "decoding")
"""Parts in one process, without Spark: messages as columns; rows of the stream."""
PARTS = ("planning", "messages", "read", "route", "shuffle", "second pipe", "whole job")
"""Parts of the job: `messages` reads them, `read` decodes them, too; the others are those of `bench anatomy`."""


@dataclass(frozen=True)
class Subject:
    """The job that is measured."""

    session: SparkSession
    servers: str
    case: Case

    def job(self, own: Path, probe: Probe) -> sb.Job:
        job = sb.Job("anatomy", state=str(own / "state"), memory=MEMORY, parallelism=2, spark=self.session)
        options = {"maxOffsetsPerTrigger": self.case.batch_rows}
        rows = job.kafka(topics.INPUT, servers=self.servers, schema=SCHEMA, name="rows", options=options)
        rows.key_by("k", name="totals").agg(n=sb.count(), total=sb.sum("v")).write(Ends(probe))
        return job


def _main() -> None:
    servers, folder = sys.argv[1], Path(sys.argv[2])
    case = Case(*json.loads(sys.argv[3]))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    use_java()
    builder = SparkSession.builder.master("local[2]").config("spark.jars", sys.argv[4])
    for name, value in (SETTINGS | WITHOUT_ROWS).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    subject = Subject(session, servers, case)
    times: dict[str, dict[str, float]] = {}
    for part in ALONE:
        times[part] = {"Python": _alone(subject, folder / part, decodes=part != ALONE[0])}
    for part in PARTS:
        probe = Probe((case.batch_rows, case.warm, case.measured))
        _run_part(subject, part, folder / part.replace(" ", "-"), probe)
        times[part] = probe.per_row()
    session.stop()
    print(json.dumps({part: times[part] for part in (*ALONE, *PARTS)}))


def _alone(subject: Subject, own: Path, *, decodes: bool) -> float:
    """Return the microseconds per message that this process needs to read the measured messages."""
    case = subject.case
    plan = subject.job(own, Probe((1, 1, 1)))._plan()  # noqa: SLF001 - the plan of a job is not public
    (program,) = native_scan(plan).programs
    assert program.client is not None
    each = case.batch_rows // PARTITIONS
    used = 0.0
    for batch in range(case.batches):
        before = resource.getrusage(resource.RUSAGE_SELF)
        rows = 0
        for partition in range(PARTITIONS):
            part = KafkaRange(program.client, topics.INPUT, partition, batch * each, (batch + 1) * each)
            for messages in part.batches(program.columns, case_sensitive=False):
                rows += sum(map(len, program.rows(messages, {}))) if decodes else messages.num_rows
        if rows != case.batch_rows:
            raise SystemExit(f"{rows} messages were read instead of {case.batch_rows}")
        after = resource.getrusage(resource.RUSAGE_SELF)
        if batch >= case.warm:
            used += after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return used * 1e6 / (case.measured * case.batch_rows)


def _run_part(subject: Subject, part: str, own: Path, probe: Probe) -> None:
    job = subject.job(own, probe)
    if part == "whole job":
        job.start(available_now=True).await_termination()
        return
    plan = job._plan()  # noqa: SLF001 - the plan of a job is not public
    scan = native_scan(plan)
    if part == "messages":
        scan = replace(
            scan, programs=tuple(replace(program, steps=(), outputs=(BranchSteps(()),)) for program in scan.programs)
        )
    steps = native_steps(plan, "read" if part == "messages" else part, scan, own / "pieces")

    def on_batch(batch: DataFrame, _batch_id: int) -> None:
        steps(batch)
        probe.batch_ended()

    writer = plan.prepared.writeStream.foreachBatch(on_batch).option("checkpointLocation", str(own / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    _main()
