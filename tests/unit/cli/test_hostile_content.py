"""Names and values from outside are shown as text: they steer no terminal, and no markup is taken for colours."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import dashboard_jobs
import pytest
from command_line import Call
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from statebed.cli.output import line, table
from statebed.cli.safe_text import clipped, plain, plain_json, plain_lines
from statebed.storage import LocalStore

NASTY = "[red]x[/] \x1b[2J\x1b]0;title\x07 \x9b31m \u202egnirts\u2066 \r\n\t\x00 :smile: 'quotes\" <script> " + "שלום"
STEERS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")


@given(st.text())
def test_no_text_steers_a_terminal(text: str) -> None:
    assert not STEERS.search(plain(text))
    assert "\n" not in plain(text)
    assert not STEERS.search(plain_lines(text))
    plain(text).encode()  # lone surrogates are codes, too


@given(st.text(st.characters(codec="utf-8")), st.integers(1, 50))
def test_long_texts_are_cut(text: str, width: int) -> None:
    assert len(text) <= width or clipped(text, width=width).endswith("…")
    assert len(text) > width or clipped(text, width=width) == plain(text)


@given(
    st.recursive(st.text() | st.integers() | st.none(), lambda some: st.lists(some) | st.dictionaries(st.text(), some))
)
def test_json_is_safe_to_show_and_reads_back_as_it_was(document: object) -> None:
    text = plain_json(document)
    assert not STEERS.search(text)
    assert json.loads(text) == document


def test_markup_and_emoji_in_cells_titles_and_lines_stay_text() -> None:
    screen = Console(file=io.StringIO(), width=300, force_terminal=True)
    screen.print(table(f"title {NASTY}", [f"head {NASTY}"], [[f"cell {NASTY}"]]))
    screen.print(line(f"line {NASTY}"))
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    for place in ("title", "head", "cell", "line"):
        assert f"{place} [red]x[/] \\x1b[2J\\x1b]0;title\\x07 \\x9b31m \\u202egnirts" in shown
    assert ":smile:" in shown
    assert "\x1b[31m" not in shown


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job with rows whose key is hostile, and very long."""
    state = tmp_path_factory.mktemp("nasty") / "state"
    with dashboard_jobs.written(LocalStore(state)) as writer:
        writer.feed(NASTY)
        writer.feed("long" * 5_000)
    return state


@pytest.mark.parametrize(
    "arguments",
    [
        ["state", "STATE", "-o", "earned"],
        ["state", "STATE", "-o", "earned", "--json"],
        ["get", "STATE", "rides", NASTY.replace("\x00", "")],
        ["diff", "STATE", "rides", "2", "-o", "earned"],
        ["state", "STATE", "-o", "earned", "--sql", 'SELECT driver, driver AS "[bold]a\x1b[1m" FROM state'],
        ["show", "STATE", NASTY.replace("\x00", "")],
        ["ls", NASTY.replace("\x00", "")],
        ["state", "STATE", "-o", NASTY.replace("\x00", "")],
        ["state", "STATE", "-o", "earned", "--where", "driver = '\x1b[31m' and no_column"],
    ],
    ids=lambda arguments: " ".join(arguments)[:24].encode("ascii", "replace").decode(),
)
def test_no_command_lets_a_value_through(statebed: Call, nasty: Path, arguments: list[str]) -> None:
    shown = statebed(*[str(nasty) if argument == "STATE" else argument for argument in arguments])
    assert shown.code in {0, 1, 3}
    assert not STEERS.search(shown.out)
    assert not STEERS.search(shown.err)
    assert "Traceback" not in shown.err


def test_values_are_whole_in_json_and_cut_in_tables(statebed: Call, nasty: Path) -> None:
    shown = json.loads(statebed("state", nasty, "-o", "earned", "--json").out)
    assert {row["driver"] for row in shown["rows"]} == {NASTY, "long" * 5_000}
    table = statebed("state", nasty, "-o", "earned").out
    assert "…" in table
    assert max(map(len, table.splitlines())) < 400


def test_csv_on_a_terminal_is_safe_too(nasty: Path) -> None:
    shown = on_a_terminal("state", str(nasty), "-o", "earned", "--format", "csv")
    assert "\\x1b[2J" in shown
    assert not STEERS.search(shown.replace("\r\n", "\n"))


def test_folders_that_no_job_can_be_named_after_are_passed_over(statebed: Call, nasty: Path, tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(nasty)
    hostile = tmp_path / "place"
    hostile.mkdir()
    (hostile / "rides").symlink_to(nasty / "rides")
    odd = hostile / "[red]\x1b[31m"
    (odd / "checkpoints" / "000000000001").mkdir(parents=True)
    (odd / "checkpoints" / "000000000001" / "checkpoint.metadata").write_bytes(b"x")
    shown = statebed("ls", hostile)
    assert shown.code == 0
    assert "rides" in shown.out
    assert not STEERS.search(shown.out)


def on_a_terminal(*arguments: str) -> str:
    """Return the output on a real terminal."""
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "statebed.cli", *arguments],
        stdout=follower,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            shown += piece
        os.close(leader)
    assert process.returncode == 0
    return shown.decode()
