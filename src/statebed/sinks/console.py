"""Sink that prints rows to the console. At least once, because printed lines cannot be retracted."""

import sys
from typing import Any, TextIO

import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.checkpoint import Publication
from statebed.format.json_values import json_values
from statebed.sinks.base import BaseSink
from statebed.sinks.row_shape import RowShape, shaped_rows

DEFAULT_ROWS = 20


class ConsoleSink(BaseSink):
    """Prints the first rows of every epoch with output, to standard output if `stream` is None.

    >>> sb.ConsoleSink(sink_id="screen", rows=5).guarantee.value
    'at least once'
    """

    kind: str = "console"

    def __init__(
        self, *, sink_id: str, shape: RowShape | None = None, rows: int = DEFAULT_ROWS, stream: TextIO | None = None
    ) -> None:
        super().__init__(sink_id)
        self._shape = shape
        self._rows = rows
        self._stream = stream

    @property
    def described(self) -> str:
        return f"console, {self._rows} rows of each epoch"

    def publish(self, publication: Publication) -> None:
        rows = shaped_rows(publication, self._shape)
        if rows is None:
            return
        stream = self._stream or sys.stdout
        stream.write(f"-- {self._sink_id}, epoch {publication.epoch}: {rows.num_rows} rows\n")
        stream.write("".join(f"{line}\n" for line in _lines(rows.slice(0, self._rows))))
        if rows.num_rows > self._rows:
            stream.write(f"... and {rows.num_rows - self._rows} more\n")
        stream.flush()


def _lines(rows: pa.Table) -> list[str]:
    """Return a header and the rows as lines, with aligned columns."""
    columns = [
        [name, *(_text(value) for value in json_values(one_chunk(column)))]
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in zip(*columns, strict=True)
    ]


def _text(value: Any) -> str:
    return "null" if value is None else str(value)
