"""Prints rows as they arrive: a table for people, CSV or one JSON object per line for programs.

The widths of a table are those of its first rows. Later cells that are longer are clipped on a terminal.
"""

import csv
import shutil
import sys
import unicodedata
from collections.abc import Sequence

import pyarrow as pa

from statebed.cli import row_output
from statebed.cli.safe_text import clipped, plain, plain_json
from statebed.format.json_values import json_objects
from statebed.format.stream_schema import WEIGHT

FORMATS = ("table", "csv", "json")
CHANGE = "op"
"""Heading of the column that says whether a row is inserted (+) or retracted (-)."""
_NARROWEST = 8
_WIDEST = 80
_WIDEST_IN_FILE = 1000
_NULL = "null"
_MIN_WIDTHS = (
    (pa.types.is_timestamp, 19),
    (pa.types.is_date, 10),
    (pa.types.is_floating, 9),
    (pa.types.is_integer, 6),
    (pa.types.is_string, 10),
)


class ResultPrinter:
    """Prints one result."""

    def __init__(self, output_format: str) -> None:
        self._format = output_format
        self._widths: list[int] | None = None
        self._right: list[bool] = []
        self.rows = 0

    def print_rows(self, table: pa.Table) -> None:
        """Print some rows, with the header before the first ones."""
        is_first, self.rows = self._widths is None, self.rows + table.num_rows
        if self._format == "json":
            self._widths = []
            for row in json_objects(table):
                sys.stdout.write(plain_json(row, indent=None) + "\n")
        elif self._format == "csv":
            self._widths = []
            self._print_csv(table, with_header=is_first)
        else:
            self._print_table(_with_changes(table), with_header=is_first)
        sys.stdout.flush()

    def _print_csv(self, table: pa.Table, *, with_header: bool) -> None:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        safe = plain if sys.stdout.isatty() else str
        if with_header:
            writer.writerow([safe(name) for name in table.schema.names])
        columns = [row_output.texts(column) for column in table.columns]
        for row in zip(*columns, strict=True):
            writer.writerow([None if text is None else safe(text) for text in row])

    def _print_table(self, table: pa.Table, *, with_header: bool) -> None:
        is_terminal = sys.stdout.isatty()
        widest = _WIDEST if is_terminal else _WIDEST_IN_FILE
        columns = [
            [_NULL if text is None else clipped(text, width=widest) for text in row_output.texts(column)]
            for column in table.columns
        ]
        names = [clipped(name, width=widest) for name in table.schema.names]
        if with_header:
            min_widths = [_min_width(field.type) for field in table.schema]
            wanted = [
                max([_shown_width(name), floor, *map(_shown_width, cells)])
                for name, floor, cells in zip(names, min_widths, columns, strict=True)
            ]
            screen = shutil.get_terminal_size().columns if is_terminal else None
            self._widths = fitted(wanted, screen)
            self._right = [_is_number(field.type) for field in table.schema]
            self._print_line(names)
            sys.stdout.write(" ".join("-" * width for width in self._widths) + "\n")
        for row in zip(*columns, strict=True):
            self._print_line(row)

    def _print_line(self, cells: Sequence[str]) -> None:
        assert self._widths is not None
        line = " ".join(
            _padded(cell, width, right=right)
            for cell, width, right in zip(cells, self._widths, self._right, strict=True)
        )
        sys.stdout.write(line.rstrip() + "\n")


def fitted(wanted: Sequence[int], screen: int | None) -> list[int]:
    """Return widths of columns that fit a screen: the widest ones become narrower, down to a minimum.

    >>> fitted([10, 60, 20], 62)
    [10, 30, 20]
    """
    widths = list(wanted)
    if screen is None:
        return widths
    while sum(widths) + len(widths) - 1 > screen:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= _NARROWEST:
            break
        others = max((width for place, width in enumerate(widths) if place != widest), default=0)
        excess = sum(widths) + len(widths) - 1 - screen
        widths[widest] = max(_NARROWEST, widths[widest] - excess, min(others, widths[widest] - 1))
    return widths


def _with_changes(table: pa.Table) -> pa.Table:
    """Replace the weight of a changelog's rows by a first column of signs: `+`, `-`, `+2`."""
    if WEIGHT not in table.schema.names:
        return table
    signs = [
        ("+" if weight > 0 else "-") + (str(abs(weight)) if abs(weight) > 1 else "")
        for weight in table[WEIGHT].to_pylist()
    ]
    return table.drop_columns([WEIGHT]).add_column(0, CHANGE, pa.array(signs, pa.string_view()))


def _min_width(kind: pa.DataType) -> int:
    return next((width for is_kind, width in _MIN_WIDTHS if is_kind(kind)), 0)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _shown_width(text: str) -> int:
    """Return how many cells of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _padded(text: str, width: int, *, right: bool) -> str:
    shown = _shown_width(text)
    if shown > width:
        while text and _shown_width(text) > width - 1:
            text = text[:-1]
        text, shown = f"{text}…", _shown_width(text) + 1
    blank = " " * (width - shown)
    return blank + text if right else text + blank
