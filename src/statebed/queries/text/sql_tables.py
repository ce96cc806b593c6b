"""Tables that SQL text of a job can read: its sources, and views over them."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from statebed.queries.text.spark_errors import quiet_analysis, text_error
from statebed.queries.text.table_definitions import TableDefinition
from statebed.queries.text.text_translation import BroadcastDeclaration, TextTranslation
from statebed.queries.translation import Options
from statebed.spark.api.job import Job
from statebed.spark.api.stream import JobStream, Transformed
from statebed.spark.plan.source_frames import HIDDEN, field_with_watermark
from statebed.sql.query_rewriter import SparkQuery, rewrite_query
from statebed.sql.source_text import SqlText
from statebed.sql.sql_tokens import SqlToken
from statebed.sql.statements import QueryText

ROWS = "rows"
"""Kind of operator that passes the rows of a source, in its name."""
TEXT_OPTIONS = Options(clock="statebed", approximate=True)
"""Options of queries of SQL text: each operator has its own watermark. Results need not equal Spark's, so aggregates by
order of arrival follow the event time, and sketches are statebed's."""


class SqlTables:
    """Sources and views of one job, by name, for its SQL text."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._sources: dict[str, JobStream] = {}
        self.views: dict[str, DataFrame] = {}
        self.definitions: dict[str, TableDefinition] = {}
        self._texts: dict[str, SparkQuery] = {}
        self.translations: list[tuple[str, TextTranslation, JobStream]] = []
        """Translated queries, with the names of their outermost blocks."""

    @property
    def names(self) -> list[str]:
        return [*dict.fromkeys([*self.definitions, *self._sources, *self.views])]

    def define(self, definition: TableDefinition) -> None:
        """Add a table, which becomes a source of the job when a query first reads it."""
        self.definitions[definition.name.lower()] = definition

    def add_source(self, name: str, stream: JobStream) -> None:
        """Add a source of the job as a table."""
        self._sources[name.lower()] = stream

    def add_view(self, name: str, df: DataFrame) -> None:
        """Add the rows of a query as a table."""
        self.views[name.lower()] = df

    def schema_of(self, name: str) -> StructType | None:
        """Return the columns of a table or view; None if it declares none, and cannot be read."""
        frame = self._frame(name.lower())
        return self.definitions[name.lower()].request.physical_schema if frame is None else frame.schema

    def analysed(self, source: SqlText, query: QueryText, *, label: str) -> tuple[DataFrame, SparkQuery]:
        """Let Spark parse and analyse a query; raise InputError at the place of a mistake."""
        read = {name: self._frame(name) for name in self._mentioned(query.tokens, source)}
        frames = {name: frame for name, frame in read.items() if frame is not None}
        times = {name: _event_time(frame) for name, frame in frames.items()}
        rewritten = rewrite_query(source, query, label=label, event_times=times)
        session = self._job.spark
        with _registered(session, frames), quiet_analysis():
            try:
                df = session.sql(rewritten.text)
            except PySparkException as error:
                written = [name for name, frame in read.items() if frame is None]
                raise text_error(error, rewritten, tables=self.names, written=written) from error
        self._texts[rewritten.text] = rewritten
        return df, rewritten

    def translated(self, df: DataFrame, query: SparkQuery, options: Options) -> JobStream:
        """Return the stream of an analysed query."""
        if not df.isStreaming:
            span = query.blocks[0].span
            raise query.rewritten.source.mistake(
                "the query reads no stream", span, fix=f"read one of the tables {', '.join(self.names) or '(none)'}"
            )
        try:
            translation = TextTranslation(
                self._job,
                df,
                options,
                query=query,
                texts=self._texts,
                sources=self._sources,
                broadcasts=self._broadcasts(),
            )
        except PySparkException as error:  # a constant that Spark cannot compute, such as cast('x' as int)
            raise text_error(error, query, tables=self.names) from error
        stream: JobStream = translation.result()
        self.translations.append((query.blocks[0].label, translation, stream))
        return stream

    def written(self, df: DataFrame, query: SparkQuery, options: Options) -> JobStream | Transformed:
        """Return the rows of an analysed query for a sink; an operator that only passes them is named as others."""
        stream: Any = self.translated(df, query, options)
        _, translation, _ = self.translations[-1]
        return stream if isinstance(stream, Transformed) else stream.forwarded(partial(translation.operator_name, ROWS))

    def _broadcasts(self) -> dict[str, BroadcastDeclaration]:
        declared = {name: definition.broadcast for name, definition in self.definitions.items()}
        return {name: entry for name, entry in declared.items() if entry is not None}

    def _mentioned(self, tokens: tuple[SqlToken, ...], source: SqlText) -> list[str]:
        words = {
            (token.value if not token.is_word(token.value) else source.slice(token.span)).lower() for token in tokens
        }
        return [name for name in self.names if name in words]

    def _frame(self, name: str) -> DataFrame | None:
        """Return the rows of a table; None if it cannot be read."""
        if name in self.views:
            return self.views[name]
        if name not in self._sources:
            definition = self.definitions[name]
            if not definition.is_readable:
                return None
            frame, watermark = definition.opened()
            self._sources[name] = self._job.source(frame, name=definition.stored_name, watermark=watermark)
        read = self._sources[name].frame
        assert read is not None
        return read.df.drop(*HIDDEN)


def _event_time(df: DataFrame) -> str | None:
    field = field_with_watermark(df, where="SQL")
    return None if field is None else field.name


@contextlib.contextmanager
def _registered(session: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Make frames temporary views while Spark analyses a query; the user's own views of these names come back."""
    catalog = session._jsparkSession.sessionState().catalog()  # noqa: SLF001 - no public way to ask for views alone
    hidden = {name: session.table(name) for name in frames if catalog.getTempView(name).isDefined()}
    for name, frame in frames.items():
        frame.createOrReplaceTempView(f"`{name}`")
    try:
        yield
    finally:
        for name in frames:
            session.catalog.dropTempView(name)
            if name in hidden:
                hidden[name].createOrReplaceTempView(f"`{name}`")
