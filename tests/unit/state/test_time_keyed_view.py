"""Time-keyed tables of Python programs: appended rows, ranges of time, retention, generations, restores."""

import datetime as dt
from collections import Counter

import pyarrow as pa
import pytest
from unit.state.fare_rows import RETENTION, Row, batch, config, counted, rows_of, store_all, view_on
from unit.state.table_cluster import COUNTERS, Cluster

from statebed.arrays.key_hash import hash_columns
from statebed.errors import InputError, NotOwnerError
from statebed.format.ranges import owned_range, subtask_of
from statebed.state import Compaction, DeleteTimeRange, RecordBatch, TableData, TimeKeyedView
from statebed.state.time_keyed.table import MAX_FILES
from statebed.storage import MemoryStore
from statebed.testing.faults import FaultStore


def test_deleting_a_range_reads_nothing_and_files_inside_it_leave() -> None:
    store = MemoryStore()
    view = view_on(store)
    for epoch in (1, 2):
        view.append(batch([(1.0, epoch * 100 + number, 0) for number in range(10)]))
        store_all(view, store, epoch)
    log = FaultStore(store)
    view = view_on(log, parts=[view.metadata()])
    view.delete_times(100, 205)
    assert not log.log
    (file,) = view.metadata().files
    (tombstone,) = view.metadata().tombstones
    assert file.min_time_us == 200
    assert (tombstone.delete_time_range.start_us, tombstone.delete_time_range.end_us) == (200, 205)
    assert rows_of(view.read()) == counted([(1.0, time, 0) for time in range(205, 210)])


def test_a_deletion_does_not_hide_rows_that_are_appended_after_it() -> None:
    store = MemoryStore()
    view = view_on(store)
    view.append(batch([(1.0, 5, 1), (1.0, 50, 1)]))
    store_all(view, store, 1)
    view.delete_times(0, 10)
    view.append(batch([(1.0, 5, 2)]))
    view.delete_times(0, 4)
    store_all(view, store, 2)
    assert rows_of(view_on(store, parts=[view.metadata()]).read()) == counted([(1.0, 5, 2), (1.0, 50, 1)])


def test_of_a_generation_the_row_appended_last_counts() -> None:
    store = MemoryStore()
    view = view_on(store, generational=True)
    view.append(batch([(float("nan"), 5, 1), (None, 5, 1), (-0.0, 5, 1), (1.0, 5, 1), (1.0, 6, 1)]))
    store_all(view, store, 1)
    view.append(batch([(float("nan"), 5, 2), (None, 5, 2), (0.0, 5, 2), (1.0, 5, 3), (1.0, 5, 2)]))
    newest: list[Row] = [(float("nan"), 5, 2), (None, 5, 2), (0.0, 5, 2), (1.0, 5, 2), (1.0, 6, 1)]
    assert rows_of(view.read()) == counted(newest)
    store_all(view, store, 2)
    assert rows_of(view_on(store, generational=True, parts=[view.metadata()]).read()) == counted(newest)


def test_deletions_of_several_ranges_stand_side_by_side() -> None:
    store = MemoryStore()
    view = view_on(store)
    view.append(batch([(1.0, time, 0) for time in range(100)]))
    store_all(view, store, 1)
    for start in (10, 50, 30):
        view.delete_times(start, start + 10)
    view.delete_times(48, 62)  # covers one of them, whose tombstone leaves
    assert len(view.metadata().tombstones) == 3
    kept = [time for time in range(100) if not (10 <= time < 20 or 30 <= time < 40 or 48 <= time < 62)]
    expected = counted([(1.0, time, 0) for time in kept])
    assert rows_of(view_on(store, parts=[view.metadata()]).read()) == expected
    store_all(view, store, 2, max_files=0)  # a merge of all files needs none of them any more
    assert not view.metadata().tombstones
    assert rows_of(view.read()) == expected


def test_an_epoch_adds_at_most_one_file_and_files_are_bounded() -> None:
    store = MemoryStore()
    view = view_on(store)
    for epoch in range(1, 4 * MAX_FILES):
        for _ in range(3):
            view.append(batch([(1.0, epoch, 0)]))
        files = len(view.metadata().files)
        assert store_all(view, store, epoch) == 1 or files == MAX_FILES
        assert len(view.metadata().files) <= MAX_FILES
    assert store_all(view, store, 99) == 0
    assert view.read().num_rows == 3 * (4 * MAX_FILES - 1)


def test_late_rows_are_counted_and_not_taken() -> None:
    view = view_on(MemoryStore())
    view.advance(1000)
    view.append(batch([(1.0, 1000 - RETENTION - 1, 0), (1.0, 1000 - RETENTION, 0)]))
    view.advance(500)  # the watermark does not go back
    assert (view.late_rows, view.read().num_rows) == (1, 1)


def test_p6_the_order_of_batches_does_not_change_the_bytes_where_keys_and_times_differ() -> None:
    rows: list[Row] = [(float(number % 7), number, number) for number in range(50)]
    paths = []
    for order in (rows, rows[::-1]):
        view = view_on(MemoryStore())
        for start in range(0, 50, 9):
            view.append(batch(order[start : start + 9]))
        paths.append([one.path for one in view.checkpoint(lambda digest: digest)])
    assert paths[0] == paths[1]


def test_rows_that_do_not_fit_are_refused_before_anything_is_taken() -> None:
    view = TimeKeyedView(config(), owned=owned_range(0, 2), store=MemoryStore())
    with pytest.raises(NotOwnerError):
        view.append(batch([(float(number), 0, 0) for number in range(20)]))
    for wrong in (
        batch([(1.0, 0, 0)]).drop_columns(["fare"]),
        batch([]).set_column(2, "fare", pa.array([], pa.string())),
    ):
        with pytest.raises(InputError):
            view.append(wrong)
    timeless = batch([(1.0, 0, 0)]).set_column(1, "_time", pa.array([None], pa.timestamp("us", tz="UTC")))
    with pytest.raises(InputError, match="nulls in the columns"):
        view.append(timeless)
    assert view.read().num_rows == 0


def test_a_manager_checkpoints_expires_and_restores_time_keyed_tables() -> None:
    cluster = Cluster(2, COUNTERS | {"fares": config()})
    rows: list[Row] = [(float(number), number * 10, number) for number in range(30)]
    added = batch(rows)
    owners = subtask_of(hash_columns([added.column("driver")]), 2)
    for index, manager in enumerate(cluster.managers):
        mine = added.filter(pa.array((owners == index).tolist()))
        manager.send(TableData("fares", RecordBatch(mine)))
        manager.send(TableData("fares", RecordBatch(batch([]), DeleteTimeRange(200, 250))))
    cluster.owner("ann").insert("ann", 1)
    cluster.commit()
    for parallelism in (3, 1):
        cluster.restart(parallelism)
        found = sum((rows_of(manager.get_time_keyed("fares").read()) for manager in cluster.managers), Counter())
        assert found == counted([row for row in rows if not 200 <= row[1] < 250])
        for manager in cluster.managers:
            manager.send(Compaction(("fares",)))
        cluster.commit()
    (manager,) = cluster.managers
    watermark = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=RETENTION + 260)
    manager.checkpoint(cluster.run.next_epoch, watermark=watermark).result(timeout=30)
    assert rows_of(manager.get_time_keyed("fares").read()) == counted([row for row in rows if row[1] >= 260])
