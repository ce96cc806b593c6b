"""Sink in the memory of this process, for tests and notebooks. Exactly once while the process lives."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.protocol import Guarantee, PublishStep, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.base import BaseSink
from statebed.sinks.row_shape import RowShape, shaped_rows


class MemorySink(BaseSink):
    """Keeps the rows of every epoch, in a shape. `show` is called with all rows when they change.

    >>> sb.MemorySink("out").guarantee.value
    'exactly once'
    """

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    kind: str = "memory"
    keeps_position: ClassVar[bool] = False  # its rows end with the process, which is no reason to refuse a start

    def __init__(
        self, sink_id: str, *, shape: RowShape | None = None, show: Callable[[pa.Table], object] | None = None
    ) -> None:
        super().__init__(sink_id)
        self._position: SinkPosition | None = None
        self._lock = threading.Lock()
        self._shape = shape
        self._show = show
        self._tables: dict[int, pa.Table | None] = {}

    @property
    def described(self) -> str:
        return "memory of the driver"

    @property
    def target(self) -> str:
        """Name of the view, in lower case because Spark ignores case."""
        return "" if self._show is None else f"view {self.sink_id.lower()}"

    def peek(self) -> SinkPosition | None:
        with self._lock:
            return self._position

    @property
    def epochs(self) -> dict[int, list[dict[str, Any]]]:
        """Rows by epoch; an epoch without rows has an empty list."""
        with self._lock:
            return {epoch: [] if rows is None else rows.to_pylist() for epoch, rows in sorted(self._tables.items())}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows in the order of epochs."""
        return [row for rows in self.epochs.values() for row in rows]

    def open(self, run: int) -> SinkPosition | None:
        with self._lock:
            before = self._position
            if before is not None and before.run >= run:
                raise self.fenced(run, before.run)
            self._position = SinkPosition(run=run, epoch=before.epoch if before else 0)
            self._shown()
            return before

    def roll_back(self, run: int, epoch: int) -> None:
        with self._lock:
            if self._position is not None and self._position.run != run:
                raise self.fenced(run, self._position.run)
            self._position = SinkPosition(run=run, epoch=epoch)
            self._tables = {number: rows for number, rows in self._tables.items() if number <= epoch}
            self._shown()

    def publish(self, publication: Publication) -> None:
        rows = shaped_rows(publication, self._shape)
        with self._lock:
            delivery = decide_delivery(self._position, run=publication.run, epoch=publication.epoch)
            if delivery is PublishStep.REFUSE:
                raise self.fenced(publication.run, self._position.run if self._position else 0)
            if delivery is PublishStep.WRITE:
                self._tables[publication.epoch] = rows
                self._position = SinkPosition(run=publication.run, epoch=publication.epoch)
                if rows is not None:
                    self._shown()

    def _shown(self) -> None:
        if self._show is None or self._shape is None:
            return
        tables = [rows for _, rows in sorted(self._tables.items()) if rows is not None]
        empty = self._shape.schema.empty_table()
        self._show(pa.concat_tables(tables, promote_options="default") if tables else empty)
