"""Bring known failures back, one at a time, and require that the test which guards against each of them fails.

    make mutants                      all of them
    make mutants MUTANTS="08 17"      those whose names begin so

Each patch in tests/mutants is applied to a copy of the tree; its header says in words which failure it brings back, and
which test must fail (`Test:`), by which error (`Error:`, an assertion unless it is named). Without the patch the same
test must pass. A patch that no longer applies, a test that cannot be collected or that times out, and a failure for
another reason are all errors: they prove nothing.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tests" / "mutants"
FAILURES = range(1, 19)
"""Ways in which earlier systems break; tests/mutants/README.md has the list."""
TEST_SECONDS = 120
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


def run_tests(folder: Path, tests: list[str]) -> Outcome:
    report = folder / "report.jsonl"
    environment = os.environ | {
        "PYTHONPATH": f"{folder / 'src'}:{folder / 'tests'}:{folder}",
        "MUTANT_SOURCE": str(folder / "src"),
        "MUTANT_REPORT": str(report),
        "CI": "1",  # the same examples in every run
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


def check_mutant(mutant: Mutant) -> tuple[str, float]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="statebed-mutant-") as name:
        folder = Path(name)
        copy_tree(folder)
        problem = apply(mutant.path, folder)
        problem = f"does not apply: {problem}" if problem else judge(mutant, run_tests(folder, [mutant.test]))
    return problem, time.monotonic() - begin


def check_unpatched(mutants: list[Mutant]) -> str:
    with tempfile.TemporaryDirectory(prefix="statebed-mutant-") as name:
        copy_tree(Path(name))
        outcome = run_tests(Path(name), sorted({mutant.test for mutant in mutants}))
    return "" if outcome.status == 0 else f"without any patch, tests fail:\n{outcome.output}"


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
    with ThreadPoolExecutor(arguments.at_once) as pool:
        unpatched = pool.submit(check_unpatched, mutants)
        waiting = [pool.submit(check_mutant, mutant) for mutant in mutants]
        problems = []
        for mutant, one in zip(mutants, waiting, strict=True):
            problem, seconds = one.result()
            verdict = "found" if not problem else "NOT FOUND"
            print(f"{mutant.name:42} {verdict:10} {seconds:5.1f} s  {mutant.failure}", flush=True)
            if problem:
                problems.append(f"{mutant.name}: {problem}")
        if unpatched.result():
            problems.append(unpatched.result())
    print(f"{len(mutants)} mutants, {len(problems)} problems, {time.monotonic() - begin:.0f} s")
    for problem in problems:
        print(f"\n{problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
