"""Processor time of each part of the way of a message: `python -m bench kafka --case anatomy`.

First one process reads messages and decodes them, without Spark. Then one part at a time is added to the plan of a job
that counts and sums the messages by key, as in `bench anatomy`: planning, reading, decoding, routing, and so on, up to
the whole job, whose sink does nothing. The plan with reading and decoding is the limit of what a job can do without any
state. The broker's processor time belongs to no part.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.kafka import topics
from bench.kafka.cases import Case
from bench.report import Figure, Report
from scripts.kafka_broker import KafkaBroker, class_path

NAME = "anatomy of a message"


def measure(report: Report, *, quick: bool) -> None:
    """Print the processor time of each part, in microseconds per message."""
    case = Case(100_000, 100_000, warm=10, measured=5) if quick else Case(1_000_000, 500_000, warm=4, measured=6)
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
        broker = KafkaBroker(Path(folder))
        try:
            broker.start()
            topics.create(broker, topics.INPUT)
            topics.send(broker.servers, topics.INPUT, topics.rows_of(case))
            sizes = json.dumps([case.keys, case.batch_rows, case.warm, case.measured])
            child = subprocess.run(  # noqa: S603 - this package itself
                [
                    sys.executable,
                    "-m",
                    "bench.kafka.anatomy_child",
                    broker.servers,
                    folder,
                    sizes,
                    class_path("kafka-source", separator=","),
                ],
                stdout=subprocess.PIPE,
                check=True,
                text=True,
            )
        finally:
            broker.kill()
    times: dict[str, dict[str, float]] = json.loads(child.stdout.splitlines()[-1])
    _report(report, f"{case.keys:,} keys", times)


def _report(report: Report, label: str, times: dict[str, dict[str, float]]) -> None:
    before: dict[str, float] = {}
    for part, spent in times.items():
        if part == "planning":
            before = {}
        for process, value in spent.items():
            if process in {"JVM", "Python"}:
                added = value - before.get(process, 0.0)
                report.figure(Figure(f"{NAME}, {label}", f"{part}, {process}", added, "us/row"))
        before = spent
    for part in ("read", "whole job"):
        for process, value in times[part].items():
            report.figure(Figure(f"{NAME}, {label}", f"{part}, {process} in all", value, "us/row"))
        total = times[part]["JVM"] + times[part]["Python"]
        report.figure(Figure(f"{NAME}, {label}", f"{part} in all", total, "us/row"))
