"""Files on their way to the store: readable, charged to the budget, and no more of them than may wait."""

import threading
from pathlib import Path

import pytest

from statebed.errors import CheckpointTimeoutError, MissingFileError, ObjectMissingError
from statebed.state import MemoryController, Purpose, Upload
from statebed.state.manager.in_flight import InFlight
from statebed.state.manager.uploads import Uploads
from statebed.storage import MemoryStore, ObjectStore
from statebed.testing.faults import FaultStore, Operation, Verb

OWNER = "counts"
WRITES = (OWNER, Purpose.WRITES)


class Gate:
    """Holds every put until it is opened."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def hold(self, operation: Operation) -> None:
        if operation.verb is Verb.PUT:
            self.reached.set()
            assert self.opened.wait(timeout=30)


def in_flight_on(store: ObjectStore) -> tuple[InFlight, MemoryController]:
    memory = MemoryController(1 << 20)
    return InFlight(store, memory, owner=OWNER), memory


def charged(memory: MemoryController) -> int:
    return memory.snapshot().accounts.get(WRITES, 0)


def file_upload(path: Path, data: bytes) -> Upload:
    path.write_bytes(data)
    return Upload("data/file", len(data), path.read_bytes, on_stored=path.unlink)


def test_uploads_wait_for_space_and_a_file_larger_than_the_bound_goes_alone() -> None:
    gate, store = Gate(), MemoryStore()
    in_flight, _ = in_flight_on(FaultStore(store, before=gate.hold))
    uploads = Uploads(in_flight, threads=2, max_bytes=10, timeout_seconds=0.2)
    uploads.submit(Upload.of_bytes("a", b"x" * 100))
    with pytest.raises(CheckpointTimeoutError, match="100 bytes"):
        uploads.submit(Upload.of_bytes("b", b"y"))
    gate.opened.set()
    uploads.finish()
    uploads.submit(Upload.of_bytes("b", b"y"))
    uploads.finish()
    uploads.close()
    assert [info.size for info in store.list("")] == [100, 1]


def test_p4_bytes_in_memory_are_charged_from_their_announcement_until_they_are_stored() -> None:
    in_flight, memory = in_flight_on(MemoryStore())
    upload = Upload.of_bytes("data/bytes", b"x" * 1000)
    in_flight.announce(upload)
    in_flight.announce(upload)
    assert charged(memory) == 1000
    assert in_flight.get_range("data/bytes", 990, 10) == b"x" * 10
    in_flight.upload(upload)
    assert charged(memory) == 0
    assert in_flight.get("data/bytes") == b"x" * 1000


def test_p4_the_bytes_of_a_local_file_are_charged_only_while_they_are_put(tmp_path: Path) -> None:
    gate, store = Gate(), MemoryStore()
    in_flight, memory = in_flight_on(FaultStore(store, before=gate.hold))
    upload = file_upload(tmp_path / "spilled", b"x" * 1000)
    in_flight.announce(upload)
    assert charged(memory) == 0
    assert in_flight.get("data/file") == b"x" * 1000
    uploads = Uploads(in_flight, threads=1, max_bytes=1 << 20, timeout_seconds=30)
    uploads.submit(upload)
    assert gate.reached.wait(timeout=30)
    assert charged(memory) == 1000
    gate.opened.set()
    uploads.finish()
    uploads.close()
    assert charged(memory) == 0
    assert store.get("data/file") == b"x" * 1000
    assert not (tmp_path / "spilled").exists(), "its local file leaves once it is stored"


def test_a_file_whose_local_copy_leaves_during_a_read_is_read_from_the_store(tmp_path: Path) -> None:
    in_flight, _ = in_flight_on(MemoryStore())
    spilled = file_upload(tmp_path / "spilled", b"abc")

    def content_too_late() -> bytes:
        in_flight.upload(spilled)
        raise MissingFileError("the local file has left")

    in_flight.announce(Upload(spilled.path, spilled.size, content_too_late))
    assert in_flight.get(spilled.path) == b"abc"


def test_a_file_that_is_lost_before_it_is_stored_is_an_error(tmp_path: Path) -> None:
    in_flight, _ = in_flight_on(MemoryStore())
    upload = file_upload(tmp_path / "spilled", b"abc")
    in_flight.announce(upload)
    (tmp_path / "spilled").unlink()
    with pytest.raises(FileNotFoundError):
        in_flight.get(upload.path)


def test_a_withdrawn_file_is_neither_read_nor_charged() -> None:
    in_flight, memory = in_flight_on(MemoryStore())
    in_flight.announce(Upload.of_bytes("data/bytes", b"x"))
    in_flight.withdraw("data/bytes")
    assert charged(memory) == 0
    with pytest.raises(ObjectMissingError):
        in_flight.get("data/bytes")
