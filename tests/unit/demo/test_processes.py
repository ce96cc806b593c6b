"""A killed child takes everything with it that it started."""

import os
import sys
import time
from pathlib import Path

from statebed.demo.child import Child

# A worker in a process group of its own, as Spark's Python daemon makes it, with a worker of its own.
FAMILY = """
import os, pathlib, subprocess, sys, time
role, leaf = sys.argv[1:]
if role == "leaf":
    pathlib.Path(leaf).write_text(str(os.getpid()))
else:
    if role == "worker":
        os.setpgid(0, 0)
    below = {"driver": "worker", "worker": "leaf"}[role]
    subprocess.Popen([sys.executable, sys.argv[0], below, leaf])
time.sleep(60)
"""


def test_workers_in_another_process_group_die_too(tmp_path: Path) -> None:
    leaf = tmp_path / "leaf"
    program = tmp_path / "family.py"
    program.write_text(FAMILY)
    with (tmp_path / "log").open("wb") as output:
        child = Child([sys.executable, str(program), "driver", str(leaf)], output=output)
        try:
            deadline = time.monotonic() + 20
            while not (leaf.exists() and leaf.read_text()) and time.monotonic() < deadline:
                time.sleep(0.02)
            worker = int(leaf.read_text())
            assert os.getpgid(worker) != child.pid
            assert worker in child.members()
        finally:
            killed = child.kill()
    assert killed == 3
    assert child.members() == []
    assert child.exit_code() == -9


def test_a_child_that_ended_by_itself_keeps_its_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as output:
        child = Child([sys.executable, "-c", "raise SystemExit(7)"], output=output)
        deadline = time.monotonic() + 20
        while child.exit_code() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        child.kill()
    assert child.exit_code() == 7
