"""State of a SQL shell: settings and definitions that hold for its later statements, and the jobs that it started.

Each SELECT and each INSERT is a job of its own, for which the definitions are run again: a job reads only the tables
that its query names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statebed.errors import InputError, StatebedError
from statebed.format.names import stored_name
from statebed.queries.explain import explained_text
from statebed.queries.job import QueryJob
from statebed.queries.text.connector_list import CONNECTORS
from statebed.queries.text.connectors import COMMON_OPTIONS, CONNECTOR
from statebed.queries.text.live_query import LiveQuery
from statebed.queries.text.pipeline import JOB_NAMES, TRIGGER, PipelineSettings
from statebed.queries.text.spark_errors import nearest
from statebed.queries.text.spark_settings import SPARK_PREFIX, set_spark
from statebed.queries.text.sql_tables import TEXT_OPTIONS
from statebed.spark.api.query import Query
from statebed.spark.session import default_session
from statebed.sql.shell_statements import DropDefinition, Droppable, ResetOption
from statebed.sql.source_text import SqlText
from statebed.sql.statements import (
    CreateFunction,
    CreateTable,
    CreateView,
    InsertInto,
    PlacedText,
    QueryText,
    SelectQuery,
    SetOption,
    Statement,
)

_CATALOGUE = "shell"
_SELECT = "select"
_KINDS = {Droppable.TABLE: CreateTable, Droppable.VIEW: CreateView, Droppable.FUNCTION: CreateFunction}


@dataclass(frozen=True)
class _Definition:
    source: SqlText
    statement: CreateTable | CreateView | CreateFunction

    @property
    def name(self) -> str:
        return self.statement.name.text


@dataclass(frozen=True)
class TableEntry:
    """A table or view, for SHOW TABLES."""

    name: str
    kind: str
    detail: str


@dataclass
class BackgroundJob:
    """A job that an INSERT has started."""

    name: str
    tables: tuple[str, ...]
    query: Query
    is_reported: bool = False
    """Whether its end was shown."""


class SqlSession:
    """Settings, definitions and jobs of one shell."""

    def __init__(
        self,
        *,
        state: str | None = None,
        settings: Mapping[str, str] | None = None,
        job: str | None = None,
        choices: Mapping[str, Any] | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        self._spark = spark
        self._fixed_state = state
        self._settings = dict(settings or {})
        self._options: dict[str, tuple[SqlText, SetOption]] = {}
        self._job_name = job
        self._choices = choices or {}
        self._definitions: list[_Definition] = []
        self._catalogue: QueryJob | None = None
        self._columns: dict[str, tuple[str, ...]] = {}
        self.jobs: dict[str, BackgroundJob] = {}
        self._configured(_CATALOGUE)  # a wrong setting is an error of the command

    @property
    def spark(self) -> SparkSession:
        """Session of Spark, which is started when it is first needed."""
        if self._spark is None:
            self._spark = default_session("sql")
        return self._spark

    @property
    def has_spark(self) -> bool:
        return self._spark is not None

    @property
    def state(self) -> str:
        """Location of the state of jobs that this shell starts."""
        return self._configured(_CATALOGUE, spark=self._spark).state_url

    # ---- settings --------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, str]:
        """Settings that the user chose, by name."""
        return self._settings | {name: option.value.text for name, (_, option) in self._options.items()}

    def set_option(self, source: SqlText, option: SetOption) -> None:
        """Apply a SET statement; raise InputError if the setting is unknown or its value is wrong."""
        PipelineSettings(source, [option]).job_with("check", None, {}, None)
        if option.name.text.startswith(SPARK_PREFIX):
            set_spark(source, self.spark, option)
        self._options[option.name.text] = (source, option)
        self._forget_catalogue()

    def reset_option(self, source: SqlText, statement: ResetOption) -> None:
        """Return a setting, or all of them, to what they were when the shell started."""
        if statement.name is None:
            self._options.clear()
        elif self._options.pop(statement.name.text, None) is None:
            raise source.mistake(
                f"{statement.name.text!r} was not set in this shell",
                statement.name.span,
                fix=nearest(statement.name.text, list(self._options), what="settings"),
            )
        self._forget_catalogue()

    # ---- definitions -----------------------------------------------------------------------------------------------

    def define(self, source: SqlText, statement: CreateTable | CreateView | CreateFunction) -> None:
        """Add a definition; raise InputError at the place of a mistake."""
        if statement.if_not_exists and self._is_defined(statement):
            return
        is_replaced = isinstance(statement, CreateView) and statement.is_replacement
        others = [
            entry
            for entry in self._definitions
            if not (is_replaced and isinstance(entry.statement, CreateView) and _same(entry.name, statement.name.text))
        ]
        catalogue = self._catalogue_job()
        try:
            catalogue.run_statements(source, [statement])
            self._columns[statement.name.text.lower()] = _columns_of(catalogue, statement)
        except StatebedError:
            self._forget_catalogue()
            raise
        self._definitions = [*others, _Definition(source, statement)]

    def _is_defined(self, statement: CreateTable | CreateView | CreateFunction) -> bool:
        is_function = isinstance(statement, CreateFunction)
        return any(
            _same(entry.name, statement.name.text) and isinstance(entry.statement, CreateFunction) == is_function
            for entry in self._definitions
        )

    def drop(self, source: SqlText, statement: DropDefinition) -> bool:
        """Remove a definition and return whether there was one; jobs that use it run on."""
        kind = _KINDS[statement.kind]
        kept = [
            entry
            for entry in self._definitions
            if not (isinstance(entry.statement, kind) and _same(entry.name, statement.name.text))
        ]
        if len(kept) == len(self._definitions):
            if statement.if_exists:
                return False
            names = [entry.name for entry in self._definitions if isinstance(entry.statement, kind)]
            what = statement.kind.value.lower()
            raise source.mistake(
                f"there is no {what} {statement.name.text!r}",
                statement.name.span,
                fix=nearest(statement.name.text, names, what=f"{what}s"),
            )
        before, self._definitions = self._definitions, kept
        self._forget_catalogue()
        try:
            self._catalogue_job()
        except StatebedError as error:
            self._definitions = before
            self._forget_catalogue()
            raise source.mistake(
                f"another definition needs {statement.name.text!r}: {error.what}",
                statement.name.span,
                fix="drop that definition first",
            ) from error
        return True

    @property
    def tables(self) -> list[TableEntry]:
        """Tables and views, in the order of their definitions."""
        return [
            TableEntry(entry.name, "table", entry.statement.options[CONNECTOR].text)
            if isinstance(entry.statement, CreateTable)
            else TableEntry(entry.name, "view", _one_line(entry.source.slice(entry.statement.query.span)))
            for entry in self._definitions
            if isinstance(entry.statement, CreateTable | CreateView)
        ]

    @property
    def functions(self) -> dict[str, str]:
        """Functions of the user: what they call, by name."""
        return {
            entry.name: entry.statement.target.text
            for entry in self._definitions
            if isinstance(entry.statement, CreateFunction)
        }

    @property
    def connectors(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Options of tables by connector, each with the values that it can have if they are known.

        `*` in an option stands for a column.
        """
        return {
            connector: {
                **dict.fromkeys(COMMON_OPTIONS, ()),
                **dict.fromkeys(entry.options_by_column, ()),
                **{name: known.values for name, known in entry.options.items()},
            }
            for connector, entry in CONNECTORS.items()
        }

    def definition_of(self, name: str) -> CreateTable | CreateView | None:
        """Return the statement that defined a table or view; None if there is none."""
        for entry in self._definitions:
            if not isinstance(entry.statement, CreateFunction) and _same(entry.name, name):
                return entry.statement
        return None

    def schema_of(self, name: str) -> StructType | None:
        """Return the columns of a table or view; None if it declares none.

        A table that cannot be opened, because it was not written yet, has its declared columns.
        """
        tables = self._catalogue_job().sql_tables
        try:
            return tables.schema_of(name)
        except StatebedError:
            return tables.definitions[name.lower()].request.physical_schema

    def columns_of(self, name: str) -> tuple[str, ...]:
        """Return the columns of a table or view without a call of Spark."""
        return self._columns.get(name.lower(), ())

    # ---- queries ---------------------------------------------------------------------------------------------------

    def analysed(self, source: SqlText, query: QueryText) -> DataFrame:
        """Let Spark analyse a query; raise InputError at the place of a mistake."""
        df, _ = self._catalogue_job().sql_tables.analysed(source, query, label=_SELECT)
        return df

    def live_query(self, source: SqlText, query: QueryText, *, once: bool) -> LiveQuery:
        """Start a query over streams as a temporary job; the caller closes it."""
        live = LiveQuery(once=once)
        try:
            job = self._job(_SELECT, state=live.state)
            df, rewritten = job.sql_tables.analysed(source, query, label=_SELECT)
            stream: Any = job.sql_tables.translated(df, rewritten, TEXT_OPTIONS)
            try:
                live.start(job, stream)
            except InputError as error:
                raise source.mistake(error.what, query.span, fix=error.fix) from error
        except BaseException:
            live.close()
            raise
        return live

    def explain(self, source: SqlText, statement: SelectQuery | InsertInto) -> str:
        """Return the plan of the job that a statement would start."""
        job = self._job(self._name_for([statement]))
        job.run_statements(source, [statement])
        return explained_text(job)

    # ---- jobs ------------------------------------------------------------------------------------------------------

    def insert(self, source: SqlText, statements: Sequence[Statement], *, once: bool) -> BackgroundJob:
        """Start a job of one or several INSERTs."""
        inserts = [entry for entry in statements if isinstance(entry, InsertInto)]
        name = self._name_for(statements)
        running = self.jobs.get(name)
        if running is not None and running.query.is_active:
            raise source.mistake(
                f"the job {name!r} is running",
                inserts[0].table.span,
                fix=f"STOP JOB {name}, or choose a name for the new job: SET 'job' = '{name}_2'",
            )
        job = self._job(name)
        job.run_statements(source, statements)
        every = None if once else self.settings.get(TRIGGER)
        query = job.start(available_now=once, processing_time=every, **self._choices)
        self.jobs[name] = BackgroundJob(name, tuple(entry.table.text for entry in inserts), query)
        return self.jobs[name]

    def stop(self, source: SqlText, name: PlacedText, *, drain: bool) -> BackgroundJob:
        """Stop a job after its current epoch."""
        job = self.jobs.get(name.text)
        if job is None:
            raise source.mistake(
                f"this shell has started no job {name.text!r}",
                name.span,
                fix=nearest(name.text, list(self.jobs), what="jobs"),
            )
        job.query.stop(drain=drain)
        job.is_reported = True
        return job

    def ended_jobs(self) -> list[BackgroundJob]:
        """Return the jobs that have ended since the last call."""
        ended = [job for job in self.jobs.values() if not job.query.is_active and not job.is_reported]
        for job in ended:
            job.is_reported = True
        return ended

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _name_for(self, statements: Sequence[Statement]) -> str:
        """Return the name of a job: the one that is set, or that of its first table."""
        chosen = next((self.settings[name] for name in JOB_NAMES if name in self.settings), self._job_name)
        first = next((entry.table.text for entry in statements if isinstance(entry, InsertInto)), _SELECT)
        return chosen or stored_name(first)

    def _catalogue_job(self) -> QueryJob:
        """Return the job whose tables are those of the shell; it is never started."""
        if self._catalogue is None:
            self._catalogue = self._job(_CATALOGUE)
        return self._catalogue

    def _forget_catalogue(self) -> None:
        self._catalogue = None

    def _job(self, name: str, *, state: str | None = None) -> QueryJob:
        """Return a job with the settings and definitions of the shell."""
        job = self._configured(name, state=state, spark=self.spark)
        for entry in self._definitions:
            job.run_statements(entry.source, [entry.statement])
        return job

    def _configured(self, name: str, *, state: str | None = None, spark: SparkSession | None = None) -> QueryJob:
        """Return a job with the settings of the shell; without `spark`, none is started."""
        options = [option for _, option in self._options.values()]
        fixed = {entry: value for entry, value in self._settings.items() if entry not in JOB_NAMES}
        chosen = PipelineSettings(SqlText("", "SQL"), options)
        return chosen.job_with(name, state or self._fixed_state, fixed, spark)


def _columns_of(catalogue: QueryJob, statement: CreateTable | CreateView | CreateFunction) -> tuple[str, ...]:
    """Return the columns of a new definition."""
    tables, name = catalogue.sql_tables, statement.name.text.lower()
    if isinstance(statement, CreateTable):
        return tuple(tables.definitions[name].column_names)
    if isinstance(statement, CreateView):
        return tuple(tables.views[name].columns)
    return ()


def _same(name: str, other: str) -> bool:
    return name.lower() == other.lower()


def _one_line(text: str) -> str:
    return " ".join(text.split())
