"""Runs the statements of a shell and prints their results."""

import fnmatch
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from statebed.cli import output, sql
from statebed.cli.shell.help_text import HELP
from statebed.cli.shell.result_printer import FORMATS, ResultPrinter
from statebed.cli.shell.state_catalogue import StateCatalogue, StateName
from statebed.config.settings import DECLARATIONS
from statebed.errors import InputError, StatebedError
from statebed.expressions import FUNCTIONS
from statebed.inspect.jobs import summarise_jobs
from statebed.present import units
from statebed.present.units import NOTHING
from statebed.sql.completion import CompletionNames
from statebed.sql.shell_statements import (
    AttachState,
    DescribeTable,
    DetachState,
    DropDefinition,
    ExplainStatement,
    QuitShell,
    ResetOption,
    ShellStatement,
    ShowHelp,
    ShowList,
    ShownList,
    StopJob,
    dotted_names,
    parse_shell_text,
    without_limit,
)
from statebed.sql.source_text import SqlText
from statebed.sql.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    InsertInto,
    SelectQuery,
    SetOption,
    Statement,
)

if TYPE_CHECKING:
    from statebed.queries.text.sql_session import BackgroundJob, SqlSession

MAX_ROWS = 1000
"""Rows of a result that an interactive shell shows unless the query has a LIMIT."""
_SWITCH = ("on", "off")
_NEWEST = "newest"
_JOB_OPTIONS = ("job", "processing_time")
_MICROSECONDS = 1_000_000


class QuitRequested(Exception):  # noqa: N818 - not an error
    """The user asked the shell to end."""


class StatementRunner:
    """Runs statements of one shell, one after the other."""

    def __init__(
        self,
        make_session: "Callable[[], SqlSession]",
        states: StateCatalogue,
        *,
        output_format: str,
        interactive: bool,
        once: bool,
    ) -> None:
        self._make_session = make_session
        self._session: SqlSession | None = None
        self._states = states
        self._format = output_format
        self._interactive = interactive
        self._once = once
        self.interrupts = sql.Interrupts()

    @property
    def session(self) -> "SqlSession":
        """Settings, definitions and jobs; made when the first statement needs Spark's package."""
        if self._session is None:
            self._session = self._make_session()
        return self._session

    # ---- statements ------------------------------------------------------------------------------------------------

    def run(self, source: SqlText, interrupted: threading.Event) -> None:
        """Run the statement of a text, or a statement set."""
        parsed = parse_shell_text(source)
        if not isinstance(parsed, list):
            self._run_shell_statement(source, parsed)
        elif len(parsed) == 1:
            self._run_statement(source, parsed[0], interrupted)
        elif parsed:
            self._run_set(source, parsed)

    def command(self, line: str, interrupted: threading.Event) -> None:  # noqa: C901 - one case for each
        """Run a command that begins with a dot."""
        name, _, argument = line.strip().partition(" ")
        argument = argument.strip().strip(";").strip("'\"")
        match name.rstrip(";"):
            case ".quit" | ".exit":
                raise QuitRequested
            case ".help":
                output.say_lines(HELP)
            case ".tables":
                self._show_tables(None)
            case ".jobs":
                self._show_jobs(None)
            case ".mode" if argument in FORMATS:
                self._format = argument
            case ".mode":
                raise InputError(
                    f".mode must be one of {', '.join(FORMATS)}, got {argument!r}", fix="write .mode table"
                )
            case ".results" if argument in _SWITCH:
                self._states.show_results(argument == "on")
            case ".results":
                raise InputError(f".results must be on or off, got {argument!r}", fix="write .results on")
            case ".epoch" if argument == _NEWEST or argument.isdecimal():
                self._states.show_epoch(None if argument == _NEWEST else int(argument))
            case ".epoch":
                raise InputError(
                    f".epoch must be a number or {_NEWEST}, got {argument!r}",
                    fix="write .epoch 12; statebed ls lists epochs",
                )
            case ".read":
                self._read(argument, interrupted)
            case _:
                raise InputError(f"there is no command {name!r}", fix=".help lists all commands")

    def _read(self, file: str, interrupted: threading.Event) -> None:
        from statebed.cli.pipeline import read_text
        from statebed.sql.statement_buffer import StatementBuffer

        buffer = StatementBuffer(name=file)
        for statement in [*buffer.add(read_text(Path(file).expanduser())), *buffer.rest()]:
            if interrupted.is_set():
                break
            self.run(statement, interrupted)

    def _run_shell_statement(self, source: SqlText, statement: ShellStatement) -> None:  # noqa: C901, PLR0912 - one case for each
        match statement:
            case ShowList():
                self._show(statement)
            case DescribeTable():
                self._describe(source, statement)
            case ExplainStatement():
                self._note_start()
                output.say_lines(self.session.explain(source, statement.statement))
            case AttachState(location=location):
                try:
                    jobs = self._states.attach(location.text)
                except StatebedError as error:
                    raise source.mistake(error.what, location.span, fix=error.fix) from error
                self._say(f"attached {location.text}: {_jobs_text(jobs)}")
            case DetachState(location=location):
                try:
                    self._states.detach(location.text)
                except InputError as error:
                    raise source.mistake(error.what, location.span, fix=error.fix) from error
            case StopJob(name=name, drain=drain):
                job = self.session.stop(source, name, drain=drain)
                self._say(f"job {job.name} stopped at epoch {job.query.status.epoch}")
            case DropDefinition():
                if self.session.drop(source, statement):
                    self._say(f"dropped {statement.name}")
            case ResetOption():
                self.session.reset_option(source, statement)
            case ShowHelp():
                output.say_lines(HELP)
            case QuitShell():
                raise QuitRequested

    def _run_statement(self, source: SqlText, statement: Statement, interrupted: threading.Event) -> None:
        match statement:
            case SetOption():
                self.session.set_option(source, statement)
            case CreateTable() | CreateView() | CreateFunction():
                self._note_start()
                self.session.define(source, statement)
                self._say(f"created {statement.name}")
            case InsertInto():
                self._start_job(source, [statement])
            case SelectQuery():
                self._select(source, statement, interrupted)

    def _run_set(self, source: SqlText, statements: Sequence[Statement]) -> None:
        other = next((entry for entry in statements if not isinstance(entry, InsertInto)), None)
        if other is not None:
            raise source.mistake(
                "a statement set has INSERTs alone", other.span, fix="run the other statements before it"
            )
        self._start_job(source, statements)

    def _start_job(self, source: SqlText, statements: Sequence[Statement]) -> None:
        self._note_start()
        job = self.session.insert(source, statements, once=self._once)
        self._states.add(self.session.state)
        self._states.forget()
        if self._interactive:
            self._say(
                f"job {job.name} writes to {', '.join(job.tables)}; SHOW JOBS lists it, STOP JOB {job.name} ends it"
            )

    # ---- SELECT ----------------------------------------------------------------------------------------------------

    def _select(self, source: SqlText, statement: SelectQuery, interrupted: threading.Event) -> None:
        began = time.monotonic()
        names = self._state_names(source, statement)
        if names:
            self._select_state(source, statement, names, interrupted, began)
            return
        self._note_start()
        query, limit = without_limit(statement.query)
        df = self.session.analysed(source, query)
        if not df.isStreaming:
            max_rows = MAX_ROWS if self._interactive and limit is None else limit
            table = (df if max_rows is None else df.limit(max_rows + (limit is None))).toArrow()
            self._print_result(iter([table]), table.schema, limit=limit, began=began)
            return
        live = self.session.live_query(source, query, once=self._once)
        printer = ResultPrinter(self._format)
        try:
            for table in live.tables(interrupted):
                left = None if limit is None else limit - printer.rows
                printer.print_rows(table if left is None else table.slice(0, left))
                if limit is not None and printer.rows >= limit:
                    break
        finally:
            live.close()
        self._say_rows(printer.rows, began, "; interrupted" if interrupted.is_set() else "")

    def _state_names(self, source: SqlText, statement: SelectQuery) -> list[tuple[tuple[str, ...], StateName]]:
        """Return the state tables that a query reads, as it writes them."""
        tables = {entry.name.lower() for entry in self._session.tables} if self._session is not None else set()
        result: dict[tuple[str, ...], StateName] = {}
        for name in dotted_names(source, statement.query.tokens):
            # A job is called after its table: behind FROM the name means its state, elsewhere a column of the table.
            is_column = not name.is_table and name.parts[0].lower() in tables
            state = None if is_column else self._states.resolve(name.parts)
            if state is not None:
                result[name.parts] = state
            elif name.is_table and len(several := self._states.matching(name.parts)) > 1:
                raise source.mistake(
                    f"several state tables are called {'.'.join(name.parts)}",
                    name.span,
                    fix="write job.operator.table, or DETACH one of "
                    + ", ".join(sorted({repr(state.location) for state in several})),
                )
            elif name.is_table:
                known = ", ".join(map(str, self._states.names))
                raise source.mistake(
                    f"there is no state table {'.'.join(name.parts)}",
                    name.span,
                    fix=f"the state tables are {known}" if known else "ATTACH the state location of its job",
                )
        return list(result.items())

    def _select_state(
        self,
        source: SqlText,
        statement: SelectQuery,
        names: Sequence[tuple[tuple[str, ...], StateName]],
        interrupted: threading.Event,
        began: float,
    ) -> None:
        _, limit = without_limit(statement.query)
        try:
            with self._states.answered(source, names, self.interrupts) as answer:
                tables = (pa.Table.from_batches([batch]) for batch in answer)
                self._print_result(tables, answer.schema, limit=limit, began=began)
        except InputError:
            if interrupted.is_set():
                self._say("interrupted")
                return
            raise

    def _print_result(self, tables: Iterator[pa.Table], schema: pa.Schema, *, limit: int | None, began: float) -> None:
        """Print the rows of a result that ends; in an interactive shell the first ones unless it has a limit."""
        max_rows = MAX_ROWS if self._interactive and limit is None else None
        printer = ResultPrinter(self._format)
        for table in tables:
            if max_rows is not None and printer.rows + table.num_rows > max_rows:
                printer.print_rows(table.slice(0, max_rows - printer.rows))
                self._say(f"the first {max_rows:,} rows; add LIMIT n for more or fewer")
                return
            printer.print_rows(table)
        if not printer.rows:
            printer.print_rows(schema.empty_table())
        self._say_rows(printer.rows, began, "")

    # ---- lists -----------------------------------------------------------------------------------------------------

    def _show(self, statement: ShowList) -> None:
        pattern = statement.pattern
        match statement.listing:
            case ShownList.TABLES:
                self._show_tables(pattern)
            case ShownList.VIEWS:
                rows = [(entry.name, entry.detail) for entry in self.session.tables if entry.kind == "view"]
                self._print_list(("view", "query"), rows, pattern)
            case ShownList.FUNCTIONS:
                own = [(name, target) for name, target in self.session.functions.items()]
                self._print_list(("function", "of"), [*own, *self._known_functions()], pattern)
            case ShownList.JOBS:
                self._show_jobs(pattern)
            case ShownList.SETTINGS:
                self._print_list(("setting", "value"), sorted(self.session.settings.items()), pattern)
            case ShownList.STATES:
                self._print_list(("state",), [(location,) for location in self._states.locations], pattern)

    def _show_tables(self, pattern: str | None) -> None:
        entries = self._session.tables if self._session is not None else []
        rows: list[tuple[str, ...]] = [(entry.name, entry.kind, entry.detail) for entry in entries]
        rows += [(str(name), "state", name.location) for name in self._states.names]
        self._print_list(("table", "kind", "what"), rows, pattern)

    def _show_jobs(self, pattern: str | None) -> None:
        started = {} if self._session is None else self._session.jobs
        rows = [_job_row(job) for job in started.values()]
        for location in self._states.locations:
            try:
                summaries = summarise_jobs(location)
            except StatebedError:
                continue  # the location has no job yet
            rows += [
                (summary.job, summary.status, str(summary.head or NOTHING), NOTHING, NOTHING, location)
                for summary in summaries
                if summary.job not in started
            ]
        self._print_list(("job", "status", "epoch", "rows in", "rows out", "tables or state"), rows, pattern)

    def _known_functions(self) -> list[tuple[str, str]]:
        if self._session is None or not self._session.has_spark:
            names: Iterable[str] = FUNCTIONS
        else:
            listed = self._session.spark.sql("SHOW SYSTEM FUNCTIONS").toArrow()
            names = listed.column(0).to_pylist()
        return [(name, "Spark SQL") for name in sorted(names) if name.replace("_", "").isalnum()]

    def _describe(self, source: SqlText, statement: DescribeTable) -> None:
        text = ".".join(statement.name)
        state = self._states.resolve(statement.name)
        if state is not None:
            rows = [(field.name, str(field.type), "") for field in self._states.schema_of(state)]
            self._print_list(("column", "type", ""), rows, None)
            return
        definition = self.session.definition_of(text)
        if definition is None:
            names = [entry.name for entry in self.session.tables] + [str(name) for name in self._states.names]
            raise source.mistake(
                f"there is no table {text!r}",
                statement.span,
                fix=f"the tables are {', '.join(names)}" if names else "there are no tables yet: CREATE TABLE ...",
            )
        schema = self.session.schema_of(text)
        notes = _column_notes(definition)
        rows = [
            (field.name, field.dataType.simpleString(), notes.get(field.name.lower(), ""))
            for field in (schema.fields if schema is not None else ())
        ]
        self._print_list(("column", "type", ""), rows, None)

    def _print_list(self, columns: Sequence[str], rows: Sequence[Sequence[str]], pattern: str | None) -> None:
        """Print a list whose first column matches a pattern: `*` and `%` stand for any text."""
        if pattern is not None:
            wanted = pattern.replace("%", "*").lower()
            rows = [row for row in rows if fnmatch.fnmatchcase(row[0].lower(), wanted)]
        table = pa.table(
            {name: pa.array([row[place] for row in rows], pa.string_view()) for place, name in enumerate(columns)}
        )
        printer = ResultPrinter(self._format)
        printer.print_rows(table)
        if self._format == "table":
            self._say(f"({_count(len(rows), 'row')})")

    # ---- notes -----------------------------------------------------------------------------------------------------

    def ended_jobs(self) -> list[str]:
        """Return a line for each job that has ended by itself since the last call."""
        ended = [] if self._session is None else self._session.ended_jobs()
        return [
            f"job {job.name} {job.query.status.state.value} at epoch {job.query.status.epoch}"
            + (f"\n{job.query.status.problem}" if job.query.status.problem else "")
            for job in ended
        ]

    def running_jobs(self) -> "list[BackgroundJob]":
        """Return the jobs that are running."""
        return [] if self._session is None else [job for job in self._session.jobs.values() if job.query.is_active]

    def names(self) -> CompletionNames:
        """Return the names that completion offers."""
        session = self._session
        states = {str(name): name for name in self._states.names}
        tables = [] if session is None else [entry.name for entry in session.tables]

        def columns(table: str) -> Sequence[str]:
            if table in states:
                return self._states.columns_of(states[table])
            return () if session is None else session.columns_of(table)

        return CompletionNames(
            tables=[*tables, *states],
            columns=columns,
            functions=[*FUNCTIONS, *([] if session is None else session.functions)],
            jobs=[] if session is None else list(session.jobs),
            settings=[*_JOB_OPTIONS, *DECLARATIONS],
            connectors=lambda: self.session.connectors,
            by_word={".mode": FORMATS, ".results": _SWITCH, ".epoch": (_NEWEST,)},
        )

    def _note_start(self) -> None:
        """Say that Spark starts, which takes seconds."""
        if self._interactive and not self.session.has_spark:
            output.note("starting Spark ...")

    def _say(self, text: str) -> None:
        """Print a remark for people; programs that read the output get the rows alone."""
        if self._interactive:
            output.say(text)

    def _say_rows(self, rows: int, began: float, more: str) -> None:
        seconds = units.duration(int((time.monotonic() - began) * _MICROSECONDS))
        self._say(f"({_count(rows, 'row')}, {seconds}{more})")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _jobs_text(jobs: Sequence[str]) -> str:
    return f"{_count(len(jobs), 'job')} ({', '.join(jobs)})" if jobs else "no jobs yet"


def _job_row(job: "BackgroundJob") -> tuple[str, ...]:
    progress = job.query.recent_progress
    rows_in, rows_out = (sum(getattr(summary, name) for summary in progress) for name in ("rows_in", "rows_out"))
    status = job.query.status
    return job.name, status.state.value, str(status.epoch), f"{rows_in:,}", f"{rows_out:,}", ", ".join(job.tables)


def _column_notes(definition: CreateTable | CreateView) -> dict[str, str]:
    """Return remarks on columns by name in lower case: key, event time, computed."""
    if isinstance(definition, CreateView):
        return {}
    notes: dict[str, list[str]] = {}
    for key in definition.primary_key:
        notes.setdefault(key.text.lower(), []).append("primary key")
    if definition.watermark is not None:
        notes.setdefault(definition.watermark.column.text.lower(), []).append("event time")
    for column in definition.columns:
        if column.expression is not None:
            notes.setdefault(column.name.text.lower(), []).append("computed")
    return {name: ", ".join(remarks) for name, remarks in notes.items()}
