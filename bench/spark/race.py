"""Ours and Spark's own, interleaved: batch by batch, each side a process tree that starts anew for each case.

A batch is timed from the word to go to its arrival at the gate: all that it costs, Spark's own logs included. The first
batches warm up and fill the state. Every side reads the same files and writes its rows once as Parquet, and the rows of
each are compared with DuckDB's answer.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.report import Report, faster, is_chosen, smaller
from bench.spark.answers import check
from bench.spark.cases import Case, Files, Side, cases
from bench.spark.inputs import small_files, write_inputs
from bench.spark.racer import Racer, take_turns
from bench.spark.watch import Memory, MemoryWatch

_MIB = 1 << 20
_GATED = "addBatch"
"""Phase of Spark that contains the gate, for ours and theirs."""


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`, or a part of it between '|'; an exit status if none does."""
    known = cases(quick=quick and not only)
    chosen = [case for case in known if is_chosen(case.name, only)]
    if not chosen:
        print("no such case; there are:", *(case.name for case in known), sep="\n  ", file=sys.stderr)
        return 2
    for case in chosen:
        measure(case, report, {side: case.files(side, quick=quick) for side in (Side.OURS, *case.baselines)})
    return None


def measure(case: Case, report: Report, files: Mapping[Side, Files]) -> None:
    """One case, all sides: ours first."""
    folder = Path(tempfile.mkdtemp(prefix="statebed-bench-"))
    racers: list[Racer[Side]] = []
    watch = MemoryWatch()
    watch.start()
    try:
        write_inputs(case, small_files(case), folder / "small")
        inputs = {amounts: folder / f"input-{number}" for number, amounts in enumerate(dict.fromkeys(files.values()))}
        for amounts, place in inputs.items():
            write_inputs(case, amounts, place)
        for side, amounts in files.items():
            own = folder / side.name
            program = ["bench.spark.child", side.name, case.kind.name, str(case.keys), str(inputs[amounts]), str(own)]
            racers.append(Racer.start(side, program, own))
        take_turns(racers, min(len(amounts.all) for amounts in files.values()), watch)
        for racer in racers:
            racer.finish()
            amounts = files[racer.side]
            check(case, amounts, inputs[amounts], folder / racer.side.name, racer.side)
    finally:
        watch.stop()
        for racer in racers:
            racer.kill()
        shutil.rmtree(folder, ignore_errors=True)
    _tell(case, report, files, racers, watch.peaks)


def _tell(
    case: Case, report: Report, files: Mapping[Side, Files], racers: list[Racer[Side]], peaks: dict[int, Memory]
) -> None:
    ours, *theirs = racers
    best = max(theirs, key=lambda racer: _speed(racer, files))
    for racer in theirs:
        line = faster(
            case.name,
            racer.side.value,
            "throughput",
            ours=_speed(ours, files),
            theirs=_speed(racer, files),
            unit="rows/s",
            target=case.target if racer is best else None,
        )
        report.add(line)
        report.add(
            smaller(
                case.name,
                racer.side.value,
                "processor time",
                ours=_processor_ms(ours, files),
                theirs=_processor_ms(racer, files),
                unit="ms/Mrow",
            )
        )
        report.add(
            smaller(
                case.name,
                racer.side.value,
                "peak memory",
                ours=peaks[ours.process.pid].total / _MIB,
                theirs=peaks[racer.process.pid].total / _MIB,
                unit="MiB",
                target=1.0,
            )
        )
        if ours.checkpoint_bytes and racer.checkpoint_bytes:
            report.add(
                smaller(
                    case.name,
                    racer.side.value,
                    "state written per batch",
                    ours=_checkpoint_bytes(ours, files),
                    theirs=_checkpoint_bytes(racer, files),
                    unit="bytes",
                )
            )
    for racer in racers:
        seconds = [f"{batch.seconds:.2f}" for batch in racer.batches]
        peak = peaks[racer.process.pid]
        report.note(f"  {racer.side.value}: {' '.join(seconds)} s")
        report.note(
            f"    of the peak, MiB: {peak.java / _MIB:,.0f} Java, {peak.workers / _MIB:,.0f} Python workers;"
            f" {peak.anonymous / _MIB:,.0f} are anonymous"
        )
        report.note(f"    of a batch, ms: {_phases(racer, files)}")


def _speed(racer: Racer[Side], files: Mapping[Side, Files]) -> float:
    amounts = files[racer.side]
    return amounts.measured * amounts.rows / sum(batch.seconds for batch in racer.batches[amounts.warm :])


def _processor_ms(racer: Racer[Side], files: Mapping[Side, Files]) -> float:
    amounts = files[racer.side]
    spent = sum(batch.processor_seconds for batch in racer.batches[amounts.warm :])
    return 1e3 * spent / (amounts.measured * amounts.rows / 1e6)


def _checkpoint_bytes(racer: Racer[Side], files: Mapping[Side, Files]) -> float:
    """Return the mean of the last batches."""
    return statistics.mean(racer.checkpoint_bytes[-files[racer.side].measured :])


def _phases(racer: Racer[Side], files: Mapping[Side, Files]) -> str:
    """The mean of each phase, without the time at the gate."""
    measured = list(zip(racer.phases, racer.waited, strict=False))[files[racer.side].warm :]
    if not measured:
        return "not said"
    gated = "publish" if racer.side is Side.OURS else _GATED
    sums: dict[str, float] = {}
    for phases, waited in measured:
        for name, seconds in phases.items():
            sums[name] = sums.get(name, 0.0) + seconds - (waited if name in {gated, "triggerExecution"} else 0.0)
    return ", ".join(f"{name} {1e3 * total / len(measured):.0f}" for name, total in sums.items()) or "not said"
