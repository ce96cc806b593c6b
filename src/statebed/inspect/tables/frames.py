"""Rows as other libraries have them, and as a small table of HTML. Libraries are imported when they are asked for."""

import html as escaping
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from statebed.errors import MissingDependencyError

if TYPE_CHECKING:
    import duckdb
    import polars as pl

ROWS_SHOWN = 10
TEXT_SHOWN = 120
"""Characters of a value in a table of HTML."""


def first_rows(batches: Iterable[pa.RecordBatch], rows: int, schema: pa.Schema) -> pa.Table:
    """So many rows, of no more batches than they take."""
    found, left = [], rows
    for batch in batches if rows > 0 else ():
        found.append(batch.slice(0, left))
        left -= found[-1].num_rows
        if left <= 0:
            break
    return pa.Table.from_batches(found, schema=schema)


def to_pandas(rows: pa.Table) -> Any:
    """A data frame of pandas."""
    _imported("pandas", "spark")
    return rows.to_pandas()


def to_polars(rows: pa.Table) -> "pl.DataFrame":
    """A data frame of polars."""
    frame: pl.DataFrame = _imported("polars", "polars").from_arrow(rows)
    return frame


def to_duckdb(rows: pa.Table, connection: "duckdb.DuckDBPyConnection | None") -> "duckdb.DuckDBPyRelation":
    """A relation of DuckDB, of its default connection when none is given."""
    module = _imported("duckdb", "duckdb")
    return module.from_arrow(rows) if connection is None else connection.from_arrow(rows)


def html(title: str, rows: pa.Table) -> str:
    """The first rows; one more than are shown says that there are more."""
    shown = rows.slice(0, ROWS_SHOWN)
    named = [(_escaped(field.name), _escaped(field.type)) for field in rows.schema]
    heads = "".join(f"<th>{name}<br><small>{kind}</small></th>" for name, kind in named)
    cells = [[_cell(value) for value in column.to_pylist()] for column in shown.columns]
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
