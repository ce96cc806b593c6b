"""`statebed sql FILE` checks, explains, runs and watches a pipeline, and an edit finds its state again."""

import contextlib
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import statebed as sb
from statebed.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
TEXT = """
SET 'job' = 'bids';
SET parallelism = 2;
SET spark.sql.shuffle.partitions = 2;
CREATE TABLE bids (auction BIGINT, price BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '1' SECOND)
WITH (connector = 'datagen', rows-per-second = 10, rows-per-batch = 1000, fields.auction.max = 3, seed = 7);
CREATE TABLE minutes (auction BIGINT, starts TIMESTAMP, n BIGINT) WITH (connector = 'parquet', path = '{folder}/out');
CREATE TABLE totals (auction BIGINT, n BIGINT, PRIMARY KEY (auction)) WITH (connector = 'print');
INSERT INTO minutes SELECT auction, window_start, count(*)
FROM TABLE(TUMBLE(TABLE bids, DESCRIPTOR(ts), INTERVAL '1' MINUTE)) GROUP BY auction, window_start, window_end;
INSERT INTO totals SELECT auction, count(*) FROM bids GROUP BY auction;
"""


def test_a_file_is_checked_explained_run_and_resumed(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    file, state = tmp_path / "bids.sql", tmp_path / "state"
    file.write_text(TEXT.format(folder=tmp_path))
    arguments = ["sql", str(file), "--state", str(state)]
    assert main([*arguments, "--check"]) == 0
    checked = capsys.readouterr().out
    assert "the job is called bids" in checked
    assert "minutes_window, totals_aggregate" in checked
    assert not state.exists(), "nothing is written"
    assert main([*arguments, "--explain"]) == 0
    assert "tumbling window of 1 minute" in capsys.readouterr().out
    assert main([*arguments, "--once", "--watch"]) == 0
    shown = capsys.readouterr().out
    assert "minutes, epoch" in shown
    assert "totals, epoch" in shown
    first = sb.read_table(str(tmp_path / "out")).num_rows
    assert first
    # A comment moves every place in the text; the operators keep their names and their state.
    file.write_text("-- changed\n\n" + TEXT.format(folder=tmp_path))
    assert main([*arguments, "--once"]) == 0
    rows = sb.read_table(str(tmp_path / "out"))
    assert rows.num_rows > first
    assert set(rows["n"].to_pylist()) <= set(range(100, 200)), "no window was counted twice"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("CREATE TABLE t WITH (connector = 'print')", "there is nothing to run"),
        ("SET paralelism = 3; SELECT 1", "did you mean `parallelism`?"),
        ("SET parallelism = many; SELECT 1", "line 1, column 19"),
        ("SET 'job' = 'a b'; SELECT 1", "line 1, column 13"),
    ],
)
def test_a_mistake_in_a_file_ends_the_command(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert spark is not None
    file = tmp_path / "wrong.sql"
    file.write_text(text)
    assert main(["sql", str(file), "--state", str(tmp_path / "state"), "--check"]) != 0
    assert words in capsys.readouterr().err


def test_a_file_that_cannot_be_read_and_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", str(tmp_path / "none.sql")]) != 0
    assert "cannot read the SQL" in capsys.readouterr().err
    file = tmp_path / "a.sql"
    file.write_text("SELECT 1")
    assert main(["sql", str(file), "--set", "parallelism"]) != 0
    assert "--set must be name=value" in capsys.readouterr().err


PIPELINE = """
SET 'job' = 'orders';
SET spark.sql.shuffle.partitions = 2;
CREATE TABLE orders (id BIGINT, k STRING) WITH (connector = 'parquet', path = '{folder}/in');
CREATE TABLE counts (k STRING, n BIGINT, PRIMARY KEY (k)) WITH (connector = 'sqlite', path = '{folder}/counts.db');
{insert};
"""
COUNT = "INSERT INTO counts SELECT k, {} FROM orders GROUP BY k"


def test_a_file_continues_after_a_refused_row_and_without_an_operator(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors name options of the command that continue: a person with a file has no `job.start`."""

    def run(insert: str, *options: str) -> tuple[int, str]:
        file.write_text(PIPELINE.format(folder=tmp_path, insert=insert))
        code = main(["sql", str(file), "--state", str(tmp_path / "state"), "--once", *options])
        return code, capsys.readouterr().err

    def add(number: int, *keys: str) -> None:
        frame = spark.createDataFrame([(number, key) for key in keys], "id bigint, k string")
        frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))

    file, database = tmp_path / "orders.sql", tmp_path / "counts.db"
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("create table counts (k text check (k <> 'bad'), n integer)")
    add(1, "a")
    assert run(COUNT.format("count(*)")) == (0, "")
    add(2, "bad")
    code, printed = run(COUNT.format("count(*)"))
    assert code != 0
    option = re.search(r"statebed sql (--skip counts=\d+)", printed)
    assert option is not None, printed
    add(3, "b", "a")
    assert run(COUNT.format("count(*)"), *option[1].split())[0] == 0
    with contextlib.closing(sqlite3.connect(database)) as connection:
        assert sorted(connection.execute("select k, n from counts")) == [("a", 2), ("b", 1)]
    code, printed = run(COUNT.replace("SELECT", "SELECT /*+ NAME('again') */").format("count(*)"))
    assert code != 0
    assert "statebed sql --removed keep" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--skip", "counts"], "--skip must be name=value"),
        (["--skip", "counts=last"], "does not name an epoch"),
        (["--sinks", "counts"], "--sinks must be name=value"),
        (["--sources", "orders"], "--sources must be name=value"),
    ],
)
def test_a_wrong_choice_for_the_start_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    file = tmp_path / "a.sql"
    file.write_text("SELECT 1")
    assert main(["sql", str(file), *options]) != 0
    assert words in capsys.readouterr().err
