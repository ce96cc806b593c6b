"""Verified writes: compared with what the store then holds, before anything may refer to them.

An acknowledged put is no proof: stores have truncated and lost objects. One more request per object finds out. A small
object is read back. A large one is looked up: its size must be right, and its ETag must be the MD5 of its content, as
on S3 without KMS encryption (for a multipart upload, the MD5 of the parts' MD5s). If a store reports no such ETag, a
large object is read back in pieces, too.
"""

import hashlib
import logging
from collections.abc import Callable

from statebed.errors import LostWriteError, ObjectMissingError
from statebed.storage.object_store import ObjectStore, PutOutcome
from statebed.storage.paths import join

UPLOAD_PART_BYTES = 5 << 20
"""Part size of multipart uploads; larger objects are uploaded in parts."""
READ_BACK_BYTES = 1 << 20
"""Maximum size of objects that are read back, which takes one request, as a lookup would."""
_PIECE_BYTES = 8 << 20
_ATTEMPTS = 2
_MISSING = "the object is not there"
_logger = logging.getLogger(__name__)


def put_verified(store: ObjectStore, path: str, data: bytes) -> None:
    """Put an object and check that the store holds its bytes; repeat once, then raise LostWriteError.

    >>> from statebed.storage.memory_store import MemoryStore
    >>> put_verified(MemoryStore(), "data.parquet", b"rows")
    """
    problem = None
    for _ in range(_ATTEMPTS):
        store.put(path, data)
        problem = _difference(store, path, data)
        if problem is None:
            return
        _logger.warning("%s: the store acknowledged a write, but %s", join(store.url, path), problem)
    raise LostWriteError(
        f"the store acknowledged a write of {len(data)} bytes {_ATTEMPTS} times, but {problem}",
        where=join(store.url, path),
        fix="nothing refers to this object; check the store and everything between it and this machine",
    )


def create_verified(store: ObjectStore, path: str, data: bytes, *, fix: str) -> PutOutcome:
    """Create an object and check that the store holds its bytes; return EXISTS if the path is taken.

    An object that the store lost is created again once. One with other bytes is not replaced, because a
    put-if-absent is what decides between runs: the LostWriteError then has `fix` as its advice.

    >>> from statebed.storage.memory_store import MemoryStore
    >>> create_verified(MemoryStore(), "entry.json", b"{}", fix="delete the object")
    <PutOutcome.CREATED: 'created'>
    """
    for _ in range(_ATTEMPTS):
        if store.put_if_absent(path, data) is PutOutcome.EXISTS:
            return PutOutcome.EXISTS
        problem = _difference(store, path, data)
        if problem is None:
            return PutOutcome.CREATED
        _logger.warning("%s: the store acknowledged a new object, but %s", join(store.url, path), problem)
        if problem != _MISSING:
            break
    raise LostWriteError(
        f"the store acknowledged a new object of {len(data)} bytes, but {problem}", where=join(store.url, path), fix=fix
    )


def different_piece(data: bytes, read: Callable[[int, int], bytes]) -> str | None:
    """Return which bytes of a stored object differ from `data`, or None; `read(start, length)` reads a part of it."""
    for at in range(0, len(data), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]  # copied, because comparing views is 50 times slower
        if read(at, len(piece)) != piece:
            return f"bytes {at} to {at + len(piece)} differ"
    return None


def content_tags(data: bytes) -> tuple[str, ...]:
    """Return the ETags with which an S3 store confirms that it holds exactly these bytes.

    >>> content_tags(b"rows")
    ('df347a373b8f92aa0ae3dd920a5ec2f6',)
    """
    if len(data) <= UPLOAD_PART_BYTES:
        return (_md5(data).hexdigest(),)
    view = memoryview(data)
    parts = [_md5(view[at : at + UPLOAD_PART_BYTES]).digest() for at in range(0, len(data), UPLOAD_PART_BYTES)]
    return (f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}",)


def _difference(store: ObjectStore, path: str, data: bytes) -> str | None:
    """Return how the stored object differs from `data`, or None."""
    try:
        return _read_back(store, path, data) if len(data) <= READ_BACK_BYTES else _look_up(store, path, data)
    except ObjectMissingError:
        return _MISSING


def _look_up(store: ObjectStore, path: str, data: bytes) -> str | None:
    info = store.head(path)
    if info is None:
        return _MISSING
    if info.size != len(data):
        return f"it has {info.size} bytes"
    if info.e_tag is not None and info.e_tag in content_tags(data):
        return None
    return different_piece(data, lambda start, length: store.get_range(path, start, length))


def _read_back(store: ObjectStore, path: str, data: bytes) -> str | None:
    stored = store.get(path)
    if len(stored) != len(data):
        return f"it has {len(stored)} bytes"
    return None if stored == data else "its bytes differ"


def _md5(data: bytes | memoryview) -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
