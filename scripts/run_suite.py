"""Run parts of the test suite on all cores, and print how long each of them took.

    python scripts/run_suite.py quick             what to run after every edit
    python scripts/run_suite.py test              everything that CI runs
    python scripts/run_suite.py unit crash        the named parts

A part is a command, or a folder of tests that is dealt into several commands. Three commands run at once, the longest
first, so that two cores are busy while one of them waits. A command that passes prints one line; one that fails prints
all its output. After a failure no further command starts, unless `--keep-going` is given.

Tests of a few parts kill processes and wait for others on a machine that may be busy. If no more than `MAX_UNSTABLE`
of a command fail, these are run a second time, and the suite lists what failed first and passed then.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LANES = 3
"""Number of commands that run at once; `--lanes` changes it."""
BIN = Path(sys.executable).parent
ARCHIVE = Path(sys.prefix) / "spark-classes.jsa"
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xlog:disable"
"""Java options for a Spark that lives for seconds: one compiler and one collector take a third of the processor time.

With one compiler, Java keeps 48 MB for compiled code. The Spark that hundreds of tests share needs more: it would spend
a quarter of its time on dropping methods and compiling them again.

An archive of classes that does not fit is ignored; warnings about it would stand in what Spark's scripts read.
"""
FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
SMALL_BATCHES = " ".join(
    f"-Dspark.{name}"
    for name in (
        "ui.enabled=false",
        # Compiling a plan takes longer than running it on a few rows.
        "sql.codegen.wholeStage=false",
        "sql.codegen.factoryMode=NO_CODEGEN",
        # The usual manager starts a process of the system for each file that it writes, and writes two of each.
        f"sql.streaming.checkpointFileManagerClass={FILE_MANAGER}",
        "sql.streaming.checkpoint.fileChecksum.enabled=false",
        # Workers that are forked with statebed loaded; a local Spark that statebed starts has them, too.
        "python.daemon.module=statebed.spark.epoch.worker_daemon",
    )
)
"""Settings of Spark for many batches of few rows: its Java takes a quarter less processor time.

The part cluster, without them, runs Spark as users do.
"""
PYTHON_STARTUP = ROOT / "scripts" / "python_startup"
"""Folder of a module that every Python process of tests with small batches imports when it starts."""
PASSED = re.compile(r"(\d+) passed")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::.+?)(?: - .*)?$", re.MULTILINE)
MAX_UNSTABLE = 2
"""Number of failed tests of a command above which none is run again: then something is broken."""
TESTS_FAILED = 1
"""Exit status of pytest after failed tests; others are a crash, a wrong option or no test at all."""
DURATION = re.compile(r"^([\d.]+)s (?:call|setup|teardown) +(tests/.+?)$", re.MULTILINE)
SLOWEST = 15
"""Number of slow tests that are listed in the end."""
NOT_LONG = "not long"
HALF = (("TEST_EFFORT", "0.5"),)
"""Property tests try half of their examples, and other ones in every run."""
TOOLS = "tools"
FIND_JAVA, FIND_POSTGRES, FIND_CHROMIUM = "with-java true", "find-postgres", "find-chromium"


@dataclass(frozen=True)
class Part:
    """One part of the suite."""

    name: str
    seconds: int
    """Roughly how long it takes on one core. It decides only what starts first."""
    command: tuple[str, ...] = ()
    """Run this, if the part is not made of tests."""
    paths: tuple[str, ...] = ()
    """Patterns of test files."""
    chunks: int = 1
    """Number of commands that share the files."""
    marks: str = NOT_LONG
    java: bool = False
    small_batches: bool = False
    """Whether its Sparks have the settings `SMALL_BATCHES`."""
    tools: tuple[str, ...] = ()
    """Scripts that find or install what it needs of the system."""
    jars: tuple[str, ...] = ()
    """Sets of requirements/jars.toml. Where they cannot be downloaded, the part does not run, and the suite says so."""
    environment: tuple[tuple[str, str], ...] = ()
    alone: bool = False
    """Nothing else runs at the same time."""
    live: bool = False
    """Show its output while it runs."""
    options: tuple[str, ...] = ()
    """Further options of pytest."""

    @property
    def second_try(self) -> bool:
        """Whether failed tests are run again: those that start processes, or measure time."""
        return self.java or self.alone

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.tools, FIND_JAVA, FIND_POSTGRES) if self.java else self.tools


@dataclass(frozen=True)
class Command:
    """One process that the suite starts."""

    part: Part
    name: str
    arguments: list[str]

    @property
    def seconds(self) -> float:
        return self.part.seconds / self.part.chunks


@dataclass(frozen=True)
class Result:
    """Result of a command."""

    command: Command
    status: int
    seconds: float
    output: str
    unstable: tuple[str, ...] = ()
    """Tests that failed first and passed when they were run again."""

    @property
    def durations(self) -> list[tuple[float, str]]:
        """Return the slow tests of the command, with their seconds."""
        return [(float(seconds), test) for seconds, test in DURATION.findall(self.output)]

    @property
    def tests(self) -> int:
        return sum(map(int, PASSED.findall(self.output)))


KEYED = ("tests/model/test_keyed_view.py", "tests/unit/state/test_keyed*.py")
SPARK_CLASSES = Part(
    "spark classes",
    10_000,
    command=("bash", "-c", f"scripts/with-java {sys.executable} scripts/spark_classes.py {ARCHIVE} || touch {ARCHIVE}"),
    environment=(("JAVA_TOOL_OPTIONS", SHORT_LIVED),),
    tools=(FIND_JAVA,),
)
"""Archives the classes that Spark loads; tests continue without the archive where that cannot be done."""
CHECK = (
    Part("ruff", 2, command=("bash", "-c", f"{BIN}/ruff check . && {BIN}/ruff format --check .")),
    Part("mypy", 40, command=(str(BIN / "mypy"),)),
    Part("house rules", 10, paths=("tests/architecture",)),
)
PARTS = (
    *CHECK,
    Part("unit", 1500, paths=("tests/model", "tests/unit"), chunks=2, tools=(FIND_POSTGRES,), environment=HALF),
    Part(
        "keyed, compiled",
        20,
        paths=KEYED,
        marks=f"not slow and {NOT_LONG}",
        environment=(*HALF, ("STATEBED_COMPILED", "always")),
    ),
    Part("crash", 90, paths=("tests/simulation",), environment=HALF),
    Part("mutants", 120, command=(sys.executable, "scripts/run_mutants.py", "--at-once", "1"), environment=HALF),
    Part("s3", 30, paths=("tests/s3",)),
    Part("conformance", 120, paths=("tests/conformance",)),
    Part(
        "spark",
        1250,
        paths=("tests/spark",),
        chunks=2,
        marks=f"not cluster and {NOT_LONG}",
        java=True,
        small_batches=True,
    ),
    Part(
        "kafka",
        280,
        paths=("tests/kafka",),
        java=True,
        small_batches=True,
        jars=("kafka-source", "kafka-broker", "spark-avro"),
    ),
    Part("cluster", 150, paths=("tests/spark",), marks=f"cluster and {NOT_LONG}", java=True),
    Part(
        "browser",
        110,
        paths=("tests/browser",),
        marks=f"not alone and {NOT_LONG}",
        java=True,
        small_batches=True,
        tools=(FIND_CHROMIUM,),
    ),
    Part("browser alone", 10, paths=("tests/browser",), marks="alone", alone=True, tools=(FIND_CHROMIUM,)),
    Part("docs", 300, paths=("tests/docs",), java=True, small_batches=True),
    Part("docs site", 60, command=("make", "-s", "docs")),
)
"""Everything that `make test` runs."""
QUICK = (
    *CHECK,
    Part(
        "unit",
        190,
        paths=("tests/model", "tests/unit"),
        marks=f"not slow and {NOT_LONG}",
        chunks=3,
        tools=(FIND_POSTGRES,),
        environment=HALF,
    ),
    Part("crash", 60, paths=("tests/simulation",), marks=f"not slow and {NOT_LONG}", environment=HALF),
)
LONG = (
    Part("long", 3000, paths=("tests",), marks="long", java=True, chunks=2),
    Part(
        "property tests",
        3000,
        paths=("tests/model", "tests/unit", "tests/simulation"),
        environment=(("TEST_EFFORT", "10"),),
        options=("-o", "timeout=3600"),
        chunks=8,
    ),
)
SOAK = (Part("soak", 3000, paths=("tests/spark",), marks="cluster and long", options=("-s",), java=True, live=True),)
TIERS: dict[str, tuple[Part, ...]] = {
    "quick": QUICK,
    "test": PARTS,
    "long": LONG,
    "soak": SOAK,
    "check": CHECK,
    "unit": tuple(part for part in PARTS if part.name in {"unit", "keyed, compiled"}),
    "browser": tuple(part for part in PARTS if part.name.startswith("browser")),
}
OUTSIDE = ("tests/azure/",)
"""Tests that no part runs: they need more than `make env` can install."""


def files_of(part: Part) -> list[str]:
    """Return the test files of a part."""
    files: set[Path] = set()
    for pattern in part.paths:
        path = ROOT / pattern
        files.update(path.rglob("test_*.py") if path.is_dir() else ROOT.glob(pattern))
    return sorted(file.relative_to(ROOT).as_posix() for file in files)


def commands_of(part: Part) -> Iterator[Command]:
    """Yield the commands of a part; its files are dealt like cards, so that each command gets some of every folder."""
    if part.command:
        yield Command(part, part.name, [str(word) for word in part.command])
        return
    files = files_of(part)
    if not files:
        raise SystemExit(f"part {part.name!r} has no test files: {', '.join(part.paths)}")
    for number in range(part.chunks):
        arguments = [sys.executable, "-m", "pytest", "-q", "--color=yes" if sys.stdout.isatty() else "--color=no"]
        arguments += [f"--durations={SLOWEST}", "--durations-min=5"]
        arguments += [*part.options, "-m", part.marks, *files[number :: part.chunks]]
        if part.java:
            arguments = [str(ROOT / "scripts" / "with-java"), *arguments]
        yield Command(part, f"{part.name} {number + 1}/{part.chunks}" if part.chunks > 1 else part.name, arguments)


def run(command: Command) -> Result:
    """Run a command to its end, and tests of it that failed a second time where `MAX_UNSTABLE` allows it."""
    begin = time.monotonic()
    if not (command.part.second_try and command.part.paths):
        status, output = _run(command, command.arguments)
        return Result(command, status, time.monotonic() - begin, output)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [*command.arguments, "-o", f"cache_dir={folder}"]  # where pytest notes which tests failed
        status, output = _run(command, arguments)
        failed = tuple(dict.fromkeys(FAILED.findall(output)))
        if status != TESTS_FAILED or not 0 < len(failed) <= MAX_UNSTABLE:
            return Result(command, status, time.monotonic() - begin, output)
        status, again = _run(command, [*arguments, "--last-failed", "--last-failed-no-failures=none"])
        shown = f"{output}\n== a second time: {', '.join(failed)}\n{again}"
        return Result(command, status, time.monotonic() - begin, shown, () if status else failed)


def _run(command: Command, arguments: Sequence[str]) -> tuple[int, str]:
    """Run a program to its end; its exit status and what it printed."""
    environment = os.environ | dict(command.part.environment)
    if command.part.java:
        options = [SHORT_LIVED, f"-XX:SharedArchiveFile={ARCHIVE}", SMALL_BATCHES if command.part.small_batches else ""]
        environment["JAVA_TOOL_OPTIONS"] = " ".join(options).strip()
    if command.part.small_batches:
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PYTHON_STARTUP), os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        printed = None if command.part.live else output
        status = subprocess.run(
            arguments,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            check=False,
        ).returncode
        output.seek(0)
        return status, output.read()


class Suite:
    """Runs commands in `lanes` threads and keeps their results.

    Another thread calls `find_jars`, which returns the parts whose jars cannot be had, with the reason. They are left
    out; the others that need jars wait until then.
    """

    def __init__(
        self,
        commands: Sequence[Command],
        find_jars: Callable[[], dict[str, str]] = dict,
        *,
        keep_going: bool = False,
        lanes: int = LANES,
    ) -> None:
        self.find_jars = find_jars
        self.reasons: dict[str, str] | None = None
        """Reasons why parts are left out; None until known."""
        self.keep_going = keep_going
        self.lanes = lanes
        # Static checks first: they fail soonest.
        self.waiting = sorted(commands, key=lambda command: (command.part not in CHECK, -command.seconds))
        self.running: list[Command] = []
        self.results: list[Result] = []
        self.changed = threading.Condition()

    def run(self) -> int:
        """Run everything; the number of commands that failed, or did not start because another failed."""
        threads = [
            threading.Thread(target=self._jars),
            *(threading.Thread(target=self._lane) for _ in range(self.lanes)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(self.waiting) + sum(result.status != 0 for result in self.results)

    def _jars(self) -> None:
        """Find the jars when there is a Java to look for them with, and leave out the parts that miss theirs."""
        with self.changed:
            self.changed.wait_for(lambda: TOOLS not in self._awaited())
        reasons = self.find_jars()
        with self.changed:
            self.reasons = reasons
            self.waiting = [command for command in self.waiting if command.part.name not in reasons]
            self.changed.notify_all()

    def _awaited(self) -> set[str]:
        """Return the names of the parts that have not ended."""
        return {command.part.name for command in [*self.waiting, *self.running]}

    def _lane(self) -> None:
        while (command := self._next()) is not None:
            result = run(command)
            with self.changed:
                self.running.remove(command)
                self.results.append(result)
                _report(result)
                self.changed.notify_all()

    def _next(self) -> Command | None:
        """Take the next command that may start now, waiting for it where necessary; None at the end."""
        with self.changed:
            while True:
                failed = any(result.status for result in self.results)
                if not self.waiting or (failed and not self.keep_going):
                    return None
                command = next((command for command in self.waiting if self._may_start(command)), None)
                if command is not None:
                    self.waiting.remove(command)
                    self.running.append(command)
                    return command
                self.changed.wait()

    def _may_start(self, command: Command) -> bool:
        if any(other.part.alone for other in self.running):
            return False
        if command.part.alone:
            return not self.running and all(other.part.alone for other in self.waiting)
        if command.part.jars and self.reasons is None:
            return False
        awaited = self._awaited()
        if command.part.needs and TOOLS in awaited:
            return False
        return not (command.part.java and SPARK_CLASSES.name in awaited)


def _report(result: Result) -> None:
    if result.status:
        print(f"\n== {result.command.name} FAILED after {result.seconds:.0f} s\n{result.output}", flush=True)
        return
    tests = f"{result.tests:5} tests" if result.tests else ""
    if result.unstable:
        print(f"\n== {result.command.name}: passed the second time\n{result.output}", flush=True)
    print(f"== {result.command.name:22} {result.seconds:5.0f} s  {tests}", flush=True)


def table(results: Sequence[Result], seconds: float) -> str:
    """Lay out the seconds that all commands of each part took together, and the number of tests."""
    lines = [f"{'part':18} {'seconds':>8} {'tests':>6}"]
    for part in dict.fromkeys(result.command.part for result in results):
        of_part = [result for result in results if result.command.part is part]
        took, tests = sum(result.seconds for result in of_part), sum(result.tests for result in of_part)
        lines.append(f"{part.name:18} {took:8.0f} {tests or '':>6}")
    lines.append(f"{'by the clock':18} {seconds:8.0f} {sum(result.tests for result in results):>6}")
    return "\n".join(lines)


def slowest(results: Sequence[Result]) -> str:
    """List the tests that took most of the time."""
    tests = sorted((duration for result in results for duration in result.durations), reverse=True)[:SLOWEST]
    return "\n".join(f"{seconds:6.0f} s  {test}" for seconds, test in tests)


def tools_of(parts: Sequence[Part]) -> list[Part]:
    """Find or install what the parts need of the system, one tool after another: two installers at once collide."""
    scripts = dict.fromkeys(tool for part in parts for tool in part.needs)
    command = " && ".join(f"scripts/{script} >/dev/null" for script in scripts)
    return [Part(TOOLS, 20_000, command=("bash", "-c", command))] if scripts else []


def without_jars(parts: Sequence[Part]) -> dict[str, str]:
    """Download the jars of the parts; by part, the reason why its jars cannot be had."""
    reasons: dict[str, str] = {}
    for part in parts:
        if part.jars:
            done = subprocess.run(
                [ROOT / "scripts" / "with-java", sys.executable, ROOT / "scripts" / "jars.py", *part.jars],
                check=False,
                text=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
            if done.returncode:
                reasons[part.name] = done.stderr.strip() or f"scripts/jars.py ended with status {done.returncode}"
    return reasons


def not_run(reasons: Mapping[str, str]) -> str:
    """Describe the parts that did not run, in a block that cannot be overlooked."""
    lines = [f"NOT RUN: {name} ({reason.splitlines()[-1]})" for name, reason in reasons.items()]
    rule = "!" * max(len(line) for line in lines)
    return "\n".join([rule, *lines, rule])


def check_complete() -> None:
    """Refuse to run `test` if a test file belongs to no part: its tests would be lost without notice."""
    known = {file for part in PARTS for file in files_of(part)}
    every = {file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")}
    lost = sorted(file for file in every - known if not file.startswith(OUTSIDE))
    if lost:
        raise SystemExit(f"no part of scripts/run_suite.py runs {', '.join(lost)}")


def main() -> int:
    names = sorted({*TIERS, *(part.name for part in PARTS)})
    parser = argparse.ArgumentParser(description="run parts of the test suite on all cores")
    parser.add_argument("names", nargs="+", choices=names, metavar="PART", help=", ".join(names))
    parser.add_argument("--keep-going", action="store_true", help="start further commands after a failure")
    parser.add_argument("--lanes", type=int, default=LANES, help="number of commands that run at once")
    arguments = parser.parse_args()
    wanted = arguments.names
    if "test" in wanted:
        check_complete()
    parts = [part for name in wanted for part in TIERS.get(name, [part for part in PARTS if part.name == name])]
    if any(part.java for part in parts) and not ARCHIVE.exists():
        parts.append(SPARK_CLASSES)
    parts = list(dict.fromkeys(parts))
    parts += tools_of(parts)
    commands = [command for part in parts for command in commands_of(part)]
    begin = time.monotonic()
    suite = Suite(commands, lambda: without_jars(parts), keep_going=arguments.keep_going, lanes=arguments.lanes)
    failed = suite.run()
    print(f"\n{slowest(suite.results)}\n\n{table(suite.results, time.monotonic() - begin)}")
    if suite.reasons:
        print(f"\n{not_run(suite.reasons)}")
    for result in suite.results:
        for test in result.unstable:
            print(f"UNSTABLE: {test} failed and passed when it was run again")
    if failed:
        left = ", ".join(command.name for command in suite.waiting)
        print(f"FAILED: {', '.join(r.command.name for r in suite.results if r.status)}; not started: {left or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
