"""A job that failed on Spark, as a person sees it in a browser: red, with the reason, on every page that shows it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from browser.conftest import Opened, Started
from playwright.sync_api import expect

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory, started: Started) -> str:
    """Address of the dashboard of a job whose sink function raised an error in its third epoch."""
    folder = tmp_path_factory.mktemp("failed")
    script = Path(__file__).with_name("failing_job.py")
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return started(folder / "state").url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_job_that_failed_is_red_with_its_reason_and_traceback(opened: Opened, failed: str, scheme: str) -> None:
    page = opened(failed)
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of two texts
    badge = page.locator(".job .badge")
    expect(badge).to_have_text("failed")
    red = badge.evaluate("one => getComputedStyle(one).color.match(/\\d+/g).map(Number)")
    assert red[0] > 1.5 * max(red[1], red[2])
    page.get_by_role("link", name="rides").click()
    notice = page.locator(".failure")
    expect(notice).to_contain_text("KeyError: 'driver 7'")
    expect(notice).to_contain_text("sink mail, epoch 4")
    expect(notice).to_contain_text("What to do:")
    expect(notice.locator("pre")).to_contain_text("failing_job.py")
    expect(page.locator(".graph .box.sink")).to_have_count(2)
    expect(page.locator("[data-part=process]")).to_contain_text("available now")
    page.get_by_role("link", name="Exceptions", exact=True).click()
    expect(page.locator(".failure")).to_have_count(1)


def test_rows_of_a_table_are_paged(opened: Opened, failed: str) -> None:
    page = opened(f"{failed}/jobs/rides/operators/per_minute/tables/partials")
    first = page.locator("#rows td").first
    expect(first).to_be_visible()
    before = page.locator("#rows tbody").inner_text()
    page.get_by_role("button", name="next").click()
    expect(page.locator("#rows")).to_contain_text("page 2")
    assert page.locator("#rows tbody").inner_text() != before
    page.get_by_role("button", name="previous").click()
    expect(page.locator("#rows")).to_contain_text("page 1")
