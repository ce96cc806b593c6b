"""Ours and Spark's own over the same topic, interleaved: batch by batch, each side a process tree of its own.

A batch is timed from the signal to its arrival at the gate: its messages are read, the state is updated and durable,
and the new totals are in the output topic. The broker's processor time belongs to no side. At the end, the newest total
of every key in each output topic is compared with DuckDB's answer.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from bench.kafka import anatomy, publishing, topics
from bench.kafka.cases import BASELINES, SMALL_BATCHES, SMALL_ROWS, Case, Side, cases
from bench.report import Report, faster, is_chosen, smaller
from bench.spark.racer import Racer, take_turns
from bench.spark.watch import MemoryWatch
from scripts.kafka_broker import KafkaBroker, class_path


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`; an exit status when there is none."""
    known = cases(quick=quick)
    chosen = [case for case in known if is_chosen(case.name, only)]
    others = {publishing.NAME: publishing.measure, anatomy.NAME: anatomy.measure}
    names = [*(case.name for case in known), *others]
    if not any(is_chosen(name, only) for name in names):
        print("no such case; there are:", *names, sep="\n  ", file=sys.stderr)
        return 2
    for case in chosen:
        measure(case, report)
    for name, measure_other in others.items():
        if is_chosen(name, only):
            measure_other(report, quick=quick)
    return None


def measure(case: Case, report: Report, sides: tuple[Side, ...] = tuple(Side)) -> None:
    """Measure one case, all sides interleaved."""
    folder = Path(tempfile.mkdtemp(prefix="statebed-bench-"))
    broker = KafkaBroker(folder)
    jars = class_path("kafka-source", separator=",")  # from the user's cache; a side has an empty one
    racers: dict[Side, Racer[Side]] = {}
    watch = MemoryWatch()
    watch.start()
    try:
        broker.start()
        names = [f"{kind}-{side.name}" for side in sides if side is not Side.OURS for kind in ("small", "out")]
        topics.create(broker, "small", topics.INPUT, *names)  # our sink creates its own
        rows = topics.rows_of(case)
        topics.send(broker.servers, "small", rows.slice(0, SMALL_BATCHES * SMALL_ROWS))
        topics.send(broker.servers, topics.INPUT, rows)
        for side in sides:
            own = folder / side.name
            program = ["bench.kafka.child", side.name, str(case.batch_rows), str(case.batches), broker.servers]
            racers[side] = Racer.start(side, [*program, str(own), jars], own)
        take_turns(list(racers.values()), case.batches, watch)
        for side, racer in racers.items():
            racer.finish()
            messages = topics.check(broker.servers, f"out-{side.name}", rows)
            report.note(f"  {side.value}: {messages:,} messages, the newest of each key as DuckDB has it")
    finally:
        watch.stop()
        for racer in racers.values():
            racer.kill()
        broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
    _tell(case, report, racers)


def _tell(case: Case, report: Report, racers: dict[Side, Racer[Side]]) -> None:
    for side in (side for side in racers if side not in BASELINES):
        name = case.name if side is Side.OURS else f"{case.name}, Spark's sink"
        for baseline in (side for side in racers if side in BASELINES):
            speeds = [_speed(case, racers[each]) for each in (side, baseline)]
            report.add(faster(name, baseline.value, "throughput", ours=speeds[0], theirs=speeds[1], unit="rows/s"))
            costs = [_processor_ms(case, racers[each])[0] for each in (side, baseline)]
            report.add(smaller(name, baseline.value, "processor time", ours=costs[0], theirs=costs[1], unit="ms/Mrow"))
    for side, racer in racers.items():
        total, java = _processor_ms(case, racer)
        report.note(f"  {side.value}: {' '.join(f'{batch.seconds:.2f}' for batch in racer.batches)} s")
        report.note(f"    processor time, ms/Mrow: {java:,.0f} Java, {total - java:,.0f} Python")


def _speed(case: Case, racer: Racer[Side]) -> float:
    return case.measured * case.batch_rows / sum(batch.seconds for batch in racer.batches[case.warm :])


def _processor_ms(case: Case, racer: Racer[Side]) -> tuple[float, float]:
    """Return the processor time of a million rows in milliseconds: of the whole tree, and of Java in it."""
    millions = case.measured * case.batch_rows / 1e6
    measured = racer.batches[case.warm :]
    return (
        1e3 * sum(batch.processor_seconds for batch in measured) / millions,
        1e3 * sum(batch.java_seconds for batch in measured) / millions,
    )
