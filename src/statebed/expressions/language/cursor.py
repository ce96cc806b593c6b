"""Cursor over the tokens of a text: lookahead, skipping, and errors that name the expected token."""

from statebed.expressions.language.tokens import Token, TokenKind, tokenize
from statebed.expressions.mistakes import TextSpan

RESERVED = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "true",
        "false",
        "between",
        "like",
        "ilike",
        "rlike",
        "regexp",
        "case",
        "when",
        "then",
        "else",
        "end",
        "as",
        "div",
        "distinct",
        "escape",
        "from",
    ]
)
"""Words that are not column names unless they are in backticks."""


class Cursor:
    """Tokens of a text and the position of the next one."""

    def __init__(self, place: TextSpan) -> None:
        self.place = place
        self.tokens = tokenize(place)
        self.position = 0

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    @property
    def following(self) -> Token:
        """Return the token after the next."""
        return self.tokens[min(self.position + 1, len(self.tokens) - 1)]

    def advance(self) -> Token:
        token = self.next
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def skip_word(self, *words: str) -> bool:
        is_next = self.next.is_word(*words)
        if is_next:
            self.advance()
        return is_next

    def skip_sign(self, *signs: str) -> bool:
        is_next = self.next.is_sign(*signs)
        if is_next:
            self.advance()
        return is_next

    def expect(self, wanted: str) -> Token:
        if self.next.is_sign(wanted) or self.next.is_word(wanted):
            return self.advance()
        raise self.unexpected(f"{wanted!r}")

    def unexpected(self, wanted: str) -> Exception:
        token = self.next
        at = self.place.at(token.start, token.end)
        if token.kind is TokenKind.END:
            return at.mistake(f"the text ends, but {wanted} is expected")
        fix = f"write `{token.value}` in backticks if it is a column" if token.value.lower() in RESERVED else ""
        return at.mistake(f"expected {wanted}, got {self.place.at(token.start, token.end).snippet!r}", fix=fix)

    def name(self, wanted: str) -> str:
        token = self.next
        if token.kind is TokenKind.QUOTED_NAME or (
            token.kind is TokenKind.WORD and token.value.lower() not in RESERVED
        ):
            return self.advance().value
        raise self.unexpected(wanted)

    def label(self, wanted: str) -> str:
        """Read a name behind `.` or `as`, where every word is a name: `window.end`."""
        return self.advance().value if self.next.kind is TokenKind.WORD else self.name(wanted)

    def last_end(self) -> int:
        """End position of the token that was read last."""
        return self.tokens[self.position - 1].end
