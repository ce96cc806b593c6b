"""Garbage is removed alongside the epochs: commits do not wait for it, and trouble with it stops nothing."""

import threading
import time
from collections.abc import Sequence

import pytest
from unit.checkpoint.place import JOB, SECOND_US, Place

from statebed.checkpoint import EpochDraft, Run
from statebed.checkpoint.objects import store_subtask
from statebed.errors import CleanupError, StatebedError, StorageError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.digest import crc32c, digest
from statebed.spark.epoch import background_cleanup
from statebed.spark.epoch.background_cleanup import BackgroundCleanup
from statebed.storage import MemoryStore, ObjectInfo, PutOutcome, ScopedStore
from statebed.testing.faults import Fault, FaultStore, Operation, Verb

LATENCY_SECONDS = 0.015
OPERATORS, SUBTASKS, COLLECT_EVERY = 2, 16, 16


@pytest.fixture
def place() -> Place:
    return Place()


class Gate:
    """Holds every delete until it is opened."""

    def __init__(self, place: Place) -> None:
        self.opened = threading.Event()
        self.waiting = threading.Event()
        self.store = FaultStore(place.disk, before=self._before)

    def _before(self, operation: Operation) -> None:
        if operation.verb is Verb.DELETE:
            self.waiting.set()
            assert self.opened.wait(30)


def commits(place: Place, run: Run, count: int) -> None:
    for _ in range(count):
        place.commit(run)


def test_p5_commits_go_on_while_a_cleanup_waits_for_the_store(place: Place) -> None:
    gate, failures = Gate(place), list[StatebedError]()
    run = place.open(through=gate.store, epochs=2)
    commits(place, run, 6)
    cleanup = BackgroundCleanup(run, failed=failures.append)
    cleanup.begin(())
    assert gate.waiting.wait(30)
    assert cleanup.under_way
    commits(place, run, 3)
    assert not cleanup.settle()
    gate.opened.set()
    cleanup.end(())
    assert not cleanup.under_way
    assert not failures
    numbers = sorted(number for number in range(1, 20) if place.store.head(names.record(number)))
    assert numbers == [run.head.epoch - 1, run.head.epoch]


def test_one_cleanup_runs_at_a_time_and_another_is_remembered(place: Place) -> None:
    gate = Gate(place)
    run = place.open(through=gate.store, epochs=2)
    commits(place, run, 6)
    cleanup = BackgroundCleanup(run, failed=lambda _: None)
    cleanup.begin(())
    assert gate.waiting.wait(30)
    cleanup.begin(())
    assert sum(thread.name == "statebed-cleanup" for thread in threading.enumerate()) == 1
    gate.opened.set()
    cleanup._wait(30)
    assert cleanup.settle(), "the second one is still wanted"
    assert not cleanup.settle()


def test_p9_a_cleanup_that_the_store_prevents_is_reported_and_the_next_resumes_it(place: Place) -> None:
    broken = [True]
    store = FaultStore(
        place.disk, lambda operation: Fault.UNAVAILABLE if broken[0] and operation.verb is Verb.DELETE else None
    )
    failures = list[StatebedError]()
    run = place.open(through=store, epochs=2)
    commits(place, run, 6)
    cleanup = BackgroundCleanup(run, failed=failures.append)
    cleanup.end(())
    assert [isinstance(failure, StorageError) for failure in failures] == [True]
    assert place.store.head(names.record(2))
    broken[0] = False
    cleanup.end(())
    assert not place.store.head(names.record(2))


def test_records_that_cannot_be_read_are_reported_without_a_thread(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = place.open(epochs=2)
    failures = list[StatebedError]()
    monkeypatch.setattr(run, "_damaged", frozenset({run.head.epoch}))
    BackgroundCleanup(run, failed=failures.append).begin(())
    assert [type(failure) for failure in failures] == [CleanupError]


def test_the_end_of_a_query_waits_for_cleanups_no_longer_than_it_may(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_cleanup, "END_SECONDS", 0.2)
    gate = Gate(place)
    run = place.open(through=gate.store, epochs=2)
    commits(place, run, 6)
    cleanup = BackgroundCleanup(run, failed=lambda _: None)
    start = time.monotonic()
    cleanup.end(())
    assert time.monotonic() - start < 5
    assert cleanup.under_way
    gate.opened.set()
    cleanup.close()


# ---- how long it takes -----------------------------------------------------------------------------------------


class Distant(MemoryStore):
    """A store every request to which takes 15 ms; one request deletes up to 1,000 objects, as on S3."""

    slow = False

    def _wait(self, requests: int = 1) -> None:
        if self.slow:
            time.sleep(LATENCY_SECONDS * requests)

    def put_if_absent(self, path: str, data: bytes) -> PutOutcome:
        self._wait()
        return super().put_if_absent(path, data)

    def get(self, path: str) -> bytes:
        self._wait()
        return super().get(path)

    def head(self, path: str) -> ObjectInfo | None:
        self._wait()
        return super().head(path)

    def delete(self, path: str) -> None:
        self._wait()
        super().delete(path)

    def delete_many(self, paths: Sequence[str]) -> None:
        self._wait(-(-len(paths) // 1000))
        for path in paths:
            super().delete(path)


def wide_draft(run: Run) -> EpochDraft:
    """An epoch in which each of 16 subtasks of 2 operators writes a data file, metadata and an outbox file."""
    entries, outbox, epoch = [], [], run.next_epoch
    for operator in [f"op{number}" for number in range(OPERATORS)]:
        references = []
        for index in range(SUBTASKS):
            data = f"{operator} {index} {epoch}".encode()
            path = names.data_file(epoch, operator, "t", index, digest(data))
            out = names.outbox_file(epoch, operator, "", index, digest(data))
            run.store.put(path, data)
            run.store.put(out, data)
            outbox.append(pb.OutboxFile(operator_id=operator, path=out, size=len(data), crc32c=crc32c(data)))
            file = pb.FileEntry(path=path, size=len(data), rows=1, crc32c=crc32c(data))
            metadata = pb.OperatorCheckpointMetadata(
                job_id=JOB, operator_id=operator, epoch=epoch, subtask_index=index, parallelism=SUBTASKS
            )
            metadata.tables["t"].subtasks[index].files.append(file)
            references.append(store_subtask(run.store, metadata))
        entries.append(pb.OperatorEntry(operator_id=operator, parallelism=SUBTASKS, subtasks=references))
    return EpochDraft(operators=entries, outbox=outbox, parallelism=SUBTASKS)


def test_p5_collecting_16_epochs_of_32_subtasks_from_a_distant_store_takes_seconds(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = Distant(now_us=lambda: place.now_us)
    run = place.open(through=disk, epochs=2)
    for number in range(2 * COLLECT_EVERY):
        place.now_us += SECOND_US
        run.commit(wide_draft(run))
        if number == COLLECT_EVERY:
            run.clean_up()
    disk.slow = True
    start = time.monotonic()
    removed = run.clean_up()
    seconds = time.monotonic() - start
    with capsys.disabled():
        print(f"\n{removed.objects} objects, {len(removed.records)} records: {seconds:.1f} s at 15 ms a request")  # noqa: T201
    assert seconds < 5
    assert ScopedStore(disk, JOB).head(names.record(run.head.epoch))
