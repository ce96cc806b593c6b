"""The Parquet table: exactly once, fenced, rolled back when asked, plain files."""

import itertools
import json
import threading
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.checkpoint import Publication
from statebed.errors import BrokenLogError, CorruptObjectError, FencedError, InputError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.protocol import SinkPosition
from statebed.sinks import ParquetTableSink, manifest, read_table, table_files
from statebed.sinks.manifest import SUMMARY_EVERY
from statebed.storage import MemoryStore, ObjectStore, get_storage_provider

SCHEMA = pa.schema([("n", pa.int64())])
numbers = itertools.count()


@pytest.fixture
def path() -> str:
    return f"memory://table{next(numbers)}"


def sink(path: str, *, job_id: str = "rides") -> ParquetTableSink:
    return ParquetTableSink(sink_id="out", path=path, job_id=job_id, schema=SCHEMA)


def publication(run: int, epoch: int, *values: int) -> Publication:
    store = MemoryStore()
    files = []
    if values:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": list(values)}, schema=SCHEMA), buffer)
        data = buffer.getvalue().to_pybytes()
        store.put("a/op-0.d1.parquet", data)
        files.append(pb.OutboxFile(path="a/op-0.d1.parquet", size=len(data), rows=len(values), crc32c=crc32c(data)))
    return Publication(
        run=run, epoch=epoch, record=pb.CheckpointMetadata(), files=tuple(files), commit_data=(), store=store
    )


def rows(path: str) -> list[int]:
    found: list[int] = read_table(path)["n"].to_pylist()
    return found


def test_an_epoch_is_added_once_however_often_it_is_published(path: str) -> None:
    table = sink(path)
    assert table.open(1) is None
    for _ in range(3):
        table.publish(publication(1, 2, 10, 11))
    sink_of_next_run = sink(path)
    assert sink_of_next_run.open(5) == SinkPosition(run=1, epoch=2)
    sink_of_next_run.publish(publication(5, 2, 10, 11))
    sink_of_next_run.publish(publication(5, 6, 12))
    assert rows(path) == [10, 11, 12]


def test_p3_a_superseded_run_can_neither_publish_nor_open_again(path: str) -> None:
    old, new = sink(path), sink(path)
    old.open(1)
    new.open(4)
    with pytest.raises(FencedError):
        old.publish(publication(1, 2, 10))
    with pytest.raises(FencedError):
        old.open(1)
    with pytest.raises(FencedError):
        old.roll_back(1, 0)
    assert rows(path) == []


def test_p3_a_run_that_is_superseded_between_looking_and_writing_is_refused(path: str) -> None:
    old, new = sink(path), sink(path)
    old.open(1)

    class Overtaken(Publication):
        def read(self, file: pb.OutboxFile) -> bytes:
            new.open(4)  # after the old run looked at the log, before its entry
            return super().read(file)

    late = publication(1, 2, 10)
    with pytest.raises(FencedError):
        old.publish(Overtaken(run=1, epoch=2, record=late.record, files=late.files, commit_data=(), store=late.store))
    assert rows(path) == []


def test_a_rollback_takes_back_the_epochs_after_it_and_removes_their_files(path: str) -> None:
    table = sink(path)
    table.open(1)
    for epoch in (2, 3, 4):
        table.publish(publication(1, epoch, epoch * 10))
    forked = sink(path)
    forked.open(5)
    forked.roll_back(5, 2)
    forked.publish(publication(5, 6, 60))
    assert rows(path) == [20, 60]
    assert len(table_files(path)) == 2
    data = [info.path for info in get_storage_provider(path).list("") if info.path.endswith(".parquet")]
    assert len(data) == 2


def test_p3_a_run_superseded_in_mid_rollback_cannot_remove_an_epoch_that_came_back(path: str) -> None:
    """It made the files invisible and slept before it removed them; the next run published that epoch again."""
    zombie = sink(path)
    zombie.open(1)
    zombie.publish(publication(1, 2, 10))
    zombie.publish(publication(1, 3, 11))
    newer = sink(path)
    delete = zombie._store.delete

    def sleepy_delete(name: str) -> None:
        newer.open(5)
        newer.publish(publication(5, 3, 11))
        delete(name)

    zombie._store = _With(zombie._store, sleepy_delete)  # type: ignore[assignment]  # all other verbs pass through
    zombie.roll_back(1, 2)
    assert rows(path) == [10, 11]


class _With:
    """A store with another way to delete."""

    def __init__(self, store: ObjectStore, delete: Callable[[str], None]) -> None:
        self._store = store
        self.delete = delete

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_p5_the_manifest_grows_with_the_table_and_is_read_from_few_entries(path: str) -> None:
    table, store = sink(path), get_storage_provider(path)
    table.open(1)
    half = 0
    last = SUMMARY_EVERY**2 + SUMMARY_EVERY + 3  # past the first summary of summaries
    for epoch in range(2, last + 1):
        table.publish(publication(1, epoch, epoch))
        if epoch == last // 2:
            half = sum(info.size for info in store.list("_statebed"))
    assert sum(info.size for info in store.list("_statebed")) < 3 * half
    needed = {last, last - 1, last - 2, SUMMARY_EVERY**2 + SUMMARY_EVERY, SUMMARY_EVERY**2}
    for number in range(1, last + 1):
        if number not in needed:
            store.delete(f"_statebed/{number:012d}.json")
    assert rows(path) == list(range(2, last + 1))
    assert sink(path).open(last + 90) == SinkPosition(run=1, epoch=last)


@pytest.mark.parametrize("kept", [5, 10, 70])
def test_p5_summaries_hold_what_a_rollback_left(path: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback inside a summary, before it, and after a summary of summaries."""
    every = 8  # so that few epochs make summaries of summaries
    monkeypatch.setattr(manifest, "SUMMARY_EVERY", every)
    last = every**2 + every + 3
    table = sink(path)
    table.open(1)
    for epoch in range(2, last + 1):
        table.publish(publication(1, epoch, epoch))
    table.roll_back(1, kept)
    more = range(last + 1, last + 2 * every)
    for epoch in more:
        table.publish(publication(1, epoch, epoch))
    expected = [*range(2, kept + 1), *more]
    assert rows(path) == expected
    again = sink(path)  # has read summaries, and writes one that rests on them
    again.open(last + 90)
    for epoch in range(last + 91, last + 91 + every):
        again.publish(publication(last + 90, epoch, epoch))
    assert rows(path) == [*expected, *range(last + 91, last + 91 + every)]


def test_p3_two_runs_of_one_process_may_share_a_sink(path: str) -> None:
    """One job started twice: both read the log at once, and none may count an entry twice."""
    shared, other = sink(path), sink(path)
    shared.open(1)
    last = 3 * SUMMARY_EVERY
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            shared._checked()

    watchers = [threading.Thread(target=look) for _ in range(3)]
    for watcher in watchers:
        watcher.start()
    for epoch in range(2, last):
        (shared, other)[epoch % 2].publish(publication(1, epoch, epoch))
    done.set()
    for watcher in watchers:
        watcher.join(30)
    assert [file.epoch for file in shared._checked().files] == list(range(2, last))
    assert rows(path) == list(range(2, last))


def test_a_rollback_removes_files_that_a_crash_left_before_they_were_visible(path: str) -> None:
    table, store = sink(path), get_storage_provider(path)
    table.open(1)
    for epoch in (2, 3):
        table.publish(publication(1, epoch, epoch))
    store.put("epoch=000000000004/op-0.d1.parquet", b"copied, and then the driver died")
    store.put("epoch=000000000004/g99-op-0.d1.parquet", b"of a newer run")
    table.roll_back(1, 2)
    left = [info.path for info in store.list("") if info.path.endswith(".parquet")]
    assert left == ["epoch=000000000002/op-0.d1.parquet", "epoch=000000000004/g99-op-0.d1.parquet"]


def test_an_epoch_without_rows_leaves_no_trace(path: str) -> None:
    table = sink(path)
    table.open(1)
    table.publish(publication(1, 2))
    assert len(list(get_storage_provider(path).list(""))) == 1


def test_an_empty_table_has_its_columns(path: str) -> None:
    sink(path).open(1)
    assert read_table(path).schema == SCHEMA


def test_a_table_of_another_job_or_of_a_lost_state_is_refused(path: str) -> None:
    table = sink(path)
    table.open(7)
    table.publish(publication(7, 8, 1))
    with pytest.raises(InputError, match="belongs to rides/out"):
        sink(path, job_id="other").open(9)
    with pytest.raises(InputError, match="the job's log ends at 0"):
        sink(path).check(last_number=0)
    sink(path).check(last_number=8)


def test_p7_a_flipped_byte_a_lost_entry_and_a_newer_version_are_named(path: str) -> None:
    table = sink(path)
    table.open(1)
    table.publish(publication(1, 2, 10))
    store = get_storage_provider(path)
    file = next(info.path for info in store.list("") if info.path.endswith(".parquet"))
    good = store.get(file)
    store.put(file, good[:-1] + bytes([good[-1] ^ 1]))
    with pytest.raises(CorruptObjectError) as caught:
        read_table(path)
    assert file in caught.value.where
    store.put(file, good)
    entry = "_statebed/000000000001.json"
    first = store.get(entry)
    store.delete(entry)
    with pytest.raises(BrokenLogError):
        read_table(path)
    store.put(entry, json.dumps({**json.loads(first), "version": 2}).encode())
    with pytest.raises(NewerFormatError):
        read_table(path)
    store.put(entry, first[:-4])
    with pytest.raises(CorruptObjectError):
        read_table(path)


def test_reading_where_no_table_is_says_so(path: str) -> None:
    with pytest.raises(InputError, match="no table"):
        read_table(path)
