"""Conversion of rows to other libraries and to a small HTML table. Libraries are imported on demand."""

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
"""Maximum number of characters of a value in an HTML table."""


class Answer(ABC):
    """Rows that are read lazily, batch by batch, in all supported forms."""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """Schema of the rows."""

    @property
    @abstractmethod
    def title(self) -> str:
        """One-line description of the rows."""

    @abstractmethod
    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches; about one row group per open file is held in memory."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def head(self, rows: int = 10) -> pa.Table:
        """Return the first rows found, reading no more than needed."""
        batches, left = [], rows
        for batch in self.to_batches() if rows > 0 else ():
            batches.append(batch.slice(0, left))
            left -= batches[-1].num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(batches, schema=self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as an Arrow stream, which is read batch by batch."""
        return pa.RecordBatchReader.from_batches(self.schema, self.to_batches())

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.schema)

    def to_pandas(self) -> Any:
        """Return all rows as a pandas DataFrame."""
        _imported("pandas", "spark")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> "pl.DataFrame":
        """Return all rows as a polars DataFrame."""
        frame: pl.DataFrame = _imported("polars", "polars").from_arrow(self.to_arrow())
        return frame

    def to_duckdb(self, connection: "duckdb.DuckDBPyConnection | None" = None) -> "duckdb.DuckDBPyRelation":
        """Return all rows as a DuckDB relation, on its default connection unless one is given."""
        module = _imported("duckdb", "duckdb")
        rows = self.to_arrow()
        return module.from_arrow(rows) if connection is None else connection.from_arrow(rows)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the rows to any library that accepts Arrow streams."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return html(self.title, self.head(ROWS_SHOWN + 1))


def html(title: str, rows: pa.Table) -> str:
    """Render the first rows; an extra row indicates that there are more."""
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
    # Text of one cell must not change the writing direction of its neighbours.
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
