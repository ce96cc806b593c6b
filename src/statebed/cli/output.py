"""Printing: tables for people, one JSON document for programs, and numbers in words.

Everything that is printed passes `plain`: what comes out of records and rows is shown, never obeyed.
"""

import dataclasses
import datetime as dt
import enum
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from statebed.cli.plain import clipped, plain, plain_json

NOTHING = "-"
_FILE_WIDTH = 1000
_UNBOUNDED = 100_000
_WIDEST_CELL = 300


def console() -> Console:
    """Standard output; where it is no terminal: no colour, and tables as wide as they are."""
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def print_json(document: object) -> None:
    sys.stdout.write(plain_json(document) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A table whose cells are shown as they are; `right` names the columns of numbers."""
    # A title that is longer than its table stays on one line.
    heading = Text(plain(title), no_wrap=True, overflow="ignore")
    shown = Table(title=heading, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.caption_justify = "left"
    for column in columns:
        shown.add_column(Text(plain(column)), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*[cell if isinstance(cell, Text) else _cell(cell) for cell in row])
    return shown


def line(text: str) -> Text:
    """One line as it is: nothing in it is a colour, an emoji or a command to the terminal."""
    return Text(plain(text))


def say(text: str) -> None:
    """One line on standard output, as wide as it is."""
    sys.stdout.write(f"{plain(text)}\n")


def _cell(value: object) -> Text:
    return Text(NOTHING if value is None else clipped(str(value), width=_WIDEST_CELL))


def fit(shown: Table, screen: Console, *, least: Sequence[str]) -> Table:
    """Leave out columns, in the order of `least`, until the table fits the screen; says which it left out."""
    unbounded = screen.options.update(max_width=_UNBOUNDED)
    dropped: list[str] = []
    there = {str(column.header) for column in shown.columns}
    for name in (name for name in least if name in there):
        if Measurement.get(screen, unbounded, shown).maximum <= screen.width:
            break
        dropped.append(name)
        shown.columns = [column for column in shown.columns if str(column.header) != name]
        shown.caption = Text(f"left out in this width: {', '.join(dropped)}")
    return shown


def size(count: int | None) -> str:
    """A number of bytes in words.

    >>> size(1_500_000)
    '1.5 MB'
    """
    if count is None:
        return NOTHING
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
    shown = _moment(time_us)
    if shown is None:
        return f"{time_us} us"
    return shown.strftime("%Y-%m-%d %H:%M:%S.") + f"{shown.microsecond // 1000:03d}"


def iso_instant(time_us: int | None) -> str | None:
    """The same for programs: ISO 8601 with its zone, or null."""
    if time_us is None:
        return None
    shown = _moment(time_us)
    return f"{time_us} us" if shown is None else shown.isoformat().replace("+00:00", "Z")


def _moment(time_us: int) -> dt.datetime | None:
    try:
        return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time_us)
    except OverflowError:  # outside the years 1 to 9999, as the watermark of a drain is
        return None


def seconds(duration_us: int | None) -> str:
    return NOTHING if duration_us is None else f"{duration_us / 1e6:.2f} s"


def age(time_us: int | None, *, now_us: int | None = None) -> str:
    """How long ago, to one unit.

    >>> age(0, now_us=7_300_000_000)
    '2 h'
    """
    if time_us is None:
        return NOTHING
    now_us = time.time_ns() // 1000 if now_us is None else now_us
    return span(max(0, now_us - time_us))


def span(duration_us: int) -> str:
    """A span of time in its largest unit.

    >>> span(90_000_000)
    '1 min'
    """
    passed = duration_us // 1_000_000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed >= length:
            return f"{passed // length} {unit}"
    return f"{passed} s"


def print_table(shown: Table, problems: Iterable[str], *, least: Sequence[str] = ()) -> None:
    """A table that fits the screen, and what is wrong with its rows below it."""
    screen = console()
    screen.print(fit(shown, screen, least=least))
    for problem in problems:
        screen.print(Text(plain(problem), style="red"))


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
    return value.value if isinstance(value, enum.Enum) else value


def _is_time(name: str) -> bool:
    return name.endswith(("time_us", "watermark_us"))
