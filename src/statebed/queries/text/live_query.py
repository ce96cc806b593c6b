"""A query whose rows are shown while it runs: a temporary job with state in a temporary folder."""

import contextlib
import queue
import shutil
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from statebed.checkpoint import Publication
from statebed.errors import StatebedError, UnboundedStateWarning
from statebed.format.stream_schema import Changes
from statebed.queries.job import QueryJob
from statebed.sinks.base import BaseSink
from statebed.sinks.debezium import Envelope
from statebed.sinks.row_shape import Form, RowShape, shaped_rows
from statebed.spark.api.query import Query
from statebed.spark.api.stream import JobStream, Transformed

SINK = "rows"
_WAITING_TABLES = 8
"""Number of epochs whose rows may wait to be shown; after that the job waits."""
_POLL_SECONDS = 0.1


class LiveRowsSink(BaseSink):
    """Passes the rows of each epoch to a function in this process."""

    def __init__(self, shape: RowShape, show: Callable[[pa.Table], None]) -> None:
        super().__init__(SINK)
        self._shape = shape
        self._show = show

    @property
    def described(self) -> str:
        return "rows on the screen"

    def publish(self, publication: Publication) -> None:
        rows = shaped_rows(publication, self._shape)
        if rows is not None:
            self._show(rows)


class LiveQuery:
    """A running query; `tables` yields its rows epoch by epoch."""

    def __init__(self, *, once: bool) -> None:
        self._folder = tempfile.mkdtemp(prefix="statebed-select-")
        self._once = once
        self._rows: queue.Queue[pa.Table] = queue.Queue(_WAITING_TABLES)
        self._closed = threading.Event()
        self._query: Query | None = None

    @property
    def state(self) -> str:
        """Location of the temporary state."""
        return self._folder

    def start(self, job: QueryJob, stream: JobStream | Transformed) -> None:
        """Start the job that computes a stream."""
        if isinstance(stream, Transformed):
            stream.write(self._put_frame, name=SINK)
        else:
            # Rows of a source are forwarded by an operator of their own.
            whole = stream.forwarded()
            form = Form.WEIGHTS if whole.output.changes is Changes.CHANGELOG else Form.ROWS
            whole.write(LiveRowsSink(RowShape(whole.output, form, Envelope(job.name, SINK, ())), self._put))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnboundedStateWarning)  # the state ends with the query
            self._query = job.start(available_now=self._once)

    def tables(self, cancelled: threading.Event) -> Iterator[pa.Table]:
        """Yield the rows of each epoch until the query ends or is cancelled; raise its error if it failed."""
        assert self._query is not None
        while not cancelled.is_set():
            has_ended = not self._query.is_active
            try:
                yield self._rows.get(timeout=0 if has_ended else _POLL_SECONDS)
            except queue.Empty:
                if has_ended:
                    self._query.await_termination(0)
                    return

    def close(self) -> None:
        """Stop the job and remove its state."""
        self._closed.set()
        try:
            if self._query is not None:
                with contextlib.suppress(StatebedError):  # of a query that has failed and was reported
                    self._query.stop()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _put_frame(self, df: DataFrame, epoch: int) -> None:  # noqa: ARG002 - the shape of a sink's function
        self._put(df.toArrow())

    def _put(self, rows: Any) -> None:
        """Add rows; wait while too many are waiting to be shown."""
        while rows.num_rows and not self._closed.is_set():
            try:
                return self._rows.put(rows, timeout=_POLL_SECONDS)
            except queue.Full:
                continue
        return None
