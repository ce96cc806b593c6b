"""Deletions of keyed tables by each operation, in memory and in mapped files alike."""

import datetime as dt
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.key_hash import Hashes, hash_columns
from statebed.arrays.mutable import Mask, Rows
from statebed.arrays.packed_text import PackedText
from statebed.errors import InputError
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.sorted_run import SortedRun
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))])
KEPT = keyed_table_config("t", "", ["id"], SCHEMA)
EXPIRING = keyed_table_config("t", "", ["id"], SCHEMA, dt.timedelta(hours=1))


@pytest.fixture(params=["in memory", "spilled"])
def tiers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(1 << 20), folder=tmp_path)
    made.spilled = request.param == "spilled"  # type: ignore[attr-defined]
    yield made
    made.close()


def settled(view: KeyedView, tiers: Tiers) -> None:
    """Spill the rows if the test runs with spilled state."""
    if tiers.spilled:  # type: ignore[attr-defined]
        tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
        assert view.held_bytes == 0


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def values(*rows: tuple[float | None, list[str] | None]) -> pa.Table:
    prices, tags = zip(*rows, strict=True)
    return pa.table({"price": pa.array(prices, pa.float64()), "tags": pa.array(tags, pa.list_(pa.string()))})


def contents(view: KeyedView) -> dict[int, Any]:
    return {row["id"]: row["price"] for part in view.scan() for row in part.to_pylist()}


def restored(view: KeyedView, store: MemoryStore, tiers: Tiers, epoch: int) -> KeyedView:
    checkpoint = view.checkpoint(lambda digest: names.data_file(epoch, "op", "t", 0, digest))
    for upload in checkpoint.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return KeyedView(view.table.config, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=[checkpoint.metadata])


def test_keys_with_exactly_these_values_are_deleted(tiers: Tiers) -> None:
    store = MemoryStore()
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=store, tiers=tiers)
    view.upsert(keys(1, 2, 3, 4, 5), values((1.0, ["a"]), (math.nan, None), (0.0, []), (None, ["b"]), (5.0, None)))
    settled(view, tiers)
    asked = keys(1, 2, 3, 4, 5, 9)
    found = view.delete_values(
        asked, values((1.0, ["b"]), (math.nan, None), (-0.0, []), (None, ["b"]), (None, None), (1.0, None))
    )
    assert found.tolist() == [False, True, True, True, False, False]
    assert contents(view) == {1: 1.0, 5: 5.0}
    assert contents(restored(view, store, tiers, 1)) == {1: 1.0, 5: 5.0}


def test_a_key_may_be_asked_for_with_several_values(tiers: Tiers) -> None:
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    view.upsert(keys(1, 2), values((1.0, None), (2.0, None)))
    settled(view, tiers)
    found = view.delete_values(keys(1, 1, 2, 1), values((7.0, None), (1.0, None), (7.0, None), (1.0, None)))
    assert found.tolist() == [False, True, False, True]
    assert contents(view) == {2: 2.0}


def test_keys_at_exactly_these_times_are_deleted(tiers: Tiers) -> None:
    store = MemoryStore()
    view = KeyedView(EXPIRING, owned=WHOLE_SPACE, store=store, tiers=tiers)
    view.upsert(keys(1, 2, 3), values((1.0, None), (2.0, None), (3.0, None)), times=pa.array([10, 20, 30]))
    view = restored(view, store, tiers, 1)
    view.get(keys(1))
    settled(view, tiers)
    times = pa.array([10, 21, 30, 10], pa.timestamp("us", tz="UTC"))
    assert view.delete_at(keys(1, 2, 3, 9), times).tolist() == [True, False, True, False]
    assert contents(view) == {2: 2.0}
    assert contents(restored(view, store, tiers, 2)) == {2: 2.0}


def test_rows_of_a_range_of_time_are_deleted(tiers: Tiers) -> None:
    store = MemoryStore()
    view = KeyedView(EXPIRING, owned=WHOLE_SPACE, store=store, tiers=tiers)
    ids = list(range(100))
    view.upsert(keys(*ids), values(*((float(one), None) for one in ids)), times=pa.array(ids))
    settled(view, tiers)
    view.upsert(keys(15), values((-1.0, None)), times=pa.array([50]))
    assert view.delete_times(10, 20) == 9
    assert view.delete_times(10, 20) == 0
    expected = {one: float(one) for one in ids if not 10 <= one < 20} | {15: -1.0}
    assert contents(view) == expected
    again = restored(view, store, tiers, 1)
    assert contents(again) == expected
    assert again.delete_times(200, 300) == 0
    assert again.delete_times(0, 5) == 5


def test_delete_put_delete_in_one_epoch_is_right_by_every_operation(tiers: Tiers) -> None:
    store = MemoryStore()
    view = KeyedView(EXPIRING, owned=WHOLE_SPACE, store=store, tiers=tiers)
    some = values((1.0, None))

    def put(one: int, time: int) -> None:
        view.upsert(keys(one), some, times=pa.array([time]))
        settled(view, tiers)

    for one in (1, 2, 3, 4):
        put(one, one)
    view = restored(view, store, tiers, 1)
    view.delete(keys(1))
    put(1, 1)
    view.delete(keys(1))
    view.delete_values(keys(2), some)
    put(2, 2)
    assert view.delete_values(keys(2), some).all()
    view.delete_at(keys(3), pa.array([3]))
    put(3, 3)
    assert view.delete_at(keys(3), pa.array([3])).all()
    assert view.delete_times(4, 5) == 1
    put(4, 4)
    assert view.delete_times(4, 5) == 1
    put(2, 9)
    assert contents(view) == {2: 1.0}
    assert contents(restored(view, store, tiers, 2)) == {2: 1.0}


def test_what_needs_times_is_refused_in_tables_without(tiers: Tiers) -> None:
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    with pytest.raises(InputError, match="needs times"):
        view.delete_times(0, 1)
    with pytest.raises(InputError, match="needs times"):
        view.delete_at(keys(1), pa.array([1]))


def test_a_closed_view_is_read_and_takes_no_more(tiers: Tiers) -> None:
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    view.upsert(keys(1), values((1.0, None)))
    view.close("its manager was closed")
    for write in (
        lambda: view.upsert(keys(1), values((2.0, None))),
        lambda: view.delete(keys(1)),
        lambda: view.delete_values(keys(1), values((1.0, None))),
    ):
        with pytest.raises(InputError, match="its manager was closed"):
            write()
    assert contents(view) == {1: 1.0}


@pytest.mark.parametrize("nested", [False, True])
def test_rows_with_structs_whose_fields_may_not_be_null_are_deleted(tiers: Tiers, nested: bool) -> None:
    kind = pa.struct([pa.field("x", pa.int64(), nullable=False), pa.field("tag", pa.string(), nullable=False)])
    kind = pa.struct([pa.field("inner", kind, nullable=False)]) if nested else kind
    config = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.int64()), ("place", kind)]))
    places = [{"x": number, "tag": str(number)} for number in range(8)]
    array = pa.array([{"inner": place} for place in places] if nested else places, kind)
    store = MemoryStore()
    view = KeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers)
    view.upsert(keys(*range(8)), pa.table({"place": array}))
    view = restored(view, store, tiers, 1)
    for epoch in range(2, 8):
        view.delete(keys(epoch))
        settled(view, tiers)
        view = restored(view, store, tiers, epoch)
        left = pa.concat_tables(view.scan()).sort_by("id")
        assert left["id"].to_pylist() == [0, 1, *range(epoch + 1, 8)]
        assert left.schema.field("place").type == kind
        assert left["place"].to_pylist() == [array[number].as_py() for number in left["id"].to_pylist()]
    job = view.plan_compaction(max_bytes=1, everything=True)
    assert job is not None
    view.offer_edit(job.run())
    view = restored(view, store, tiers, 8)
    assert pa.concat_tables(view.scan()).num_rows == 2


def test_keys_that_are_not_kept_are_deleted_and_the_others_replaced(tiers: Tiers) -> None:
    store = MemoryStore()
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=store, tiers=tiers)
    view.upsert(keys(1, 2, 3, 4), values((1.0, ["a"]), (2.0, None), (3.0, []), (4.0, ["b"])))
    view = restored(view, store, tiers, 1)
    settled(view, tiers)
    wanted = keys(9, 3, 5, 1, 2)
    view.get(wanted)
    view.replace(wanted, values((5.0, ["c"]), (10.0, None)), np.array([False, False, True, True, False]))
    assert contents(view) == {1: 10.0, 4: 4.0, 5: 5.0}
    assert view.dirty_rows == 4, "1, 2, 3 and 5: of 9 there is nothing to delete"
    settled(view, tiers)
    view.replace(keys(2, 4, 1), values((20.0, None)), np.array([True, False, False]))
    assert contents(view) == {2: 20.0, 5: 5.0}
    assert contents(restored(view, store, tiers, 2)) == {2: 20.0, 5: 5.0}
    view.replace(keys(2, 5), values((0.0, None)).slice(0, 0), np.array([False, False]))
    assert contents(restored(view, store, tiers, 3)) == {}


def test_keys_that_were_just_read_are_hashed_and_looked_up_once(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = []

    def hash_and_count(columns: Sequence[pa.Array | PackedText]) -> Hashes:
        hashed.append(len(columns[0]))
        return hash_columns(columns)

    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, hash_function=hash_and_count)
    view.upsert(keys(1, 2), values((1.0, None), (2.0, None)))
    settled(view, tiers)
    looked_up = []
    find = SortedRun.find

    def find_and_count(run: SortedRun, batch: KeyBatch) -> tuple[Rows, Mask]:
        looked_up.append(len(batch))
        return find(run, batch)

    monkeypatch.setattr(SortedRun, "find", find_and_count)
    distinct, _ = view.distinct(keys(3, 1, 2, 3))
    view.get(distinct)
    view.replace(distinct, values((3.0, None)), distinct["id"].to_numpy() == 3)
    assert (hashed, looked_up) == ([2, 4], [3])
    assert contents(view) == {3: 3.0}


def test_what_cannot_be_replaced_is_refused(tiers: Tiers) -> None:
    view = KeyedView(KEPT, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    both = values((1.0, None), (2.0, None))
    with pytest.raises(InputError, match=r"got 2 keys, of which only 1 are distinct"):
        view.replace(keys(1, 1), both, np.array([True, True]))
    with pytest.raises(InputError, match=r"`kept` has 3 flags for 2 keys"):
        view.replace(keys(1, 2), both, np.array([True, True, False]))
    with pytest.raises(InputError, match=r"got 1 keys and 2 rows of values"):
        view.replace(keys(1, 2), both, np.array([True, False]))
    assert contents(view) == {}
    expiring = KeyedView(EXPIRING, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    with pytest.raises(InputError, match="needs the event time"):
        expiring.replace(keys(1, 2), both, np.array([True, True]))
