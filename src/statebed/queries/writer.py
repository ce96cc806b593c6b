"""`sb.write_stream(df)`: Spark's DataStreamWriter, with the query on statebed's operators.

    df.writeStream.format("parquet").option("checkpointLocation", "state").start("out")          # Spark
    sb.write_stream(df).format("parquet").option("checkpointLocation", "state").start("out")     # statebed

The folder of `checkpointLocation` holds the state of the job. Methods have Spark's names, so that porting a query is
one line.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame

from statebed.config.resolution import resolve
from statebed.errors import InputError
from statebed.format.names import stored_name
from statebed.format.stream_schema import Changes
from statebed.queries.explain import explained
from statebed.queries.job import QueryJob
from statebed.queries.shown_rows import BatchFunction, console_function, memory_function
from statebed.queries.started_query import StartedQuery
from statebed.queries.translation import MODES, Options, Translation
from statebed.queries.whole_table import is_without_keys, whole_table_sink
from statebed.sinks.registry import KINDS
from statebed.spark.api.stream import JobStream, Transformed
from statebed.spark.session import configuration

_TRANSIENT = frozenset({"console", "memory", "noop"})
"""Formats whose rows do not outlive the query, so that its state need not, either."""
_STATE = "checkpointLocation"
_OWN_OPTIONS = {_STATE.lower(): _STATE, "path": "path"}
"""Options that are not the sink's, by their names in lower case: Spark's options have any case."""
_BATCHES = "batches"
"""Name of the sink of foreachBatch."""


class StreamWriter:
    """Builder of a query; every method returns the writer itself."""

    def __init__(self, df: DataFrame, *, clock: str = "spark", approximate: bool = False, job: Any = None) -> None:
        self._df = df
        self._clock = clock
        self._approximate = approximate
        self._job = dict(job or {})
        self._format: str | None = None
        self._mode = "append"
        self._name: str | None = None
        self._options: dict[str, Any] = {}
        self._partition_by: tuple[str, ...] = ()
        self._function: BatchFunction | None = None
        self._start: dict[str, Any] = {}
        self._choices: dict[str, Any] = {}
        self._taken_over: str | Path | None = None

    def format(self, source: str) -> Self:
        """Choose the sink: one of statebed's, or a batch format of Spark's."""
        self._format = source
        return self

    def outputMode(self, outputMode: str) -> Self:  # noqa: N802, N803 - Spark's names
        """Choose "append", "update" or "complete"."""
        mode = str(outputMode).lower()
        if mode not in MODES:
            raise InputError(f"`outputMode` must be one of {list(MODES)}, got {outputMode!r}", fix="use 'append'")
        self._mode = mode
        return self

    def queryName(self, queryName: str) -> Self:  # noqa: N802, N803 - Spark's names
        """Name the query, and the job in a form that objects in a store can have; the default is "query"."""
        self._name = queryName
        return self

    def option(self, key: str, value: Any) -> Self:
        """Set an option of the sink, or `checkpointLocation`, in any case."""
        self._options[_OWN_OPTIONS.get(key.lower(), key)] = value
        return self

    def options(self, **options: Any) -> Self:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def partitionBy(self, *columns: str | Sequence[str]) -> Self:  # noqa: N802 - Spark's name
        """Partition the files of a format of Spark's by columns, or by those of one list."""
        self._partition_by = tuple(
            name for column in columns for name in ([column] if isinstance(column, str) else column)
        )
        return self

    def clusterBy(self, *columns: str | Sequence[str]) -> Self:  # noqa: N802 - Spark's name
        """Refuse: tables are partitioned, or clustered by their own definition."""
        raise InputError(
            f"clusterBy({', '.join(map(repr, columns))}) is not supported",
            fix="use partitionBy, or append to a table that is defined with CLUSTER BY: toTable(...)",
        )

    def foreachBatch(self, func: BatchFunction) -> Self:  # noqa: N802 - Spark's name
        """Call a function with the rows of each epoch and its number."""
        self._function = func
        return self

    def foreach(self, f: Any) -> Self:  # noqa: ARG002 - Spark's argument
        """Refuse: use foreachBatch."""
        raise InputError(
            "foreach writes rows one by one, without a transaction for an epoch",
            fix="use foreachBatch, which gets the rows of an epoch and its number",
        )

    def trigger(
        self,
        *,
        processingTime: str | None = None,  # noqa: N803 - Spark's names
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,  # noqa: N803
        realTime: str | None = None,  # noqa: N803
    ) -> Self:
        """Choose when batches run, as in Spark."""
        if realTime is not None:
            raise InputError("real-time mode has no batches", fix="use trigger(processingTime='1 second')")
        if sum(choice is not None for choice in (processingTime, once, continuous, availableNow)) != 1:
            raise InputError(
                "trigger() takes exactly one of processingTime, once and availableNow",
                fix="write trigger(availableNow=True) or trigger(processingTime='10 seconds')",
            )
        if continuous is not None:
            raise InputError("continuous processing has no batches", fix="use trigger(processingTime='1 second')")
        empty = {"processingTime=''": processingTime == "", "once=False": once is False}
        empty["availableNow=False"] = availableNow is False
        for choice, is_empty in empty.items():
            if is_empty:
                raise InputError(
                    f"trigger({choice}) does not choose a trigger",
                    fix="leave trigger() out to run batches one after the other until the query is stopped",
                )
        self._start = {"available_now": True} if processingTime is None else {"processing_time": processingTime}
        return self

    def startChoices(  # noqa: N802 - named like its neighbours
        self,
        *,
        removed: str = "refuse",
        sinks: Mapping[str, str] | None = None,
        abandon: Sequence[str] = (),
        skip: Mapping[str, int] | None = None,
        sources: Mapping[str, str] | None = None,
    ) -> Self:
        """Choose what to do where the start would be refused, or a sink refuses an epoch: see `job.start`."""
        self._choices = {"removed": removed, "sinks": sinks, "abandon": abandon, "skip": skip, "sources": sources}
        return self

    def takeOver(self, checkpoint: str | Path) -> Self:  # noqa: N802 - named like its neighbours
        """Continue from the checkpoint folder of Spark's own query, which must be stopped: see `job.take_over`."""
        self._taken_over = checkpoint
        return self

    def toTable(  # noqa: N802 - Spark's name
        self,
        tableName: str,  # noqa: N803 - Spark's names
        format: str | None = None,  # noqa: A002
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StartedQuery:
        """Start the query and append its rows to a table of Spark's catalog."""
        self._choose(format, outputMode, partitionBy, queryName, options)
        if self._mode != "append":
            raise InputError(f"toTable appends rows, but the mode is {self._mode!r}", fix="use foreachBatch")
        table_options = {name: value for name, value in self._options.items() if name != _STATE}
        self._options = {name: value for name, value in self._options.items() if name == _STATE}
        source, columns = self._format, self._partition_by

        def append(rows: DataFrame, _: int) -> None:
            writer = rows.write.mode("append").options(**table_options).partitionBy(*columns)
            (writer if source is None else writer.format(source)).saveAsTable(tableName)

        self._function = append
        return self.start()

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - Spark's names
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | Sequence[str] | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
        **options: Any,
    ) -> StartedQuery:
        """Open a run and start the query."""
        self._choose(format, outputMode, partitionBy, queryName, options)
        sink_options = dict(self._options)
        place = path or sink_options.pop("path", None)
        self._show(sink_options)
        state, temporary = self._state(sink_options.pop(_STATE, None))
        try:
            return self._started(state, temporary, place, sink_options)
        except BaseException:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
            raise

    def _choose(
        self,
        source: str | None,
        mode: str | None,
        columns: str | Sequence[str] | None,
        name: str | None,
        options: Mapping[str, Any],
    ) -> None:
        """Apply the arguments of `start` and `toTable`, each of which has a method."""
        self.options(**options)
        if source is not None:
            self.format(source)
        if mode is not None:
            self.outputMode(mode)
        if columns is not None:
            self.partitionBy(columns)
        if name is not None:
            self.queryName(name)

    @property
    def _sink_format(self) -> str:
        return self._format or "parquet"

    def _started(
        self, state: str | None, temporary: str | None, place: str | None, sink_options: dict[str, Any]
    ) -> StartedQuery:
        job = QueryJob(stored_name(self._name or "query"), **{"state": state, **self._job})
        is_update = self._mode == "update" and (self._function is not None or self._sink_format not in KINDS)
        whole = self._mode == "complete" and self._function is not None
        options_of_query = Options(
            self._mode, self._approximate, self._clock, whole_table=whole, tail_has_weights=not (whole or is_update)
        )
        translation = Translation(job, self._df, options_of_query)
        rows = translation.result()
        if is_update and _is_changelog(rows):
            sink_options.setdefault("form", "added")
        if self._function is not None and (whole or (is_update and is_without_keys(rows))):
            self._write_whole_table(job, rows, self._function, sink_options)
        elif self._function is not None:
            rows.write(self._function, name=_BATCHES, **sink_options)
        else:
            if self._partition_by:
                sink_options["partition_by"] = self._partition_by
            rows.write(self._sink_format, path=place, **sink_options)
        if self._taken_over is not None:
            job.take_over(self._taken_over)
        query = job.start(**self._start, **self._choices)
        return StartedQuery(query, name=self._name, plan=lambda: str(explained(translation, rows)), temporary=temporary)

    def _write_whole_table(
        self, job: QueryJob, rows: JobStream | Transformed, function: BatchFunction, options: Mapping[str, Any]
    ) -> None:
        if options.keys() - {"form"}:
            raise InputError(
                f"foreachBatch in {self._mode} mode does not accept {', '.join(sorted(options))}",
                where=f"job {job.name}",
                fix="remove the option",
            )
        stream = rows.stream if isinstance(rows, Transformed) else rows
        stream.write(whole_table_sink(job, self._df, rows, function, sink_id=_BATCHES))

    def _show(self, options: dict[str, Any]) -> None:
        """Choose the function for a format that shows rows; take its options out of `options`."""
        if self._function is None and self._format == "console":
            self._function = console_function(options)
        elif self._function is None and self._format == "memory":
            self._function = memory_function(self._df, self._name, is_whole=self._mode == "complete")

    def _state(self, checkpoint: str | None) -> tuple[str | None, str | None]:
        """Return the location of the state, and the folder to remove afterwards if there is a temporary one."""
        if checkpoint is not None:
            return checkpoint, None
        session = self._df.sparkSession
        keywords = {name: value for name, value in (self._job.get("settings") or {}).items() if name == "state"}
        settings = resolve(keywords, spark_conf=configuration(session), environ=os.environ, folder=Path.cwd())
        if "state" in settings.places:
            return None, None
        base = session.conf.get("spark.sql.streaming.checkpointLocation", None)
        if base is not None:
            return f"{base.rstrip('/')}/{stored_name(self._name or 'query')}", None
        if self._function is None and self._sink_format not in _TRANSIENT:
            raise InputError(
                f"format({self._sink_format!r}) needs a checkpoint location, because a restart continues from it",
                fix="add option('checkpointLocation', 'folder')",
            )
        folder = tempfile.mkdtemp(prefix="statebed-query-")
        return folder, folder


def _is_changelog(rows: JobStream | Transformed) -> bool:
    stream = rows.stream if isinstance(rows, Transformed) else rows
    return stream.frame is None and stream.output.changes is Changes.CHANGELOG
