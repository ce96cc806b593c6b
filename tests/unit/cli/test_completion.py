"""Completions that the shell offers when Tab is pressed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from statebed.cli import main


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["show", "STATE", ""], ["rides"]),
        (["ls", "STATE", "ri"], ["rides"]),
        (["show", "STATE", "x"], []),
        (["show", "STATE", "rides", ""], ["5", "4", "3", "2", "1"]),
        (["state", "STATE", "--operator", ""], ["per_minute", "busiest", "earned"]),
        (["state", "STATE", "rides", "-o", "e"], ["earned"]),
        (["state", "STATE", "rides", "--table", ""], ["groups", "kept", "partials"]),
        (["state", "STATE", "rides", "--savepoint", ""], ["monday"]),
        (["state", "STATE", "rides", "--epoch", ""], ["5", "4", "3", "2", "1"]),
        (["diff", "STATE", "rides", ""], ["monday", "5", "4", "3", "2", "1"]),
        (["state", "/nowhere", "--operator", ""], []),
        (["show", "ftp://x", ""], []),
    ],
    ids=" ".join,
)
def test_the_shell_completes_what_is_at_the_location(
    saved: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    typed: list[str],
    offered: list[str],
) -> None:
    words = ["statebed", *(str(saved) if word == "STATE" else word for word in typed)]
    monkeypatch.setenv("_STATEBED_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.out.split() == offered
    assert shown.err == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    monkeypatch.setenv("_STATEBED_COMPLETE", f"source_{shell}")
    assert main([]) == 0
    assert f"complete_{shell}" in capsys.readouterr().out


def test_bash_itself_completes_with_the_script(saved: Path) -> None:
    script = """
        statebed() { "$PYTHON" -m statebed.cli "$@"; }
        eval "$(_STATEBED_COMPLETE=source_bash statebed)"
        COMP_WORDS=(statebed state "$STATE" --operator e) COMP_CWORD=4
        _statebed_completion "$PROGRAM"
        echo "offered: ${COMPREPLY[*]}"
    """
    program = Path(sys.executable).parent / "statebed"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHON": sys.executable, "PROGRAM": str(program), "STATE": str(saved)},
    )
    assert done.stdout == "offered: earned\n", done.stderr
