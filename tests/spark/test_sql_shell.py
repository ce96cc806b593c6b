"""The SQL shell with Spark: on a terminal, and as a command in a script."""

import os
import re
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from statebed.cli import main
from statebed.errors import UnboundedStateWarning

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
WAIT = 180
BIDS = """CREATE TABLE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts)
WITH (connector = 'datagen', rows-per-second = 10, rows-per-batch = 200, fields.auction.max = 3, seed = 7);"""


def test_a_terminal_shows_streams_runs_jobs_and_selects_their_state(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    arguments = ["-m", "statebed.cli", "sql", "--state", "state", "--set", "parallelism=2"]
    shell = pexpect.spawn(
        sys.executable,
        arguments,
        env=environment,
        cwd=str(tmp_path),
        timeout=WAIT,
        encoding="utf-8",
        dimensions=(50, 160),
    )

    def typed(*lines: str, shows: str, prompt: bool = True) -> None:
        for line in lines:
            shell.sendline(line)
        shell.expect(shows)
        if prompt:
            shell.expect_exact("statebed> ")

    try:
        shell.expect_exact("statebed> ")
        typed(*BIDS.splitlines(), shows="created bids")
        typed("CREATE VIEW cheap AS SELECT auction, price FROM bids WHERE price < 500000;", shows="created cheap")
        typed("DESCRIBE bids;", shows=r"ts\s+timestamp\s+event time")
        typed("SELECT nope FROM bids;", shows=r"there is no column `nope`[\s\S]*\^\^\^\^")
        typed("SELECT auction, price FROM cheap LIMIT 5;", shows=r"auction[\s\S]*\(5 rows, ")
        typed("SELECT 1 + 1 AS two;", shows=r"two[\s\S]*2[\s\S]*\(1 row, ")
        # A query that never ends, ended by Ctrl-C; its rows are a changelog.
        typed("SELECT auction, count(*) AS n FROM bids GROUP BY auction;", shows=r"-  +\d+ +\d+", prompt=False)
        shell.sendintr()
        shell.expect_exact("interrupted")
        shell.expect_exact("statebed> ")
        typed("CREATE TABLE totals (auction BIGINT, n BIGINT) WITH (connector = 'blackhole');", shows="created totals")
        typed("INSERT INTO totals SELECT auction, count(*) FROM bids GROUP BY auction;", shows="job totals writes to")
        typed("SHOW JOBS;", shows=r"totals +running")
        deadline = time.monotonic() + WAIT
        while time.monotonic() < deadline:
            shell.sendline("SELECT count(*) AS keys FROM totals.totals_aggregate.groups;")
            if shell.expect([r"\n +4\r\n", r"\(1 row, ", r"what to do"]) == 0:
                break
            shell.expect_exact("statebed> ")
            time.sleep(0.2)
        shell.expect_exact("statebed> ")
        typed("SHOW TABLES;", shows=r"totals\.totals_aggregate\.groups +state")
        typed("EXPLAIN SELECT auction, max(price) FROM bids GROUP BY auction;", shows="select_aggregate")
        typed("STOP JOB totals;", shows=r"job totals stopped at epoch \d+")
        typed("DROP TABLE bids;", shows="another definition needs 'bids'")
        shell.sendline(".quit")
        shell.expect(pexpect.EOF)
    finally:
        shell.close(force=True)
    assert shell.exitstatus == 0


def test_statements_of_a_command_run_to_their_end(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    table = f"CREATE TABLE out (auction BIGINT, n BIGINT) WITH (connector = 'parquet', path = '{tmp_path}/out');"
    query = "INSERT INTO out SELECT auction, count(*) FROM bids GROUP BY auction, window(ts, '5 seconds');"
    arguments = ["sql", "--state", str(tmp_path / "state"), "--set", "parallelism=2", "--once", "--format", "csv"]
    assert main([*arguments, "-e", BIDS, "-e", "SELECT auction FROM bids LIMIT 3", "-e", table, "-e", query]) == 0
    captured = capsys.readouterr()
    assert re.fullmatch(r"auction\n(\d\n){3}", captured.out)
    assert "job out finished" in captured.err
    assert main([*arguments, "-e", "SELECT count(*) > 0 AS more FROM out.out_window.partials"]) == 0
    assert capsys.readouterr().out == "more\ntrue\n"
    assert main([*arguments, "-e", BIDS, "-e", "SELECT auction FROM bidz"]) != 0
    assert "did you mean `bids`?" in capsys.readouterr().err


def test_a_warning_of_a_script_has_no_line_of_python_and_says_what_sql_can_do(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    table = "CREATE TABLE out (auction BIGINT, n BIGINT) WITH (connector = 'blackhole');"
    query = "INSERT INTO out SELECT auction, count(*) FROM bids GROUP BY auction;"
    arguments = ["sql", "--state", str(tmp_path / "state"), "--set", "parallelism=1", "--once"]
    with warnings.catch_warnings():
        warnings.simplefilter("default", UnboundedStateWarning)
        assert main([*arguments, "-e", BIDS, "-e", table, "-e", query]) == 0
    printed = capsys.readouterr().err
    assert "warning: operator 'out_aggregate' keeps every key forever (table groups): group by a window" in printed
    assert "ttl" not in printed
    assert ".py:" not in printed
