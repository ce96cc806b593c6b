"""A function of the user's as sink: at least once, because it cannot be asked what it already has.

It gets the rows of an epoch and the epoch's number, and may make itself exactly once by comparing that number in its
own transaction. Epochs without rows are not handed over.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import SinkError
from statebed.format.names import check_name
from statebed.protocol import Guarantee, SinkPosition


class FunctionSink:
    """Calls `function(rows, epoch)`; `to_frame` makes the rows from Arrow, for Spark a DataFrame."""

    def __init__(
        self, *, sink_id: str, function: Callable[[Any, int], object], to_frame: Callable[[pa.Table], Any]
    ) -> None:
        self._sink_id = check_name("sink", sink_id)
        self._function = function
        self._to_frame = to_frame

    @property
    def sink_id(self) -> str:
        return self._sink_id

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.AT_LEAST_ONCE

    def open(self, run: int) -> SinkPosition | None:  # noqa: ARG002 - a function remembers no run
        return None

    def roll_back(self, run: int, epoch: int) -> None:
        """Nothing: what a function did cannot be taken back."""

    def publish(self, publication: Publication) -> None:
        rows = outbox_rows(publication)
        if rows is None:
            return
        try:
            self._function(self._to_frame(rows), publication.epoch)
        except Exception as error:
            raise SinkError(
                f"the function of sink {self._sink_id} failed with {type(error).__name__}: {error}",
                where=f"epoch {publication.epoch}, {rows.num_rows} rows",
                fix="mend the function and start the job again: the epoch is committed, and comes first then",
            ) from error


def outbox_rows(publication: Publication) -> pa.Table | None:
    """The rows of an epoch as one table, or None when it has none."""
    tables = [pq.read_table(pa.BufferReader(publication.read(file))) for file in publication.files]
    return pa.concat_tables(tables) if tables else None
