"""Every page in a real browser while a job writes: shown, up to date, on large and small screens."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser.conftest import DESKTOP, PHONE, Opened, Started
from dashboard_jobs import Writer, written
from playwright.sync_api import Page, expect

from statebed.storage import LocalStore

PAGES = {
    "/": "Jobs",
    "/jobs/rides": "rides",
    "/jobs/rides/epochs": "Epochs of rides",
    "/jobs/rides/epochs/5": "Epoch 5",
    "/jobs/rides/history": "History of rides",
    "/jobs/rides/operators/per_minute": "per_minute",
    "/jobs/rides/operators/per_minute/tables/partials": "partials",
    "/jobs/rides/operators/earned/tables/groups?key0=driver+7": "groups",
}


@contextmanager
def writing(writer: Writer) -> Iterator[None]:
    """Epochs come all the time."""
    enough = threading.Event()

    def write() -> None:
        while not enough.wait(0.2):
            writer.epochs(1, rows=20)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(timeout=60)


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def writer(location: Path) -> Iterator[Writer]:
    with written(LocalStore(location)) as made:
        made.epochs(8)
        yield made


@pytest.fixture(scope="module")
def url(location: Path, writer: Writer, started: Started) -> str:
    return started(location).url


def head(page: Page) -> int:
    """The number that the page shows as the newest record."""
    return int(page.locator(".tile .value").first.inner_text().replace(",", ""))


def beyond_the_screen(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_every_page_is_shown_while_the_job_writes(writer: Writer, url: str, opened: Opened) -> None:
    with writing(writer):
        for size in (DESKTOP, PHONE):
            page = opened("about:blank", size=size)  # a new page for each would take twice the time of the test
            for path, title in PAGES.items():
                page.goto(url + path)
                expect(page.get_by_role("heading", level=1)).to_have_text(title)
                assert not beyond_the_screen(page), (path, size)
                if "tables" in path:
                    expect(page.locator("#rows[data-state=done]")).to_be_visible()
                    expect(page.get_by_role("img", name="Key hashes")).to_be_visible()


def test_a_new_record_appears_without_a_reload(writer: Writer, url: str, opened: Opened) -> None:
    page = opened(url + "/jobs/rides")
    expect(page.locator("#pulse")).to_have_text("live")
    before = head(page)
    page.evaluate("window.same = true")
    page.get_by_role("link", name="all epochs").focus()
    page.evaluate("document.querySelector('.scroll').scrollLeft = 40")
    writer.epochs(1)
    expect(page.locator(".tile .value").first).to_have_text(str(before + 1))
    expect(page.get_by_role("link", name=str(before + 1), exact=True)).to_be_visible()
    assert page.evaluate("window.same") is True
    assert page.evaluate("document.activeElement.textContent") == "all epochs"
    writer.epochs(2)
    expect(page.locator(".tile .value").first).to_have_text(str(before + 3))


def test_a_job_that_begins_appears_in_an_open_list(started: Started, opened: Opened, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    page = opened(started(tmp_path / "state").url)
    expect(page.get_by_text("No job has state here yet")).to_be_visible()
    with written(LocalStore(tmp_path / "state"), name="late") as writer:
        writer.epochs(1)
        expect(page.get_by_role("link", name="late")).to_be_visible()
        page.get_by_role("link", name="late").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("late")


def test_rows_are_found_by_key_and_an_epoch_compares_its_rows(writer: Writer, url: str, opened: Opened) -> None:
    page = opened(f"{url}/jobs/rides/operators/earned/tables/groups")
    page.get_by_label("key driver").fill("driver 7")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("group", name="Rows").get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("row group").first).to_be_visible()
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_role("group", name="Rows").get_by_role("row")).to_have_count(41)
    page.goto(f"{url}/jobs/rides/epochs/6")
    page.get_by_role("button", name="compare rows").first.click()
    expect(page.get_by_role("group", name="Changed rows")).to_be_visible()
    expect(page.get_by_text("update after").first).to_be_visible()


def test_plots_tell_an_epoch_where_the_pointer_is_and_lead_to_it(writer: Writer, url: str, opened: Opened) -> None:
    page = opened(url + "/jobs/rides")
    bar = page.get_by_role("img", name="Epoch durations").locator(".hit").nth(3)
    bar.hover()
    expect(page.locator("#tip")).to_be_visible()
    expect(page.locator("#tip")).to_contain_text("shuffle")
    bar.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Epoch 5")


def test_a_job_that_vanishes_is_said_to_be_gone(location: Path, url: str, opened: Opened, tmp_path: Path) -> None:
    with written(LocalStore(location), name="doomed") as writer:
        writer.epochs(2)
    page = opened(url + "/jobs/doomed", fails=True)
    expect(page.locator("#pulse")).to_have_text("live")
    (location / "doomed").rename(tmp_path / "elsewhere")
    expect(page.get_by_text("has no record")).to_be_visible()
    expect(page.get_by_role("link", name="All jobs")).to_be_visible()


def test_the_server_stops_at_once_though_pages_are_open(location: Path, started: Started, opened: Opened) -> None:
    dashboard = started(location)
    page = opened(dashboard.url + "/jobs/rides", fails=True)
    expect(page.locator("#pulse")).to_have_text("live")
    assert dashboard.stop() == 0
    expect(page.locator("#pulse")).to_have_text("not connected")
