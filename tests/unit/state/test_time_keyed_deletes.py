"""Deletions from time-keyed tables by key, key and time, values and range, in every place that rows can be in."""

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from unit.state.fare_rows import Row, batch, config, counted, rows_of, store_all, view_on
from unit.state.segment_rows import opened_tiers

from statebed.errors import InputError, NotOwnerError
from statebed.format.ranges import owned_range
from statebed.state import timestamp_table_config
from statebed.state.tiers.shared_tiers import Tiers
from statebed.state.time_keyed.view import TimeKeyedView
from statebed.storage import MemoryStore

NAN = float("nan")
Delete = Callable[[TimeKeyedView, list[Row]], None]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as opened:
        yield opened


def by_key(view: TimeKeyedView, rows: list[Row]) -> None:
    view.delete(batch(rows).select(["driver"]))


def by_time_key(view: TimeKeyedView, rows: list[Row]) -> None:
    view.delete_at(batch(rows).select(["driver"]), batch(rows).column("_time"))


def by_value(view: TimeKeyedView, rows: list[Row]) -> None:
    view.delete_values(batch(rows).select(["driver"]), batch(rows).select(["fare"]))


def by_range(view: TimeKeyedView, rows: list[Row]) -> None:
    for row in rows:
        view.delete_times(row[1], row[1] + 1)


DELETES = pytest.mark.parametrize("delete", [by_key, by_time_key, by_value, by_range])
KEPT: list[Row] = [(9.0, 90, 9)]
GONE: list[Row] = [(1.0, 10, 1), (NAN, 20, 2), (None, 30, 3), (-0.0, 40, 4)]
SAME: list[Row] = [(1.0, 10, 1), (NAN, 20, 2), (None, 30, 3), (0.0, 40, 4)]


@DELETES
@pytest.mark.parametrize("place", ["loose", "segment", "spilled", "file"])
def test_rows_are_deleted_wherever_they_are(tiers: Tiers, delete: Delete, place: str) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    view.append(batch(KEPT + GONE))
    if place == "file":
        store_all(view, store, 1)
        view = view_on(store, tiers=tiers, parts=[view.metadata()])
    elif place != "loose":
        view._state.buffer.seal()
        if place == "spilled":
            view._state.buffer.segments[0].spill()
    delete(view, SAME)
    for _ in range(2):
        assert rows_of(view.read()) == counted(KEPT)
        assert rows_of(pa.concat_tables(view.scan())) == counted(KEPT)
        store_all(view, store, 2)
        view = view_on(store, tiers=tiers, parts=[view.metadata()])


@DELETES
@pytest.mark.parametrize("checkpoints", [False, True])
def test_delete_put_delete_put_keeps_the_last_put_alone(tiers: Tiers, delete: Delete, checkpoints: bool) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    for epoch in range(1, 4):
        delete(view, SAME)
        view.append(batch(GONE))
        if checkpoints:
            store_all(view, store, epoch)
    assert rows_of(view.read()) == counted(GONE)
    store_all(view, store, 9)
    view = view_on(store, tiers=tiers, parts=[view.metadata()])
    assert rows_of(view.read()) == counted(GONE)
    delete(view, SAME)
    store_all(view, store, 10)
    assert not view_on(store, tiers=tiers, parts=[view.metadata()]).read().num_rows


@DELETES
@pytest.mark.parametrize("steps", [(2, 1), (3, 2), (1, 3)])
def test_tombstones_hold_at_another_parallelism(tiers: Tiers, delete: Delete, steps: tuple[int, int]) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = [(float(number), number, number) for number in range(40)]
    view.append(batch(rows))
    store_all(view, store, 1)
    delete(view, rows[:20])
    parts = [view.metadata()]
    for parallelism in steps:
        views = [
            TimeKeyedView(config(), owned=owned_range(index, parallelism), store=store, parts=parts, tiers=tiers)
            for index in range(parallelism)
        ]
        parts = [one.metadata(subtask_index=index) for index, one in enumerate(views)]
        assert any(part.tombstones for part in parts)
        assert rows_of(pa.concat_tables([one.read() for one in views])) == counted(rows[20:])


def test_what_a_batch_deletes_is_one_tombstone_and_equal_rows_are_in_it_once(tiers: Tiers) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers)
    rows: list[Row] = [(float(number), number, 0) for number in range(1_000)]
    view.append(batch(rows))
    store_all(view, store, 1)
    view.delete(batch(rows[:500] + rows[:500]).select(["driver"]))
    (tombstone,) = view.metadata().tombstones
    assert tombstone.delete_key.rows == 500
    assert rows_of(view.read()) == counted(rows[500:])


def test_deleting_what_is_not_there_leaves_no_tombstone(tiers: Tiers) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    for delete in (by_key, by_time_key, by_value, by_range):
        delete(view, GONE)
    assert view.metadata().next_sequence == 1
    view.append(batch(KEPT))
    by_key(view, [])
    by_time_key(view, GONE)
    by_range(view, GONE)
    assert not view._state.live.tombstones


@pytest.mark.parametrize("delete", [by_key, by_time_key, by_value, by_range])
def test_an_older_generation_does_not_come_back_when_the_newest_is_deleted(tiers: Tiers, delete: Delete) -> None:
    store = MemoryStore()
    view = view_on(store, tiers=tiers, generational=True)
    for number in (1, 2, 3):
        view.append(batch([(1.0, 10, number), (2.0, 10, number), (1.0, 20, 7)]))
        if number == 2:
            store_all(view, store, 1)
    delete(view, [(1.0, 10, 3)])
    left: dict[Delete, list[Row]] = {
        by_key: [(2.0, 10, 3)],
        by_time_key: [(2.0, 10, 3), (1.0, 20, 7)],
        by_value: [(2.0, 10, 3), (1.0, 20, 7)],
        by_range: [(1.0, 20, 7)],
    }
    by_value(view, [(2.0, 10, 1)])  # was replaced: deletes nothing
    for epoch in (2, 3):
        assert rows_of(view.read()) == counted(left[delete])
        assert rows_of(pa.concat_tables(view.scan())) == counted(left[delete])
        job = view.plan_compaction(max_bytes=1 << 40, everything=True)
        if job is not None:
            view.offer_edit(job.run())
        store_all(view, store, epoch)


def test_what_cannot_be_deleted_is_refused_before_anything_changes(tiers: Tiers) -> None:
    view = TimeKeyedView(config(), owned=owned_range(0, 2), store=MemoryStore(), tiers=tiers)
    with pytest.raises(NotOwnerError):
        by_key(view, [(float(number), 0, 0) for number in range(20)])
    for wrong in (pa.table({"driver": [1]}), pa.table({"rider": [1.0]}), batch(KEPT)):
        with pytest.raises(InputError, match="columns"):
            view.delete(wrong)
    with pytest.raises(InputError, match="2 keys, but 1 times"):
        view.delete_at(pa.table({"driver": [1.0, 2.0]}), batch(KEPT).column("_time"))
    with pytest.raises(InputError, match="cannot end"):
        view.delete_times(5, 4)
    view.close("the run has ended")
    for delete in (by_key, by_time_key, by_value, by_range):
        with pytest.raises(InputError):
            delete(view, [(1.0, 1, 1)])
    with pytest.raises(InputError, match="the run has ended"):
        view.append(batch([]))


@pytest.mark.parametrize("kind", [pa.null(), pa.float16(), pa.uuid(), pa.bool8(), pa.json_()], ids=str)
def test_rows_are_read_and_deleted_by_values_of_types_that_arrow_does_not_compare(
    tiers: Tiers, kind: pa.DataType
) -> None:
    texts = pa.array(["0" * 16, "1" * 16, None])
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    plain = {pa.null(): pa.nulls(3), pa.binary(16): texts.cast(pa.binary()), pa.string(): texts}
    values = plain.get(storage, pa.array([0, 1, None], pa.int8())).cast(storage).cast(kind)
    schema = pa.schema([("driver", pa.float64()), ("fare", kind)])
    table = timestamp_table_config("fares", "", dt.timedelta(seconds=1), False, schema, keys=["driver"])
    store = MemoryStore()
    view = TimeKeyedView(table, owned=owned_range(0, 1), store=store, tiers=tiers)
    times = pa.array([5, 5, 5], pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    rows = pa.table({"driver": pa.array([1.0, 1.0, 1.0]), "_time": times, "fare": values})
    view.append(rows)
    store_all(view, store, 1)
    view.append(rows.take(pa.array([2, 0, 1])))
    found = view.read()["fare"].cast(storage)
    assert found.to_pylist() == values.cast(storage).to_pylist() * 2
    view.delete_values(rows.slice(1, 1).select(["driver"]), rows.slice(1, 1).select(["fare"]))
    left = view.read()["fare"].cast(storage).to_pylist()
    assert left == [one for one in found.to_pylist() if one != found[1].as_py()]
