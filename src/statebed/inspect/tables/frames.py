"""Rows as other libraries have them, and as a small table of HTML. Libraries are imported when they are asked for."""

import html as escaping
from abc import ABC, abstractmethod
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.errors import MissingDependencyError
from statebed.format.json_values import json_values

if TYPE_CHECKING:
    import duckdb
    import polars as pl

ROWS_SHOWN = 10
TEXT_SHOWN = 120
"""Characters of a value in a table of HTML."""


class Answer(ABC):
    """Rows that are read when they are asked for, piece by piece, in all forms that they can be had in."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """The columns of the rows."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What they are, in a line."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, piece by piece; about one row group of each open file is held."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def head(self, rows: int = 10) -> pa.Table:
        """The first rows that are found; reads no more than it needs for them."""
        found, left = [], rows
        for batch in self.to_batches() if rows > 0 else ():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(found, schema=self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as Arrow's stream of batches, which is read piece by piece."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:
        """All rows as a data frame of pandas."""
        _imported("pandas", "spark")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """All rows as a data frame of polars."""
        frame: pl.DataFrame = _imported("polars", "polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """All rows as a relation of DuckDB, of its default connection when none is given."""
        module = _imported("duckdb", "duckdb")
        rows = self.to_arrow()
        return module.from_arrow(rows) if connection is None else connection.from_arrow(rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows for any library that takes Arrow streams."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return html(self.title, self.head(ROWS_SHOWN + 1))


def html(title: str, rows: pa.Table) -> str:
    """The first rows; one more than are shown says that there are more."""
    shown = rows.slice(0, ROWS_SHOWN)
    named = [(_escaped(field.name), _escaped(field.type)) for field in rows.schema]
    heads = "".join(f"<th>{name}<br><small>{kind}</small></th>" for name, kind in named)
    cells = [[_cell(value) for value in json_values(one_chunk(column))] for column in shown.columns]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in zip(*cells, strict=True))
    more = f"<p>The first {ROWS_SHOWN} rows.</p>" if rows.num_rows > ROWS_SHOWN else ""
    return (
        f"<table><caption>{_escaped(title)}</caption><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def _cell(value: object) -> str:
    text = "" if value is None else str(value)
    cut = text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + "…"
    # Text of one row must not turn the direction of what stands beside it.
    return f'<td dir="auto">{_escaped(cut)}</td>'


def _escaped(value: object) -> str:
    return escaping.escape(str(value), quote=True)


def _imported(name: str, extra: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            f"{name} is not installed", fix=f"pip install {name}, or pip install 'statebed[{extra}]'"
        ) from error
