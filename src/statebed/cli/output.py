"""Output helpers: tables for people, one JSON document for programs, and formatted numbers.

Everything printed passes through `plain`, so that control sequences in records and rows are shown, never executed.
"""

import dataclasses
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

from statebed.cli.safe_text import clipped, plain, plain_json, plain_lines
from statebed.present import units
from statebed.present.colours import TERMINAL_STYLES, Tone, tone_of
from statebed.present.units import NOTHING

_FILE_WIDTH = 1000
_UNBOUNDED = 100_000
_WIDEST_CELL = 300


def console() -> Console:
    """Return the console for standard output. If it is not a terminal, output has no colour and tables keep their full
    width.
    """
    width = None if sys.stdout.isatty() else _FILE_WIDTH
    return Console(file=sys.stdout, highlight=False, width=width)


def print_json(document: object) -> None:
    sys.stdout.write(plain_json(document) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """Build a table that shows cells verbatim; `right` names the right-aligned columns."""
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
    """Return one line shown verbatim: markup, emoji codes and control sequences have no effect."""
    return Text(plain(text))


def problem(text: str) -> Text:
    """Return lines that report a problem, in red, shown verbatim like `line`."""
    return Text("\n".join(map(plain, text.splitlines())), style=TERMINAL_STYLES[Tone.BAD])


def caution(text: str) -> Text:
    """Return lines that report a warning, in yellow, shown verbatim like `line`."""
    return Text("\n".join(map(plain, text.splitlines())), style=TERMINAL_STYLES[Tone.WARN])


def say(text: str) -> None:
    """Print one line to standard output without wrapping it."""
    sys.stdout.write(f"{plain(text)}\n")


def say_lines(text: str) -> None:
    """Print the lines of a text to standard output without wrapping them."""
    for each in text.splitlines():
        say(each)


def note(text: str) -> None:
    """Print a remark to standard error, dimmed on a terminal, so that it is no part of the output."""
    Console(file=sys.stderr, highlight=False, soft_wrap=True).print(Text(plain_lines(text), style="dim"))


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning without the line of Python that caused it; it takes the arguments of `warnings.showwarning`."""
    note(f"warning: {message}")


def print_problem(text: str) -> None:
    """Print the text of an error to standard error, in red on a terminal."""
    Console(file=sys.stderr, highlight=False, soft_wrap=True).print(problem(text))


def _cell(value: object) -> Text:
    return Text(NOTHING if value is None else clipped(str(value), width=_WIDEST_CELL))


def fit(shown: Table, screen: Console, *, expendable: Sequence[str]) -> Table:
    """Drop columns in the order of `expendable` until the table fits the screen, and note the dropped ones."""
    unbounded = screen.options.update(max_width=_UNBOUNDED)
    dropped: list[str] = []
    there = {str(column.header) for column in shown.columns}
    for name in (name for name in expendable if name in there):
        if Measurement.get(screen, unbounded, shown).maximum <= screen.width:
            break
        dropped.append(name)
        shown.columns = [column for column in shown.columns if str(column.header) != name]
        shown.caption = Text(f"columns hidden at this width: {', '.join(dropped)}")
    return shown


def status(text: str) -> Text:
    """Return a status in the colour of its tone."""
    return Text(plain(text), style=TERMINAL_STYLES[tone_of(text)])


def age(time_us: int | None) -> str:
    """Return the time elapsed since `time_us` by this machine's clock."""
    return units.age(time_us, now_us=time.time_ns() // 1000)


def iso_instant(time_us: int | None) -> str | None:
    """Return a time as ISO 8601 with its zone, or None."""
    return None if time_us is None else units.exact(time_us)


def print_table(shown: Table, problems: Iterable[str], *, expendable: Sequence[str] = ()) -> None:
    """Print a table that fits the screen, followed by the problems of its rows."""
    screen = console()
    screen.print(fit(shown, screen, expendable=expendable))
    for text in problems:
        screen.print(problem(text))


def with_times(value: Any) -> Any:
    """Convert a dataclass for JSON; times in microseconds become ISO 8601 under the name without the unit."""
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
