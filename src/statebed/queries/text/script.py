"""Runs the statements of a SQL text: definitions become tables and views, INSERTs and SELECTs become sinks of a job."""

from collections.abc import Sequence

from statebed.errors import InputError
from statebed.queries.text.python_functions import create_function
from statebed.queries.text.spark_errors import nearest
from statebed.queries.text.spark_settings import SPARK_PREFIX, set_spark
from statebed.queries.text.sql_tables import TEXT_OPTIONS, SqlTables
from statebed.queries.text.table_definitions import TableDefinition
from statebed.spark.api.job import Job
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

SHOWN = "select"
"""Name of the sink that shows the rows of a SELECT; the next ones have numbers."""


class SqlScript:
    """Statements of one job, run in order."""

    def __init__(self, job: Job, tables: SqlTables) -> None:
        self._job = job
        self._tables = tables

    def run(self, source: SqlText, statements: Sequence[Statement]) -> None:
        """Run statements; raise InputError at the first that is wrong."""
        for statement in statements:
            self.step(source, statement)

    def step(self, source: SqlText, statement: Statement) -> None:
        """Run one statement."""
        match statement:
            case CreateTable() | CreateView() | CreateFunction() if statement.if_not_exists and self._exists(statement):
                pass
            case CreateTable():
                self._check_free(source, statement)
                definition = TableDefinition.of(self._job, source, statement)
                definition.check_types()
                self._tables.define(definition)
            case CreateView():
                self._create_view(source, statement)
            case CreateFunction():
                create_function(self._job, source, statement)
            case InsertInto():
                self._insert(source, statement)
            case SetOption() if statement.name.text.startswith(SPARK_PREFIX):
                set_spark(source, self._job.spark, statement)
            case SetOption():
                raise source.mistake(
                    "the job exists already, so its settings cannot change",
                    statement.span,
                    fix=f"write Job(..., settings={{{statement.name.text!r}: {statement.value.text!r}}}), or run it "
                    "as a file: statebed sql pipeline.sql",
                )
            case SelectQuery():
                self._show(source, statement)

    def _exists(self, statement: CreateTable | CreateView | CreateFunction) -> bool:
        name = statement.name.text.lower()
        return name in (self._job.graph.functions if isinstance(statement, CreateFunction) else self._tables.names)

    def _check_free(self, source: SqlText, statement: CreateTable | CreateView) -> None:
        if statement.name.text.lower() in self._tables.names:
            raise source.mistake(
                f"there is a table or view {statement.name.text!r} already",
                statement.name.span,
                fix="choose another name, write CREATE TABLE IF NOT EXISTS to keep the first definition, or CREATE OR "
                "REPLACE VIEW",
            )

    def _create_view(self, source: SqlText, statement: CreateView) -> None:
        if not (statement.is_replacement and statement.name.text.lower() in self._tables.views):
            self._check_free(source, statement)
        df, _ = self._tables.analysed(source, statement.query, label=statement.name.text)
        if statement.columns:
            if len(statement.columns) != len(df.columns):
                raise source.mistake(
                    f"the view names {len(statement.columns)} columns, but its query has {len(df.columns)}",
                    statement.columns[0].span.to(statement.columns[-1].span),
                    fix=f"name all of {', '.join(df.columns)}",
                )
            df = df.toDF(*(entry.text for entry in statement.columns))
        self._tables.add_view(statement.name.text, df)

    def _insert(self, source: SqlText, statement: InsertInto) -> None:
        name = statement.table.text
        definition = self._tables.definitions.get(name.lower())
        if definition is None:
            is_view = name.lower() in self._tables.views
            raise source.mistake(
                f"{name!r} is a view, which cannot be written" if is_view else f"there is no table {name!r}",
                statement.table.span,
                fix=nearest(name, list(self._tables.definitions), what="tables"),
            )
        if definition.stored_name in self._job.sink_names:
            raise source.mistake(
                f"another INSERT writes to {name!r} already",
                statement.table.span,
                fix="combine both queries with UNION ALL, or write to a table of its own",
            )
        df, query = self._tables.analysed(source, statement.query, label=name)
        aligned = definition.aligned(df, statement, source)
        stream = self._tables.written(aligned, query, TEXT_OPTIONS)
        definition.write(stream, statement, source)

    def _show(self, source: SqlText, statement: SelectQuery) -> None:
        count = sum(name.startswith(SHOWN) for name in self._job.sink_names)
        name = SHOWN if not count else f"{SHOWN}_{count + 1}"
        df, query = self._tables.analysed(source, statement.query, label=name)
        stream = self._tables.written(df, query, TEXT_OPTIONS)
        try:
            stream.write("console", name=name)
        except InputError as error:
            raise source.mistake(error.what, statement.span, fix=error.fix) from error
