"""Sealed messages: protobuf with a checksum that a plain parser ignores.

Layout: the serialised message without field 15, then one byte 0x7D (field 15, four bytes wide), then the CRC-32C of
everything before that byte, little endian. Opening checks in this order: length and trailer, checksum, parse, format
version, names. A newer version is therefore not reported as damage.
"""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from statebed.errors import CorruptObjectError, NewerFormatError
from statebed.format.digest import crc32c
from statebed.format.stored_names import problem_with_names

FORMAT_VERSION = 1
TRAILER_TAG = 0x7D
TRAILER_LENGTH = 5

M = TypeVar("M", bound=Message)


def seal(message: Message) -> bytes:
    """Set `format_version`, and return the bytes of `message` with its trailer; deterministic."""
    message.format_version = FORMAT_VERSION  # type: ignore[attr-defined]
    message.ClearField("crc32c")
    body: bytes = message.SerializeToString(deterministic=True)
    return body + bytes([TRAILER_TAG]) + crc32c(body).to_bytes(4, "little")


def open_sealed(kind: type[M], data: bytes, *, where: str, damaged: type[CorruptObjectError] = CorruptObjectError) -> M:
    """Return the message written by `seal`; raise an error of the type `damaged` if the bytes are damaged."""
    fix = "restore it from a backup, or fork to an older intact epoch: `statebed repair`"
    if len(data) < TRAILER_LENGTH or data[-TRAILER_LENGTH] != TRAILER_TAG:
        raise damaged(f"a {kind.__name__} of {len(data)} bytes is cut short", where=where, fix=fix)
    body = data[:-TRAILER_LENGTH]
    if crc32c(body) != int.from_bytes(data[-4:], "little"):
        raise damaged(f"the checksum of a {kind.__name__} does not match its bytes", where=where, fix=fix)
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise damaged(f"a {kind.__name__} does not parse: {error}", where=where, fix=fix) from error
    version: int = message.format_version  # type: ignore[attr-defined]
    if version > FORMAT_VERSION:
        raise NewerFormatError(
            f"a {kind.__name__} of format version {version}; this statebed knows up to {FORMAT_VERSION}",
            where=where,
            fix="upgrade statebed on this machine: pip install --upgrade statebed",
        )
    if version < 1:
        raise damaged(f"a {kind.__name__} without a format version", where=where, fix=fix)
    problem = problem_with_names(message)
    if problem is not None:
        raise damaged(f"a {kind.__name__} was not written by statebed: {problem}", where=where, fix=fix)
    return message
