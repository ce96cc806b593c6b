"""Bring known failures back, one at a time, and require that the test which guards against each of them fails.

    make mutants                      all of them
    make mutants MUTANTS="08 17"      those whose names begin so

Each patch in tests/mutants is applied to a copy of the tree and taken back afterwards. Its header says in words which
failure it brings back, and which test must fail (`Test:`), by which error (`Error:`, an assertion unless it is named).
Without the patch the same test must pass. A patch that no longer applies, a test that cannot be collected or that
times out, and a failure for another reason are all errors: they prove nothing.

Test runs are forked from this process, which has imported what all of them need but statebed: importing it took most of
the processor time of a run.
"""

import argparse
import gc
import importlib
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from multiprocessing.connection import wait
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants"
FAILURES = range(1, 19)
"""Ways in which earlier systems break; tests/mutants/README.md has the list."""
TEST_SECONDS = 120
LOADED = (
    "hypothesis",
    "numpy",
    "pandas",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "numba",
    "obstore",
    "google.protobuf.json_format",
    "google_crc32c",
    "msgspec",
    # The fixtures that all tests share need these.
    "confluent_kafka",
    "psycopg",
)
PATCHED = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
HEADER = re.compile(r"^(Failure|Here|Test|Error): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """A patch that brings a failure back."""

    path: Path
    failure: str
    test: str
    error: str

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def number(self) -> int:
        return int(self.name.partition("-")[0])

    @classmethod
    def read(cls, path: Path) -> "Mutant":
        header = dict(HEADER.findall(path.read_text().partition("\n--- ")[0]))
        missing = {"Failure", "Here", "Test"} - set(header)
        if missing or not re.match(r"[0-9]{2}-", path.name):
            raise SystemExit(f"{path.name}: the header lacks {sorted(missing)}, or the name its number")
        return cls(path, header["Failure"], header["Test"], header.get("Error", "AssertionError"))


@dataclass(frozen=True)
class Outcome:
    """Outcome of a test run: the exit status of pytest, and how each failing phase of a test failed."""

    status: int
    failures: list[dict[str, str]]
    output: str


def copy_tree(folder: Path) -> None:
    for name in ("src", "tests", "scripts", "requirements"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    shutil.copy2(ROOT / "pyproject.toml", folder)


def test_run(folder: Path, tests: list[str], **variables: str) -> None:
    """Run tests of a copy of the tree; the body of a forked process, which ends with the exit status of pytest."""
    with output_of(folder).open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    places = [str(folder / "src"), str(folder / "tests"), str(folder)]
    os.chdir(folder)
    os.environ.update(
        {
            "PYTHONPATH": os.pathsep.join(places),
            "MUTANT_SOURCE": places[0],
            "MUTANT_REPORT": str(report_of(folder)),
            "CI": "1",  # the same examples in every run
            **variables,
        }
    )
    sys.path[:0] = places
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in variables
    arguments = ["-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", "-p", "mutants.reporting"]
    # Of the modules that were imported before, pytest rewrites no assertions; they are not the project's.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    sys.exit(pytest.main([*arguments, "-o", f"timeout={TEST_SECONDS}", *tests]))


def report_of(folder: Path) -> Path:
    return folder / "report.jsonl"


def output_of(folder: Path) -> Path:
    return folder / "output.txt"


class Run:
    """A forked process that runs tests in a copy of the tree."""

    def __init__(self, folder: Path, tests: list[str], **variables: str) -> None:
        self.folder = folder
        self.begin = time.monotonic()
        report_of(folder).unlink(missing_ok=True)
        # Output that is still buffered would be written by the forked process, too.
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = multiprocessing.get_context("fork").Process(
            target=test_run, args=(folder, tests), kwargs=variables
        )
        self.process.start()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin

    def outcome(self) -> Outcome:
        """Wait for the end of the tests and return how they ended."""
        self.process.join(max(3 * TEST_SECONDS - self.seconds, 0))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            return Outcome(-1, [], f"no end after {3 * TEST_SECONDS} seconds")
        report = report_of(self.folder)
        lines = report.read_text().splitlines() if report.exists() else []
        output = output_of(self.folder).read_text(errors="replace")
        return Outcome(self.process.exitcode, [json.loads(line) for line in lines], output)


def apply(patch: Path, folder: Path) -> str:
    """Return why the patch does not apply, or an empty text."""
    command = ["git", "apply", "-p1", "-C1", "--recount", str(patch)]
    # A temporary folder inside some repository would make git look there.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "git apply failed"


def judge(mutant: Mutant, outcome: Outcome) -> str:
    """Return why the mutant does not count as found, or an empty text."""
    if outcome.status == 0:
        return "SURVIVED: the test passes with the failure brought back"
    if outcome.status != 1 or not outcome.failures:
        return f"the process ended with status {outcome.status}, so the test did not run:\n{outcome.output}"
    for failure in outcome.failures:
        expected = failure["error"] == mutant.error or (
            failure["error"] == "Failed" and "DID NOT RAISE" in failure["message"]
        )
        if failure["when"] != "call" or not expected:
            return f"fails by {failure['error']} in {failure['when']} instead of {mutant.error}:\n{outcome.output}"
    return ""


def restore(patch: Path, folder: Path) -> None:
    """Bring back the files that the patch changes, with their times: bytecode of them is valid again."""
    for name in PATCHED.findall(patch.read_text()):
        shutil.copy2(ROOT / name, folder / name)


def load() -> None:
    """Import what tests import, so that forked processes have it."""
    for module in LOADED:
        importlib.import_module(module)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    gc.collect()
    gc.freeze()  # a forked process would otherwise copy every page of the modules in its first collection


def check_unpatched(mutants: list[Mutant], folder: Path) -> str:
    """Run the tests without a patch, which also compiles all modules for the runs with one."""
    outcome = Run(folder, sorted({mutant.test for mutant in mutants})).outcome()
    return "" if outcome.status == 0 else f"without any patch, tests fail:\n{outcome.output}"


def check(mutants: list[Mutant], folders: list[Path]) -> Iterator[tuple[Mutant, str, float]]:
    """Test one mutant in each of the copies at a time; yield each with its problem, or nothing, and its seconds."""
    waiting, free = list(reversed(mutants)), list(folders)
    running: dict[Run, Mutant] = {}
    while waiting or running:
        while waiting and free:
            mutant, folder = waiting.pop(), free.pop()
            if problem := apply(mutant.path, folder):
                restore(mutant.path, folder)
                free.append(folder)
                yield mutant, f"does not apply: {problem}", 0.0
                continue
            # Bytecode of a patched module must not stay behind.
            running[Run(folder, [mutant.test], PYTHONDONTWRITEBYTECODE="1")] = mutant
        wait([run.process.sentinel for run in running], 1)
        for run in [run for run in running if run.process.exitcode is not None or run.seconds > 3 * TEST_SECONDS]:
            mutant = running.pop(run)
            problem = judge(mutant, run.outcome())
            restore(mutant.path, run.folder)
            free.append(run.folder)
            yield mutant, problem, run.seconds


@contextmanager
def copied_tree() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="statebed-mutant-") as name:
        copy_tree(Path(name))
        yield Path(name)


def chosen(names: list[str]) -> list[Mutant]:
    mutants = [Mutant.read(path) for path in sorted(MUTANTS.glob("*.patch"))]
    if not names:
        missing = sorted(set(FAILURES) - {mutant.number for mutant in mutants})
        if missing:
            raise SystemExit(f"no patch brings back the failures {missing}")
        return mutants
    unknown = [name for name in names if not any(mutant.name.startswith(name) for mutant in mutants)]
    if unknown:
        raise SystemExit(f"there are no mutants {unknown}; there are {[mutant.name for mutant in mutants]}")
    return [mutant for mutant in mutants if mutant.name.startswith(tuple(names))]


def main() -> int:
    parser = argparse.ArgumentParser(description="bring known failures back, and require that tests find them")
    parser.add_argument("names", nargs="*", help="beginnings of names of patches; none: all")
    parser.add_argument("--at-once", type=int, default=2, help="mutants that are tested at the same time (2)")
    arguments = parser.parse_args()
    mutants = chosen(arguments.names)
    begin = time.monotonic()
    load()
    with ExitStack() as stack:
        folders = [stack.enter_context(copied_tree()) for _ in mutants[: arguments.at_once]]
        problems = [check_unpatched(mutants[n :: len(folders)], folder) for n, folder in enumerate(folders)]
        problems = [problem for problem in problems if problem]
        for mutant, problem, seconds in check(mutants, folders):
            verdict = "found" if not problem else "NOT FOUND"
            print(f"{mutant.name:42} {verdict:10} {seconds:5.1f} s  {mutant.failure}", flush=True)
            if problem:
                problems.append(f"{mutant.name}: {problem}")
    print(f"{len(mutants)} mutants, {len(problems)} problems, {time.monotonic() - begin:.0f} s")
    for problem in problems:
        print(f"\n{problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
