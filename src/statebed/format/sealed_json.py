"""Sealed JSON: an object whose last member is a checksum, readable by any JSON parser, in which damage is always
detected.

Layout: the JSON object without its closing brace, then `,"crc32c":"` + the CRC-32C of all bytes before that comma in
eight lower-case hexadecimal digits + `"}`. Opening checks in this order: trailer, checksum, version, members. A newer
version is therefore not reported as damage.
"""

import re
from typing import Protocol, TypeVar

import msgspec

from statebed.errors import CorruptObjectError, NewerFormatError
from statebed.format.digest import crc32c

_TRAILER = re.compile(rb',"crc32c":"([0-9a-f]{8})"}')
TRAILER_LENGTH = len(b',"crc32c":"00000000"}')


class Versioned(Protocol):
    """A msgspec struct with a format version that refuses unknown members."""

    @property
    def version(self) -> int:
        """Version of the format."""


class _Version(msgspec.Struct):
    version: int


S = TypeVar("S", bound=Versioned)


def seal_json(value: Versioned) -> bytes:
    """Return the JSON of `value` with its checksum."""
    body = msgspec.json.encode(value)[:-1]
    return body + f',"crc32c":"{crc32c(body):08x}"}}'.encode()


def is_sealed(data: bytes) -> bool:
    """Return whether the bytes end like those of `seal_json`; does not verify the checksum."""
    return _TRAILER.fullmatch(data[-TRAILER_LENGTH:]) is not None


def open_json(kind: type[S], data: bytes, *, version: int, what: str, where: str, fix: str) -> S:
    """Return the value written by `seal_json`; raise an error about `what` at `where` if it is damaged or newer."""
    trailer = _TRAILER.fullmatch(data[-TRAILER_LENGTH:])
    if trailer is None:
        raise CorruptObjectError(f"{what} has {len(data)} bytes and ends without its checksum", where=where, fix=fix)
    body = data[:-TRAILER_LENGTH]
    if crc32c(body) != int(trailer[1], 16):
        raise CorruptObjectError(f"the checksum of {what} does not match its bytes", where=where, fix=fix)
    stored_version = decode_json(_Version, body + b"}", what=what, where=where, fix=fix).version
    if stored_version > version:
        raise NewerFormatError(
            f"{what} has format version {stored_version}; this statebed knows versions up to {version}",
            where=where,
            fix="upgrade statebed on this machine: pip install --upgrade statebed",
        )
    if stored_version != version:
        raise CorruptObjectError(f"{what} is sealed, but has format version {stored_version}", where=where, fix=fix)
    return decode_json(kind, body + b"}", what=what, where=where, fix=fix)


def decode_json(kind: type[S], data: bytes, *, what: str, where: str, fix: str) -> S:
    """Decode strict JSON; raise an error about `what` at `where` if that fails."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptObjectError(f"{what} cannot be read: {error}", where=where, fix=fix) from error
