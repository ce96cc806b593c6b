"""A real browser (Debian's Chromium), and dashboards as users start them: `statebed ui` in a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_SECONDS = 60.0
DESKTOP = (1280, 900)
PHONE = (360, 740)
expect.set_options(timeout=20_000)  # the machine may have other work


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that runs."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> int:
        """Stop it as Ctrl-C does; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout=20)


Started = Callable[..., Dashboard]
Opened = Callable[..., Page]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Starts dashboards of locations, and ends them by their ids."""
    running: list[subprocess.Popen[bytes]] = []

    def start(state: Path | str, environment: dict[str, str] | None = None) -> Dashboard:
        printed = tmp_path_factory.mktemp("ui") / "printed.json"
        command = [sys.executable, "-m", "statebed.cli", "ui", str(state), "--no-open", "--port", "0", "--json"]
        with printed.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, env={**os.environ, **(environment or {})})
        running.append(process)
        deadline = time.monotonic() + READY_WITHIN_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(ValueError):
                return Dashboard(json.loads(printed.read_text())["url"].rstrip("/"), process)
            time.sleep(0.05)
        pytest.fail("the dashboard did not start")

    yield start
    for process in running:
        process.kill()
        process.wait(timeout=20)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    found = subprocess.run(
        [ROOT / "scripts" / "find-chromium"], check=True, capture_output=True, text=True, timeout=600
    )
    # Chromium's sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Browser) -> Iterator[Opened]:
    """Opens pages; at the end none of them may have complained, or asked another server for anything."""
    complaints: list[str] = []
    contexts = []

    def open_page(
        address: str, *, size: tuple[int, int] = DESKTOP, colours: str = "light", fails: bool = False
    ) -> Page:
        context = chromium.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=colours)  # type: ignore[arg-type]
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(f"{address}: {error}"))
        page.on("request", lambda asked: _check_host(asked.url, complaints))
        if not fails:
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


def _check_host(url: str, complaints: list[str]) -> None:
    if not url.startswith("http://127.0.0.1:"):
        complaints.append(f"asked for {url}")
