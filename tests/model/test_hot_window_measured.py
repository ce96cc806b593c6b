"""The memory of one window of one key with millions of values, as the kernel counts it, against the documented formula:
budget + three times the batch + one row group + half the budget (docs/reference/configuration.md).
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from statebed.format.segment import ROW_GROUP_BYTES

CHILD = Path(__file__).with_name("hot_window_child.py")
BUDGET = 32 << 20


@pytest.mark.long  # pages, pieces and scans have tests of their own
@pytest.mark.parametrize(("emit", "values"), [("close", 2_500_000), ("late", 2_500_000), ("early", 2_000_000)])
def test_p4_a_window_of_millions_of_values_stays_within_the_formula(tmp_path: Path, emit: str, values: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-W", "error", str(CHILD), str(tmp_path), str(BUDGET), str(values), emit],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert ran.returncode == 0, ran.stderr
    report = json.loads(ran.stdout)
    assert report["grown"] <= BUDGET + 3 * report["batch"] + ROW_GROUP_BYTES + BUDGET // 2
