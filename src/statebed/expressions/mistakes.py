"""Where in a text something stands, and the errors that point there.

A mistake in the text (a word that nobody knows, a wrong type) is found while binding, and shown with a caret. A row
that has no answer (a division by zero, an overflow) is found while evaluating: kernels raise `RowFailure`, which knows
nothing of texts, and the term that called them says which part of which text it was.
"""

from dataclasses import dataclass, replace

from statebed.errors import ExpressionError, InputError, UnsupportedTypeError


class RowFailure(Exception):  # noqa: N818 - never leaves this package: it becomes an ExpressionError
    """A row without an answer; `fix` says what can be done about it."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@dataclass(frozen=True)
class TextSpan:
    """A part of a text, from `start` to before `end`."""

    text: str
    where: str
    """Whose text it is: an operator and an argument."""
    start: int
    end: int

    @property
    def snippet(self) -> str:
        """This part of the text."""
        return self.text[self.start : self.end]

    def at(self, start: int, end: int) -> "TextSpan":
        """Another part of the same text."""
        return replace(self, start=start, end=end)

    def mistake(self, what: str, *, fix: str = "") -> InputError:
        """The error of a text that cannot be read or understood."""
        return InputError(f"{what}\n{self._pointed()}", where=self.where, fix=fix)

    def type_mistake(self, what: str, *, fix: str = "") -> UnsupportedTypeError:
        """The error of an operand of the wrong type."""
        return UnsupportedTypeError(f"{what}\n{self._pointed()}", where=self.where, fix=fix)

    def failure(self, failed: RowFailure) -> ExpressionError:
        """The error of a row for which this part of the text has no answer."""
        part = "" if self.snippet == self.text else f" of {self.text!r}"
        return ExpressionError(f"{failed.what} in {self.snippet!r}{part}", where=self.where, fix=failed.fix)

    def _pointed(self) -> str:
        """The line of the text with carets below this part."""
        first = self.text.rfind("\n", 0, self.start) + 1
        last = self.text.find("\n", first)
        line = self.text[first:] if last < 0 else self.text[first:last]
        column = self.start - first
        width = max(1, min(self.end - self.start, len(line) - column))
        return f"    {line}\n    {' ' * column}{'^' * width}"
