r"""Text from outside made safe to show: names and values may hold anything, also what a terminal would obey.

A control character, an escape sequence or a mark that turns the direction of writing is shown as its code (`\x1b`),
so that a hostile value can neither move the cursor nor hide what stands beside it. Letters of every script stay.
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
    r"""The text on one line, with codes in place of what is no letter, sign or space.

    >>> plain("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _UNSAFE.sub(lambda match: _code(match.group()), text)


def plain_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(plain, text.split("\n")))


def clipped(text: str, *, width: int) -> str:
    """The text as `plain`, at most `width` characters of it.

    >>> clipped("abcdef", width=4)
    'abc…'
    """
    if len(text) > width:  # first: the rest of a value of many megabytes need not be looked at
        return plain(text[: width - 1]) + "…"
    return plain(text)


def plain_json(document: object, *, indent: int | None = 2) -> str:
    """JSON that a terminal can show; escapes are of JSON, so that programs read the text as it was."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda match: match.group() if match.group() == "\n" else json.dumps(match.group())[1:-1], text)


def _code(character: str) -> str:
    number = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    if number <= _BYTE:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number <= _TWO_BYTES else f"\\U{number:08x}"
