"""The commands that look, at a job that commits and collects as fast as it can: epochs vanish under their eyes."""

import json
import threading
import time
from pathlib import Path

import dashboard_jobs
import pytest
from command_line import Call

from statebed import testing
from statebed.storage import LocalStore

COMMANDS = [
    ["ls", "STATE"],
    ["ls", "STATE", "rides"],
    ["ls", "STATE", "rides", "--limit", "0", "--json"],
    ["ls", "STATE", "rides", "--runs"],
    ["ls", "STATE", "rides", "--lineages"],
    ["show", "STATE", "rides", "--files", "--needed-by"],
    ["state", "STATE", "rides", "-o", "earned"],
    ["state", "STATE", "rides", "-o", "earned", "--sql", "SELECT count(*) FROM state"],
    ["get", "STATE", "rides", "always"],
    ["top", "STATE", "rides", "--once"],
]
SECONDS = 2


@pytest.mark.timeout(120)
def test_no_command_fails_because_the_job_goes_on(statebed: Call, tmp_path: Path) -> None:
    state = tmp_path / "state"
    stop, failed = threading.Event(), []

    def write() -> None:
        try:
            with testing.run(dashboard_jobs.rides_flow(), store=LocalStore(state), retained_epochs=1) as run:
                while not stop.is_set():
                    run.feed("rides", [{"driver": "always", "fare": 1.0, "ts": dashboard_jobs.START}])
                    run._cluster.run.clean_up()
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    job = threading.Thread(target=write)
    job.start()
    try:
        deadline = time.monotonic() + 30
        while not (state / "rides" / "checkpoints" / "000000000003" / "checkpoint.metadata").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        until, rounds = time.monotonic() + SECONDS, 0
        while time.monotonic() < until or rounds < 1:
            for arguments in COMMANDS:
                shown = statebed(*[str(state) if word == "STATE" else word for word in arguments])
                assert shown.code == 0, f"{arguments}: {shown.err}"
                assert "missing" not in shown.out
            rounds += 1
    finally:
        stop.set()
        job.join(60)
    assert not failed
    [last] = json.loads(statebed("ls", state, "--json").out)
    assert last["head"] > 5, "the job went on"
    kept = sorted(path.parent.name for path in (state / "rides" / "checkpoints").glob("*/checkpoint.metadata"))
    assert kept[0] > "000000000003", "and collected what it was looked at"
