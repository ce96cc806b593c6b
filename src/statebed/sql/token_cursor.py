"""Reads the tokens of one statement in order, with errors that say what was expected where."""

from collections.abc import Sequence
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.quantities import parse_duration
from statebed.sql.source_text import SqlSpan, SqlText
from statebed.sql.sql_tokens import SqlToken, SqlTokenKind


@dataclass
class TokenCursor:
    """A position in the tokens of a text."""

    source: SqlText
    tokens: Sequence[SqlToken]
    place: int = 0

    @property
    def is_done(self) -> bool:
        return self.place >= len(self.tokens)

    @property
    def here(self) -> SqlSpan:
        """Place of the next token, or the end of the last one."""
        if not self.is_done:
            return self.tokens[self.place].span
        end = self.tokens[-1].span.end if self.tokens else len(self.source.text)
        return SqlSpan(end, end)

    def peek(self, ahead: int = 0) -> SqlToken | None:
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else None

    def at_words(self, *words: str) -> bool:
        """Return whether the next tokens are these words."""
        following = [self.peek(ahead) for ahead in range(len(words))]
        return all(token is not None and token.is_word(word) for token, word in zip(following, words, strict=True))

    def at_symbol(self, symbol: str) -> bool:
        token = self.peek()
        return token is not None and token.is_symbol(symbol)

    def take(self) -> SqlToken:
        token = self.tokens[self.place]
        self.place += 1
        return token

    def accept(self, *words: str) -> bool:
        """Skip these words if they are next, and return whether they were."""
        if not self.at_words(*words):
            return False
        self.place += len(words)
        return True

    def accept_symbol(self, symbol: str) -> bool:
        if not self.at_symbol(symbol):
            return False
        self.place += 1
        return True

    def expect(self, *words: str, fix: str) -> None:
        if not self.accept(*words):
            raise self.expected(" ".join(words), fix=fix)

    def expect_symbol(self, symbol: str, *, fix: str) -> SqlToken:
        if not self.at_symbol(symbol):
            raise self.expected(symbol, fix=fix)
        return self.take()

    def check_one_part(self) -> None:
        """Raise InputError if the name before this place has further parts."""
        if self.at_symbol("."):
            raise self.source.mistake(
                "names have one part: there are no databases here", self.here, fix="leave the database out"
            )

    def expect_name(self, what: str, *, fix: str) -> SqlToken:
        token = self.peek()
        if token is None or not token.is_name:
            raise self.expected(what, fix=fix)
        return self.take()

    def expect_string(self, what: str, *, fix: str) -> SqlToken:
        token = self.peek()
        if token is None or token.kind is not SqlTokenKind.STRING:
            raise self.expected(what, fix=fix)
        return self.take()

    def expected(self, what: str, *, fix: str) -> InputError:
        """Return the error for a next token that is not what has to stand there."""
        token = self.peek()
        result = "the statement ends" if token is None else f"there is {self.source.slice(token.span)!r}"
        return self.source.mistake(f"expected {what}, but {result}", self.here, fix=fix)

    def expect_end(self, *, fix: str) -> None:
        if not self.is_done:
            raise self.expected("the end of the statement", fix=fix)

    def name_of(self, token: SqlToken) -> str:
        """Return a name as the user wrote it, without backticks."""
        return token.value if token.kind is SqlTokenKind.QUOTED_NAME else self.source.slice(token.span)

    def closing(self) -> int:
        """Return the position of the parenthesis that closes the one at the current position."""
        depth = 0
        for number in range(self.place, len(self.tokens)):
            if self.tokens[number].is_symbol("("):
                depth += 1
            elif self.tokens[number].is_symbol(")"):
                depth -= 1
                if depth == 0:
                    return number
        raise self.source.mistake("( is opened here, but never closed", self.here, fix="add )")

    def duration_us(self, *, example: str) -> int:
        """Read `INTERVAL '1' MINUTE`, `INTERVAL '1 minute'`, `INTERVAL 1 MINUTE` or `'1 minute'`."""
        first = self.here
        is_interval = self.accept("INTERVAL")
        token = self.peek()
        if token is None or token.kind not in {SqlTokenKind.STRING, SqlTokenKind.NUMBER}:
            raise self.expected("an interval", fix=f"write {example}")
        text = self.take().value
        unit = self.peek()
        if is_interval and unit is not None and unit.kind is SqlTokenKind.WORD:
            if self.peek(1) is not None and self.tokens[self.place + 1].is_word("TO"):
                raise self.source.mistake(
                    "intervals of two units are not supported here", first.to(unit.span), fix=f"write {example}"
                )
            text = f"{text} {self.take().value}"
        try:
            return parse_duration(text)
        except InputError as error:
            last = self.tokens[self.place - 1].span
            raise self.source.mistake(error.what, first.to(last), fix=f"write {example}") from error
