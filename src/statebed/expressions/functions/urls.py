"""Functions of URLs: encoding, decoding and parts."""

import re
from collections.abc import Callable
from functools import partial
from urllib.parse import quote_plus

from statebed.expressions import types
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.characters import per_value
from statebed.expressions.functions.strings import as_text
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Term

_URL = re.compile(
    r"(?:(?P<PROTOCOL>[A-Za-z][A-Za-z0-9+.\-]*):)?(?://(?P<AUTHORITY>[^/?#]*))?(?P<PATH>[^?#]*)(?:\?(?P<QUERY>[^#]*))?"
    r"(?:#(?P<REF>.*))?",
    re.DOTALL,
)
_AUTHORITY = re.compile(r"(?:(?P<USERINFO>[^@]*)@)?(?P<HOST>\[[^\]]*\]|[^:]*)(?::(?P<port>\d*))?")
_ILLEGAL = re.compile(r"[\s\"<>\\^`{|}\x00-\x1f\x7f]|%(?![0-9A-Fa-f]{2})")
_PARTS = ["HOST", "PATH", "QUERY", "REF", "PROTOCOL", "FILE", "AUTHORITY", "USERINFO"]


def _encode(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _decode(text: str) -> str:
    """Decode percent escapes; `+` is a space."""
    decoded = bytearray()
    content = text.encode()
    position = 0
    while position < len(content):
        if content[position] == ord("%"):
            digits = content[position + 1 : position + 3]
            if not re.fullmatch(rb"[0-9A-Fa-f]{2}", digits):
                raise RowFailure(f"{text!r} is not an encoded URL: '%' must stand before two hexadecimal digits")
            decoded.append(int(digits, 16))
            position += 3
            continue
        decoded += b" " if content[position] == ord("+") else content[position : position + 1]
        position += 1
    return decoded.decode(errors="replace")


def _or_none(function: Callable[[str], str]) -> Callable[[str], str | None]:
    def lenient(text: str) -> str | None:
        try:
            return function(text)
        except RowFailure:
            return None

    return lenient


def _parse_url(site: Site) -> Term:
    part = site.text_of(1)
    key = (as_text(site, site.operands[2]),) if len(site.operands) > 2 else ()  # noqa: PLR2004 - the third operand
    strict = site.function == "parse_url"
    kernel = partial(by_distinct, partial(_part, part, strict), types.TEXT)
    return site.apply(kernel, types.TEXT, as_text(site, site.operands[0]), *key, nullable=True, fallible=strict)


def _part(part: str, strict: bool, url: str, key: str | None = None) -> str | None:
    if _ILLEGAL.search(url):
        if strict:
            raise RowFailure(f"{url!r} is no URL", fix="try_parse_url gives null for such texts")
        return None
    parts = _URL.fullmatch(url)
    if parts is None or part not in _PARTS or (key is not None and part != "QUERY"):
        return None
    if key is not None:
        match = re.search(f"(?:&|^){re.escape(key)}=([^&]*)", parts["QUERY"] or "")
        return match[1] if match else None
    if part == "FILE":
        return parts["PATH"] + (f"?{parts['QUERY']}" if parts["QUERY"] is not None else "")
    if part in {"HOST", "USERINFO"}:
        authority = _AUTHORITY.fullmatch(parts["AUTHORITY"] or "")
        return (authority[part] or None) if authority else None
    return parts[part]


BUILDERS: dict[str, Builder] = {
    "url_encode": per_value(_encode, types.TEXT, types.TEXT),
    "url_decode": per_value(_decode, types.TEXT, types.TEXT, fails=True),
    "try_url_decode": per_value(_or_none(_decode), types.TEXT, types.TEXT, maybe=True),
    "parse_url": of(_parse_url, 2, 3),
    "try_parse_url": of(_parse_url, 2, 3),
}
