"""Writes that are compared with what the store then has, before anything may refer to them.

An acknowledged put is not proof: stores have cut objects short, and lost them. One more request for each object finds
out. A small object is read back. A large one is looked up: its size must be right, and its ETag must be the MD5 of its
content, as on S3 without KMS encryption (for an upload in parts, the MD5 of the MD5s of the parts). Where a store
reports no such ETag, a large object is read back, too, in pieces.
"""

import hashlib
import logging

from statebed.errors import LostWriteError, ObjectMissingError
from statebed.storage.object_store import ObjectStore
from statebed.storage.paths import join

UPLOAD_PART_BYTES = 5 << 20
"""Object stores take larger objects in parts of this size."""
READ_BACK_BYTES = 1 << 20
"""Objects up to this size are read back: that takes one request, as looking them up would."""
_PIECE_BYTES = 8 << 20
_ATTEMPTS = 2
_logger = logging.getLogger(__name__)


def put_verified(store: ObjectStore, path: str, data: bytes) -> None:
    """Put an object and check that the store has these bytes; repeat it once, then raise LostWriteError.

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
        fix="nothing refers to this object; check the store and whatever is between it and this machine",
    )


def content_tags(data: bytes) -> tuple[str, ...]:
    """Return the ETags by which an S3 store says that it has exactly these bytes.

    >>> content_tags(b"rows")
    ('df347a373b8f92aa0ae3dd920a5ec2f6',)
    """
    if len(data) <= UPLOAD_PART_BYTES:
        return (_md5(data).hexdigest(),)
    view = memoryview(data)
    parts = [_md5(view[at : at + UPLOAD_PART_BYTES]).digest() for at in range(0, len(data), UPLOAD_PART_BYTES)]
    return (f"{_md5(b''.join(parts)).hexdigest()}-{len(parts)}",)


def _difference(store: ObjectStore, path: str, data: bytes) -> str | None:
    """Say how the stored object differs from `data`."""
    try:
        return _read_back(store, path, data) if len(data) <= READ_BACK_BYTES else _look_up(store, path, data)
    except ObjectMissingError:
        return "the object is not there"


def _look_up(store: ObjectStore, path: str, data: bytes) -> str | None:
    info = store.head(path)
    if info is None:
        return "the object is not there"
    if info.size != len(data):
        return f"it has {info.size} bytes"
    if info.e_tag is not None and info.e_tag in content_tags(data):
        return None
    for at in range(0, len(data), _PIECE_BYTES):
        piece = data[at : at + _PIECE_BYTES]  # a copy: views are compared byte by byte, 50 times slower
        if store.get_range(path, at, len(piece)) != piece:
            return f"bytes {at} to {at + len(piece)} differ"
    return None


def _read_back(store: ObjectStore, path: str, data: bytes) -> str | None:
    stored = store.get(path)
    if len(stored) != len(data):
        return f"it has {len(stored)} bytes"
    return None if stored == data else "its bytes differ"


def _md5(data: bytes | memoryview) -> "hashlib._Hash":
    return hashlib.md5(data, usedforsecurity=False)
