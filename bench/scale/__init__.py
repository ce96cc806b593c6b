"""Scale: what a job of 1,000 subtasks and 10 TB of state would do to S3, in requests, bytes, time and dollars.

Real subtasks, records, compactions, clean-ups and restarts run on a simulated store that counts requests: two jobs of
a few subtasks for many epochs, one of many subtasks for a few, and single subtasks with larger state. Formulas are
fitted to some of these points, checked against the others, and give the target.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.report import Figure, Report, is_chosen
from bench.scale.estimate import Check, Estimate, Point, Target, checks, estimate, fit
from bench.scale.limits import Limit, limits
from bench.scale.s3 import PRICES_OF, PUBLISHED, Latencies
from bench.scale.server import measured_latencies
from bench.scale.simulated_job import Shape, SimulatedJob
from bench.subtask import OPERATORS
from statebed.quantities import parse_bytes, parse_duration

GROWTH = (10, 100, 300, 1000, 3000, 10_000)
"""Numbers of subtasks for which the curves of the page are drawn."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the job."""
    parser.add_argument("--subtasks", type=int, default=1000, help="subtasks of the job (default: 1000)")
    parser.add_argument("--state", default="10t", help="size of all state in the store (default: 10t)")
    parser.add_argument("--epoch", default="10 s", help="length of an epoch (default: 10 s)")
    parser.add_argument("--rate", type=float, default=1e6, help="rows per second of the job (default: 1,000,000)")


def run(report: Report, *, quick: bool, only: str = "", options: argparse.Namespace | None = None) -> int | None:
    """Estimate the job for every operator whose name contains `only`; an exit status when there is none."""
    names = [name for name in OPERATORS if is_chosen(name, only)]
    if not names:
        print("no such case; there are:", *OPERATORS, sep="\n  ", file=sys.stderr)
        return 2
    target = Target()
    if options is not None:
        target = replace(
            target,
            subtasks=options.subtasks,
            state_bytes=float(parse_bytes(options.state, where="--state")),
            epoch_seconds=parse_duration(options.epoch) / 1e6,
            rows_per_second=options.rate,
        )
    measured = measured_latencies()
    for name in names:
        _operator(report, replace(target, operator=name), measured, quick=quick)
    return None


def _operator(report: Report, target: Target, measured: Latencies, *, quick: bool) -> None:
    case = target.operator
    narrow_epochs, wide_epochs, large_epochs = (34, 1, 6) if quick else (66, 2, 12)
    few, more, many = (4, 12, 100) if quick else (8, 24, 1000)
    keys = 500_000 if quick else 1_000_000
    shape = Shape(case, few, keys=1000, rows=100, retained_epochs=4, grace_seconds=100.0)
    narrow = (point(shape, narrow_epochs), point(replace(shape, subtasks=more), narrow_epochs))
    wide = point(replace(shape, subtasks=many, keys=100, rows=20), wide_epochs)
    large = (
        point(replace(shape, subtasks=1, keys=keys, rows=5000), large_epochs),
        point(replace(shape, subtasks=1, keys=4 * keys, rows=20_000), large_epochs),
    )
    formulas = fit(narrow, large, wide)
    for check in checks(formulas, large, narrow, wide):
        _add_check(report, case, check)
    report.note(f"\n{case}, latencies {PUBLISHED.source}; prices: {PRICES_OF}")
    result = estimate(target, formulas, PUBLISHED)
    for figure in figures(case, "S3", result):
        report.figure(figure)
    for limit in limits(result, lambda subtasks: estimate(_grown(target, subtasks), formulas, PUBLISHED)):
        _add_limit(report, case, limit)
    report.note(f"\n{case}, latencies {measured.source}")
    for figure in figures(case, "loopback", estimate(target, formulas, measured)):
        if figure.unit == "s":
            report.figure(figure)
    for subtasks in GROWTH:
        grown = estimate(_grown(target, subtasks), formulas, PUBLISHED)
        for figure in figures(f"{case}, {subtasks} subtasks", "S3", grown):
            report.figure(figure, shown=False)


def _grown(target: Target, subtasks: int) -> Target:
    """Return a job of another size, with as much state and as many rows per subtask."""
    factor = subtasks / target.subtasks
    return replace(
        target,
        subtasks=subtasks,
        state_bytes=target.state_bytes * factor,
        rows_per_second=target.rows_per_second * factor,
    )


def point(shape: Shape, epochs: int) -> Point:
    """Run a simulated job and return what it took."""
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
        job = SimulatedJob(shape, Path(folder), PUBLISHED)
        try:
            job.fill()
            for _ in range(epochs):
                job.epoch()
            totals = job.totals
            totals.base_files, totals.base_bytes = job.base_files()
            opening, restore = job.restart()
            return Point(shape, totals, opening, restore)
        finally:
            job.close()


def figures(case: str, clock: str, result: Estimate) -> Sequence[Figure]:
    """Return the figures of an estimate."""
    epoch, days = result.epoch, result.epochs_per_day
    rows: list[tuple[str, float, str]] = [
        ("objects written per epoch", epoch.objects, ""),
        ("PUT per epoch", epoch.put, ""),
        ("GET per epoch", epoch.get, ""),
        ("LIST per epoch", epoch.list, ""),
        ("DELETE per epoch", epoch.delete, ""),
        ("bytes put per epoch", epoch.put_bytes, "bytes"),
        ("bytes got per epoch", epoch.get_bytes, "bytes"),
        ("requests per epoch", result.request_dollars, "dollars"),
        ("requests per day", (epoch.put + epoch.get + epoch.list + epoch.delete) * days, ""),
        ("bytes put per day", epoch.put_bytes * days, "bytes"),
        ("requests per day in dollars", result.request_dollars * days, "dollars"),
        ("storage per day", result.storage_dollars, "dollars"),
        ("all per day", result.dollars_per_day, "dollars"),
        ("objects in the store", result.objects, ""),
        ("files of the state", result.files, ""),
        ("checkpoint record", result.record_bytes, "bytes"),
        ("metadata of a subtask", result.metadata_bytes, "bytes"),
        ("epoch of a subtask", result.subtask_seconds, "s"),
        ("requests in it", result.request_seconds, "s"),
        ("commit on the driver", result.commit_seconds, "s"),
        ("clean-up", result.cleanup_seconds, "s"),
        ("clean-up that lists all", result.sweep_seconds, "s"),
        ("opening after a restart", result.open_seconds, "s"),
        ("first epoch without copies", result.cold_seconds, "s"),
        ("PUT rate while subtasks write", result.put_burst, "1/s"),
        ("GET rate while subtasks write", result.get_burst, "1/s"),
        ("compaction reads per epoch", result.compaction_bytes, "bytes"),
        ("epochs until all are compacted", result.compaction_cycle, ""),
    ]
    return [Figure(case, f"{what} ({clock})", value, unit) for what, value, unit in rows]


def _add_check(report: Report, case: str, check: Check) -> None:
    report.figure(Figure(f"{case}, check", f"{check.what}: predicted", check.predicted, ""))
    report.figure(Figure(f"{case}, check", f"{check.what}: measured", check.measured, ""))


def _add_limit(report: Report, case: str, limit: Limit) -> None:
    report.figure(Figure(f"{case}, limit", f"{limit.what}: now", limit.value, limit.unit))
    report.figure(Figure(f"{case}, limit", f"{limit.what}: allowed", limit.allowed, limit.unit))
    report.figure(Figure(f"{case}, limit", f"{limit.what}: breaks at", limit.subtasks, "subtasks"))
