"""A write that the store acknowledged and spoiled is found out before anything refers to it."""

import hashlib
import logging
import os
from dataclasses import replace

import pytest

from statebed.errors import LostWriteError
from statebed.storage import MemoryStore, ObjectInfo, PutOutcome, create_verified, put_verified
from statebed.storage.verified import READ_BACK_BYTES, UPLOAD_PART_BYTES, content_tags
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

SPOILS = [Fault.STORE_HALF, Fault.STORE_FLIPPED, Fault.STORE_NOTHING]
SMALL, LARGE = b"some rows", os.urandom(READ_BACK_BYTES + 1)


class Tagged(MemoryStore):
    """A store that reports the MD5 of each object, as S3 does."""

    def head(self, path: str) -> ObjectInfo | None:
        info = super().head(path)
        return info and replace(info, e_tag=content_tags(self.get(path))[0])


class Opaque(MemoryStore):
    """A store whose tags are no checksums, as with KMS encryption or on Azure."""

    def head(self, path: str) -> ObjectInfo | None:
        info = super().head(path)
        return info and replace(info, e_tag="0x8D4BCC2E4835CD0")


def spoiling(store: MemoryStore, fault: Fault, times: int) -> FaultStore:
    left = [fault] * times
    return FaultStore(store, lambda operation: left.pop() if operation.verb is Verb.PUT and left else None)


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("kind", [MemoryStore, Tagged, Opaque])
@pytest.mark.parametrize("fault", SPOILS)
def test_p1_a_spoiled_write_fails_by_name(kind: type[MemoryStore], fault: Fault, data: bytes) -> None:
    store = spoiling(kind(), fault, 2)
    with pytest.raises(LostWriteError, match="acknowledged") as lost:
        put_verified(store, "data/file", data)
    assert "data/file" in lost.value.where


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("fault", SPOILS)
def test_a_write_that_was_spoiled_once_is_repeated(fault: Fault, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryStore()
    with caplog.at_level(logging.WARNING, "statebed"):
        put_verified(spoiling(disk, fault, 1), "file", data)
    assert disk.get("file") == data
    assert "acknowledged" in caplog.text


@pytest.mark.parametrize(
    ("kind", "data", "verbs"),
    [
        (MemoryStore, SMALL, [Verb.PUT, Verb.GET]),
        (Tagged, LARGE, [Verb.PUT, Verb.HEAD]),
        (Opaque, LARGE, [Verb.PUT, Verb.HEAD, Verb.GET_RANGE]),
    ],
)
def test_an_object_takes_one_more_request_unless_its_tag_is_no_checksum(
    kind: type[MemoryStore], data: bytes, verbs: list[Verb]
) -> None:
    store = FaultStore(kind())
    put_verified(store, "file", data)
    assert [operation.verb for operation in store.log] == verbs


def test_an_object_in_parts_is_known_by_the_md5_of_their_md5s() -> None:
    data = os.urandom(UPLOAD_PART_BYTES + 10)
    parts = [hashlib.md5(part, usedforsecurity=False).digest() for part in (data[:UPLOAD_PART_BYTES], data[-10:])]
    assert content_tags(data) == (f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-2",)


def test_an_empty_object_is_verified_too() -> None:
    put_verified(MemoryStore(), "file", b"")
    nothing = FaultStore(MemoryStore(), lambda operation: Fault.STORE_NOTHING if is_put(operation) else None)
    with pytest.raises(LostWriteError, match="not there"):
        put_verified(nothing, "file", b"")


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("fault", SPOILS)
def test_p1_a_new_object_that_was_spoiled_fails_by_name_and_is_not_replaced(fault: Fault, data: bytes) -> None:
    disk = MemoryStore()
    left = [fault] * 2
    store = FaultStore(disk, lambda operation: left.pop() if operation.verb.writes and left else None)
    with pytest.raises(LostWriteError, match=f"{len(data)} bytes") as lost:
        create_verified(store, "entry", data, fix="delete the object")
    assert lost.value.fix == "delete the object"
    assert [operation.verb for operation in store.log].count(Verb.PUT) == 0


def test_a_new_object_that_was_lost_once_is_created_again() -> None:
    disk = MemoryStore()
    store = FaultStore(disk, {1: Fault.STORE_NOTHING})
    assert create_verified(store, "entry", SMALL, fix="") is PutOutcome.CREATED
    assert disk.get("entry") == SMALL
    assert create_verified(store, "entry", b"another", fix="") is PutOutcome.EXISTS
    assert disk.get("entry") == SMALL


def is_put(operation: Operation) -> bool:
    return operation.verb is Verb.PUT
