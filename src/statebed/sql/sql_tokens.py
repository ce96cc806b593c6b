"""Lexer of SQL text: words, strings, numbers, symbols and hints, each with its place. Comments are dropped.

Strings follow Spark SQL: single or double quotes, a doubled quote is one quote, a backslash escapes, r'...' is raw.
Dollar quotes, as in $$text$$ and $tag$text$tag$, hold any text verbatim. Backticks quote identifiers.
"""

import enum
import re
from dataclasses import dataclass

from statebed.expressions.language.tokens import unquoted
from statebed.sql.source_text import SqlSpan, SqlText


class SqlTokenKind(enum.Enum):
    """Kind of a token."""

    WORD = "word"
    QUOTED_NAME = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"
    HINT = "hint"


@dataclass(frozen=True)
class SqlToken:
    """A token; `value` is the upper-case word, the name without backticks, or the content of a string or hint."""

    kind: SqlTokenKind
    value: str
    span: SqlSpan
    is_dollar: bool = False

    def is_word(self, *words: str) -> bool:
        return self.kind is SqlTokenKind.WORD and self.value in words

    def is_symbol(self, *symbols: str) -> bool:
        return self.kind is SqlTokenKind.SYMBOL and self.value in symbols

    @property
    def is_name(self) -> bool:
        return self.kind in {SqlTokenKind.WORD, SqlTokenKind.QUOTED_NAME}


_SPACE = re.compile(r"\s+")
_LINE_COMMENT = re.compile(r"--(?:\\\n|[^\n])*")
_WORD = re.compile(r"[^\W\d]\w*|\d+_*[^\W\d]\w*")
_NUMBER = re.compile(r"(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYDF])?\b", re.IGNORECASE)
_DOLLAR = re.compile(r"(?P<tag>\$(?:[^\W\d]\w*)?\$)(?P<value>.*?)(?P=tag)", re.DOTALL)
_HINT = re.compile(r"/\*\+(?P<value>.*?)\*/", re.DOTALL)
_SYMBOL = re.compile(r"=>|->|::|<=>|<=|>=|<>|!=|==|\|\||<<|>>|.", re.DOTALL)
_STRING = re.compile(r"""[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*\"""", re.DOTALL)
_QUOTED_NAME = re.compile(r"`(?P<value>(?:[^`]|``)*)`")
_QUOTES = (
    (re.compile(r"[rR]?['\"]"), _STRING, SqlTokenKind.STRING),
    (re.compile(r"`"), _QUOTED_NAME, SqlTokenKind.QUOTED_NAME),
    (re.compile(r"\$(?:[^\W\d]\w*)?\$"), _DOLLAR, SqlTokenKind.STRING),
    (re.compile(r"/\*\+"), _HINT, SqlTokenKind.HINT),
)
"""Beginning of a quoted token, pattern of the whole token, and its kind."""


def tokens_of(source: SqlText) -> list[SqlToken]:
    """Return the tokens of the text."""
    result: list[SqlToken] = []
    place = 0
    while place < len(source.text):
        token, place = _next(source, place)
        if token is not None:
            result.append(token)
    return result


def _next(source: SqlText, place: int) -> tuple[SqlToken | None, int]:
    text = source.text
    for skipped in (_SPACE, _LINE_COMMENT):
        if match := skipped.match(text, place):
            return None, match.end()
    if text.startswith("/*", place) and not text.startswith("/*+", place):
        return None, _comment_end(source, place)
    token = _quoted(source, place) or _plain(source, place)
    return token, token.span.end


def _plain(source: SqlText, place: int) -> SqlToken:
    for pattern, kind in (
        (_NUMBER, SqlTokenKind.NUMBER),
        (_WORD, SqlTokenKind.WORD),
        (_SYMBOL, SqlTokenKind.SYMBOL),
    ):
        if match := pattern.match(source.text, place):
            value = match[0].upper() if kind is SqlTokenKind.WORD else match[0]
            return SqlToken(kind, value, SqlSpan(place, match.end()))
    raise AssertionError("every character is a symbol")  # pragma: no cover


def _quoted(source: SqlText, place: int) -> SqlToken | None:
    """Return the string, quoted name or hint that begins here, or None."""
    text = source.text
    for opening, pattern, kind in _QUOTES:
        start = opening.match(text, place)
        if start is None:
            continue
        match = pattern.match(text, place)
        if match is None:
            closing = {"/*+": "*/"}.get(start[0], start[0].lstrip("rR"))
            raise _unclosed(source, place, start[0], closing)
        value = unquoted(match[0]) if pattern is _STRING else match["value"]
        if kind is SqlTokenKind.QUOTED_NAME:
            value = value.replace("``", "`")
        return SqlToken(kind, value, SqlSpan(place, match.end()), is_dollar=pattern is _DOLLAR)
    return None


def _comment_end(source: SqlText, place: int) -> int:
    """Return the end of a bracketed comment; such comments nest."""
    depth, here = 0, place
    while True:
        opened, closed = source.text.find("/*", here), source.text.find("*/", here)
        if closed < 0:
            raise _unclosed(source, place, "/*", "*/")
        if 0 <= opened < closed:
            depth, here = depth + 1, opened + 2
        else:
            depth, here = depth - 1, closed + 2
            if depth == 0:
                return here


def _unclosed(source: SqlText, place: int, opening: str, closing: str) -> Exception:
    return source.mistake(
        f"{opening} is opened here, but never closed", SqlSpan(place, place + len(opening)), fix=f"add {closing}"
    )
