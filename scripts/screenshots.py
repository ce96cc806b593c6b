"""Take the pictures of the dashboard in docs/images again: real jobs on local Spark, shown by a real browser.

    .venv/bin/python scripts/screenshots.py

Takes several minutes. Look at every picture before you commit it.
"""

import contextlib
import datetime as dt
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Browser, sync_playwright

import statebed as sb

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 1200
FILES = 20
ROWS = 3000
RATED = 0.8
"""Share of rides that get a rating."""
READY_WITHIN_SECONDS = 60.0
HIDE_FOLDER = """folder => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, "/srv/app");
}"""
"""Replaces the folder of this checkout in tracebacks."""


def main() -> None:
    if len(sys.argv) > 1:
        run_rides(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory(prefix="rides.") as name:
        folder = Path(name)
        environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYSPARK_PYTHON": sys.executable}
        failing = ROOT / "tests" / "browser" / "failing_job.py"
        subprocess.run([sys.executable, __file__, str(folder)], check=True, env=environment)
        subprocess.run([sys.executable, str(failing), str(folder / "failing")], check=False, env=environment)
        with chromium() as browser:
            with dashboard(folder / "state") as url:
                job = f"{url}/jobs/rides"
                take(browser, job, "dashboard-job", height=1270)
                take(browser, f"{job}/history", "dashboard-history", height=800)
                take(browser, f"{job}/operators/rated/tables/left?key0=59200", "dashboard-table", height=1180)
            with dashboard(folder / "failing" / "state") as url:
                take(browser, f"{url}/jobs/rides", "dashboard-failed", height=740)


# ---- the job ---------------------------------------------------------------------------------------------


def run_rides(folder: Path) -> None:
    """Run a job with several runs, a savepoint and a restart from an older epoch."""
    chance = random.Random(11)
    start = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=20 * FILES)
    write_files(folder, range(8), start, chance)
    run_job(folder)
    savepoint = ["savepoint", "create", str(folder / "state"), "rides", "before-upgrade", "--offline", "--yes"]
    subprocess.run([sys.executable, "-m", "statebed.cli", *savepoint], check=True)
    write_files(folder, range(8, 12), start, chance)
    run_job(folder)
    run_job(folder, sb.RunOptions(origin=sb.Origin(epoch=7), rollback=sb.RollbackPolicy.ALLOW))
    write_files(folder, range(12, FILES), start, chance)
    run_job(folder)


def write_files(folder: Path, numbers: range, start: dt.datetime, chance: random.Random) -> None:
    """Write files of 20 seconds each: rides, and a rating for most of them 5 to 15 seconds later."""
    for number in numbers:
        ids = range(number * ROWS, (number + 1) * ROWS)
        times = [start + dt.timedelta(seconds=20 * number + 20 * chance.random()) for _ in ids]
        rides = {
            "ride": list(ids),
            "driver": [f"driver {chance.randrange(400)}" for _ in ids],
            "fare": [round(4 + chance.expovariate(0.1), 2) for _ in ids],
            "ts": times,
        }
        rated = [index for index in range(len(ids)) if chance.random() < RATED]
        ratings = {
            "ride": [ids[index] for index in rated],
            "stars": [chance.randint(1, 5) for _ in rated],
            "ts": [times[index] + dt.timedelta(seconds=5 + 10 * chance.random()) for index in rated],
        }
        for name, columns in (("rides", rides), ("ratings", ratings)):
            (folder / name).mkdir(exist_ok=True)
            pq.write_table(pa.table(columns), folder / name / f"{number:03}.parquet")


def run_job(folder: Path, options: sb.RunOptions | None = None) -> None:
    job = sb.Job("rides", state=folder / "state", parallelism=4)
    read = job.spark.readStream.option("maxFilesPerTrigger", 1)
    rides = job.source(
        read.schema("ride LONG, driver STRING, fare DOUBLE, ts TIMESTAMP").parquet(str(folder / "rides")),
        name="rides",
        watermark=("ts", "10 seconds"),
    )
    ratings = job.source(
        read.schema("ride LONG, stars LONG, ts TIMESTAMP").parquet(str(folder / "ratings")),
        name="ratings",
        watermark=("ts", "10 seconds"),
    )
    rated = rides.join(ratings, on="ride", within=sb.between("0s", "1 minute"), name="rated")
    per_driver = rated.group_by("driver", sb.tumbling("10 seconds"), name="per_driver").agg(
        trips=sb.count(), stars=sb.mean("stars")
    )
    per_driver.write("parquet", path=str(folder / "ratings_out"), name="ratings_out")
    totals = rides.key_by("driver", name="earned").agg(total=sb.sum("fare"), ttl="30 days")
    totals.write("parquet", path=str(folder / "totals"), name="totals")
    job.start(options=options, available_now=True).await_termination(600)


# ---- the browser -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    finder = subprocess.run([ROOT / "scripts" / "find-chromium"], check=True, capture_output=True, text=True)
    # Chromium's sandbox refuses to run as root.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=finder.stdout.strip(), args=arguments)
        yield browser
        browser.close()


@contextlib.contextmanager
def dashboard(state: Path) -> Iterator[str]:
    """Run `statebed ui` for a location, and yield its URL."""
    command = [sys.executable, "-m", "statebed.cli", "ui", str(state), "--no-open", "--port", "0", "--json"]
    with tempfile.NamedTemporaryFile() as printed:
        process = subprocess.Popen(command, stdout=printed)
        try:
            deadline = time.monotonic() + READY_WITHIN_SECONDS
            while not (text := Path(printed.name).read_text()).strip().endswith("}"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the dashboard did not start")
                time.sleep(0.05)
            yield json.loads(text)["url"].rstrip("/")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=20)


def take(browser: Browser, address: str, name: str, *, height: int) -> None:
    page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
    page.goto(address)
    page.get_by_role("heading", level=1).wait_for()
    page.wait_for_timeout(1500)  # parts of the page are loaded one after the other
    page.get_by_text("reading rows").wait_for(state="hidden")
    page.evaluate(HIDE_FOLDER, str(ROOT))
    page.screenshot(path=IMAGES / f"{name}.png")
    page.close()


if __name__ == "__main__":
    main()
