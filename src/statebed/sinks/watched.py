"""Sink that shows the rows of each epoch after another sink has received them."""

from collections.abc import Callable

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.sinks.base import BaseSink, outbox_rows
from statebed.sinks.transformed import TransformedSink

ShowRows = Callable[[str, int, pa.Table], None]
"""Called with the name of the sink, the epoch and its rows."""


def watched(sink: BaseSink, show: ShowRows) -> BaseSink:
    """Return a sink that also shows its rows, as they are behind a function before it."""
    return sink.to(WatchedSink(sink.inner, show)) if isinstance(sink, TransformedSink) else WatchedSink(sink, show)


class WatchedSink(TransformedSink):
    """Publishes rows to another sink unchanged, then passes them to `show`."""

    def __init__(self, sink: BaseSink, show: ShowRows) -> None:
        super().__init__(sink, lambda rows: rows, schema=pa.schema([]))
        self._show = show

    @property
    def described(self) -> str:
        return self._sink.described

    def publish(self, publication: Publication) -> None:
        self._sink.publish(publication)
        rows = outbox_rows(publication)
        if rows is not None and rows.num_rows:
            self._show(self.sink_id, publication.epoch, rows)
