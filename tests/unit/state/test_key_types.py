"""Tables by keys of every type: written, found, merged, deleted, spilled, restored, rescaled and compacted."""

import datetime as dt
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import every_third
from unit.state.fare_rows import store_all
from unit.state.key_types import KEYS, shown
from unit.state.segment_rows import opened_tiers
from unit.state.table_cluster import Cluster

from statebed.arrays.key_hash import Hashes, hash_columns
from statebed.errors import IncompatibleSchemaError, InputError
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE, subtask_of
from statebed.state import (
    Compaction,
    KeyedView,
    Merge,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    TimeKeyedView,
    keyed_table_config,
    merge_columns,
    timestamp_table_config,
)
from statebed.state.tiers.shared_tiers import Tiers
from statebed.storage import MemoryStore

Totals = dict[tuple[str, str], int]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as opened:
        yield opened


def schema_of(name: str) -> pa.Schema:
    return pa.schema([("key", KEYS[name][0]), ("n", pa.int32()), ("total", pa.int64())])


def keyed_config(name: str) -> TableConfig:
    return keyed_table_config("t", "", ["key", "n"], schema_of(name))


def timed_config(name: str, *, generational: bool = False) -> TableConfig:
    spans = dt.timedelta(1), dt.timedelta(microseconds=10)
    return timestamp_table_config(
        "t", "", spans[0], generational, schema_of(name), keys=["key", "n"], bin_width=spans[1]
    )


def keys_of(name: str, copies: int = 1) -> pa.Table:
    """Each value of the type with some numbers beside it."""
    kind, values = KEYS[name]
    column = pa.array(values, kind).take(pa.array(list(range(len(values))) * copies, pa.int64()))
    return pa.table({"key": column, "n": pa.array([one // len(values) for one in range(len(column))], pa.int32())})


def totals(count: int, start: int = 0) -> pa.Table:
    return pa.table({"total": pa.array(range(start, start + count), pa.int64())})


def expected(keys: pa.Table, values: pa.Table) -> Totals:
    return dict(zip(zip(shown(keys["key"]), shown(keys["n"]), strict=True), values["total"].to_pylist(), strict=True))


def contents(view: KeyedView) -> Totals:
    found = pa.concat_tables(
        [pa.schema([*view.table.key_schema, *view.table.value_schema]).empty_table(), *view.scan()]
    )
    result = expected(found, found)
    assert len(result) == found.num_rows
    return result


def restored(view: KeyedView, name: str, store: MemoryStore, tiers: Tiers, epoch: int, **more: Any) -> KeyedView:
    checkpoint = view.checkpoint(lambda digest: names.data_file(epoch, "op", "t", 0, digest))
    for upload in checkpoint.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return KeyedView(
        keyed_config(name), owned=WHOLE_SPACE, store=store, tiers=tiers, parts=[checkpoint.metadata], **more
    )


def few_hashes(columns: Sequence[Any]) -> Hashes:
    """Hashes of which many keys have the same."""
    return hash_columns(columns) % np.uint64(2) << np.uint64(63)


@pytest.mark.parametrize("name", every_third(KEYS, 0))
@pytest.mark.parametrize("hash_function", [hash_columns, few_hashes], ids=["hashes", "collisions"])
def test_rows_are_found_changed_and_deleted_by_such_keys(tiers: Tiers, name: str, hash_function: Any) -> None:
    store, keys = MemoryStore(), keys_of(name, 7)
    count, more = keys.num_rows, {"hash_function": hash_function}
    view = KeyedView(keyed_config(name), owned=WHOLE_SPACE, store=store, tiers=tiers, **more)
    view.upsert(pa.concat_tables([keys, keys]), pa.concat_tables([totals(count, 7), totals(count)]))
    assert contents(view) == expected(keys, totals(count))
    for epoch in (1, 2):
        backwards = keys.take(pa.array(range(count)[::-1], pa.int64()))
        values, found = view.get(backwards)
        assert found.all()
        assert values["total"].to_pylist() == [epoch * one for one in range(count)][::-1]
        if epoch == 1:
            view = restored(view, name, store, tiers, epoch, **more)
            view.merge(keys, totals(count), merge_columns(total=Merge.SUM))
    half = keys.slice(0, count // 2)
    assert view.delete(half).all()
    last = keys.slice(count - 2)
    assert view.delete_values(last, totals(2, 2 * count - 3)).tolist() == [False, True]
    left = {
        key: 2 * number for key, number in expected(keys, totals(count)).items() if count // 2 <= number < count - 1
    }
    assert contents(view) == left
    assert contents(restored(view, name, store, tiers, 3, **more)) == left
    assert not restored(view, name, store, tiers, 4, **more).get(half)[1].any()


@pytest.mark.parametrize("name", every_third(KEYS, 1))
def test_such_keys_are_found_in_spilled_blocks(tiers: Tiers, name: str) -> None:
    keys = keys_of(name, 7)
    view = KeyedView(keyed_config(name), owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    view.upsert(keys, totals(keys.num_rows))
    (slot,) = view._blocks
    for _ in range(6):
        assert view._blocks._evict(slot)
        assert slot.block.spilled
        values, found = view.get(keys)
        assert found.all()
        view.upsert(keys, pa.table({"total": pa.array([one + 1 for one in values["total"].to_pylist()], pa.int64())}))
    assert view._blocks._evict(slot)
    assert contents(view) == expected(keys, totals(keys.num_rows, 6))


@pytest.mark.parametrize("name", every_third(KEYS, 2))
def test_p6_the_order_in_which_such_keys_came_does_not_show_in_files(tiers: Tiers, name: str) -> None:
    keys = keys_of(name, 7)
    digests = []
    for step in (1, -1):
        view = KeyedView(
            keyed_config(name), owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, hash_function=few_hashes
        )
        for row in range(keys.num_rows)[::step]:
            view.upsert(keys.slice(row, 1), totals(1, row))
        digests.append([one.path for one in view.checkpoint(lambda digest: digest).uploads])
    assert digests[0] == digests[1]
    assert digests[0]


def sent(cluster: Cluster, rows: pa.Table) -> None:
    """Write each row at its owner."""
    owners = subtask_of(
        hash_columns([one.combine_chunks() for one in rows.select(["key", "n"]).columns]), len(cluster.managers)
    )
    for index, manager in enumerate(cluster.managers):
        mine = rows.filter(pa.array((owners == index).tolist(), pa.bool_())).combine_chunks()
        for batch in mine.to_batches():
            manager.send(TableData("t", RecordBatch(batch)))


def rows_at(managers: Sequence[TableManager]) -> Totals:
    found: Totals = {}
    for manager in managers:
        found |= contents(manager.get_keyed("t"))
    return found


@pytest.mark.parametrize("name", every_third(KEYS, 3))
def test_p2_tables_by_such_keys_survive_restarts_rescaling_and_compaction(name: str) -> None:
    keys = keys_of(name, 9)
    cluster = Cluster(1, {"t": keyed_config(name)})
    want: Totals = {}
    for epoch, parallelism in enumerate((1, 3)):
        cluster.restart(parallelism)
        assert rows_at(cluster.managers) == want
        for step in range(3):
            some = keys.filter(pa.array([row % 3 == step for row in range(keys.num_rows)]))
            values = totals(some.num_rows, 1000 * epoch + 100 * step)
            sent(cluster, some.append_column("total", values["total"]))
            want |= expected(some, values)
            cluster.commit()
        for manager in cluster.managers:
            manager.send(Compaction())
        cluster.commit()
    cluster.restart(1)
    assert rows_at(cluster.managers) == want
    cluster.close()


# ---- tables of rows with times ------------------------------------------------------------------------------------


def timed_rows(keys: pa.Table, start: int = 0) -> pa.Table:
    times = pa.array([start + row % 30 for row in range(keys.num_rows)], pa.timestamp("us", "UTC"))
    return keys.append_column("_time", times).append_column("total", totals(keys.num_rows)["total"])


def counted(rows: pa.Table) -> Counter[tuple[str, ...]]:
    columns = [shown(rows[column]) for column in ("key", "n", "_time", "total")]
    return Counter(zip(*columns, strict=True))


@pytest.mark.parametrize("name", every_third(KEYS, 4))
def test_rows_of_time_keyed_tables_are_read_and_deleted_by_such_keys(tiers: Tiers, name: str) -> None:
    store, keys = MemoryStore(), keys_of(name, 7)
    rows = timed_rows(keys)

    def opened(**more: Any) -> TimeKeyedView:
        return TimeKeyedView(timed_config(name), owned=WHOLE_SPACE, store=store, tiers=tiers, **more)

    view = opened()
    view.append(rows)
    store_all(view, store, 1)
    view.append(rows)
    some = keys.take(pa.array([0, 3, 5], pa.int64()))
    assert counted(view.read(keys=some)) == counted(pa.concat_tables([rows.take([0, 3, 5])] * 2))
    view.delete(some)
    # The second has another value than the one given.
    view.delete_values(keys.slice(6, 2), totals(2, 6).slice(0, 1).take([0, 0]))
    left = rows.take([row for row in range(rows.num_rows) if row not in {0, 3, 5, 6}])
    assert counted(view.read()) == counted(pa.concat_tables([left, left]))
    store_all(view, store, 2)
    view = opened(parts=[view.metadata()])
    assert counted(view.read()) == counted(pa.concat_tables([left, left]))
    assert not view.read(keys=some).num_rows
    view.delete_at(keys.slice(8, 1), rows["_time"].slice(8, 1))
    left = left.filter(pa.array([row != 8 for row in left["total"].to_pylist()]))
    assert counted(view.read()) == counted(pa.concat_tables([left, left]))


@pytest.mark.parametrize("name", every_third(KEYS, 5))
def test_p2_time_keyed_tables_by_such_keys_survive_restarts_rescaling_and_compaction(name: str) -> None:
    keys = keys_of(name, 5)
    cluster = Cluster(1, {"t": timed_config(name)})
    want: Counter[tuple[str, ...]] = Counter()
    for parallelism in (1, 3):
        cluster.restart(parallelism)
        for start in (0, 100, 200):
            rows = timed_rows(keys, start)
            sent(cluster, rows)
            want += counted(rows)
            cluster.commit()
        for manager in cluster.managers:
            manager.send(Compaction())
        cluster.commit()
        found = pa.concat_tables(manager.get_time_keyed("t").read() for manager in cluster.managers)
        assert counted(found) == want
    cluster.restart(1)
    assert counted(cluster.managers[0].get_time_keyed("t").read()) == want
    cluster.close()


@pytest.mark.parametrize("name", every_third(KEYS, 6))
def test_of_a_generation_of_such_a_key_the_newest_row_counts(tiers: Tiers, name: str) -> None:
    store, keys = MemoryStore(), keys_of(name, 3)
    config = timed_config(name, generational=True)
    view = TimeKeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers)
    for epoch in (1, 2):
        view.append(
            timed_rows(keys.take(pa.array(range(keys.num_rows)[::-1], pa.int64())))
            .drop_columns(["_time"])
            .append_column("_time", pa.array([5] * keys.num_rows, pa.timestamp("us", "UTC")))
        )
        rows = timed_rows(keys).drop_columns(["_time"])
        rows = rows.append_column("_time", pa.array([5] * keys.num_rows, pa.timestamp("us", "UTC")))
        view.append(rows)
        assert counted(view.read()) == counted(rows)
        store_all(view, store, epoch)
        view = TimeKeyedView(config, owned=WHOLE_SPACE, store=store, tiers=tiers, parts=[view.metadata()])
    assert counted(view.read()) == counted(rows)


@pytest.mark.parametrize("name", every_third(KEYS, 7))
def test_p6_the_order_in_which_rows_of_such_keys_and_values_came_does_not_show(tiers: Tiers, name: str) -> None:
    kind = KEYS[name][0]
    keys = keys_of(name, 7)
    schema = pa.schema([("key", kind), ("n", pa.int32()), ("value", kind)])
    config = timestamp_table_config("t", "", dt.timedelta(1), False, schema, keys=["key"])
    rows = timed_rows(keys).drop_columns(["_time", "total", "n"])
    rows = rows.append_column("n", pa.array([1] * rows.num_rows, pa.int32()))
    rows = rows.append_column("_time", pa.array([5] * rows.num_rows, pa.timestamp("us", "UTC")))
    values = np.random.default_rng(3).permutation(rows.num_rows)
    rows = rows.append_column("value", rows["key"].take(pa.array(values)))
    written = []
    for order in (range(rows.num_rows), np.random.default_rng(4).permutation(rows.num_rows).tolist()):
        view = TimeKeyedView(config, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
        view.append(rows.take(pa.array(list(order), pa.int64())))
        written.append([one.path for one in view.checkpoint(lambda digest: digest)])
    assert written[0] == written[1]
    assert written[0]


@pytest.mark.parametrize("shape", ["plain", "list", "struct of list"])
@pytest.mark.parametrize("width", [16, 32, 64])
def test_p6_zeros_and_nans_of_different_bits_are_stored_in_one_order(tiers: Tiers, width: int, shape: str) -> None:
    kind = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[width]
    sign, infinite = 1 << (width - 1), {16: 0x7C00, 32: 0x7F800000, 64: 0x7FF << 52}[width]
    bits = np.array([0, sign, infinite + 1, infinite + 2, sign + infinite + 1, infinite], dtype=f"u{width // 8}")

    def values(order: Sequence[int]) -> pa.Array:
        array = pa.Array.from_buffers(kind, len(bits), [None, pa.py_buffer(bits[list(order)])])
        if shape != "plain":
            array = pa.ListArray.from_arrays(pa.array(range(len(bits) + 1), pa.int32()), array)
        return pa.StructArray.from_arrays([array], ["at"]) if shape == "struct of list" else array

    schema = pa.schema([("key", pa.int64()), ("value", values(range(6)).type)])
    config = timestamp_table_config("t", "", dt.timedelta(1), False, schema, keys=["key"])
    written = set()
    for order in (range(6), range(6)[::-1], [3, 0, 5, 1, 4, 2]):
        view = TimeKeyedView(config, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
        rows = {"key": pa.array([1] * 6), "_time": pa.array([5] * 6, pa.timestamp("us", "UTC")), "value": values(order)}
        view.append(pa.table(rows).slice(0, 2))
        view.append(pa.table(rows).slice(2))
        (upload,) = view.checkpoint(lambda digest: digest)
        written.add(upload.path)
    assert len(written) == 1


# ---- definitions ----------------------------------------------------------------------------------------------------


def test_zeros_and_nans_inside_of_keys_are_one_key(tiers: Tiers) -> None:
    kind = pa.struct([("at", pa.list_(pa.float64()))])
    config = keyed_table_config("t", "", ["key"], pa.schema([("key", kind), ("total", pa.int64())]))
    view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)
    values = [{"at": [0.0]}, {"at": [-0.0]}, {"at": [float("nan")]}, {"at": [-float("nan")]}]
    view.upsert(pa.table({"key": pa.array(values, kind)}), totals(4))
    (rows,) = view.scan()
    assert sorted(zip(shown(rows["key"]), rows["total"].to_pylist(), strict=True)) == [
        ("{'at': [0.0]}", 1),
        ("{'at': [nan]}", 3),
    ]


def test_a_nested_key_keeps_its_type_when_its_table_changes() -> None:
    def config(kind: pa.DataType, **more: Any) -> dict[str, TableConfig]:
        schema = pa.schema([("key", kind), ("total", pa.int64()), *more.pop("added", [])])
        return {"t": keyed_table_config("t", "", ["key"], schema, **more)}

    kind = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.uint8()))])
    key = {"a": 1, "b": [255, None]}
    cluster = Cluster(1, config(kind))
    cluster.managers[0].send(
        TableData("t", RecordBatch(pa.record_batch({"key": pa.array([key], kind), "total": pa.array([5])})))
    )
    cluster.commit()
    for other in (pa.struct([("a", pa.int64()), kind.field(1)]), pa.struct([kind.field(0)]), pa.list_(pa.int32())):
        with pytest.raises(IncompatibleSchemaError, match="another type of a key has another hash"):
            cluster.restart(1, config(other))
    cluster.restart(1, config(kind, added=[("more", pa.list_(pa.int64()))]))
    (rows,) = cluster.managers[0].get_keyed("t").scan()
    assert rows.to_pylist() == [{"key": key, "total": 5, "more": None}]
    cluster.close()


@pytest.mark.parametrize("name", ["time32", "timestamp_s", "date64", "list", "struct_of_uint64"])
def test_a_time_keyed_table_by_such_keys_gets_another_column(tiers: Tiers, name: str) -> None:
    def config(*added: tuple[str, pa.DataType]) -> dict[str, TableConfig]:
        schema = pa.schema([*schema_of(name), *added])
        return {"t": timestamp_table_config("t", "", dt.timedelta(1), False, schema, keys=["key", "n"])}

    rows = timed_rows(keys_of(name, 3))
    cluster = Cluster(1, config())
    sent(cluster, rows)
    cluster.commit()
    cluster.restart(2, config(("more", pa.int64())))
    found = pa.concat_tables(manager.get_time_keyed("t").read() for manager in cluster.managers)
    assert counted(found) == counted(rows)
    cluster.close()


@pytest.mark.parametrize(
    "kind", [pa.map_(pa.string(), pa.int64()), pa.list_(pa.float16()), pa.struct([("a", pa.null())])]
)
def test_a_type_without_a_key_hash_is_refused_when_the_table_is_defined(kind: pa.DataType) -> None:
    with pytest.raises(InputError, match=r"'key' .* cannot be part of a key"):
        keyed_table_config("t", "", ["key"], pa.schema([("key", kind), ("total", pa.int64())]))
