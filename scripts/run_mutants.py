"""Bring known failures back, one at a time, and require that the test which guards against each of them fails.

    make mutants                      all of them
    make mutants MUTANTS="08 17"      those whose names begin so

Each patch in tests/mutants is applied to a copy of the tree and taken back afterwards. Its header says in words which
failure it brings back, and which test must fail (`Test:`), by which error (`Error:`, an assertion unless it is named).
Without the patch the same test must pass. A patch that no longer applies, a test that cannot be collected or that
times out, and a failure for another reason are all errors: they prove nothing.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants"
FAILURES = range(1, 19)
"""Ways in which earlier systems break; tests/mutants/README.md has the list."""
TEST_SECONDS = 120
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


def run_tests(folder: Path, tests: list[str], **variables: str) -> Outcome:
    report = folder / "report.jsonl"
    report.unlink(missing_ok=True)
    environment = os.environ | {
        "PYTHONPATH": f"{folder / 'src'}:{folder / 'tests'}:{folder}",
        "MUTANT_SOURCE": str(folder / "src"),
        "MUTANT_REPORT": str(report),
        "CI": "1",  # the same examples in every run
        **variables,
    }
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-p", "mutants.reporting", "-o", f"timeout={TEST_SECONDS}", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3 * TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Outcome(-1, [], f"no end after {3 * TEST_SECONDS} seconds")
    lines = report.read_text().splitlines() if report.exists() else []
    return Outcome(done.returncode, [json.loads(line) for line in lines], done.stdout + done.stderr)


def apply(patch: Path, folder: Path) -> str:
    """Why the patch does not apply, or nothing."""
    command = ["git", "apply", "-p1", "-C1", "--recount", str(patch)]
    # A temporary folder inside some repository would make git look there.
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "git apply failed"


def judge(mutant: Mutant, outcome: Outcome) -> str:
    """Why the mutant does not count as found, or nothing."""
    if outcome.status == 0:
        return "SURVIVED: the test passes with the failure brought back"
    if outcome.status != 1:
        return f"pytest ended with status {outcome.status}, so the test did not run:\n{outcome.output}"
    for one in outcome.failures:
        expected = one["error"] == mutant.error or (one["error"] == "Failed" and "DID NOT RAISE" in one["message"])
        if one["when"] != "call" or not expected:
            return f"fails by {one['error']} in {one['when']} instead of {mutant.error}:\n{outcome.output}"
    return ""


def restore(patch: Path, folder: Path) -> None:
    """Bring back the files that the patch changes, with their times: bytecode of them is valid again."""
    for name in PATCHED.findall(patch.read_text()):
        shutil.copy2(ROOT / name, folder / name)


def check_mutant(mutant: Mutant, copies: "SimpleQueue[Path]") -> tuple[str, float]:
    begin = time.monotonic()
    folder = copies.get()
    try:
        problem = apply(mutant.path, folder)
        if problem:
            return f"does not apply: {problem}", time.monotonic() - begin
        # Bytecode of a patched module must not stay behind.
        outcome = run_tests(folder, [mutant.test], PYTHONDONTWRITEBYTECODE="1")
        return judge(mutant, outcome), time.monotonic() - begin
    finally:
        restore(mutant.path, folder)
        copies.put(folder)


def check_unpatched(mutants: list[Mutant], folder: Path) -> str:
    """Run the tests without a patch, which also compiles all modules for the runs with one."""
    outcome = run_tests(folder, sorted({mutant.test for mutant in mutants}))
    return "" if outcome.status == 0 else f"without any patch, tests fail:\n{outcome.output}"


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
    with ExitStack() as stack, ThreadPoolExecutor(arguments.at_once) as pool:
        folders = [stack.enter_context(copied_tree()) for _ in mutants[: arguments.at_once]]
        unpatched = list(pool.map(check_unpatched, [mutants[n :: len(folders)] for n in range(len(folders))], folders))
        copies: SimpleQueue[Path] = SimpleQueue()
        for folder in folders:
            copies.put(folder)
        waiting = [pool.submit(check_mutant, mutant, copies) for mutant in mutants]
        problems = [problem for problem in unpatched if problem]
        for mutant, one in zip(mutants, waiting, strict=True):
            problem, seconds = one.result()
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
