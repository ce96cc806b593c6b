"""Sink that calls a user's function. At least once, because the function cannot tell what it already has.

The function gets the rows of an epoch and the epoch's number. Its effects are exactly once if it stores that number in
the transaction that writes the rows, and skips epochs that are already stored. Epochs without rows are skipped.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.errors import SinkError, error_text, raised_at
from statebed.sinks.base import BaseSink
from statebed.sinks.row_shape import RowShape, shaped_rows


class FunctionSink(BaseSink):
    """Calls `function(rows, epoch)`; `to_frame` converts the rows from Arrow, for Spark to a DataFrame."""

    kind: str = "function"

    def __init__(
        self,
        *,
        sink_id: str,
        function: Callable[[Any, int], object],
        to_frame: Callable[[pa.Table], Any],
        shape: RowShape | None = None,
    ) -> None:
        super().__init__(sink_id)
        self._function = function
        self._to_frame = to_frame
        self._shape = shape

    @property
    def described(self) -> str:
        return f"function {getattr(self._function, '__name__', type(self._function).__name__)}"

    def rows_of(self, publication: Publication) -> pa.Table | None:
        """Return the rows for the function, or None if it is not called for the epoch."""
        return shaped_rows(publication, self._shape)

    def publish(self, publication: Publication) -> None:
        rows = self.rows_of(publication)
        if rows is None:
            return
        try:
            self._function(self._to_frame(rows), publication.epoch)
        except (Exception, SystemExit) as error:
            raise SinkError(
                f"the function of {self.label} raised {error_text(error)}",
                where=f"epoch {publication.epoch}, {rows.num_rows} rows; {raised_at(error)}",
                fix="fix the function and start the job again: the epoch is committed, and is published first",
            ) from error
