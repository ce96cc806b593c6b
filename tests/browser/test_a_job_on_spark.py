"""The demo job on Spark, looked at from its first record on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser.conftest import Opened, Started
from playwright.sync_api import expect

pytestmark = pytest.mark.spark


def test_a_job_on_spark_appears_grows_and_tells_where_its_time_goes(
    started: Started, opened: Opened, tmp_path: Path
) -> None:
    (tmp_path / "state").mkdir()
    page = opened(started(tmp_path / "state").url)
    command = [
        sys.executable,
        "-m",
        "statebed.cli",
        "demo",
        "--state",
        str(tmp_path),
        "--files",
        "4",
        "--events",
        "2000",
    ]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with (tmp_path / "demo.txt").open("wb") as said:
        demo = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=environment)
        try:
            link = page.get_by_role("link", name="nexmark")
            expect(link).to_be_visible(timeout=180_000)
            link.click()
            expect(page.locator("#pulse")).to_have_text("live")
            expect(page.locator(".tile .value").first).to_have_text("5", timeout=180_000)
            assert demo.wait(timeout=180) == 0, (tmp_path / "demo.txt").read_text()
        finally:
            demo.kill()
            demo.wait(timeout=30)
    durations = page.locator("[data-part=chart-phases]")
    for phase in ("planning", "read", "shuffle", "merge", "write"):
        expect(durations.locator(".legend")).to_contain_text(phase)
    graph = page.get_by_role("group", name="Graph of the job")
    expect(graph.locator(".arrow")).to_have_count(2)
    expect(page.get_by_role("heading", name="Memory by holder")).to_be_visible()
    graph.get_by_role("link", name="bids_per_auction").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("bids_per_auction")
    page.get_by_role("link", name="partials").click()
    expect(page.get_by_role("group", name="Rows").get_by_role("row")).to_have_count(51)
    page.goto(page.url.partition("/operators")[0] + "/epochs/3")
    expect(page.get_by_text("published", exact=True)).to_be_visible()
