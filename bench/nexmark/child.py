"""The process of one side: warms up with small files, then processes one batch at each signal.

Arguments: the name of the side, the query, a folder with events (beside it, in `small`, lie some to warm up with), and
a folder of its own.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

import statebed as sb
from bench.nexmark.questions import QUESTIONS, timed
from bench.spark import ours, theirs
from bench.spark.cases import Side
from bench.spark.child import session_of, use_workers
from bench.spark.gate import Gate
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
        gate.when_idle = lambda: use_workers(session, side)
    gate.close(max(len(list(folder.iterdir())) for folder in events.iterdir()))
    phases = run(session, query, Events(events), own / "run", gate.stop_here)
    gate.say(phases=phases, waited=gate.waited)
    session.stop()


def _ours(session: SparkSession, query: str, events: Events, own: Path, arrived: Callable[[], None]) -> Phases:
    job = sb.Job("nexmark", state=str(own / "state"), memory=ours.MEMORY, parallelism=2, spark=session)
    results = QUERIES[query].build(JobSources(job, events))
    assert isinstance(results, JobStream)
    results.write(ours.OutboxSink(own / "out", arrived))
    return ours.run_to_end(job)


def _theirs(session: SparkSession, query: str, events: Events, own: Path, arrived: Callable[[], None]) -> Phases:
    frames = {
        name: timed(name, events.frame(session, name, COLUMNS[name])) for name in QUERIES[query].flow().graph.sources
    }
    question = QUESTIONS[query]
    return theirs.run_to_end(question.answer(frames), question.mode, own, arrived)


if __name__ == "__main__":
    main()
