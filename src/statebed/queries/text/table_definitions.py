"""Tables of CREATE TABLE as streams of a job, and as sinks."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from statebed.errors import InputError
from statebed.format.names import stored_name
from statebed.format.stream_schema import Changes
from statebed.queries.text.connector_list import CONNECTORS
from statebed.queries.text.connectors import BROADCAST, CONNECTOR, DELETED, Connector, SqlTableRequest, connector_of
from statebed.queries.text.spark_errors import quiet_analysis, text_error
from statebed.queries.text.text_translation import BroadcastDeclaration
from statebed.spark.api.job import Job
from statebed.spark.api.stream import JobStream, Transformed
from statebed.spark.java_classes import java_class
from statebed.spark.plan.head_expressions import named_column
from statebed.sql.query_rewriter import rewrite_query
from statebed.sql.source_text import SqlText
from statebed.sql.statements import CreateTable, InsertInto


@dataclass(frozen=True)
class TableDefinition:
    """A table with its connector; its options have been checked."""

    job: Job
    connector: Connector
    request: SqlTableRequest

    @classmethod
    def of(cls, job: Job, source: SqlText, statement: CreateTable) -> "TableDefinition":
        """Check the definition of a table."""
        connector = connector_of(source, statement, CONNECTORS)
        definition = cls(job, connector, connector.request(source, statement, job.spark))
        definition._check_broadcast()
        return definition

    @property
    def name(self) -> str:
        return self.request.name

    @property
    def stored_name(self) -> str:
        """Name of its source or sink, which is part of the names of objects in the store."""
        return stored_name(self.name)

    @property
    def statement(self) -> CreateTable:
        return self.request.statement

    @property
    def column_names(self) -> list[str]:
        return [column.name.text for column in self.statement.columns]

    def check_types(self) -> None:
        """Raise InputError if the type of a column is none of Spark's, or that of the event time no timestamp."""
        schema, watermark = self.request.physical_schema, self.statement.watermark
        if schema is not None and watermark is not None:
            column = next((entry for entry in schema if entry.name.lower() == watermark.column.text.lower()), None)
            if column is not None:
                self._check_event_time(column.dataType)

    @property
    def is_readable(self) -> bool:
        return self.connector.read is not None

    @property
    def broadcast(self) -> BroadcastDeclaration | None:
        """Settings of the broadcast to all subtasks; None if the table is not broadcast."""
        option = self.statement.options.get(BROADCAST)
        if option is None or option.text.lower() != "true":
            return None
        deleted = self.statement.options.get(DELETED)
        key = tuple(self._declared(name.text) for name in self.statement.primary_key)
        return BroadcastDeclaration(self.stored_name, key, None if deleted is None else self._declared(deleted.text))

    def _declared(self, name: str) -> str:
        """Return a column's name as it was declared."""
        return next((column for column in self.column_names if column.lower() == name.lower()), name)

    def _check_broadcast(self) -> None:
        source, options = self.request.source, self.statement.options
        if BROADCAST in options and options[BROADCAST].text.lower() not in {"true", "false"}:
            text = options[BROADCAST].text
            raise self.request.mistake(
                f"broadcast must be true or false, got {text!r}", BROADCAST, fix="write broadcast = 'true'"
            )
        if self.broadcast is None:
            if DELETED in options:
                raise source.mistake(
                    "'deleted' is an option of broadcast tables",
                    self.statement.option_names[DELETED],
                    fix="add broadcast = 'true', or remove it",
                )
            return
        if not self.is_readable:
            kind = options[CONNECTOR].text
            raise source.mistake(
                f"a table of the connector {kind!r} cannot be read, so it cannot be broadcast",
                self.statement.option_names[BROADCAST],
                fix="remove the option 'broadcast'",
            )
        if not self.statement.primary_key:
            raise source.mistake(
                f"the broadcast table {self.name} has no primary key, by which its rows replace one another",
                self.statement.option_names[BROADCAST],
                fix="add PRIMARY KEY (column)",
            )
        if DELETED in options and options[DELETED].text.lower() not in [name.lower() for name in self.column_names]:
            raise self.request.mistake(
                f"'deleted' must name a boolean column, but there is no column {options[DELETED].text!r}",
                DELETED,
                fix=f"the columns are {', '.join(self.column_names)}",
            )

    def opened(self) -> tuple[DataFrame, tuple[str, dt.timedelta] | None]:
        """Return the rows of the table as a streaming DataFrame, and its watermark."""
        assert self.connector.read is not None
        frame = self._with_computed_columns(self.connector.read(self.request))
        watermark = self.statement.watermark
        if watermark is None:
            return frame, None
        name = next((entry for entry in frame.columns if entry.lower() == watermark.column.text.lower()), None)
        self._check_event_time(None if name is None else frame.schema[name].dataType)
        assert name is not None
        return frame, (name, dt.timedelta(microseconds=watermark.delay_us))

    def _check_event_time(self, kind: DataType | None) -> None:
        """Raise InputError if the column of the watermark has another type than TIMESTAMP, or does not exist."""
        watermark = self.statement.watermark
        assert watermark is not None
        if kind is None or kind.typeName() != "timestamp":
            raise self.request.source.mistake(
                f"the event time {watermark.column} must be a column of type TIMESTAMP, but "
                + ("there is no such column" if kind is None else f"it is {kind.simpleString()}"),
                watermark.column.span,
                fix="declare it as TIMESTAMP, or compute it: ts AS timestamp_millis(ms)",
            )

    def _with_computed_columns(self, frame: DataFrame) -> DataFrame:
        computed = [column for column in self.statement.columns if column.expression is not None]
        for column in computed:
            assert column.expression is not None
            query = rewrite_query(self.request.source, column.expression, label=self.name)
            try:
                value = F.expr(query.text)
                if column.type_text is not None:
                    value = value.cast(column.type_text.text)
                with quiet_analysis():
                    frame = frame.withColumn(column.name.text, value)
            except PySparkException as error:
                raise text_error(error, query, tables=[]) from error
        return frame.select(*map(named_column, self.column_names)) if computed else frame

    # ---- writing -------------------------------------------------------------------------------------------------

    def aligned(self, df: DataFrame, insert: InsertInto, source: SqlText) -> DataFrame:
        """Return the rows of a query with the columns of the table, matched by position as in SQL."""
        declared = self.request.physical_schema
        if declared is None and not insert.columns:
            return df
        names = [entry.text for entry in insert.columns] or (declared.names if declared is not None else [])
        self._check_names(insert, source, names)
        if len(df.columns) != len(names):
            raise source.mistake(
                f"the query has {len(df.columns)} columns ({', '.join(df.columns)}), but {self.name} takes "
                f"{len(names)} ({', '.join(names)})",
                insert.query.span,
                fix=f"select {len(names)} columns, in this order",
            )
        renamed = df if df.columns == names else df.toDF(*names)
        if declared is None:
            return renamed
        return self._stored(renamed, declared, source, insert)

    def _check_names(self, insert: InsertInto, source: SqlText, names: Sequence[str]) -> None:
        declared = [name.lower() for name in self.column_names]
        for column in insert.columns:
            if declared and column.text.lower() not in declared:
                raise source.mistake(
                    f"the table {self.name} has no column {column.text!r}",
                    column.span,
                    fix=f"its columns are {', '.join(self.column_names)}",
                )
        if len({name.lower() for name in names}) != len(names):
            raise source.mistake("a column is listed twice", insert.columns[0].span, fix="list every column once")

    def _stored(self, df: DataFrame, declared: Any, source: SqlText, insert: InsertInto) -> DataFrame:
        """Return the rows with the declared types; columns that the INSERT leaves out are null."""
        session = self.request.session
        can_store = java_class(session, "org.apache.spark.sql.catalyst.expressions.Cast").canANSIStoreAssign
        parse = java_class(session, "org.apache.spark.sql.types.DataType").fromJson
        supplied = {field.name.lower(): field for field in df.schema.fields}
        columns = []
        for field in declared.fields:
            result = supplied.get(field.name.lower())
            if result is None:
                columns.append(F.lit(None).cast(field.dataType).alias(field.name))
                continue
            value = named_column(result.name)
            if result.dataType != field.dataType:
                if not can_store(parse(result.dataType.json()), parse(field.dataType.json())):
                    raise source.mistake(
                        f"the column {field.name} of {self.name} is {field.dataType.simpleString()}, but the query "
                        f"gives {result.dataType.simpleString()}",
                        insert.query.span,
                        fix=f"write CAST(... AS {field.dataType.simpleString().upper()}) AS {field.name}",
                    )
                value = value.cast(field.dataType)
            columns.append(value.alias(field.name))
        is_stored = [(entry.name, entry.dataType) for entry in df.schema] == [
            (entry.name, entry.dataType) for entry in declared
        ]
        return df if is_stored else df.select(*columns)

    def write(self, stream: JobStream | Transformed, insert: InsertInto, source: SqlText) -> None:
        """Make the table a sink of the job."""
        if self.connector.write is None:
            kind = self.statement.options[CONNECTOR].text
            raise source.mistake(
                f"a table of the connector {kind!r} cannot be written", insert.table.span, fix="write to another table"
            )
        call = self.connector.write(self.request)
        key = [entry.text for entry in self.statement.primary_key]
        behind = stream.stream if isinstance(stream, Transformed) else stream
        is_changelog = behind.output.changes is Changes.CHANGELOG
        if call.takes_key and is_changelog and not key:
            raise source.mistake(
                f"the query updates rows, but {self.name} has no primary key to find them by",
                insert.table.span,
                fix=f"add PRIMARY KEY ({(self.column_names or behind.columns)[0]}) to CREATE TABLE {self.name}",
            )
        try:
            stream.write(
                call.sink,
                path=call.path,
                name=self.stored_name,
                key=key if call.takes_key and key else None,
                **call.options,
            )
        except InputError as error:
            raise source.mistake(error.what, insert.table.span, fix=error.fix) from error
