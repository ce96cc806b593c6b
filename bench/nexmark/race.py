"""Ours and Spark's own over the same events, interleaved: batch by batch, each side a process tree of its own.

A batch is timed as in `bench.spark`, from the signal to its arrival at the gate. Queries that Spark's operators cannot
answer are measured alone. Some queries are also run by Flink, over all events at once. Spark's rows have to be among
ours; that ours equal DuckDB's answer is what the tests of the queries compare.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from bench.nexmark import flink
from bench.nexmark.answers import check
from bench.nexmark.questions import NAMES, QUESTIONS, WHY_NOT
from bench.report import Figure, Report, faster, smaller
from bench.spark.cases import STORES, Side
from bench.spark.racer import Racer, take_turns
from bench.spark.watch import Memory, MemoryWatch
from examples.nexmark import QUERIES, rows_of
from examples.nexmark.on_spark import Events
from statebed.demo.nexmark import DEFAULT_FIRST_TIME_US, Nexmark

EVENTS = 500_000
"""Persons, auctions and bids of a batch."""
_SMALL_EVENTS = 20_000
_SMALL_BATCHES = 20
_WARM = 2
_QUICK, _FULL = 4, 20
"""Batches that are measured; 20 have ten million events."""
_RATE = 10_000
_MIB = 1 << 20
_GENERATOR = Nexmark(seed=3, events_per_second=_RATE, out_of_order_us=3_000_000)


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure the queries that `only` names, divided by `|`, or all; an exit status when there is none."""
    chosen = [name for name in NAMES if not only or name in only.split("|")]
    if not chosen:
        print("no such query; there are:", *NAMES, file=sys.stderr)
        return 2
    for name in chosen:
        _measure(name, report, _QUICK if quick else _FULL)
    return None


def _measure(query: str, report: Report, measured: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="statebed-bench-"))
    racers: list[Racer[Side]] = []
    watch = MemoryWatch()
    watch.start()
    try:
        _write(query, folder / "small", _SMALL_BATCHES, _SMALL_EVENTS)
        _write(query, folder / "events", _WARM + measured, EVENTS)
        for side in (Side.OURS, *(STORES if query in QUESTIONS else ())):
            own = folder / side.name
            program = ["bench.nexmark.child", side.name, query, str(folder / "events"), str(own)]
            racers.append(Racer.start(side, program, own))
        take_turns(racers, _WARM + measured, watch)
        for racer in racers:
            racer.finish()
        flinks = flink.run(query, folder / "events", folder / "flink") if query in flink.QUERIES else None
        rows = [check(query, folder / Side.OURS.name / "run", racer.folder / "run") for racer in racers[1:]]
    finally:
        watch.stop()
        for racer in racers:
            racer.kill()
        shutil.rmtree(folder, ignore_errors=True)
    _tell(query, report, racers, watch.peaks, measured * EVENTS)
    if rows:
        report.note(f"  {max(rows):,} rows of Spark's were compared")
    if flinks is not None:
        _tell_flink(query, report, racers[0], flinks, watch.peaks)
    elif query in flink.QUERIES:
        report.note("  Flink was not measured: `make flink-env` installs it")


def _write(query: str, folder: Path, batches: int, events: int) -> None:
    files = Events(folder)
    names = QUERIES[query].flow().graph.sources
    for number in range(batches):
        now_us = DEFAULT_FIRST_TIME_US + (number + 1) * events * 1_000_000 // _RATE
        files.add(number, rows_of(names, _GENERATOR, first=number * events, count=events, now_us=now_us))


def _tell(query: str, report: Report, racers: list[Racer[Side]], peaks: dict[int, Memory], events: int) -> None:
    ours, *theirs = racers
    case = _case(query)
    for racer in theirs:
        side = racer.side.value
        speeds = {"ours": events / _seconds(ours), "theirs": events / _seconds(racer)}
        report.add(faster(case, side, "throughput", **speeds, unit="events/s"))
        spent = {"ours": _processor_ms(ours, events), "theirs": _processor_ms(racer, events)}
        report.add(smaller(case, side, "processor time", **spent, unit="ms/Mevent"))
        memory = {"ours": _peak(ours, peaks), "theirs": _peak(racer, peaks)}
        report.add(smaller(case, side, "peak memory", **memory, unit="MiB"))
    if not theirs:
        report.figure(Figure(case, "throughput", events / _seconds(ours), "events/s"))
        report.note(f"  Spark's operators have no {WHY_NOT[query]}")
    for racer in racers:
        report.note(f"  {racer.side.value}: {' '.join(f'{batch.seconds:.2f}' for batch in racer.batches)} s")


def _tell_flink(
    query: str, report: Report, ours: Racer[Side], flinks: flink.FlinkRun, peaks: dict[int, Memory]
) -> None:
    """Compare the whole input, because Flink has no batches."""
    events = EVENTS * len(ours.batches)
    seconds, spent = (sum(getattr(batch, name) for batch in ours.batches) for name in ("seconds", "processor_seconds"))
    case = _case(query)
    report.add(
        faster(case, "Flink", "throughput", ours=events / seconds, theirs=events / flinks.seconds, unit="events/s")
    )
    used = {"ours": 1e9 * spent / events, "theirs": 1e9 * flinks.processor_seconds / events}
    report.add(smaller(case, "Flink", "processor time", **used, unit="ms/Mevent"))
    memory = {"ours": _peak(ours, peaks), "theirs": flinks.peak_bytes / _MIB}
    report.add(smaller(case, "Flink", "peak memory", **memory, unit="MiB"))


def _case(query: str) -> str:
    return f"Nexmark {query}"


def _seconds(racer: Racer[Side]) -> float:
    return sum(batch.seconds for batch in racer.batches[_WARM:])


def _processor_ms(racer: Racer[Side], events: int) -> float:
    return 1e3 * sum(batch.processor_seconds for batch in racer.batches[_WARM:]) / (events / 1e6)


def _peak(racer: Racer[Side], peaks: dict[int, Memory]) -> float:
    return peaks[racer.process.pid].total / _MIB
