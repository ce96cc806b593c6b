"""Printing: tables for people, one JSON document for programs, and numbers in words."""

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

NOTHING = "-"
_FILE_WIDTH = 200
_UNBOUNDED = 100_000


def console() -> Console:
    """Standard output; where it is no terminal: no colour, and tables as wide as they are."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def print_json(document: object) -> None:
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table whose cells are shown as they are; `right` names the columns of numbers."""
    shown = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.caption_justify = "left"
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*[NOTHING if cell is None else str(cell) for cell in row])
    return shown


def fit(shown: Table, screen: Console, *, least: Sequence[str]) -> Table:
    """Leave out columns, in the order of `least`, until the table fits the screen; says which it left out."""
    unbounded = screen.options.update(max_width=_UNBOUNDED)
    dropped: list[str] = []
    for name in least:
        if Measurement.get(screen, unbounded, shown).maximum <= screen.width:
            break
        dropped.append(name)
        shown.columns = [column for column in shown.columns if column.header != name]
        shown.caption = f"left out in this width: {', '.join(dropped)}"
    return shown


def size(count: int) -> str:
    """A number of bytes in words.

    >>> size(1_500_000)
    '1.5 MB'
    """
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:  # noqa: PLR2004 - the step between units
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def number(count: int | None) -> str:
    return NOTHING if count is None else f"{count:,}"


def second(time_us: int | None) -> str:
    """A time in UTC to the second."""
    return instant(time_us).partition(".")[0]


def instant(time_us: int | None) -> str:
    """A time in UTC to the millisecond.

    >>> instant(0)
    '1970-01-01 00:00:00.000'
    """
    if time_us is None:
        return NOTHING
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    shown = epoch + dt.timedelta(microseconds=time_us)
    return shown.strftime("%Y-%m-%d %H:%M:%S.") + f"{shown.microsecond // 1000:03d}"


def iso_instant(time_us: int | None) -> str | None:
    """The same for programs: ISO 8601 with its zone, or null."""
    if time_us is None:
        return None
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (epoch + dt.timedelta(microseconds=time_us)).isoformat().replace("+00:00", "Z")


def seconds(duration_us: int) -> str:
    return f"{duration_us / 1e6:.2f} s"


def print_table(shown: Table, problems: Iterable[str], *, least: Sequence[str] = ()) -> None:
    """A table that fits the screen, and what is wrong with its rows below it."""
    screen = console()
    screen.print(fit(shown, screen, least=least))
    for line in problems:
        screen.print(line, markup=False)


def with_times(value: Any) -> Any:
    """A dataclass for JSON: times in microseconds become ISO 8601 under the name without the unit."""
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            (name.removesuffix("_us") if _is_time(name) else name): (
                iso_instant(item) if _is_time(name) else with_times(item)
            )
            for name, item in fields.items()
        }
    if isinstance(value, tuple | list):
        return [with_times(item) for item in value]
    return value


def _is_time(name: str) -> bool:
    return name.endswith(("time_us", "watermark_us"))
