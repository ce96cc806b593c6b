"""Collects the lines that are typed into a shell, and returns complete statements.

A statement ends with a semicolon outside quotes, comments and parentheses of a statement set
(`EXECUTE STATEMENT SET BEGIN ... END;`).
"""

from dataclasses import dataclass

from statebed.errors import InputError
from statebed.sql.source_text import SqlText
from statebed.sql.sql_tokens import SqlToken, tokens_of

_OPEN_QUOTE = "never closed"
_SET_BEGINNINGS = (("EXECUTE", "STATEMENT", "SET"), ("BEGIN", "STATEMENT", "SET"))


@dataclass
class StatementBuffer:
    """Text that has been typed, but not run."""

    text: str = ""
    name: str = "SQL"
    """Name of the input in errors."""
    _line: int = 1
    _column: int = 1

    @property
    def is_empty(self) -> bool:
        """Whether nothing but spaces and comments is waiting."""
        try:
            return not tokens_of(SqlText(self.text))
        except InputError:
            return False

    @property
    def open_mark(self) -> str:
        """Character that the prompt of the next line shows: an open quote or comment, an open parenthesis, or `-`."""
        try:
            tokens = tokens_of(SqlText(self.text))
        except InputError as error:
            return error.what[0] if error.what[:2] != "/*" else "*"
        depth = sum(token.is_symbol("(") - token.is_symbol(")") for token in tokens)
        return "(" if depth > 0 else "-"

    def clear(self) -> None:
        self.text = ""

    def add(self, line: str, *, number: int = 1) -> list[SqlText]:
        """Add a line and return the statements that it completes, each with its semicolon.

        `number` is the number of the line, by which errors of a statement that begins in it name their place.
        """
        if not self.text:
            self._line, self._column = number, 1
        self.text += line.rstrip("\n") + "\n"
        try:
            tokens = tokens_of(SqlText(self.text))
        except InputError as error:
            if error.what.endswith(_OPEN_QUOTE):
                return []
            return [self._taken(len(self.text))]
        result, start = [], 0
        for end in _ends(tokens):
            result.append(self._taken(end - start))
            start = end
        if self.is_empty:
            self.clear()
        return [statement for statement in result if statement.text.strip(";").strip()]

    def rest(self) -> list[SqlText]:
        """Return what is left at the end of the input as a statement, if it is one."""
        is_empty = self.is_empty
        statement = self._taken(len(self.text))
        return [] if is_empty else [statement]

    def _taken(self, length: int) -> SqlText:
        """Remove the first characters of the text and return them, without spaces around them."""
        whole, self.text = self.text[:length], self.text[length:]
        self._advance(whole[: len(whole) - len(whole.lstrip())])
        statement = SqlText(whole.strip(), self.name, self._line, self._column)
        self._advance(whole.lstrip())
        return statement

    def _advance(self, text: str) -> None:
        lines = text.count("\n")
        self._column = len(text) - text.rfind("\n") if lines else self._column + len(text)
        self._line += lines


def _ends(tokens: list[SqlToken]) -> list[int]:
    """Return where complete statements end."""
    result: list[int] = []
    statement: list[SqlToken] = []
    in_set = False
    for token in tokens:
        if not token.is_symbol(";"):
            statement.append(token)
            continue
        if any(_begins(statement, words) for words in _SET_BEGINNINGS):
            in_set = True
        if in_set and len(statement) == 1 and statement[0].is_word("END"):
            in_set = False
        if not in_set:
            result.append(token.span.end)
        statement = []
    return result


def _begins(statement: list[SqlToken], words: tuple[str, ...]) -> bool:
    return len(statement) >= len(words) and all(
        token.is_word(word) for token, word in zip(statement, words, strict=False)
    )
