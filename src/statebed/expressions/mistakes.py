"""Positions in a text, and the errors that point to them.

A mistake in the text (an unknown word, a wrong type) is found during binding and shown with a caret. A row without a
result (division by zero, overflow) is found during evaluation: kernels raise `RowFailure`, which does not know the
text, and the term that called the kernel adds which part of which text failed.
"""

from dataclasses import dataclass, replace

from statebed.errors import ExpressionError, InputError, UnsupportedTypeError


class RowFailure(Exception):  # noqa: N818 - never leaves this package: it becomes an ExpressionError
    """Raised by kernels for a row without a result; `fix` says what the user can do."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True)
class TextSpan:
    """A span of a text, from `start` up to, but not including, `end`."""

    text: str
    where: str
    """Origin of the text, such as an operator and an argument."""
    start: int
    end: int

    @property
    def snippet(self) -> str:
        """Return the text of the span."""
        return self.text[self.start : self.end]

    def at(self, start: int, end: int) -> "TextSpan":
        """Return another span of the same text."""
        return replace(self, start=start, end=end)

    def mistake(self, what: str, *, fix: str = "") -> InputError:
        """Build the error for a text that cannot be parsed or resolved."""
        return InputError(f"{what}\n{self._pointed()}", where=self.where, fix=fix)

    def type_mistake(self, what: str, *, fix: str = "") -> UnsupportedTypeError:
        """Build the error for an operand of the wrong type."""
        return UnsupportedTypeError(f"{what}\n{self._pointed()}", where=self.where, fix=fix)

    def failure(self, failed: RowFailure) -> ExpressionError:
        """Build the error for a row for which this span has no result."""
        part = "" if self.snippet == self.text else f" of {self.text!r}"
        return ExpressionError(f"{failed.what} in {self.snippet!r}{part}", where=self.where, fix=failed.fix)

    def _pointed(self) -> str:
        """Return the line of the text with carets below the span."""
        first = self.text.rfind("\n", 0, self.start) + 1
        last = self.text.find("\n", first)
        line = self.text[first:] if last < 0 else self.text[first:last]
        column = self.start - first
        width = max(1, min(self.end - self.start, len(line) - column))
        return f"    {line}\n    {' ' * column}{'^' * width}"
