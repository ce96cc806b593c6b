"""The demo as a user runs it: kills in mid-epoch, then a run that resumes; the result is always right."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from statebed.demo.comparison import compare
from statebed.demo.job import DemoFolder

TIMEOUT = 600
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
    listed: list[dict[str, Any]] = json.loads(statebed("ls", DemoFolder(state).state, "nexmark", "--json"))
    return listed


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "state"


def test_p1_p2_kills_in_mid_epoch_lose_and_repeat_nothing(state: Path) -> None:
    shown = statebed("demo", "--state", state, "--crash", "--kills", "2", "--events", "50000")
    assert "EQUAL" in shown
    assert "2 kills inside an epoch" in shown
    assert "committed epochs lost: 0" in shown
    comparison = compare(DemoFolder(state))
    assert comparison.equal, comparison
    assert comparison.expected.bids % (50_000 // 50 * 46) == 0
    assert comparison.closed.windows > 0, "at least one window closed and went to the sink"
    assert comparison.closed.bids + comparison.still_open.bids == comparison.expected.bids
    runs = [epoch for epoch in epochs(state) if epoch["kind"] == "run_start"]
    assert len(runs) >= 3, "two that were killed and one that was not"


def test_p2_the_next_run_resumes_from_the_record_and_takes_only_new_events(state: Path) -> None:
    before = epochs(state)[-1]
    shown = statebed("demo", "--state", state, "--files", "2", "--events", "100000")
    assert f"resumed from epoch {before['epoch']}" in shown
    for words in ("top auctions", "bids_per_auction", "local disk", "epochs of nexmark", "next:"):
        assert words in shown
    after = [epoch for epoch in epochs(state) if epoch["epoch"] > before["epoch"]]
    assert after[0]["kind"] == "run_start"
    assert after[0]["base"] == before["epoch"]
    assert sum(epoch["rows_in"] for epoch in after) == 2 * 100_000 // 50 * 46
    assert compare(DemoFolder(state)).equal


def test_the_commands_that_the_demo_suggests_work(state: Path) -> None:
    assert "bids_per_auction" in statebed("show", DemoFolder(state).state, "nexmark")
    with duckdb.connect() as db:
        found = db.execute("SELECT sum(bids) FROM read_parquet(?)", [f"{state}/results/epoch=*/*.parquet"]).fetchall()
    assert found == [(compare(DemoFolder(state)).closed.bids,)]


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
