"""top: a job as it runs. Rates are checked by hand; the live view in a terminal that is real."""

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import dashboard_jobs
import pytest
from command_line import Call

from statebed.checkpoint import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.log_tail import LogTail, pace_of
from statebed.storage import LocalStore, MemoryStore, ScopedStore

SECOND = 1_000_000


def epoch(number: int, *, rows: int, watermark_us: int | None = None, run: int = 1) -> pb.CheckpointMetadata:
    operator = pb.OperatorEntry(operator_id="per_minute", parallelism=2, rows_in=rows, rows_late=1, rows_out=rows // 2)
    if watermark_us is not None:
        operator.inputs.append(pb.InputWatermark(input="rides", watermark_us=watermark_us))
    return pb.CheckpointMetadata(
        job_id="rides",
        epoch=number,
        kind=pb.EPOCH,
        run=run,
        previous=number - 1,
        base=number - 1,
        lineage="1",
        status=pb.COMPLETE,
        min_epoch=1,
        start_time_us=(number - 1) * SECOND,
        finish_time_us=number * SECOND,
        epoch_time_us=number * SECOND,
        operators=[operator],
    )


def test_rates_are_over_the_epochs_of_the_newest_run() -> None:
    old = epoch(9, rows=1_000_000, run=1)
    start = pb.CheckpointMetadata(job_id="rides", epoch=10, kind=pb.RUN_START, run=10, base=9, finish_time_us=1)
    newest = [epoch(n, rows=100, watermark_us=8 * SECOND, run=10) for n in (11, 12, 13, 14)]
    newest[-1].sources.append(pb.SourceWatermark(source="rides", max_event_time_us=9 * SECOND))
    pace = pace_of([old, start, *newest], now_us=20 * SECOND)
    assert (pace.epoch, pace.epochs, pace.run) == (14, 4, 10)
    assert (pace.epochs_per_second, pace.rows_in_per_second, pace.rows_out_per_second) == (1, 100, 50)
    assert pace.rows_late == 4
    assert (pace.lag_us, pace.event_time_lag_us, pace.idle_us) == (6 * SECOND, SECOND, 6 * SECOND)
    assert (pace.operators[0].rows_in_per_second, pace.operators[0].subtasks) == (100, 2)


def test_a_run_that_has_just_begun_has_no_rates() -> None:
    start = pb.CheckpointMetadata(job_id="rides", epoch=1, kind=pb.RUN_START, run=1, finish_time_us=1)
    pace = pace_of([start], now_us=2)
    assert (pace.kind, pace.epochs, pace.epochs_per_second, pace.watermark_us) == ("run_start", 0, None, None)


def test_phases_are_the_mean_of_the_epochs_that_say() -> None:
    records = [epoch(n, rows=1) for n in (2, 3, 4)]
    records[0].figures.phases_us.update(read=10, merge=30)
    records[1].figures.phases_us.update(read=30)
    records[1].figures.previous_phases_us.update(commit=7)
    assert pace_of(records, now_us=0).phases_us == {"read": 20, "merge": 30, "commit": 7}


def test_the_tail_follows_the_log_and_notices_a_job_that_began_again() -> None:
    store = MemoryStore()
    with dashboard_jobs.written(store) as writer:
        writer.epochs(3)
        tail = LogTail(CheckpointLog(ScopedStore(store, "rides"), "rides"), keep=3)
        assert [record.epoch for record in tail.poll()] == [2, 3, 4]
        writer.epochs(2)
        assert [record.epoch for record in tail.poll()] == [4, 5, 6]
        assert [record.epoch for record in tail.poll()] == [4, 5, 6]
    for info in list(store.list("")):
        store.delete(info.path)
    assert list(tail.poll()) == []
    with dashboard_jobs.written(store) as writer:
        writer.epochs(1)
        assert [record.epoch for record in tail.poll()] == [1, 2]


def test_once_says_it_in_words_and_as_json(statebed: Call, rides: Path) -> None:
    shown = json.loads(statebed("top", rides, "--json").out)
    assert (shown["job"], shown["epoch"], shown["epochs"]) == ("rides", 9, 8)
    assert [one["operator"] for one in shown["operators"]] == ["per_minute", "busiest", "earned"]
    assert shown["phases_us"]["read"] > 0
    assert [host["host"] for host in shown["hosts"]] == ["host_a", "host_b"]
    words = statebed("top", rides, "rides", "--once").out
    for part in ("epochs ", "rows in ", "late", "behind the clock", "per_minute", "state by tier", "earned.totals"):
        assert part in words
    assert "9 merges in 3 rounds" in words


def test_records_without_figures_are_shown_without_them(statebed: Call, location: Path) -> None:
    shown = statebed("top", location, "--once")
    assert shown.code == 0
    assert "no figures for tiers, memory and phases: a tool or a program without Spark" in " ".join(shown.out.split())


def test_a_job_that_never_committed_is_told(statebed: Call, tmp_path: Path) -> None:
    folder = tmp_path / "rides" / "checkpoints" / "000000000001"
    folder.mkdir(parents=True)
    (folder / "begun.parquet").write_bytes(b"x")
    failed = statebed("top", tmp_path, "--once")
    assert failed.code == 1
    assert "has not committed anything yet" in failed.err


PROGRAM = """
import signal, sys
from statebed.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background have it ignored
sys.exit(main(sys.argv[1:]))
"""


class Terminal:
    """`statebed top` in a terminal of its own."""

    def __init__(self, state: Path) -> None:
        self.leader, follower = pty.openpty()
        self.before = termios.tcgetattr(self.leader)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "top", str(state), "--every", "0.2"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "50"},
            start_new_session=True,
        )
        os.close(follower)
        self.shown = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown[-2000:]
            ready, _, _ = select.select([self.leader], [], [], 1)
            if ready:
                self.shown += os.read(self.leader, 65536).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait(30)
        os.close(self.leader)


@pytest.mark.parametrize("leave", ["q", signal.SIGINT, signal.SIGTERM])
def test_the_live_view_follows_the_job_and_leaves_the_terminal_as_it_was(
    rides: Path, tmp_path: Path, leave: str | signal.Signals
) -> None:
    state = tmp_path / "state"
    shutil.copytree(rides, state)
    terminal = Terminal(state)
    try:
        terminal.wait_for("complete  rides")
        assert "\x1b[?1049h" in terminal.shown, "it has a screen of its own"
        with dashboard_jobs.written(LocalStore(state)) as writer:
            writer.epochs(1)
            terminal.wait_for("epoch 11,")
        if isinstance(leave, str):
            os.write(terminal.leader, leave.encode())
        else:
            os.kill(terminal.process.pid, leave)
        terminal.wait_for("\x1b[?1049l")
        assert terminal.process.wait(30) == 0
        assert termios.tcgetattr(terminal.leader) == terminal.before
        assert "\x1b[?25h" in terminal.shown, "the cursor is back"
        assert "Traceback" not in terminal.shown
    finally:
        terminal.close()
