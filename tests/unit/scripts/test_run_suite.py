"""The script behind `make quick` and `make test`: it runs every test file, and starts nothing after a failure."""

import os
import re
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from slow import guards, slow_tests

from scripts import run_suite
from scripts.run_suite import LONG, PARTS, QUICK, Command, Part, Suite, commands_of, not_run, tools_of, without_jars

ROOT = Path(__file__).parents[3]


def command(name: str, shell: str, seconds: int = 1, *, alone: bool = False) -> Command:
    return Command(Part(name, seconds, command=("bash", "-c", shell), alone=alone), name, ["bash", "-c", shell])


def test_every_test_file_belongs_to_a_part_and_is_run_once() -> None:
    run_suite.check_complete()
    for part in (*PARTS, *QUICK, *LONG):
        files = Counter(
            word for command in commands_of(part) for word in command.arguments if word.startswith("tests/")
        )
        assert sorted(files) == (sorted(run_suite.files_of(part)) if part.paths else [])
        assert set(files.values()) <= {1}


def test_a_file_that_no_part_runs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_suite, "PARTS", tuple(part for part in PARTS if part.name != "s3"))
    with pytest.raises(SystemExit, match=r"no part .* runs tests/s3/"):
        run_suite.check_complete()


def test_tests_that_a_part_leaves_out_are_those_of_another_part_or_marked_long() -> None:
    left_out = {part.name: part.marks for part in PARTS if part.paths and part.marks != "not long"}
    assert left_out == {
        "keyed, compiled": "not slow and not long",
        "spark": "not cluster and not long",
        "cluster": "cluster and not long",
        "browser": "not alone and not long",
        "browser alone": "alone",
    }
    assert LONG[0].paths == ("tests",)
    assert LONG[0].marks == "long"


def test_commands_run_at_once_and_the_longest_start_first(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # Each waits until the other has begun.
    wait = "for _ in $(seq 400); do [ $(wc -l < {log}) -ge 2 ] && exit 0; sleep 0.05; done; exit 1"
    both = [command(name, f"echo {name} >> {log}; " + wait.format(log=log), 10) for name in ("first", "second")]
    suite = Suite([command("short", f"echo short >> {log}", 1), *both], lanes=2)
    assert suite.run() == 0
    assert sorted(log.read_text().split()[:2]) == ["first", "second"]
    assert log.read_text().split()[2] == "short"


def test_the_slowest_tests_of_all_commands_are_listed() -> None:
    shown = "3.50s call     tests/a.py::test_one[x y]\n12.00s setup    tests/b.py::test_two\n1 passed in 20s"
    results = [run_suite.Result(command("a", ""), 0, 20, shown), run_suite.Result(command("b", ""), 0, 1, "1 passed")]
    assert run_suite.slowest(results).split("\n") == [
        "    12 s  tests/b.py::test_two",
        "     4 s  tests/a.py::test_one[x y]",
    ]


def test_after_a_failure_nothing_starts_and_all_output_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    suite = Suite(
        [
            command("bad", "sleep 0.5; echo why; exit 3", 10),
            command("beside", "sleep 1.5", 9),
            command("later", "true", 1),
        ],
        lanes=2,
    )
    assert suite.run() >= 1
    printed = capsys.readouterr().out
    assert "bad FAILED" in printed
    assert "why" in printed
    assert [waiting.name for waiting in suite.waiting] == ["later"]


UNSTABLE = """
from pathlib import Path
import pytest

def test_fine():
    pass

@pytest.mark.parametrize("number", range({count}))
def test_second_time(number):
    seen = Path(__file__).with_suffix(f".{{number}}")
    before = seen.exists()
    seen.touch()
    assert before

def test_broken():
    assert {fine}
"""


@dataclass(frozen=True)
class Trial:
    """A file of tests, and what the suite makes of it."""

    status: int
    unstable: int = 0
    count: int = 1
    """Tests that fail the first time."""
    fine: bool = True
    java: bool = True


@pytest.mark.parametrize(
    "trial",
    [
        Trial(0, unstable=2, count=2),
        Trial(1, count=run_suite.MAX_UNSTABLE + 1),  # too many to be chance
        Trial(1, fine=False),
        Trial(1, java=False),
    ],
)
def test_a_few_tests_with_processes_are_run_again_and_named(
    tmp_path: Path, trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    file = tmp_path / "test_it.py"
    file.write_text(UNSTABLE.format(count=trial.count, fine=trial.fine))
    words = [sys.executable, "-m", "pytest", "-q", "-ra", "--rootdir", str(tmp_path), "-c", os.devnull, str(file)]
    result = run_suite.run(Command(Part("it", 1, paths=("tests",), java=trial.java), "it", words))
    assert (result.status, len(result.unstable)) == (trial.status, trial.unstable)
    assert not trial.unstable or result.tests == trial.count + 2
    assert all("test_it.py::test_second_time[" in test for test in result.unstable)


def test_a_part_that_runs_alone_waits_for_the_others(tmp_path: Path) -> None:
    busy = tmp_path / "busy"
    others = [command(name, f"touch {busy}{name}; sleep 0.2; rm {busy}{name}") for name in ("a", "b", "c")]
    alone = command("alone", f'[ -z "$(ls {tmp_path})" ]', 100, alone=True)
    assert Suite([alone, *others]).run() == 0


def test_what_needs_a_tool_starts_when_tools_are_there(tmp_path: Path) -> None:
    tools = Part(run_suite.TOOLS, 10, command=("bash", "-c", f"sleep 0.3; touch {tmp_path}/tool"))
    user = Part("user", 5, command=("bash", "-c", f"[ -e {tmp_path}/tool ]"), tools=("x",))
    begin = time.monotonic()
    assert Suite([one for part in (user, tools) for one in commands_of(part)]).run() == 0
    assert time.monotonic() - begin >= 0.3


def test_parts_wait_for_their_jars_while_others_run_and_are_left_out_without_them(tmp_path: Path) -> None:
    log, found = tmp_path / "log", threading.Event()

    def find_jars() -> dict[str, str]:
        assert found.wait(30)
        return {"missing": "no such set"}

    commands = [
        Command(Part(name, 10, command=("true",), jars=(name,)), name, ["bash", "-c", f"echo {name} >> {log}"])
        for name in ("here", "missing")
    ]
    suite = Suite([*commands, command("other", f"echo other >> {log}")], find_jars)
    threading.Timer(0.3, found.set).start()
    assert suite.run() == 0
    assert log.read_text().split() == ["other", "here"]
    assert suite.reasons == {"missing": "no such set"}


def test_jars_are_looked_for_when_tools_are_there(tmp_path: Path) -> None:
    tools = command(run_suite.TOOLS, f"sleep 0.3; touch {tmp_path}/tool")
    suite = Suite([tools], lambda: {} if (tmp_path / "tool").exists() else {"all": "no Java"})
    assert suite.run() == 0
    assert suite.reasons == {}


def test_the_tools_of_parts_are_looked_for_once() -> None:
    (tools,) = tools_of(PARTS)
    shell = tools.command[-1]
    assert shell.count("with-java") == shell.count("find-postgres") == shell.count("find-chromium") == 1
    assert all((ROOT / word).exists() for word in shell.split() if word.startswith("scripts/"))
    assert tools_of([Part("none", 1, command=("true",))]) == []


def test_a_part_whose_jars_cannot_be_had_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Part("broken", 1, command=("true",), jars=("no-such-set",))
    reasons = without_jars([broken, Part("other", 1, command=("true",))])
    assert list(reasons) == ["broken"]
    assert "NOT RUN: broken (statebed: jars: unknown set 'no-such-set'" in not_run(reasons)
    monkeypatch.setattr(run_suite, "TIERS", {"test": (broken, Part("fine", 1, command=("true",)))})
    monkeypatch.setattr("sys.argv", ["run_suite.py", "test"])
    assert run_suite.main() == 0


def test_every_slow_test_exists_and_none_of_them_catches_a_mutant() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^\s*def (test_\w+)\(", sources, flags=re.MULTILINE))
    assert not slow_tests() - defined, "make the list again: tests/slow.py says how"
    assert guards() <= defined
    assert not slow_tests() & guards()


@pytest.mark.parametrize("small_batches", [True, False])
def test_processes_of_tests_with_small_batches_import_the_installed_pyspark(*, small_batches: bool) -> None:
    part = Part("with Java", 1, command=("bash",), java=True, small_batches=small_batches)
    printed = run_suite.run(Command(part, part.name, ["bash", "-c", "echo :$PYTHONPATH:"])).output
    assert (f":{run_suite.PYTHON_STARTUP}:" in printed) == small_batches
    assert (run_suite.PYTHON_STARTUP / "sitecustomize.py").is_file()
