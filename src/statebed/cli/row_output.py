"""Output of rows: a table for people, JSON or CSV for programs. Batches are printed as they arrive."""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from rich.text import Text

from statebed.cli import output
from statebed.cli.safe_text import clipped, plain, plain_json
from statebed.format.json_values import json_objects, json_values

MAX_TABLE_ROWS = 10_000
_WIDEST = 80


def first(batches: Iterable[pa.RecordBatch], rows: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `rows` rows, or all if it is None, reading no more batches than needed."""
    left = rows
    for batch in batches if rows != 0 else ():
        yield batch if left is None else batch.slice(0, left)
        left = None if left is None else left - batch.num_rows
        if left is not None and left <= 0:
            return


def print_csv(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Print CSV with a header line; nulls are empty. Control characters are escaped on a terminal only."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    safe = plain if sys.stdout.isatty() else str
    writer.writerow([safe(name) for name in schema.names])
    for batch in batches:
        columns = [texts(column) for column in batch.columns]
        writer.writerows([None if text is None else safe(text) for text in row] for row in zip(*columns, strict=True))


def print_json(batches: Iterable[pa.RecordBatch], head: Mapping[str, object]) -> None:
    """Print one JSON document: `head`, with the rows under "rows"."""
    start = plain_json(dict(head)).removesuffix("\n}")
    sys.stdout.write(f'{start}{"," if head else ""}\n  "rows": [')
    separator = "\n    "
    for batch in batches:
        for row in json_objects(pa.Table.from_batches([batch])):
            sys.stdout.write(f"{separator}{plain_json(row, indent=None)}")
            separator = ",\n    "
    sys.stdout.write("\n  ]\n}\n")


def print_table(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, title: str, keys: Sequence[str], limit: int | None
) -> None:
    """Print a table that fits the screen, with a note if there are more rows than it shows."""
    max_rows = MAX_TABLE_ROWS if limit is None else min(limit, MAX_TABLE_ROWS)
    read = pa.Table.from_batches(first(batches, max_rows + 1), schema=schema)
    screen = output.console()
    shown = output.table(title, schema.names, _rows(read.slice(0, max_rows)), right=_numbers(schema))
    screen.print(output.fit(shown, screen, expendable=[name for name in reversed(schema.names) if name not in keys]))
    if read.num_rows > max_rows:
        more = "--limit 0 shows all" if max_rows < MAX_TABLE_ROWS else "`statebed export` saves all"
        output.say(f"showing the first {max_rows:,} rows; {more}")
    elif not read.num_rows:
        output.say("no rows")


def _rows(rows: pa.Table) -> Iterator[list[object]]:
    columns = [[_cell(text) for text in texts(column)] for column in rows.combine_chunks().columns]
    yield from (list(row) for row in zip(*columns, strict=True))


def _cell(text: str | None) -> Text:
    return Text("null", style="dim") if text is None else Text(clipped(text, width=_WIDEST))


def texts(column: pa.Array | pa.ChunkedArray) -> list[str | None]:
    """Convert values to text: binary to base64, nested ones to JSON; None stays None."""
    if column.null_count == len(column):
        return [None] * len(column)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return [None if value is None else _text(value) for value in json_values(array)]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode("utf-8", "surrogatepass")


def _numbers(schema: pa.Schema) -> list[str]:
    def is_number(kind: pa.DataType) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    return [field.name for field in schema if is_number(field.type)]
