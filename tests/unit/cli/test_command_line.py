"""The command line as a process: fast help, clear words when a package is missing."""

import io
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from statebed.cli import listings, main
from statebed.cli.app import PANELS
from statebed.cli.demo import resume_hint_on_interrupt

HEAVY = ("pyspark", "duckdb", "obstore", "pandas", "polars")


def run(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command_and_imports_nothing_heavy() -> None:
    start = time.monotonic()
    done = run(
        "import sys; from statebed.cli import main; code = main(['--help']);"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules]); sys.exit(code)"
    )
    assert done.returncode == 0
    for command in ("ls", "show", "doctor", "demo"):
        assert command in done.stdout
    assert "HEAVY []" in done.stdout
    assert time.monotonic() - start < 20


def test_a_missing_extra_is_one_line_with_the_pip_command() -> None:
    done = run(
        "import importlib.util as u, sys; real = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name == 'rich' else real(name, *rest);"
        "from statebed.cli import main; sys.exit(main(['ls']))"
    )
    assert done.returncode == 69
    assert done.stderr == "statebed: the command line needs rich. Run: pip install 'statebed[cli]'\n"


def test_the_demo_without_spark_says_what_to_install() -> None:
    done = run(
        "import importlib.util as u, sys; real = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name in ('pyspark', 'duckdb') else real(name, *rest);"
        "from statebed.cli import main; sys.exit(main(['demo']))"
    )
    assert done.returncode == 1
    assert "[MISSING_DEPENDENCY]" in done.stderr
    assert "pip install 'statebed[spark,duckdb]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_printed() -> None:
    done = run("import sys; from statebed.cli import main; sys.exit(main(['--version']))")
    assert (done.returncode, done.stdout.split()[0]) == (0, "statebed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_stopped_says_how_to_go_on_and_lets_its_job_be_ended(
    number: signal.Signals, request: pytest.FixtureRequest
) -> None:
    # Where tests run in the background, the shell has them ignore Ctrl-C.
    usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
    given = signal.signal(number, usual)
    request.addfinalizer(lambda: signal.signal(number, given))
    before = signal.getsignal(number)
    screen = io.StringIO()
    with pytest.raises(KeyboardInterrupt), resume_hint_on_interrupt(Console(file=screen)):
        signal.raise_signal(number)
    assert "resumes from there" in " ".join(screen.getvalue().split())
    assert signal.getsignal(number) is before


def test_help_groups_the_commands_and_leaves_none_out() -> None:
    done = run("import sys; from statebed.cli import main; sys.exit(main(['--help']))")
    for panel in PANELS:
        assert f"─ {panel} ─" in done.stdout
    assert "─ Commands ─" not in done.stdout, "each belongs to a group"


def test_ctrl_c_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listings, "summarise_jobs", stopped)
    assert main(["ls", "."]) == 130


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("ls {state} > /dev/full", 1, "cannot be written"),
        ("--help > /dev/full", 1, "cannot be written"),
        ("ls {state} --json | true", 0, ""),
        ("ls {state} >&-", 0, ""),
        ("ls {state}/nowhere 2>&-", 1, ""),
        ("gc {state} rides --offline <&-", 1, "confirmation needed, but stdin is not a terminal"),
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(
    rides: Path, monkeypatch: pytest.MonkeyPatch, line: str, code: int, said: str
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # what is buffered is written at the end of the process
    command = f"{sys.executable} -m statebed.cli {line.format(state=rides)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert said in done.stderr
    assert done.returncode == code
