"""A sink in this process's memory, exactly once while the process lives: for tests and notebooks."""

import threading
from typing import Any

from statebed.checkpoint import Publication
from statebed.errors import FencedError
from statebed.format.names import check_name
from statebed.protocol import Delivery, Guarantee, SinkPosition
from statebed.protocol.publication import decide_delivery
from statebed.sinks.function import outbox_rows


class MemorySink:
    """Keeps the rows of every epoch."""

    def __init__(self, sink_id: str) -> None:
        self._sink_id = check_name("sink", sink_id)
        self._position: SinkPosition | None = None
        self._lock = threading.Lock()
        self.epochs: dict[int, list[dict[str, Any]]] = {}
        """Rows by epoch; an epoch without rows has an empty list."""

    @property
    def sink_id(self) -> str:
        return self._sink_id

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows, epochs in order."""
        with self._lock:
            return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]

    def open(self, run: int) -> SinkPosition | None:
        with self._lock:
            before = self._position
            if before is not None and before.run >= run:
                raise self._fenced(run, before)
            self._position = SinkPosition(run=run, epoch=before.epoch if before else 0)
            return before

    def roll_back(self, run: int, epoch: int) -> None:
        with self._lock:
            self._position = SinkPosition(run=run, epoch=epoch)
            self.epochs = {number: rows for number, rows in self.epochs.items() if number <= epoch}

    def publish(self, publication: Publication) -> None:
        table = outbox_rows(publication)
        with self._lock:
            delivery = decide_delivery(self._position, run=publication.run, epoch=publication.epoch)
            if delivery is Delivery.REFUSE:
                raise self._fenced(publication.run, self._position)
            if delivery is Delivery.WRITE:
                self.epochs[publication.epoch] = table.to_pylist() if table is not None else []
                self._position = SinkPosition(run=publication.run, epoch=publication.epoch)

    def _fenced(self, run: int, position: SinkPosition | None) -> FencedError:
        newer = position.run if position else 0
        return FencedError(
            f"sink {self._sink_id} was opened by run {newer}; run {run} is superseded",
            fix="do not restart this process: a newer run owns the job",
        )
