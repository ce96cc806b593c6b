"""One more row for a key that has many values: what an epoch costs, by operator and number of values.

Each operator's state is built in one process and measured in another, with a budget of 32 MB: the time of an epoch with
one more row for the hot key, against one for a key with two values in the same state, and the peak of anonymous memory
above that of a small state, then and while the state is built. `--quick` leaves out 2,000,000 values. `--case "a|b"`
runs cases whose names contain one of the texts.

Where the result contains all values, emitting it takes time that grows with them, so there is no goal for the time. It
is compared with what pyarrow takes to build the old and the new result from sorted values and to encode them, which is
added to our time, because a test run encodes no output.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.hotkeys_child import BUDGET, CASES, WHOLE
from bench.report import Report, faster, is_chosen, smaller

_VALUES = (2_000, 200_000, 2_000_000)
_QUICK = 2
_CHILD = Path(__file__).with_name("hotkeys_child.py")
_TIMES = 3.0
"""An epoch for the hot key may take this many times as long as one for a small key."""
_PEAK_MB = 64.0
"""Twice the budget, for pages that allocators keep and a row group; and once the result, where it has all values."""
_TIMEOUT_SECONDS = 3600


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every operator whose name contains `only`; an exit status when there is none."""
    chosen = [case for case in CASES if is_chosen(case, only)]
    if not chosen:
        print("no such case; there are:", *CASES, sep="\n  ", file=sys.stderr)
        return 2
    for case in chosen:
        for values in _VALUES[:_QUICK] if quick else _VALUES:
            figures = _measured(case, values)
            name = f"{case}, {values:,} values"
            for metric, ours, theirs in (
                ("one more row", "hot", "small"),
                ("first row after a restore", "first", "first_small"),
            ):
                report.add(
                    faster(
                        name,
                        "one row of a key with 2",
                        metric,
                        ours=1 / figures[ours],
                        theirs=1 / figures[theirs],
                        unit="epochs/s",
                        target=None if case in WHOLE else 1 / _TIMES,
                    )
                )
            if case in WHOLE:
                report.add(
                    faster(
                        name,
                        "pyarrow, from sorted values",
                        "old and new result",
                        ours=1 / (figures["hot"] + figures["least"]),
                        theirs=1 / figures["least"],
                        unit="epochs/s",
                    )
                )
            for metric, mb in (("peak memory above base", "peak_mb"), ("peak memory while it is built", "built_mb")):
                report.add(
                    smaller(
                        name,
                        f"budget of {BUDGET >> 20} MB",
                        metric,
                        ours=figures[mb],
                        theirs=_PEAK_MB + (figures["result_mb"] if case in WHOLE else 0.0),
                        unit="MB",
                        target=1.0,
                    )
                )
    return None


def _measured(case: str, values: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="statebed-bench-") as folder:
        figures: dict[str, Any] = json.loads(_child("build", case, values, folder))
        figures |= json.loads(_child("measure", case, values, folder))
    return figures


def _child(what: str, case: str, values: int, folder: str) -> str:
    command = [sys.executable, str(_CHILD), what, case, str(values), folder]
    done = subprocess.run(  # noqa: S603 - this very Python
        command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
    )
    if done.returncode:
        raise SystemExit(f"{case}, {values} values: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout
