"""`statebed sql` without a file: reads statements from a terminal, from `-e` or from a pipe, and runs them."""

import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from statebed.cli import output
from statebed.cli.extras import require
from statebed.cli.shell.line_editor import LineEditor, history_file
from statebed.cli.shell.state_catalogue import StateCatalogue
from statebed.cli.shell.statement_runner import QuitRequested, StatementRunner
from statebed.cli.shell.statement_thread import StatementThread
from statebed.cli.signals import interrupted_by_signals
from statebed.errors import StatebedError
from statebed.sql.completion import completions
from statebed.sql.source_text import SqlText
from statebed.sql.statement_buffer import StatementBuffer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebed.queries.text.sql_session import BackgroundJob, SqlSession

PROMPT = "statebed> "
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class ShellRequest:
    """Options of the command."""

    job: str | None
    state: str | None
    settings: tuple[tuple[str, str], ...]
    output_format: str
    choices: Mapping[str, Any]
    """Choices of `job.start` for the jobs of the shell."""
    once: bool = False


def run_statements(request: ShellRequest, texts: Sequence[str], *, name: str = "SQL") -> None:
    """Run the statements of texts and wait for the jobs that they start; raise the first error.

    `name` is the name of the texts in errors.
    """
    shell = _Shell(request, interactive=False, name=name)
    with interrupted_by_signals(), warnings.catch_warnings():
        warnings.showwarning = output.show_warning
        try:
            for text in texts:
                if not shell.run_text(text):
                    break
            shell.wait_for_jobs()
        except KeyboardInterrupt:
            pass
        finally:
            shell.close()


def interact(request: ShellRequest) -> None:
    """Read statements from the terminal until the user quits."""
    shell = _Shell(request, interactive=True)
    with _ended_by_signals():
        try:
            shell.read_lines()
        finally:
            shell.close()


class _Shell:
    """One shell, on a terminal or not."""

    def __init__(self, request: ShellRequest, *, interactive: bool, name: str = "SQL") -> None:
        self._request = request
        self._interactive = interactive
        self._buffer = StatementBuffer(name=name)
        self._spark = _active_session()
        # Without a location of the command, the jobs of this shell have the default one, attached when it has a job.
        states = StateCatalogue([request.state] if request.state is not None else [])
        self._runner = StatementRunner(
            self._session, states, output_format=request.output_format, interactive=interactive, once=request.once
        )
        self._thread = StatementThread(self._runner.interrupts.interrupt)

    def _session(self) -> "SqlSession":
        require("spark")
        from statebed.queries.text.sql_session import SqlSession

        request = self._request
        return SqlSession(
            state=request.state,
            settings=dict(request.settings),
            job=request.job,
            choices=request.choices,
            spark=self._spark,
        )

    # ---- without a terminal ----------------------------------------------------------------------------------------

    def run_text(self, text: str) -> bool:
        """Run the statements and commands of a text; return False if it asks to quit."""
        try:
            for number, line in enumerate(text.split("\n"), 1):
                if self._buffer.is_empty and line.lstrip().startswith("."):
                    self._thread.run(partial(self._runner.command, line))
                    continue
                for statement in self._buffer.add(line, number=number):
                    self._run(statement)
            for statement in self._buffer.rest():
                self._run(statement)
        except QuitRequested:
            return False
        return True

    def _run(self, statement: SqlText) -> None:
        def work(interrupted: threading.Event) -> bool:
            self._runner.run(statement, interrupted)
            return interrupted.is_set()

        if self._thread.run(work) and not self._interactive:
            raise KeyboardInterrupt

    def wait_for_jobs(self) -> None:
        """Wait until all jobs have ended; raise the error of one that failed."""
        for job in self._runner.running_jobs():
            if self._thread.run(partial(_waited_for, job)):
                raise KeyboardInterrupt
        for text in self._runner.ended_jobs():
            output.note(text)

    # ---- on a terminal ---------------------------------------------------------------------------------------------

    def read_lines(self) -> None:
        """Read and run statements until the user quits."""
        warnings.showwarning = output.show_warning
        editor = LineEditor(lambda text: completions(text, self._runner.names()), history_file())
        output.say(f"statebed {version('statebed')}; .help shows what can be typed, .quit or Ctrl-D ends the shell")
        while True:
            for text in self._runner.ended_jobs():
                output.note(text)
            try:
                line = editor.read(self._prompt(), before=self._buffer.text)
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                self._buffer.clear()
                continue
            except EOFError:
                sys.stdout.write("\n")
                return
            try:
                self._run_line(line, editor)
            except QuitRequested:
                return
            except StatebedError as error:
                output.print_problem(str(error))
            except Exception as error:  # noqa: BLE001 - the shell survives a statement that fails in an unforeseen way
                output.print_problem(f"{type(error).__name__}: {error}")

    def _run_line(self, line: str, editor: LineEditor) -> None:
        if self._buffer.is_empty and line.strip().lower() in {"quit", "exit", "\\q"}:
            raise QuitRequested
        if self._buffer.is_empty and line.strip().lower() in {"help", "\\?"}:
            line = ".help"
        if self._buffer.is_empty and line.lstrip().startswith("."):
            editor.remember(line.strip())
            self._thread.run(partial(self._runner.command, line))
            return
        statements = self._buffer.add(line)
        for statement in statements:
            editor.remember(statement.text)
        for statement in statements:
            self._run(statement)

    def _prompt(self) -> str:
        if self._buffer.is_empty:
            return PROMPT
        return f"{self._buffer.open_mark}> ".rjust(len(PROMPT))

    def close(self) -> None:
        """Stop all jobs."""
        running = self._runner.running_jobs()
        try:
            for job in running:
                if self._interactive:
                    output.note(f"stopping job {job.name} ...")
                self._thread.run(partial(_stopped, job))
                output.note(f"job {job.name} stopped at epoch {job.query.status.epoch}; the next run resumes there")
        finally:
            self._thread.close()


def _active_session() -> "SparkSession | None":
    """Return the session of the program that calls the command, if it has one."""
    if "pyspark" not in sys.modules:
        return None
    from statebed.spark.session import active_session

    return active_session()


def _waited_for(job: "BackgroundJob", interrupted: threading.Event) -> bool:
    """Wait for the end of a job; return whether the wait was interrupted."""
    while not interrupted.is_set() and not job.query.await_termination(_POLL_SECONDS):
        pass
    return interrupted.is_set()


def _stopped(job: "BackgroundJob", _: threading.Event) -> None:
    job.query.stop()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the shell and its jobs; Ctrl-C ends only a statement.

    A process that was started in the background ignores SIGINT unless it says otherwise.
    """

    def leave(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    handlers = {signal.SIGTERM: leave, signal.SIGHUP: leave, signal.SIGINT: signal.default_int_handler}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
