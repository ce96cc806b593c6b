"""Text made from the user's text, with the way back from each of its characters."""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from statebed.sql.source_text import SqlSpan, SqlText


@dataclass(frozen=True)
class TextPiece:
    """Part of a rewritten text: a copy of a span of the source, or other text that stands for it."""

    text: str
    span: SqlSpan
    is_copy: bool


@dataclass(frozen=True)
class RewrittenText:
    """Text that was made from a source, piece by piece."""

    source: SqlText
    pieces: tuple[TextPiece, ...]

    @cached_property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @cached_property
    def _starts(self) -> list[int]:
        starts, total = [], 0
        for piece in self.pieces:
            starts.append(total)
            total += len(piece.text)
        return starts

    def origin(self, span: SqlSpan) -> SqlSpan:
        """Return the span of the source from which a span of this text was made."""
        if not self.pieces:
            return SqlSpan(0, 0)
        first = self._origin_of(span.start)
        last = self._origin_of(max(span.start, span.end - 1))
        return first.to(last) if last.end >= first.start else first

    def _origin_of(self, offset: int) -> SqlSpan:
        number = max(0, bisect.bisect_right(self._starts, offset) - 1)
        piece = self.pieces[number]
        if not piece.is_copy:
            return piece.span
        start = min(piece.span.start + offset - self._starts[number], piece.span.end)
        return SqlSpan(start, min(start + 1, piece.span.end))


class TextBuilder:
    """Collects the pieces of a rewritten text."""

    def __init__(self, source: SqlText) -> None:
        self._source = source
        self._pieces: list[TextPiece] = []

    def copy(self, span: SqlSpan) -> None:
        """Append a span of the source as it is."""
        if span.end > span.start:
            self._pieces.append(TextPiece(self._source.slice(span), span, is_copy=True))

    def write(self, text: str, span: SqlSpan) -> None:
        """Append other text that stands for a span of the source."""
        if text:
            self._pieces.append(TextPiece(text, span, is_copy=False))

    def extend(self, pieces: Iterable[TextPiece]) -> None:
        self._pieces.extend(pieces)

    @property
    def pieces(self) -> tuple[TextPiece, ...]:
        return tuple(self._pieces)
