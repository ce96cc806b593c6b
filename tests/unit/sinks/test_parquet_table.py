"""The Parquet table: exactly once, fenced, rolled back when asked, plain files."""

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from unit.sinks.tables import SCHEMA, new_path, publication, rows, sealed, sink

from statebed.checkpoint import Publication
from statebed.errors import BrokenLogError, CorruptObjectError, FencedError, InputError, NewerFormatError
from statebed.format import checkpoint_pb2 as pb
from statebed.protocol import SinkPosition
from statebed.sinks import read_table, table_files
from statebed.sinks.manifest.table_state import TAIL_ENTRIES
from statebed.sinks.parquet_table import ParquetTableSink
from statebed.storage import ObjectStore, get_storage_provider
from statebed.testing.faults import SimulatedCrash


@pytest.fixture
def path() -> str:
    return new_path()


def parquet_files(path: str) -> list[str]:
    """Return the files that a reader finds who lists the folder."""
    return [info.path for info in get_storage_provider(path).list("") if info.path.endswith(".parquet")]


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
    assert len(parquet_files(path)) == 2


def test_p3_a_run_superseded_in_mid_rollback_cannot_remove_an_epoch_that_came_back(path: str) -> None:
    """The run made the files invisible and slept before it removed them; the next run published that epoch again."""
    zombie = sink(path)
    zombie.open(1)
    zombie.publish(publication(1, 2, 10))
    zombie.publish(publication(1, 3, 11))
    newer = sink(path)
    delete_many = zombie._store.delete_many

    def sleepy_delete(names: Sequence[str]) -> None:
        newer.open(5)
        newer.publish(publication(5, 3, 11))
        delete_many(names)

    zombie._store = _With(zombie._store, sleepy_delete)  # type: ignore[assignment]  # all other verbs pass through
    zombie.roll_back(1, 2)
    assert rows(path) == [10, 11]


class _With:
    """A store with another way to delete."""

    def __init__(self, store: ObjectStore, delete_many: Callable[[Sequence[str]], None]) -> None:
        self._store = store
        self.delete_many = delete_many

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def test_p3_two_runs_of_one_process_may_share_a_sink(path: str) -> None:
    """One job started twice: both read the log at once, and none may count an entry twice."""
    shared, other = sink(path), sink(path)
    shared.open(1)
    last = 3 * TAIL_ENTRIES
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
    assert [file.epoch for file in shared._manifest.files(shared._checked())] == list(range(2, last))
    assert rows(path) == list(range(2, last))


def test_a_rollback_removes_files_that_a_crash_left_before_they_were_visible(path: str) -> None:
    table, store = sink(path), get_storage_provider(path)
    table.open(1)
    for epoch in (2, 3):
        table.publish(publication(1, epoch, epoch))
    store.put("epoch=000000000004/op-0.d1.parquet", b"copied, and then the driver died")
    store.put("epoch=000000000004/g99-op-0.d1.parquet", b"listed by a manifest that was deleted")
    table.roll_back(1, 2)
    assert parquet_files(path) == ["epoch=000000000002/op-0.d1.parquet"]
    table.publish(publication(1, 4, 4))
    assert parquet_files(path)[1:] == ["epoch=000000000004/g100-op-0.d1.parquet"]  # no deleted file has that name


def test_a_rollback_removes_files_of_an_operator_whose_name_looks_like_a_generation(path: str) -> None:
    """Files of the operator g9 are called like those that were written after the ninth entry of the manifest."""
    table = sink(path)
    table.open(1)
    for epoch in (2, 3, 4):
        table.publish(publication(1, epoch, epoch, operator="g9"))
    table.roll_back(1, 2)
    assert parquet_files(path) == ["epoch=000000000002/g9-0.d1.parquet"]
    table.publish(publication(1, 5, 5, operator="g9"))
    table.roll_back(1, 2)
    assert parquet_files(path) == ["epoch=000000000002/g9-0.d1.parquet"]


def test_p5_a_table_that_is_rebuilt_has_no_file_of_a_manifest_that_was_deleted(path: str) -> None:
    """Readers that list the folder would see the rows twice."""
    table, store = sink(path), get_storage_provider(path)
    table.open(1)
    for epoch in (2, 3):
        table.publish(publication(1, epoch, epoch))
    table.roll_back(1, 2)
    table.publish(publication(1, 5, 5))
    assert parquet_files(path)[1].startswith("epoch=000000000005/g")
    for run in (6, 8):  # the second time, the numbers of the manifest's entries are the same again
        store.delete_many([info.path for info in store.list("_statebed")])
        table = sink(path)
        table.open(run)
        table.clear(run)
        assert parquet_files(path) == []
        for epoch in (2, 5):
            table.publish(publication(run, epoch, epoch))
        assert [f"{store.url}/{name}" for name in parquet_files(path)] == table_files(path)


def test_p5_a_rollback_whose_process_died_is_finished_by_the_next_run(path: str) -> None:
    table = sink(path)
    table.open(1)
    for epoch in (2, 3, 4):
        table.publish(publication(1, epoch, epoch))

    def die(_: Sequence[str]) -> None:
        raise SimulatedCrash

    table._store = _With(table._store, die)  # type: ignore[assignment]  # all other verbs pass through
    with pytest.raises(SimulatedCrash):
        table.roll_back(1, 2)
    assert len(parquet_files(path)) == 3
    following = sink(path)
    following.open(5)
    assert parquet_files(path) == ["epoch=000000000002/op-0.d1.parquet"]


def test_p5_an_epoch_that_is_skipped_leaves_no_file_of_a_failed_publication(path: str) -> None:
    table, store = sink(path), get_storage_provider(path)
    table.open(1)
    table.publish(publication(1, 2, 2))
    store.put("epoch=000000000003/op-0.d1.parquet", b"copied, and then the disk was full")
    table.skip(publication(1, 3, 3, 33))
    assert parquet_files(path) == ["epoch=000000000002/op-0.d1.parquet"]
    table.skip(publication(1, 2, 2))  # the table has it
    assert rows(path) == [2]


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
    store.put(entry, sealed(first.replace(b'"version":2', b'"version":3')))
    with pytest.raises(NewerFormatError):
        read_table(path)
    store.put(entry, first[:-4])
    with pytest.raises(CorruptObjectError):
        read_table(path)


def test_reading_where_no_table_is_says_so(path: str) -> None:
    with pytest.raises(InputError, match="there is no statebed table here"):
        read_table(path)


def test_a_column_of_another_type_is_refused_before_anything_is_written(path: str) -> None:
    """The rows of the table could no longer be read together."""

    def of(kind: pa.DataType, *more: pa.Field) -> ParquetTableSink:
        schema = pa.schema([("n", kind), *more])
        return ParquetTableSink(sink_id="out", path=path, job_id="rides", schema=schema)

    table = sink(path)
    table.open(1)
    assert of(pa.string()).peek() is not None, "a table without rows takes any"
    table.publish(publication(1, 2, 10))
    for refused in (of(pa.string()).peek, lambda: of(pa.list_(pa.int64())).open(5)):
        with pytest.raises(InputError, match=r"the column 'n' is .*, but the table has it as int64"):
            refused()
    of(pa.int64(), pa.field("added", pa.string())).open(5)
    assert rows(path) == [10]


def test_a_column_that_was_left_out_for_a_run_keeps_its_type(path: str) -> None:
    def of(**columns: pa.DataType) -> ParquetTableSink:
        return ParquetTableSink(sink_id="out", path=path, job_id="rides", schema=pa.schema(columns.items()))

    first = of(n=pa.int64(), k=pa.string())
    first.open(1)
    first.publish(publication(1, 2, 10))
    of(n=pa.int64()).open(5)
    with pytest.raises(InputError, match="the column 'k' is int64, but the table has it as string"):
        of(n=pa.int64(), k=pa.int64()).open(6)
    of(k=pa.string(), n=pa.int64()).open(6)
    assert rows(path) == [10]


@pytest.mark.parametrize("order", [1, -1])
def test_p9_a_table_has_no_rows_with_weights_beside_rows_without(path: str, order: int) -> None:
    """A reader that adds up the weights would drop all rows that have none."""
    weighted = pa.schema([*SCHEMA, pa.field("_weight", pa.int64())])
    first, second = (
        ParquetTableSink(sink_id="out", path=path, job_id="rides", schema=schema)
        for schema in (SCHEMA, weighted)[::order]
    )
    first.open(1)
    assert second.peek() is not None, "a table without rows takes both"
    first.publish(publication(1, 2, 10))
    for refused in (second.peek, lambda: second.open(5)):
        with pytest.raises(InputError, match=r"the table holds .*, but the stream now has"):
            refused()
