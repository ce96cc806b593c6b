"""The process of one side: warms up with small files, then processes one batch at each signal.

Arguments: the name of the side, the query, a folder with events (beside it, in `small`, lie some to warm up with), and
a folder of its own.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import statebed as sb
from bench.nexmark.questions import QUESTIONS, timed
from bench.spark.cases import Side
from bench.spark.child import session_of, use_workers
from bench.spark.gate import Gate
from bench.spark.ours import MEMORY, OutboxSink
from examples.nexmark import QUERIES, sources
from examples.nexmark.on_spark import Events, JobSources
from statebed.spark import JobStream

Phases = list[dict[str, float]]
COLUMNS = {"person": sources.PERSON, "auction": sources.AUCTION, "bid": sources.BID}
COLUMNS["bid_on_arrival"] = sources.BID_ON_ARRIVAL


def main() -> None:
    gate = Gate()
    side, query = Side[sys.argv[1]], sys.argv[2]
    events, own = Path(sys.argv[3]), Path(sys.argv[4])
    session = session_of(side, own)
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    run = _ours if side is Side.OURS else _theirs
    run(session, query, Events(events.parent / "small"), own / "small", gate.stop_here)
    if side is Side.OURS:
        gate.when_idle = lambda: use_workers(session)
    gate.close(max(len(list(folder.iterdir())) for folder in events.iterdir()))
    phases = run(session, query, Events(events), own / "run", gate.stop_here)
    gate.say(phases=phases, waited=gate.waited)
    session.stop()


def _ours(session: SparkSession, query: str, events: Events, own: Path, arrived: Callable[[], None]) -> Phases:
    job = sb.Job("nexmark", state=str(own / "state"), memory=MEMORY, parallelism=2, spark=session)
    results = QUERIES[query].build(JobSources(job, events))
    assert isinstance(results, JobStream)
    results.write(OutboxSink(own / "out", arrived))
    running = job.start(available_now=True)
    running.await_termination()
    epochs = [epoch for epoch in running.recent_progress if epoch.batch_id is not None]
    return [{phase: spent / 1e6 for phase, spent in epoch.phases_us.items()} for epoch in epochs]


def _theirs(session: SparkSession, query: str, events: Events, own: Path, arrived: Callable[[], None]) -> Phases:
    frames = {
        name: timed(name, events.frame(session, name, COLUMNS[name])) for name in QUERIES[query].flow().graph.sources
    }

    def write(batch: DataFrame, number: int) -> None:
        batch.write.parquet(str(own / "out" / f"{number:06d}"))
        arrived()

    question = QUESTIONS[query]
    writer = question.answer(frames).writeStream.foreachBatch(write).outputMode(question.mode)
    running = writer.option("checkpointLocation", str(own / "checkpoint")).trigger(availableNow=True).start()
    running.awaitTermination()
    reports = [report for report in running.recentProgress if report["numInputRows"]]
    return [{name: ms / 1e3 for name, ms in report["durationMs"].items()} for report in reports]


if __name__ == "__main__":
    main()
