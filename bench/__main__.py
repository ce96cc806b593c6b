"""`python -m bench NAME [--quick] [--json] [--check] [--case TEXT]`: see --help."""

import argparse
import signal
import sys
from collections.abc import Callable

from bench import (
    anatomy,
    checkpoints,
    engine,
    hotkeys,
    kafka,
    latency,
    memory,
    nexmark,
    operators,
    prefetch,
    process,
    queries,
    restart,
    result_files,
    scale,
    spark,
    subtask,
)
from bench.report import Report

Benchmark = Callable[..., int | None]
BENCHMARKS: dict[str, tuple[Benchmark, str]] = {
    "anatomy": (anatomy.run, "processor time of each part of the way of a row, with Spark's reader and without"),
    "checkpoints": (checkpoints.run, "how much of a checkpoint the thread that asks for it does"),
    "engine": (engine.run, "read-modify-write of keyed state against other stores; what epochs cost"),
    "hotkeys": (hotkeys.run, "one more row for a key with up to 2,000,000 values, by operator"),
    "kafka": (kafka.run, "from topic to topic, against Spark's own stateful query; one writer against two"),
    "latency": (latency.run, "epochs of 0 and 1,000 rows against batches of Spark that only pass rows on"),
    "memory": (memory.run, "state ten times the memory budget: peak memory, speed, and life under a cap"),
    "nexmark": (nexmark.run, "Nexmark queries on Spark, against Spark's own operators where they can answer them"),
    "operators": (operators.run, "rows/s of each operator, in memory and with a tenth, against DuckDB and pandas"),
    "prefetch": (prefetch.run, "an epoch that closes windows in the store or on disk, with and without prefetching"),
    "process": (process.run, "a process over whole batches against the same one written for one key at a time"),
    "queries": (
        queries.run,
        "queries of Spark and SQL text: planning, and speed against the same jobs in our API",
    ),
    "restart": (
        restart.run,
        "how much of the state the first epoch after a restart without caches reads, on disk and S3",
    ),
    "scale": (scale.run, "1,000 subtasks and 10 TB on S3: requests, bytes, dollars, times, and where it breaks"),
    "spark": (spark.run, "jobs on Spark against Spark's own state stores and transformWithState, interleaved"),
    "subtask": (subtask.run, "an epoch of one subtask, restored anew each time, by how much state there is"),
}


def main() -> int:
    # What a benchmark started ends with it, also when somebody else ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks that check their own answers.")
    names = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name, (_, what) in BENCHMARKS.items():
        command = names.add_parser(name, help=what)
        command.add_argument("--quick", action="store_true", help="smaller and fewer cases: a few minutes")
        command.add_argument(
            "--json", action="store_true", help="one JSON object per line; ratio > 1 means ours is better"
        )
        command.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
        command.add_argument("--case", default="", help="only cases whose name contains this text, for example 'int64'")
        command.add_argument("--rounds", type=int, default=1, help="run everything this many times (default: 1)")
        command.add_argument(
            "--save", action="store_true", help="write all rounds to bench/results, for `make bench-docs`"
        )
        if name == "scale":
            scale.add_options(command)
    options = parser.parse_args()
    more = {"options": options} if options.benchmark == "scale" else {}
    reports: list[Report] = []
    try:
        for _ in range(options.rounds):
            reports.append(report := Report(as_json=options.json))
            status = BENCHMARKS[options.benchmark][0](report, quick=options.quick, only=options.case, **more)
            if status:
                return status
    finally:
        # A run that takes an hour and is ended early keeps what it has measured.
        rounds = [report.kept for report in reports if report.kept]
        if options.save and rounds:
            print(f"written: {result_files.save(options.benchmark, rounds, only=options.case)}", file=sys.stderr)
    return max(report.finish(check=options.check) for report in reports)


if __name__ == "__main__":
    sys.exit(main())
