"""Deletions by values of types that Arrow itself does not compare: extension types, and the type of null."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.state.fare_rows import store_all
from unit.state.segment_rows import opened_tiers

from statebed.arrays.mutable import column_of
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, TimeKeyedView, keyed_table_config, timestamp_table_config
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

# The first two differ, and the last is null.
TYPES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.uuid(), [b"0" * 16, b"1" * 16, None]),
    (pa.json_(), ['{"a": 1}', "[" + "2, " * 40 + "3]", None]),
    (pa.bool8(), [1, 0, None]),
    (pa.fixed_shape_tensor(pa.int32(), [2]), [[1, 2], [1, 3], None]),
]
TYPED = pytest.mark.parametrize(("kind", "stored"), TYPES, ids=[str(kind) for kind, _ in TYPES])


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as opened:
        yield opened


def values_of(kind: pa.DataType, stored: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(stored, kind.storage_type))


def keys(*numbers: int) -> pa.Table:
    return pa.table({"k": pa.array(numbers, pa.int64())})


def timed(kind: pa.DataType, store: MemoryStore, tiers: Tiers, **more: Any) -> TimeKeyedView:
    schema = pa.schema([("k", pa.int64()), ("v", kind)])
    config = timestamp_table_config("t", "", dt.timedelta(1), False, schema, keys=["k"])
    return TimeKeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers, **more)


def keyed(kind: pa.DataType, store: MemoryStore, tiers: Tiers, **more: Any) -> KeyedView:
    config = keyed_table_config("t", "", ["k"], pa.schema([("k", pa.int64()), ("v", kind)]))
    return KeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers, **more)


def restored(view: KeyedView, kind: pa.DataType, store: MemoryStore, tiers: Tiers, epoch: int) -> KeyedView:
    checkpoint = view.checkpoint(lambda digest: names.data_file(epoch, "op", "t", 0, digest))
    for upload in checkpoint.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return keyed(kind, store, tiers, parts=[checkpoint.metadata])


def timed_rows(values: pa.Array) -> pa.Table:
    times = pa.array(range(len(values)), pa.timestamp("us", "UTC"))
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "_time": times, "v": values})


@TYPED
def test_rows_of_time_keyed_tables_are_deleted_by_such_values(
    tiers: Tiers, kind: pa.DataType, stored: list[Any]
) -> None:
    store = MemoryStore()
    values = values_of(kind, stored)
    view = timed(kind, store, tiers)
    view.append(timed_rows(values))
    store_all(view, store, 1)
    # The second key has another value than the one given.
    view.delete_values(keys(0, 1, 2), pa.table({"v": values.take(pa.array([0, 0, 2]))}))
    assert view.read()["k"].to_pylist() == [1]
    store_all(view, store, 2)
    assert timed(kind, store, tiers, parts=[view.metadata()]).read()["k"].to_pylist() == [1]


@TYPED
def test_rows_of_keyed_tables_are_deleted_by_such_values(tiers: Tiers, kind: pa.DataType, stored: list[Any]) -> None:
    store = MemoryStore()
    values = values_of(kind, stored)
    view = keyed(kind, store, tiers)
    view.upsert(keys(0, 1, 2), pa.table({"v": values}))
    view = restored(view, kind, store, tiers, 1)
    found = view.delete_values(keys(0, 1, 2), pa.table({"v": values.take(pa.array([0, 0, 2]))}))
    assert found.tolist() == [True, False, True]
    left = pa.concat_tables(restored(view, kind, store, tiers, 2).scan())
    assert left["k"].to_pylist() == [1]


def test_values_of_the_type_of_null_are_all_equal(tiers: Tiers) -> None:
    store = MemoryStore()
    over_time = timed(pa.null(), store, tiers)
    over_time.append(timed_rows(pa.nulls(3)))
    store_all(over_time, store, 1)
    over_time.delete_values(keys(0, 7), pa.table({"v": pa.nulls(2)}))
    assert sorted(over_time.read()["k"].to_pylist()) == [1, 2]
    view = keyed(pa.null(), store, tiers)
    view.upsert(keys(0, 1, 2), pa.table({"v": pa.nulls(3)}))
    assert view.delete_values(keys(0, 7), pa.table({"v": pa.nulls(2)})).tolist() == [True, False]


@pytest.mark.parametrize(("kind", "stored"), TYPES[:3], ids=[str(kind) for kind, _ in TYPES[:3]])
def test_columns_of_such_values_are_compared(kind: pa.DataType, stored: list[Any]) -> None:
    values = values_of(kind, stored)
    rows = pa.array([0, 1, 2]).to_numpy()
    assert column_of(values).equals(rows, values).tolist() == [True, True, True]
    assert column_of(values).equals(rows, values.take(pa.array([1, 0, 0]))).tolist() == [False, False, False]
