"""A read that fails its checksum is repeated once before the object is called damaged."""

import logging
from collections.abc import Callable

import pytest

from statebed.checkpoint import CheckpointLog
from statebed.checkpoint.objects import fetch
from statebed.errors import CorruptObjectError, CorruptRecordError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c
from statebed.format.sealed import seal
from statebed.storage import MemoryStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb


def failing(store: MemoryStore, fault: Fault, times: int) -> FaultStore:
    left = [fault] * times

    def plan(operation: Operation) -> Fault | None:
        reads = operation.verb in {Verb.GET, Verb.GET_RANGE}
        return left.pop() if reads and left else None

    return FaultStore(store, plan)


def fetch_object(store: FaultStore) -> object:
    data = b"some bytes"
    return fetch(store, "object", size=len(data), crc=crc32c(data))


def read_record(store: FaultStore) -> object:
    return CheckpointLog(store, "job").read(1)


def make_store() -> MemoryStore:
    store = MemoryStore()
    store.put("object", b"some bytes")
    store.put(names.record(1), seal(pb.CheckpointMetadata(job_id="job", epoch=1)))
    return store


READS: dict[str, Callable[[FaultStore], object]] = {"object": fetch_object, "record": read_record}


@pytest.mark.parametrize("fault", [Fault.FLIP_BYTE, Fault.CUT_SHORT])
@pytest.mark.parametrize("read", READS)
def test_p7_one_bad_transfer_is_repeated_and_logged(read: str, fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "statebed"):
        assert READS[read](failing(make_store(), fault, 1))
    assert "read again" in caplog.text


@pytest.mark.parametrize("fault", [Fault.FLIP_BYTE, Fault.CUT_SHORT])
@pytest.mark.parametrize("read", READS)
def test_p7_two_bad_reads_are_damage(read: str, fault: Fault) -> None:
    store = failing(make_store(), fault, 2)
    with pytest.raises(CorruptObjectError):
        READS[read](store)
    assert len(store.log) == 2


def test_a_record_of_another_epoch_is_damage_after_two_looks() -> None:
    store = make_store()
    store.put(names.record(2), store.get(names.record(1)))
    with pytest.raises(CorruptRecordError):
        CheckpointLog(store, "job").read(2)
