"""Types and columns as SQL text: `amount double, at timestamp, tags array<string>`.

Type names are Spark's. Users write them to declare the state and output of their own functions.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.types import NAMED, type_named

_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")
_ARROW_DECIMAL = re.compile(r"decimal(?P<bits>128|256)\((?P<precision>\d+), (?P<scale>-?\d+)\)")
_ARROW_ZONED = re.compile(r"timestamp\[(?P<unit>\w+), tz=(?P<zone>.+)\]")
_ARROW_FIXED = re.compile(r"fixed_size_binary\[(?P<width>\d+)\]")
_EXAMPLE = "amount double, at timestamp, tags array<string>"


def schema_of(text: str | pa.Schema, *, where: str = "") -> pa.Schema:
    """Parse columns from text, or return a schema unchanged.

    >>> schema_of("total double, n bigint not null").names
    ['total', 'n']
    """
    if isinstance(text, pa.Schema):
        return text
    reader = _TypeReader(text, where)
    fields = list(reader.fields(":", end=None)) if reader.tokens else []
    names = [field.name.lower() for field in fields]
    if not fields or len(set(names)) != len(names):
        raise reader.mistake("must name at least one column, and each once")
    return pa.schema(fields)


def type_of(text: str | pa.DataType, *, where: str = "") -> pa.DataType:
    """Parse a type from text, or return a type unchanged.

    >>> str(type_of("array<decimal(10, 2)>"))
    'list<element: decimal128(10, 2)>'
    """
    if isinstance(text, pa.DataType):
        return text
    reader = _TypeReader(text, where)
    kind = reader.type()
    reader.finished()
    return kind


def type_from_arrow_text(text: str) -> pa.DataType:
    """Parse `str()` of an Arrow type that is not nested, as stored definitions have it.

    >>> type_from_arrow_text("timestamp[us, tz=UTC]").tz
    'UTC'
    """
    if match := _ARROW_DECIMAL.fullmatch(text):
        precision, scale = int(match["precision"]), int(match["scale"])
        return pa.decimal128(precision, scale) if match["bits"] == "128" else pa.decimal256(precision, scale)
    if match := _ARROW_ZONED.fullmatch(text):
        return pa.timestamp(match["unit"], tz=match["zone"])
    if match := _ARROW_FIXED.fullmatch(text):
        return pa.binary(int(match["width"]))
    try:
        return pa.type_for_alias(text)
    except ValueError as error:
        raise InputError(f"{text!r} is not the name of an Arrow type", fix="upgrade statebed") from error


@dataclass(frozen=True)
class _Token:
    text: str
    quoted: bool = False


class _TypeReader:
    """Parses a text from left to right."""

    def __init__(self, text: str, where: str) -> None:
        self.text, self.where = text, where
        if not isinstance(text, str):
            raise self.mistake("is not text")
        self.tokens = list(self._tokens())
        self.at = 0

    def mistake(self, what: str) -> InputError:
        return InputError(
            f"{self.text!r} {what}", where=self.where, fix=f"write columns and types, such as {_EXAMPLE!r}"
        )

    def fields(self, separator: str, *, end: str | None) -> Iterator[pa.Field]:
        """Yield columns up to the token `end`, or up to the end of the text; the separator may follow a name."""
        while True:
            name = self._next()
            if not name.quoted and not name.text.isidentifier():
                raise self.mistake(f"has {name.text!r} instead of a column name")
            self._skip(separator)
            kind = self.type()
            nullable = not (self._skip("not") and self._expect("null"))
            yield pa.field(name.text, kind, nullable=nullable)
            if not self._skip(","):
                break
        if end is None:
            self.finished()
        else:
            self._expect(end)

    def type(self) -> pa.DataType:
        """Parse one type."""
        name = self._next().text.lower()
        if name in {"array", "map", "struct"}:
            self._expect("<")
            return getattr(self, f"_{name}")()
        if self._skip("("):
            numbers = [self._next().text]
            while self._skip(","):
                numbers.append(self._next().text)
            self._expect(")")
            name += f"({','.join(numbers)})"
        kind = type_named(name)
        if kind is None:
            known = ", ".join(sorted(NAMED))
            raise self.mistake(
                f"has the unknown type {name!r}; the types are {known}, decimal(p, s), array<t>, map<k, v>, struct<>"
            )
        return kind

    def finished(self) -> None:
        if self.at < len(self.tokens):
            raise self.mistake(f"has {self.tokens[self.at].text!r} after its end")

    def _array(self) -> pa.DataType:
        kind = self.type()
        self._expect(">")
        return pa.list_(pa.field("element", kind))

    def _map(self) -> pa.DataType:
        key = self.type()
        self._expect(",")
        value = self.type()
        self._expect(">")
        return pa.map_(key, value)

    def _struct(self) -> pa.DataType:
        return pa.struct(list(self.fields(":", end=">")))

    def _tokens(self) -> Iterator[_Token]:
        place = 0
        while place < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, place)
            if match is None:
                raise self.mistake(f"cannot be read from {self.text[place:].strip()!r} on")
            quoted, word, sign = match.groups()
            yield _Token(quoted.replace("``", "`"), quoted=True) if quoted else _Token(word or sign)
            place = match.end()

    def _next(self) -> _Token:
        if self.at == len(self.tokens):
            raise self.mistake("ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def _skip(self, text: str) -> bool:
        here = self.tokens[self.at] if self.at < len(self.tokens) else None
        is_next = here is not None and not here.quoted and here.text.lower() == text
        self.at += is_next
        return is_next

    def _expect(self, text: str) -> bool:
        if not self._skip(text):
            raise self.mistake(f"lacks {text!r}")
        return True
