"""The demo as a user runs it: kills in mid-epoch, then a run that resumes; the result is always right."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statebed.cli import main
from statebed.demo.comparison import compare
from statebed.demo.job import DemoFolder

TIMEOUT = 600
EVENTS = 50_000
"""Number of events in a file."""
pytestmark = [pytest.mark.spark, pytest.mark.timeout(TIMEOUT + 60)]


def statebed(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "statebed.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def epochs(state: Path) -> list[dict[str, Any]]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["ls", str(DemoFolder(state).state), "nexmark", "--limit", "0", "--json"]) == 0
    listed: list[dict[str, Any]] = json.loads(printed.getvalue())
    return listed


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "state"


@dataclass(frozen=True)
class Resumed:
    """A run of the demo over what earlier ones left."""

    before: list[dict[str, Any]]
    shown: str


@pytest.fixture(scope="module")
def resumed(state: Path) -> Resumed:
    before = epochs(state) if DemoFolder(state).state.exists() else []
    return Resumed(before, statebed("demo", "--state", state, "--files", "2", "--events", str(EVENTS)))


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.long)])  # the second hits a committed epoch
def test_p1_p2_kills_in_mid_epoch_lose_and_repeat_nothing(state: Path, kills: int) -> None:
    shown = statebed("demo", "--state", state, "--crash", "--kills", str(kills), "--events", str(EVENTS))
    assert "EQUAL" in shown
    assert f"{kills} kills inside an epoch" in shown
    assert "committed epochs lost: 0" in shown
    comparison = compare(DemoFolder(state))
    assert comparison.equal, comparison
    assert comparison.expected.bids % (EVENTS // 50 * 46) == 0
    assert comparison.closed.windows > 0, "at least one window closed and went to the sink"
    assert comparison.closed.bids + comparison.still_open.bids == comparison.expected.bids
    runs = [epoch for epoch in epochs(state) if epoch["kind"] == "run_start"]
    assert len(runs) > kills, "those that were killed and one that was not"


def test_p2_the_next_run_resumes_from_the_record_and_takes_only_new_events(state: Path, resumed: Resumed) -> None:
    before, shown = resumed.before[-1], resumed.shown
    assert f"resumed from epoch {before['epoch']}" in shown
    for words in ("top auctions", "bids_per_auction", "local disk", "epochs of nexmark", "next:"):
        assert words in shown
    after = [epoch for epoch in epochs(state) if epoch["epoch"] > before["epoch"]]
    assert after[0]["kind"] == "run_start"
    assert after[0]["base"] == before["epoch"]
    assert sum(epoch["rows_in"] for epoch in after) == 2 * EVENTS // 50 * 46
    assert compare(DemoFolder(state)).equal


def suggested(shown: str) -> dict[str, str]:
    """The commands below "next:", by what they are: the word after the program, and an option that matters."""
    lines = [line.strip() for line in shown.partition("next:\n")[2].splitlines()]
    found = {}
    for command in lines:
        if command and not command.startswith("#"):
            name = command.partition("statebed ")[2].split()[0] if "statebed " in command else "python"
            marks = [option for option in ("--sql", "--crash") if option in command]
            found[" ".join([name, *marks])] = command
    return found


SHOWN_BY = {
    "ls": "epochs of nexmark",
    "show": "bids_per_auction",
    "state": "bids_per_auction.partials of nexmark at epoch",
    "state --sql": "auction",
    "get": "bids_per_auction.partials of nexmark at epoch",
    "diff": "inserted",
    "export": "rows of bids_per_auction.partials",
    "verify": "everything is intact",
    "python": "auction",
}


IN_A_SHELL = {"state --sql", "python"}
"""Commands with quotes. The others run in this process, which spares their imports."""


def test_the_commands_that_the_demo_prints_work_as_printed(
    resumed: Resumed, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = suggested(resumed.shown)
    assert [*commands] == [*SHOWN_BY, "ui", "demo", "demo --crash"]
    programs = {shlex.split(command)[0] for name, command in commands.items() if name != "python"}
    for name, words in SHOWN_BY.items():
        command = commands[name]
        if name in IN_A_SHELL:
            done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            shown = done.stdout
        else:
            program, *arguments = shlex.split(command)
            assert {program} == programs, "the one that runs in a shell is that of all commands"
            assert main(arguments) == 0, f"{command}\n{capsys.readouterr()}"
            shown = capsys.readouterr().out
        assert words in shown, command


def test_the_dashboard_that_the_demo_names_answers(resumed: Resumed) -> None:
    command = suggested(resumed.shown)["ui"]
    with subprocess.Popen(
        ["bash", "-c", f"exec {command} --port 0"],  # any port: the usual one may be in use
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true", "PYTHONUNBUFFERED": "1"},
    ) as server:
        try:
            assert server.stdout is not None
            address = next(word for word in server.stdout.readline().split() if word.startswith("http://"))
            with urllib.request.urlopen(address, timeout=60) as page:  # noqa: S310 - its own address
                assert "nexmark" in page.read().decode()
        finally:
            server.terminate()
            server.wait(60)


def test_the_comparison_notices_a_lost_and_a_repeated_result_file(state: Path, tmp_path: Path) -> None:
    results = sorted(path for path in (state / "results").rglob("*.parquet") if path.stat().st_size > 3000)
    victim, stash = results[0], tmp_path / "stash"
    stash.write_bytes(victim.read_bytes())
    copy = victim.with_name(f"copy-{victim.name}")
    copy.write_bytes(victim.read_bytes())
    assert compare(DemoFolder(state)).unexpected > 0
    copy.unlink()
    victim.unlink()
    assert compare(DemoFolder(state)).missing > 0
    victim.write_bytes(stash.read_bytes())
    assert compare(DemoFolder(state)).equal
