"""Text of the user, and errors that point into it.

[BAD_INPUT] there is no table `bidz`
where: pipeline.sql, line 3, column 15
3 | SELECT * FROM bidz
|               ^^^^
what to do: did you mean `bids`?
"""

import bisect
import unicodedata
from dataclasses import dataclass
from functools import cached_property

from statebed.errors import InputError

_WIDEST_LINE = 160
"""Longer lines are cut around the place of the error."""


@dataclass(frozen=True)
class SqlSpan:
    """Characters `start` up to, but not including, `end`."""

    start: int
    end: int

    def to(self, other: "SqlSpan") -> "SqlSpan":
        """Return the span from the start of this one to the end of another."""
        return SqlSpan(self.start, max(self.end, other.end))


@dataclass(frozen=True)
class SqlText:
    """SQL as the user wrote it, with the name under which errors show it."""

    text: str
    name: str = "SQL"
    first_line: int = 1
    """Line of its first character in the file or input that it is a part of; counted from 1, as the next one."""
    first_column: int = 1

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(place + 1 for place, character in enumerate(self.text) if character == "\n")]

    def line_and_column(self, offset: int) -> tuple[int, int]:
        """Return line and column of a character in the file or input, both counted from 1."""
        line = bisect.bisect_right(self._line_starts, offset)
        column = offset - self._line_starts[line - 1] + 1
        return line + self.first_line - 1, column + (self.first_column - 1 if line == 1 else 0)

    def offset_of(self, line: int, column: int) -> int:
        """Return the offset of a line, counted from 1, and a column, counted from 0."""
        line = min(max(line, 1), len(self._line_starts))
        return min(self._line_starts[line - 1] + column, len(self.text))

    def slice(self, span: SqlSpan) -> str:
        return self.text[span.start : span.end]

    def shown(self, span: SqlSpan) -> str:
        """Return name, line and column, followed by the line with carets below the span."""
        number, shown_column = self.line_and_column(span.start)
        first = self._line_starts[number - self.first_line]
        column = span.start - first + 1
        line = self.text[first:].split("\n", 1)[0].rstrip("\r")
        before, count = line[: column - 1], max(1, min(span.end - span.start, len(line) - column + 1))
        cut = max(0, len(before) + count - _WIDEST_LINE) if len(line) > _WIDEST_LINE else 0
        cut = min(cut, len(before))
        margin = "..." if cut else ""
        shown = margin + line[cut : cut + _WIDEST_LINE]
        blank = " " * len(margin) + "".join(map(_blank, before[cut:]))
        marked = "^" * sum(map(_width, line[column - 1 : column - 1 + count] or " "))
        label = str(number)
        return (
            f"{self.name}, line {number}, column {shown_column}\n"
            f"    {label} | {shown}\n"
            f"    {' ' * len(label)} | {blank}{marked}"
        )

    def mistake(self, what: str, span: SqlSpan, *, fix: str) -> InputError:
        """Return the error for a span of the text."""
        return InputError(what, where=self.shown(span), fix=fix)


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _blank(character: str) -> str:
    return "\t" if character == "\t" else " " * _width(character)
