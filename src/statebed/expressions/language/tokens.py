"""Lexer of the expression language.

Strings follow Spark SQL: single or double quotes, a doubled quote is one quote, a backslash escapes, r'...' is raw, and
X'1F' is binary.
"""

import re
from dataclasses import dataclass
from enum import Enum

from statebed.expressions.mistakes import TextSpan


class TokenKind(Enum):
    """Kind of a token."""

    NUMBER = "a number"
    TEXT = "a text"
    BINARY = "binary digits"
    WORD = "a word"
    QUOTED_NAME = "a name in backticks"
    SIGN = "a sign"
    END = "the end"


@dataclass(frozen=True)
class Token:
    """A token. For a text or a quoted name, `value` is the content without the quotes."""

    kind: TokenKind
    value: str
    start: int
    end: int

    def is_word(self, *words: str) -> bool:
        return self.kind is TokenKind.WORD and self.value.lower() in words

    def is_sign(self, *signs: str) -> bool:
        return self.kind is TokenKind.SIGN and self.value in signs


_TOKEN = re.compile(
    r"""
    (?P<space>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<text>[rRxX]?'(?:[^'\\]|\\.|'')*'|[rR]?"(?:[^"\\]|\\.|"")*")
  | (?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?(?:[bB][dD]|[lLsSyYdDfF])?(?!\w))
  | (?P<word>[^\W\d]\w*)
  | (?P<quoted>`(?:[^`]|``)*`)
  | (?P<sign><=>|>>>|<>|!=|>=|<=|==|<<|>>|->|\|\||::|[=<>+\-*/%()\[\],.!&|^~:])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
"""Escape sequences. The last two keep their backslash, which patterns of `like` need."""


def tokenize(place: TextSpan) -> list[Token]:
    """Return the tokens of a whole text, including the end marker."""
    text, position, tokens = place.text, 0, []
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(place, position)
        if match.lastgroup != "space":
            tokens.append(_token(match))
        position = match.end()
    return [*tokens, Token(TokenKind.END, "", len(text), len(text))]


def _token(match: re.Match[str]) -> Token:
    value = match.group()
    if match.lastgroup == "text" and value[0] in "xX":
        return Token(TokenKind.BINARY, value[2:-1], match.start(), match.end())
    if match.lastgroup == "text":
        return Token(TokenKind.TEXT, unquoted(value), match.start(), match.end())
    if match.lastgroup == "quoted":
        return Token(TokenKind.QUOTED_NAME, value[1:-1].replace("``", "`"), match.start(), match.end())
    kind = {"number": TokenKind.NUMBER, "word": TokenKind.WORD, "sign": TokenKind.SIGN}[str(match.lastgroup)]
    return Token(kind, value, match.start(), match.end())


def unquoted(quoted: str) -> str:
    """Return the content of a string literal."""
    if quoted[0] in "rR":
        return quoted[2:-1]
    quote = quoted[0]
    parts = re.split(r"(\\.)", quoted[1:-1], flags=re.DOTALL)
    # A doubled quote is one quote unless a backslash escapes the first of them.
    whole = "".join(part if part.startswith("\\") else part.replace(quote * 2, quote) for part in parts)
    return _ESCAPE.sub(_escaped, whole)


def _escaped(match: re.Match[str]) -> str:
    short, long, octal, other = match.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    return chr(int(octal, 8)) if octal else chr(int(short or long, 16))


def _unreadable(place: TextSpan, position: int) -> Exception:
    character = place.text[position]
    at = place.at(position, position + 1)
    if character in "'\"`":
        return at.mistake("the quote is not closed", fix="close it; inside a text, write the quote twice")
    if character.isdigit():
        return at.mistake("the number is invalid", fix="write a name that begins with a digit in `backticks`")
    return at.mistake(f"unexpected character {character!r}", fix="write names with special characters in `backticks`")
