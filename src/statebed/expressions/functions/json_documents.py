"""JSON documents as Spark reads and writes them.

Documents are read by Python's own parser. What only Spark accepts, such as texts in single quotes, is read by the
parser of this module, which also knows the characters that a value was written with. As in Spark, only the first value
of a text counts; whatever follows it is ignored, unless it touches a number or a word.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

Json: TypeAlias = Any
"""A value: None, bool, int, float, str, a list, or `JsonObject`."""


class JsonObject(tuple[tuple[str, Json], ...]):
    """Names and values of an object in their order; a name may occur twice."""

    __slots__ = ()


class MalformedError(ValueError):
    """Raised for a text that is no JSON document."""


@dataclass(frozen=True)
class Written:
    """A value with the characters that it was written with."""

    value: Json
    text: str


_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_WORDS = {"null": None, "true": True, "false": False}
_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_CONTROL = re.compile(r"[\x00-\x1f]")
_PLAIN = re.compile(r"[^\"'\\\x00-\x1f]*")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "/": "/", "\\": "\\", "'": "'"}
_WRITTEN = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_DEEPEST = 200
"""Deepest nesting that `exact_document` reads; deeper documents are malformed. Spark reads 1,000 levels."""


_LONGEST_NUMBER = 1_000
"""Maximum length of a number, as in Spark."""


def _no_constant(name: str) -> Json:
    raise MalformedError(f"{name} is not a number in JSON")


_LENIENT = json.JSONDecoder(object_pairs_hook=JsonObject, parse_constant=_no_constant, strict=False)
_STRICT = json.JSONDecoder(object_pairs_hook=JsonObject)


def document(text: str, *, control_characters: bool) -> Json:
    """Read the first value of a text; raise MalformedError if there is none.

    `control_characters` allows them in texts, and refuses NaN and Infinity, as get_json_object does and from_json does
    not.
    """
    decoder = _LENIENT if control_characters else _STRICT
    start = _space_end(text, 0)
    try:
        value, end = decoder.raw_decode(text, start)
    except RecursionError as error:
        raise MalformedError("the document is nested too deeply") from error
    except ValueError:
        if "'" not in text:
            raise MalformedError("the text is no JSON document") from None
        return plain(exact_document(text, control_characters=control_characters))
    _check_end(text, end, value)
    return value


def exact_document(text: str, *, control_characters: bool) -> Json:
    """Read the first value of a text; numbers, lists and objects inside of it are `Written`."""
    reader = _Reader(text, control_characters)
    try:
        value, end = reader.value(_space_end(text, 0), 0)
    except IndexError:
        raise MalformedError("the document ends too early") from None
    _check_end(text, end, value.value if isinstance(value, Written) else value)
    return value


def plain(value: Json) -> Json:
    """Return a value of `exact_document` without the characters that it was written with."""
    if isinstance(value, Written):
        value = value.value
    if isinstance(value, JsonObject):
        return JsonObject((name, plain(item)) for name, item in value)
    return [plain(item) for item in value] if isinstance(value, list) else value


def _space_end(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _check_end(text: str, end: int, value: Json) -> None:
    """Raise if a number or a word at the top is followed by more than white space."""
    is_word = not isinstance(value, str | list | JsonObject)
    if is_word and end < len(text) and text[end] not in " \t\n\r":
        raise MalformedError(f"{text[end]!r} follows a number or a word")


@dataclass(frozen=True)
class _Reader:
    text: str
    control_characters: bool

    def value(self, at: int, depth: int) -> tuple[Json, int]:  # noqa: C901 - one branch per kind of value
        if depth > _DEEPEST:
            raise MalformedError("the document is nested too deeply")
        first = self.text[at]
        if first in "\"'":
            return self._string(at)
        if first == "{":
            items, end = self._items(at, depth, "}")
            return Written(JsonObject(items), self.text[at:end]), end
        if first == "[":
            items, end = self._items(at, depth, "]")
            return Written([item for _, item in items], self.text[at:end]), end
        for word, meaning in _WORDS.items():
            if self.text.startswith(word, at):
                return meaning, at + len(word)
        if not self.control_characters:
            for word, number in _NOT_FINITE.items():
                if self.text.startswith(word, at):
                    return Written(number, word), at + len(word)
        match = _NUMBER.match(self.text, at)
        if match is None:
            raise MalformedError(f"{first!r} begins no value")
        written = match[0]
        if len(written) > _LONGEST_NUMBER:
            raise MalformedError(f"a number of more than {_LONGEST_NUMBER:,} characters")
        return Written(float(written) if match[1] or match[2] else int(written), written), match.end()

    def _items(self, at: int, depth: int, close: str) -> tuple[list[tuple[str, Json]], int]:
        items: list[tuple[str, Json]] = []
        at = self._next(at + 1)
        if self.text[at] == close:
            return items, at + 1
        while True:
            name = ""
            if close == "}":
                if self.text[at] not in "\"'":
                    raise MalformedError("a name must be a text")
                name, at = self._string(at)
                at = self._next(at)
                if self.text[at] != ":":
                    raise MalformedError("a colon must follow a name")
                at = self._next(at + 1)
            value, at = self.value(at, depth + 1)
            items.append((name, value))
            at = self._next(at)
            if self.text[at] == close:
                return items, at + 1
            if self.text[at] != ",":
                raise MalformedError("a comma must follow a value")
            at = self._next(at + 1)

    def _next(self, at: int) -> int:
        return _space_end(self.text, at)

    def _string(self, at: int) -> tuple[str, int]:
        quote, parts = self.text[at], []
        at += 1
        while True:
            match = _PLAIN.match(self.text, at)
            assert match is not None, "matches the empty text"
            parts.append(match[0])
            at = match.end()
            character = self.text[at]
            if character == quote:
                return "".join(parts), at + 1
            if character == "\\":
                escaped, at = self._escaped(at + 1)
                parts.append(escaped)
                continue
            if character < " " and not self.control_characters:
                raise MalformedError("a control character in a text must be escaped")
            parts.append(character)
            at += 1

    def _escaped(self, at: int) -> tuple[str, int]:
        letter = self.text[at]
        if letter != "u":
            if letter not in _ESCAPES:
                raise MalformedError(f"{letter!r} cannot be escaped")
            return _ESCAPES[letter], at + 1
        digits = self.text[at + 1 : at + 5]
        if not re.fullmatch("[0-9a-fA-F]{4}", digits):
            raise MalformedError("four hexadecimal digits must follow \\u")
        code = int(digits, 16)
        if 0xD800 <= code < 0xDC00 and self.text[at + 5 : at + 7] == "\\u":  # noqa: PLR2004 - UTF-16
            low = self.text[at + 7 : at + 11]
            if re.fullmatch("[dD][c-fC-F][0-9a-fA-F]{2}", low):
                return chr(0x10000 + ((code - 0xD800) << 10) + int(low, 16) - 0xDC00), at + 11
        return chr(code), at + 5


def storable(text: str) -> str:
    """Return a text with a question mark for each half of a character, which UTF-8 cannot store."""
    return _SURROGATE.sub("?", text) if not text.isascii() else text


def quoted(text: str) -> str:
    """Return a text as JSON: quotes, backslashes and control characters are escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_CONTROL.sub(_control, escaped)}"'


def _control(match: "re.Match[str]") -> str:
    character = match[0]
    return _WRITTEN.get(character) or f"\\u{ord(character):04X}"


def written(value: Json, double: "DoubleText") -> str:
    """Return a value as JSON without spaces; `double` writes a number with a fraction."""
    return "".join(_pieces(value, double))


DoubleText: TypeAlias = Any
"""A function of a float that returns its text, as Java writes it."""


def _pieces(value: Json, double: DoubleText) -> Iterator[str]:
    if value is None or isinstance(value, bool):
        yield {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, str):
        yield quoted(value)
    elif isinstance(value, int):
        yield str(value)
    elif isinstance(value, float):
        yield double(value)
    elif isinstance(value, JsonObject):
        yield "{"
        for place, (name, item) in enumerate(value):
            yield f"{',' if place else ''}{quoted(name)}:"
            yield from _pieces(item, double)
        yield "}"
    else:
        yield "["
        for place, item in enumerate(value):
            yield "," if place else ""
            yield from _pieces(item, double)
        yield "]"
