"""State ten times the memory budget: how much memory a process takes, how fast it is, and whether it lives under a cap.

Each run is a process of its own. Its anonymous and shared memory is looked at from outside all the time; clean pages of
mapped files are not part of it, because the kernel takes them back whenever it likes. The goal:

    peak <= base + budget + one batch + one row group + what the allocator keeps

- base: what the process takes after it has imported everything and has done a little of the same work;
- one batch: its rows, in the columns of the table;
- one row group: what is being encoded or read;
- what the allocator keeps: pyarrow's default one gives freed pages back late, half the budget as measured.

The same work with a budget that is never reached gives the speed to compare with. Under the cap (of the memory that a
process may get for data, RLIMIT_DATA) the unbounded engine has to die, and the bounded one has to finish.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.report import Report, faster, is_chosen, smaller
from statebed.format.segment import ROW_GROUP_BYTES

_MIB = 1 << 20
_WORKS = {
    64 * _MIB: ("append-only", "read-modify-write", "join-like"),
    512 * _MIB: ("append-only", "read-modify-write wide", "join-like"),
}
"""State by budget. Rows of 128 bytes instead of 32: it takes a quarter as many of them to fill five gigabytes."""
_TIMES_THE_BUDGET = 10
_NEVER_REACHED = 1 << 40
_ALLOCATOR_KEEPS = 0.5
_CAP = 6
"""Times the budget; the state takes ten. The cap counts more than pages in use: stacks of threads, free memory."""
_COUNTED = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""The default allocator maps a gigabyte in advance, which the cap would not see being used. The cap would also count
what the system's one keeps free in an arena for each thread.
"""
_SPEED = 0.3
_SURVIVES = 1.01
_LOOK_SECONDS = 0.002
_TIMEOUT_SECONDS = 3600


@dataclass(frozen=True)
class Run:
    """Outcome of a process."""

    said: dict[str, Any]
    peak: int
    error: str
    """Last line of its output if it failed."""

    @property
    def rows_per_second(self) -> float:
        return float(self.said["rows"]) / float(self.said["seconds"])


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure each kind of work with each budget."""
    budgets = [budget for budget in _WORKS if not quick or budget == min(_WORKS)]
    cases = {f"{work} {budget // _MIB} MiB": (work, budget) for budget in budgets for work in _WORKS[budget]}
    chosen = {case: what for case, what in cases.items() if is_chosen(case, only)}
    if not chosen:
        print("no such case; there are:", *cases, sep="\n  ", file=sys.stderr)
        return 2
    for case, (work, budget) in chosen.items():
        _measure(case, work, budget, report)
    return None


def _measure(case: str, work: str, budget: int, report: Report) -> None:
    bounded, unbounded = _finished(case, work, budget, budget), _finished(case, work, budget, _NEVER_REACHED)
    keeps = int(_ALLOCATOR_KEEPS * budget)
    base, batch = bounded.said["base"], bounded.said["batch"]
    goal = base + budget + batch + ROW_GROUP_BYTES + keeps
    terms = {"base": base, "budget": budget, "batch": batch, "row group": ROW_GROUP_BYTES, "allocator": keeps}
    report.note(f"  {case}: goal " + " + ".join(f"{name} {size / _MIB:.0f}" for name, size in terms.items()) + " MiB")
    report.note(f"  charged at most {bounded.said['charged'] / _MIB:.0f} MiB; {bounded.said['events']}")
    report.note(f"  the unbounded process took {unbounded.peak / _MIB:.0f} MiB")
    report.add(smaller(case, "goal", "peak memory", ours=bounded.peak, theirs=goal, unit="bytes", target=1.0))
    report.add(
        faster(
            case,
            "unbounded",
            "throughput",
            ours=bounded.rows_per_second,
            theirs=unbounded.rows_per_second,
            unit="rows/s",
            target=_SPEED,
        )
    )
    cap = _CAP * budget
    capped, dead = _child(work, budget, budget, cap=cap), _child(work, budget, _NEVER_REACHED, cap=cap)
    report.note(f"  under a cap of {cap / _MIB:.0f} MiB the unbounded process ended with: {dead.error or 'no error'}")
    if capped.error:
        report.note(f"  under the cap the bounded process ended with: {capped.error}")
    report.add(
        faster(
            case,
            "unbounded",
            "rows under a cap",
            ours=0 if capped.error else capped.said["rows"],
            theirs=max(dead.said.get("rows", 0), 1),
            unit="rows",
            target=_SURVIVES,
        )
    )


def _finished(case: str, work: str, state_budget: int, budget: int) -> Run:
    done = _child(work, state_budget, budget, cap=0)
    if done.error:
        raise SystemExit(f"{case}: {done.error}")
    return done


def _child(work: str, state_budget: int, budget: int, *, cap: int) -> Run:
    with tempfile.TemporaryDirectory(prefix="bench-memory-") as folder, tempfile.TemporaryFile("w+") as errors:
        numbers = [str(number) for number in (_TIMES_THE_BUDGET * state_budget, budget)]
        child = subprocess.Popen(  # noqa: S603 - this very Python
            [sys.executable, "-m", "bench.memory_child", work, *numbers, folder, str(cap)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=Path(__file__).parent.parent,
            env={**os.environ, **(_COUNTED if cap else {})},
        )
        watch = _Watch(child.pid)
        watch.start()
        said: dict[str, Any] = {}
        try:
            out, _ = child.communicate(timeout=_TIMEOUT_SECONDS)
            for line in out.splitlines():
                said |= json.loads(line)
        finally:
            child.kill()
            watch.stop()
        errors.seek(0)
        # What follows the exception's own line is indented.
        lines = [line for line in errors.read().splitlines() if line.strip() and not line.startswith(" ")]
        error = lines[-1] if lines else f"exit status {child.returncode}"
        return Run(said, watch.peak, "" if child.returncode == 0 else error)


class _Watch(threading.Thread):
    """Looks at the memory of a process, from outside."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{pid}/status")
        self._done = threading.Event()
        self.peak = 0

    def run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            try:
                text = self._status.read_text()
            except OSError:
                return
            lines = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
            self.peak = max(self.peak, 1024 * sum(int(lines[name].split()[0]) for name in lines if name != "RssFile"))

    def stop(self) -> None:
        self._done.set()
        self.join(10)
