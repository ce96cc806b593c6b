r"""Escapes text from outside for display: names and values may contain anything, including terminal control sequences.

Control characters, escape sequences and bidirectional marks are shown as escapes (`\x1b`), so that a hostile value can
neither move the cursor nor hide its neighbours. Letters of every script stay.
"""

import json
import re

_C0_C1 = "\x00-\x1f\x7f-\x9f"
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_LINES = "\u2028\u2029"
_SURROGATES = "\ud800-\udfff"
_INVISIBLE = "\u200b\u2060\ufeff\U000e0000-\U000e007f"
_UNSAFE = re.compile(f"[{_C0_C1}{_DIRECTION}{_LINES}{_SURROGATES}{_INVISIBLE}]")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_BYTE = 0xFF
_TWO_BYTES = 0xFFFF


def plain(text: str) -> str:
    r"""Return the text on one line, with everything that is not a letter, symbol or space escaped.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _UNSAFE.sub(lambda match: _code(match.group()), text)


def plain_lines(text: str) -> str:
    """Escape a text of several lines like `plain`, keeping its line breaks."""
    return "\n".join(map(plain, text.split("\n")))


def clipped(text: str, *, width: int) -> str:
    """Escape the text like `plain` and clip it to `width` characters.

    >>> clipped("abcdef", width=4)
    'abc…'
    """
    if len(text) > width:  # clip first: a value may be many megabytes long
        return plain(text[: width - 1]) + "…"
    return plain(text)


def plain_json(document: object, *, indent: int | None = 2) -> str:
    """Return JSON that is safe on a terminal. It uses JSON escapes, so that programs read the original text."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda match: match.group() if match.group() == "\n" else json.dumps(match.group())[1:-1], text)


def _code(character: str) -> str:
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number <= _BYTE:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= _TWO_BYTES else f"\\U{number:08x}"
