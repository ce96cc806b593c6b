"""Jobs that also take queries: Spark's by `job.from_dataframe(df)`, and SQL text by `job.sql(text)`."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from statebed.errors import InputError
from statebed.flow.graph import SourceNode
from statebed.format.names import check_name
from statebed.quantities import Duration
from statebed.queries.takeover import take_over
from statebed.queries.text.script import SqlScript
from statebed.queries.text.sql_tables import TEXT_OPTIONS, SqlTables
from statebed.queries.translation import CLOCKS, MODES, Options, Translation
from statebed.spark.api.job import Job
from statebed.spark.api.stream import JobStream
from statebed.sql.source_text import SqlText
from statebed.sql.statement_parser import parse_query, parse_statements
from statebed.sql.statements import Statement


class QueryJob(Job):
    """A pipeline with one state location, which also takes queries of Spark's; users know it as `sb.Job`.

    >>> sb.Job("rides", state="s3://bucket/state").name
    'rides'
    """

    @property
    def state_url(self) -> str:
        """Location of the state."""
        return self._store.url

    @cached_property
    def sql_tables(self) -> SqlTables:
        """Tables and views that SQL text of this job can read."""
        return SqlTables(self)

    def source(
        self,
        df: DataFrame | str,
        name: str | DataFrame = "source",
        *,
        watermark: tuple[str, Duration] | None = None,
        idle_after: Duration | None = None,
    ) -> JobStream:
        stream = super().source(df, name, watermark=watermark, idle_after=idle_after)
        node = self.graph.nodes[stream.edge.node]
        assert isinstance(node, SourceNode)
        self.sql_tables.add_source(node.name, stream)
        return stream

    def sql(self, text: str, *, name: str = "sql", mode: str | None = None, approximate: bool = False) -> Any:
        """Return a stream with the rows of a SQL query; sources are its tables, by name.

        Spark parses the query, which may use Spark's functions, TUMBLE, HOP, SESSION and CUMULATE as table functions,
        interval joins, FOR SYSTEM_TIME AS OF, and ROW_NUMBER() for the first rows of a key. Operators are named after
        CTEs and aliases, or after `name`; `SELECT /*+ NAME('per_minute') */ ...` names them explicitly. `mode` and
        `approximate` are those of `from_dataframe`.
        """
        _check_mode(mode)
        source = SqlText(text)
        df, query = self.sql_tables.analysed(source, parse_query(source), label=check_name("operator", name))
        return self.sql_tables.translated(df, query, replace(TEXT_OPTIONS, mode=mode, approximate=approximate))

    def execute(self, text: str, *, file: str = "SQL") -> None:
        """Run the statements of a SQL text: CREATE TABLE, CREATE VIEW, CREATE FUNCTION, INSERT INTO and SELECT.

        INSERTs become sinks of this job, and SELECTs print their rows. `file` is the name of the text in errors.
        """
        source = SqlText(text, file)
        self.run_statements(source, parse_statements(source))

    def run_statements(self, source: SqlText, statements: Sequence[Statement]) -> None:
        """Run parsed statements of a text."""
        SqlScript(self, self.sql_tables).run(source, statements)

    def from_dataframe(
        self, df: DataFrame, *, mode: str | None = None, clock: str = "spark", approximate: bool = False
    ) -> Any:
        """Return a stream with the rows of a streaming DataFrame, computed by statebed's operators.

        `mode` is an output mode of Spark's: "append", "update" or "complete". Without it, windows give final rows when
        they close, and aggregates without a window give a changelog. `approximate` accepts aggregates whose results
        depend on the order of rows or differ from Spark's approximation, such as `first` and `approx_count_distinct`.
        `clock` is "spark" for Spark's watermark, so that each batch has the rows that Spark would give, or "statebed"
        for a watermark of each operator, which closes windows earlier.

        The result is a stream, or, if only Spark can compute the last steps, its rows on their way to a sink; both
        have `write`.
        """
        _check_mode(mode)
        if clock not in CLOCKS:
            raise InputError(f"`clock` must be one of {list(CLOCKS)}, got {clock!r}", fix="use 'spark'")
        if not df.isStreaming:
            raise InputError(
                "the DataFrame is not a stream", where=f"job {self.name}", fix="read it with spark.readStream"
            )
        return Translation(self, df, Options(mode, approximate, clock)).result()

    def take_over(self, checkpoint: str | Path) -> None:
        """Continue from the checkpoint folder of Spark's own query: its offsets, its watermark and its state.

        Call it after the query and its sinks are declared, and before `start`. The query must be the one that wrote the
        checkpoint, with at most one aggregation or deduplication; stop Spark's query first. If the job already has
        epochs, nothing happens, so the program may be started again.
        """
        take_over(self._plan(), self._store, checkpoint)


def _check_mode(mode: str | None) -> None:
    if mode is not None and mode not in MODES:
        raise InputError(f"`mode` must be one of {list(MODES)}, got {mode!r}", fix="use 'append'")
