"""Numbers and bytes written in other bases: bin, hex, unhex, conv, base64, base32."""

import base64
import binascii
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.strings import as_text
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term

_WORD = 2**64
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MIN_BASE = 2
_SHOWN = 100
"""Number of characters of a text that an error shows."""


def as_binary(site: Site, operand: Term) -> Term:
    """Convert text to its bytes; binary stays as it is."""
    return operand if operand.type == types.BINARY else convert(as_text(site, operand), types.BINARY)


def _bin(site: Site) -> Term:
    return site.apply(
        partial(by_distinct, _binary_digits, types.TEXT), types.TEXT, convert(site.operands[0], types.BIGINT)
    )


def _binary_digits(value: int) -> str:
    return f"{value % _WORD:b}"


def _hex(site: Site) -> Term:
    (operand,) = site.operands
    if operand.type in (types.TEXT, types.BINARY):
        return site.apply(partial(by_distinct, _hex_bytes, types.TEXT), types.TEXT, as_binary(site, operand))
    return site.apply(partial(by_distinct, _hex_number, types.TEXT), types.TEXT, convert(operand, types.BIGINT))


def _hex_bytes(value: bytes) -> str:
    return value.hex().upper()


def _hex_number(value: int) -> str:
    return f"{value % _WORD:X}"


def _unhex(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    return site.apply(partial(by_distinct, _from_hex, types.BINARY), types.BINARY, text, nullable=True)


def _from_hex(text: str) -> bytes | None:
    if not text.isascii() or not text.isalnum():
        return b"" if not text else None
    try:
        return bytes.fromhex("0" * (len(text) % 2) + text)
    except ValueError:
        return None


def _conv(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    bases = (convert(operand, types.INT) for operand in site.operands[1:])
    kernel = partial(by_distinct, _converted, types.TEXT)
    return site.apply(kernel, types.TEXT, text, *bases, nullable=True, fallible=True)


def _converted(text: str, source: int, target: int) -> str | None:
    """Convert the digits at the start of a text to another base; a negative target base keeps the sign."""
    if not (_MIN_BASE <= source <= len(_DIGITS) and _MIN_BASE <= abs(target) <= len(_DIGITS)):
        return None
    text = text.strip(" ")
    negative = text.startswith("-")
    value = 0
    if not text:
        return None
    for character in text.removeprefix("-"):
        digit = _DIGITS.find(character.upper() if character.isascii() else character)
        if not 0 <= digit < source:
            break
        value = value * source + digit
        if value >= _WORD:
            raise RowFailure(f"{text[:_SHOWN]!r} in base {source} is a number of more than 64 bits")
    if negative and target > 0:
        value = -value % _WORD if value < _WORD // 2 or value == _WORD // 2 else _WORD - 1
    if target < 0 and value >= _WORD // 2 and not negative:
        value, negative = _WORD - value, True
    digits = ""
    while value:
        value, digit = divmod(value, abs(target))
        digits = _DIGITS[digit] + digits
    return ("-" if negative and target < 0 and digits else "") + (digits or "0")


def _base64(site: Site) -> Term:
    return site.apply(partial(by_distinct, _to_base64, types.TEXT), types.TEXT, as_binary(site, site.operands[0]))


def _to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _unbase64(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    return site.apply(partial(by_distinct, _from_base64, types.BINARY), types.BINARY, text, fallible=True)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise RowFailure(f"{text!r} is not valid base64") from None


def _base32(site: Site) -> Term:
    return site.apply(partial(by_distinct, _to_base32, types.TEXT), types.TEXT, as_binary(site, site.operands[0]))


def _to_base32(value: bytes) -> str:
    return base64.b32encode(value).decode("ascii")


def _unbase32(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    return site.apply(partial(by_distinct, _from_base32, types.BINARY), types.BINARY, text, fallible=True)


def _from_base32(text: str) -> bytes:
    try:
        return base64.b32decode(text.encode())
    except (binascii.Error, ValueError):
        raise RowFailure(f"{text!r} is not valid base32") from None


def _encode(site: Site) -> Term:
    charset = _charset(site)
    kernel = partial(by_distinct, partial(_encoded, charset), types.BINARY)
    return site.apply(kernel, types.BINARY, as_text(site, site.operands[0]), fallible=True)


def _encoded(charset: str, text: str) -> bytes:
    try:
        return (b"\xfe\xff" if charset == "utf-16" else b"") + text.encode(
            "utf-16-be" if charset == "utf-16" else charset
        )
    except UnicodeEncodeError:
        raise RowFailure(f"{text!r} has characters that {charset} lacks") from None


def _decode(site: Site) -> Term:
    charset = _charset(site)
    kernel = partial(by_distinct, partial(_decoded, charset), types.TEXT)
    return site.apply(kernel, types.TEXT, as_binary(site, site.operands[0]), fallible=True)


def _decoded(charset: str, content: bytes) -> str:
    try:
        return content.decode(charset)
    except UnicodeDecodeError:
        raise RowFailure(f"bytes that are no {charset}: {content[:20]!r}") from None


def _charset(site: Site) -> str:
    charset = site.text_of(1).lower()
    if charset not in _CHARSETS:
        known = ", ".join(sorted(_CHARSETS))
        raise site.operands[1].place.mistake(f"{site.function} knows no character set {charset!r}", fix=f"use {known}")
    return charset


_CHARSETS = {"us-ascii", "iso-8859-1", "utf-8", "utf-16be", "utf-16le", "utf-16", "utf-32"}


def _octets(site: Site) -> Term:
    return site.apply(
        partial(_byte_count, 8 if site.function == "bit_length" else 1), types.INT, as_binary(site, site.operands[0])
    )


def _byte_count(factor: int, datum: Datum) -> pa.Array:
    return pc.multiply_checked(pc.binary_length(datum), pa.scalar(factor, pa.int32()))


BUILDERS: dict[str, Builder] = {
    "bin": of(_bin, 1),
    "hex": of(_hex, 1),
    "unhex": of(_unhex, 1),
    "conv": of(_conv, 3),
    "base64": of(_base64, 1),
    "unbase64": of(_unbase64, 1),
    "to_base32": of(_base32, 1),
    "from_base32": of(_unbase32, 1),
    "encode": of(_encode, 2),
    "decode": of(_decode, 2),
    "octet_length": of(_octets, 1),
    "bit_length": of(_octets, 1),
}
