"""The shell without Spark: `statebed sql -e`, statements from a pipe, and a terminal, over the state of a job."""

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pyarrow as pa
import pytest
from command_line import Call

from statebed.cli.pipeline import read_text
from statebed.cli.shell.result_printer import ResultPrinter, fitted
from statebed.inspect import read_state

WAIT = 120
COUNT = "SELECT count(*) AS n FROM ?"


def test_a_file_may_begin_with_the_mark_of_an_editor(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.sql"
    file.write_text("SELECT 1;", encoding="utf-8-sig")
    assert read_text(file) == "SELECT 1;"


def test_state_is_selected_by_job_operator_and_table(statebed: Call, rides: Path) -> None:
    expected = read_state(rides, job="rides", operator="earned").to_arrow().num_rows
    for name in ("rides.earned.groups", "earned.groups", '"rides"."earned"."groups"'):
        outcome = statebed("sql", "--state", rides, "--format", "json", "-e", COUNT.replace("?", name))
        assert outcome.code == 0, outcome.err
        assert json.loads(outcome.out) == {"n": expected}


def test_finished_results_are_shown_instead_of_stored_columns(
    statebed: Call, rides: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "DESCRIBE earned.groups;\n.results on\nDESCRIBE earned.groups;\n.results off"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    outcome = statebed("sql", "--state", rides, "--format", "csv")
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("_total_rest") == 1
    assert outcome.out.count("total,double") == 2


def test_state_is_read_as_of_a_chosen_epoch(statebed: Call, rides: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = "SELECT count(*) AS n, sum(total) AS t FROM rides.earned.groups;"
    newest = read_state(rides, job="rides", operator="earned").epoch
    epochs = [newest - 4, newest - 1, newest]
    text = "\n".join([*(f".epoch {epoch}\n{count}" for epoch in epochs), f".epoch newest\n{count}"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    outcome = statebed("sql", "--state", rides, "--format", "json")
    assert outcome.code == 0, outcome.err
    answers = [json.loads(line) for line in outcome.out.splitlines()]
    rows = [read_state(rides, job="rides", operator="earned", epoch=epoch).to_arrow().num_rows for epoch in epochs]
    assert [answer["n"] for answer in answers] == [*rows, rows[-1]]
    assert len({json.dumps(answer) for answer in answers}) > 1


def test_a_join_of_two_state_tables_is_csv(statebed: Call, rides: Path) -> None:
    text = "SELECT count(*) AS n, 'a,b' AS t FROM rides.earned.groups AS a JOIN rides.earned.groups AS b USING (driver)"
    lines = statebed("sql", "--state", rides, "--format", "csv", "-e", text).out.splitlines()
    assert lines[0] == "n,t"
    assert lines[1].endswith(',"a,b"')


def test_statements_from_a_pipe_attach_show_and_describe(
    statebed: Call, rides: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"ATTACH '{rides}'; SHOW TABLES LIKE 'rides.earned*';\nDESCRIBE rides.earned.groups; SHOW STATES;\n.jobs"
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    outcome = statebed("sql")
    assert outcome.code == 0, outcome.err
    assert re.search(r"rides\.earned\.groups\s+state", outcome.out)
    assert re.search(r"driver\s+string", outcome.out)
    assert re.search(r"^rides\s", outcome.out, re.MULTILINE)


def test_a_location_with_two_names_is_one_and_two_with_one_job_are_told_apart(
    statebed: Call, rides: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(rides.parent)
    select = "SELECT count(*) AS n FROM rides.earned.groups"
    outcome = statebed("sql", "--state", rides.name, "-e", f"ATTACH '{rides}'", "-e", select)
    assert outcome.code == 0, outcome.err
    shutil.copytree(rides, tmp_path / "copy")
    outcome = statebed("sql", "--state", rides.name, "-e", f"ATTACH '{tmp_path / 'copy'}'", "-e", select)
    assert "several state tables are called rides.earned.groups" in outcome.err
    assert f"DETACH one of '{min(str(rides), str(tmp_path / 'copy'))}'" in outcome.err
    statements = (f"ATTACH '{tmp_path / 'copy'}'", f"DETACH '{rides.name}'", select)
    outcome = statebed("sql", "--state", rides.name, *(word for text in statements for word in ("-e", text)))
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SELECT nope FROM rides.earned.groups", ["nope", "line 1, column 8", "^^^^"]),
        ("SELECT 1\nFROM rides.earned.groups WHERE total >", ["line 2", "^"]),
        ("SELECT * FROM rides.earned.nothing", ["there is no state table rides.earned.nothing", "rides.earned.groups"]),
        ("DESCRIBE no.such.thing", ["there is no table 'no.such.thing'", "^^^"]),
        ("ATTACH '/no/such/folder'", ["does not exist", "column 8"]),
        ("DETACH 'x'", ["is not attached"]),
        ("SHOW NOTHING", ["expected one of TABLES"]),
        (".nothing", ["there is no command '.nothing'"]),
        (".epoch last", [".epoch must be a number or newest"]),
        (".results maybe", [".results must be on or off"]),
        (".mode xml", [".mode must be one of"]),
        (".read /no/such/file", ["cannot read the SQL"]),
        ("DROP VIEW v", ["there is no view 'v'"]),
        ("STOP JOB j", ["has started no job 'j'"]),
        ("SET nothing = 3", ["there is no setting 'nothing'"]),
        ("SET parallelism = many", ["column 19"]),
        ("RESET memory", ["was not set in this shell"]),
    ],
)
def test_a_mistake_ends_the_command_with_its_place(statebed: Call, rides: Path, text: str, words: list[str]) -> None:
    outcome = statebed("sql", "--state", rides, "-e", text)
    assert outcome.code != 0
    assert "Traceback" not in outcome.err
    for word in words:
        assert word in outcome.err


def test_options_that_do_not_fit(statebed: Call, tmp_path: Path) -> None:
    file = tmp_path / "a.sql"
    file.write_text("SELECT 1")
    assert "a FILE is given, too" in statebed("sql", file, "-e", "SELECT 1").err
    assert "it needs a FILE" in statebed("sql", "--check").err


def test_settings_are_shown_and_reset(statebed: Call) -> None:
    outcome = statebed("sql", "-e", "SET 'parallelism' = '3'; SET; RESET; SET;")
    assert outcome.code == 0, outcome.err
    assert len(re.findall(r"parallelism\s+3", outcome.out)) == 1


def test_columns_become_narrower_until_they_fit() -> None:
    assert fitted([10, 60, 20], 62) == [10, 30, 20]
    assert fitted([100, 100], 50) == [24, 25]
    assert fitted([10, 60], None) == [10, 60]
    assert fitted([30, 30, 30], 10) == [8, 8, 8]


def test_rows_are_printed_as_they_arrive(capsys: pytest.CaptureFixture[str]) -> None:
    printer = ResultPrinter("table")
    printer.print_rows(pa.table({"k": ["a"], "n": [1], "_weight": [1]}))
    printer.print_rows(pa.table({"k": ["a", None], "n": [1, 22], "_weight": [-1, 2]}))
    assert printer.rows == 3
    assert capsys.readouterr().out.splitlines() == [
        "op k               n",
        "-- ---------- ------",
        "+  a               1",
        "-  a               1",
        "+2 null           22",
    ]


@pytest.fixture
def terminal(rides: Path, tmp_path: Path) -> Iterator["pexpect.spawn[str]"]:
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "COLUMNS": "200"}
    shell = pexpect.spawn(
        sys.executable,
        ["-m", "statebed.cli", "sql", "--state", str(rides)],
        env=environment,
        timeout=WAIT,
        encoding="utf-8",
        dimensions=(50, 200),
    )
    shell.expect_exact("statebed> ")
    yield shell
    shell.close(force=True)


def test_a_terminal_has_prompts_completion_history_and_survives_mistakes(
    terminal: "pexpect.spawn[str]", tmp_path: Path
) -> None:
    terminal.sendline("SELECT count(*) AS n")
    terminal.expect_exact("-> ")
    terminal.sendline("FROM rides.ear\t;")
    terminal.expect_exact("rides.earned.groups")
    terminal.expect(r"\(1 row, ")
    terminal.expect_exact("statebed> ")
    terminal.sendline("SELECT 'open")
    terminal.expect_exact("'> ")
    terminal.sendintr()
    terminal.expect_exact("statebed> ")
    terminal.sendline("SELECT nope FROM rides.earned.groups;")
    terminal.expect_exact("^^^^")
    terminal.expect_exact("statebed> ")
    terminal.send("\x1b[A")  # the statement before, from the history
    terminal.expect_exact("SELECT nope FROM rides.earned.groups;")
    terminal.sendintr()
    terminal.expect_exact("statebed> ")
    terminal.sendline("SET 'password' = 'secret';")
    terminal.expect_exact("there is no setting")
    terminal.expect_exact("statebed> ")
    terminal.sendline(".help")
    terminal.expect_exact("Ctrl-C ends the running statement")
    terminal.expect_exact("statebed> ")
    terminal.sendline(".quit")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    file = tmp_path / "statebed" / "sql_history"
    history = file.read_text()
    assert "SELECT count(*) AS n FROM rides.earned.groups;" in history
    assert "password" not in history
    assert file.stat().st_mode & 0o077 == 0
