"""The state engine: reading, modifying and writing keyed state against other stores, and what epochs cost."""

import sys

from bench import epochs, read_modify_write
from bench.report import Report, is_chosen

EPOCHS = "epochs"


def run(report: Report, *, quick: bool, only: str = "") -> int | None:
    """Measure every case whose name contains `only`; an exit status when there is none."""
    cases = [case for case in read_modify_write.cases(quick=quick) if is_chosen(case.name, only)]
    with_epochs = is_chosen(EPOCHS, only)
    if not cases and not with_epochs:
        names = [EPOCHS, *(case.name for case in read_modify_write.cases(quick=quick))]
        print("no such case; there are:", *names, sep="\n  ", file=sys.stderr)
        return 2
    for case in cases:
        read_modify_write.measure(case, report, count=8 if quick else 28)
    if with_epochs:
        epochs.measure(report, quick=quick)
        if not quick:
            epochs.measure_blocks(report)
    return None
