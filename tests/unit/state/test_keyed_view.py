"""Keyed views at the size of thousands of rows: bytes of checkpoints, compaction, lazy restore, refusals."""

import datetime as dt
import decimal
import itertools
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from statebed.arrays.key_hash import hash_columns
from statebed.errors import CorruptObjectError, InputError, MissingFileError
from statebed.format import checkpoint_pb2 as pb
from statebed.format import names
from statebed.format.ranges import WHOLE_SPACE, owned_range, subtask_of
from statebed.format.segment import decode_segment
from statebed.state import KeyedCheckpoint, KeyedView, TableConfig, TimeToLiveClock, keyed_table_config
from statebed.state.keyed.files import BASE, DELTA
from statebed.storage import LocalStore, MemoryStore, ObjectStore

CONFIG = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.int64())]))


def keys_of(ids: np.ndarray | range | list[int]) -> pa.Table:
    return pa.table({"id": pa.array(list(ids), pa.int64())})


def totals(ids: np.ndarray | range | list[int], factor: int = 1) -> pa.Table:
    return pa.table({"total": pa.array([int(one) * factor for one in ids], pa.int64())})


def add(old: pa.Table, new: pa.Table) -> pa.Table:
    return pa.table([pc.add(old["total"], new["total"])], schema=new.schema)


def name_of(epoch: int, subtask_index: int = 0) -> Callable[[str], str]:
    return lambda digest: names.data_file(epoch, "op", "totals", subtask_index, digest)


def commit(view: KeyedView, store: ObjectStore, epoch: int) -> KeyedCheckpoint:
    checkpoint = view.checkpoint(name_of(epoch))
    for upload in checkpoint.uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    return checkpoint


def opened(
    store: MemoryStore, parts: list[pb.TableSubtaskCheckpointMetadata], *, owned: pb.HashRange = WHOLE_SPACE
) -> KeyedView:
    return KeyedView(CONFIG, owned=owned, store=store, parts=parts)


def contents(*views: KeyedView) -> dict[int, int]:
    return {row["id"]: row["total"] for view in views for part in view.scan() for row in part.to_pylist()}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("keyed")


def test_checkpoint_bytes_grow_with_what_changed_and_not_with_the_state(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of(range(50_000)), totals(range(50_000)))
    (first,) = commit(view, store, 1).uploads
    view.merge(keys_of(range(0, 50_000, 1000)), totals(range(50)), add)
    (second,) = commit(view, store, 2).uploads
    assert second.size < first.size / 50
    assert not commit(view, store, 3).uploads


def test_p6_a_checkpoint_has_the_same_bytes_whatever_the_order_of_arrival(store: MemoryStore) -> None:
    ids = np.random.default_rng(1).permutation(20_000)
    digests = set()
    for order in (ids, ids[::-1], np.sort(ids)):
        view = opened(store, [])
        for part in np.array_split(order, 7):
            view.merge(keys_of(part), totals(part), add)
        view.delete(keys_of(range(0, 20_000, 3)))
        view.upsert(keys_of(range(0, 20_000, 9)), totals(range(0, 20_000, 9), 2))
        digests.add(commit(view, store, 1).uploads[0].path)
    assert len(digests) == 1


def test_p6_a_key_that_came_and_went_between_checkpoints_leaves_no_trace(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of([1, 2]), totals([1, 2]))
    view.delete(keys_of([2]))
    (upload,) = commit(view, store, 1).uploads
    (entry,) = view.metadata().files
    assert decode_segment(upload.content(), entry)["id"].to_pylist() == [1]
    view.delete(keys_of([1]))
    commit(view, store, 2)
    view.upsert(keys_of([1]), totals([5]))
    view.delete(keys_of([1]))
    assert not commit(view, store, 3).uploads


def test_delete_put_delete_in_one_epoch_leaves_the_key_deleted_after_a_restore(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of([1, 2]), totals([1, 2]))
    commit(view, store, 1)
    view.delete(keys_of([1, 2]))
    view.upsert(keys_of([1, 2]), totals([7, 8]))
    view.delete(keys_of([1]))
    restored = opened(store, [commit(view, store, 2).metadata])
    assert contents(restored) == {2: 8}


def test_compaction_writes_few_blocks_and_leaves_what_later_epochs_say(store: MemoryStore) -> None:
    small = 64 << 10
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, block_bytes=small)
    view.upsert(keys_of(range(20_000)), totals(range(20_000)))
    commit(view, store, 1)
    written = []
    for epoch in range(2, 30):
        job = view.plan_compaction(max_bytes=small)
        changed = range(epoch, 20_000, 17)
        view.upsert(keys_of(changed), totals(changed, epoch))
        view.delete(keys_of([epoch * 500]))
        if job is not None:
            assert job.input_bytes <= 2 * small
            view.offer_edit(job.run())
        older = [file.max_sequence for file in view.metadata().files]
        new = {upload.path for upload in commit(view, store, epoch).uploads}
        files = [file for file in view.metadata().files if file.path in new]
        assert all(file.min_sequence > max(older) for file in files if file.level == DELTA)
        assert all(file.max_sequence <= max(older) for file in files if file.level == BASE)
        written.append(len({file.path for file in files if file.level == BASE}))
        if epoch % 7 == 1:
            restored = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, parts=[view.metadata()], block_bytes=small)
            assert contents(restored) == contents(view)
    assert max(written) <= 6
    assert sum(written) >= 10
    base = sorted((file.owned.first, file.owned.last) for file in view.metadata().files if file.level == BASE)
    assert all(last < first for (_, last), (first, _) in itertools.pairwise(base))
    assert len({file.max_sequence for file in view.metadata().files if file.level != BASE}) <= 16


def test_files_of_one_subtask_are_split_and_joined_again_without_being_rewritten(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of(range(5_000)), totals(range(5_000)))
    parts = [commit(view, store, 1).metadata]
    expected = contents(view)
    for epoch, parallelism in enumerate((3, 2, 4, 1), start=2):
        views = [opened(store, parts, owned=owned_range(index, parallelism)) for index in range(parallelism)]
        assert contents(*views) == expected
        owners = subtask_of(hash_columns([pa.array([epoch], pa.int64())]), parallelism)
        views[int(owners[0])].upsert(keys_of([epoch]), totals([epoch], 100))
        expected[epoch] = 100 * epoch
        parts = []
        for index, one in enumerate(views):
            checkpoint = one.checkpoint(name_of(epoch, index), subtask_index=index)
            for upload in checkpoint.uploads:
                assert len(upload.content()) < 4_000
                store.put(upload.path, upload.content())
            parts.append(checkpoint.metadata)
    assert contents(opened(store, parts)) == expected


def test_a_restore_reads_nothing_until_a_key_is_looked_up(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of(range(1_000)), totals(range(1_000)))
    metadata = commit(view, store, 1).metadata
    restored = opened(MemoryStore("empty"), [metadata])
    assert restored.held_bytes == 0
    with pytest.raises(MissingFileError, match="does not exist"):
        restored.get(keys_of([1]))
    other = opened(store, [metadata])
    values, found = other.get(keys_of([999, 5_000, 1]))
    assert values["total"].to_pylist() == [999, None, 1]
    assert found.tolist() == [True, False, True]
    assert other.held_bytes > 1_000 * 24


def test_p7_a_flipped_byte_is_found_and_named_and_not_returned(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of(range(1_000)), totals(range(1_000)))
    checkpoint = commit(view, store, 1)
    (upload,) = checkpoint.uploads
    damaged = bytearray(upload.content())
    damaged[len(damaged) // 3] ^= 1
    store.put(upload.path, bytes(damaged))
    with pytest.raises(CorruptObjectError) as caught:
        contents(opened(store, [checkpoint.metadata]))
    assert upload.path in str(caught.value)


def test_released_blocks_are_read_again_and_changed_ones_stay(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of(range(1_000)), totals(range(1_000)))
    assert view.release(1) == 0
    commit(view, store, 1)
    held = view.held_bytes
    assert view.release(1) == held
    assert view.held_bytes == 0
    view.merge(keys_of([7]), totals([1]), add)
    assert contents(view)[7] == 8


def test_a_merge_function_that_fails_changes_nothing(store: MemoryStore) -> None:
    def failing(old: pa.Table, new: pa.Table) -> pa.Table:
        raise RuntimeError("no")

    def shortening(old: pa.Table, new: pa.Table) -> pa.Table:
        return new.slice(0, 1)

    view = opened(store, [])
    view.upsert(keys_of([1, 2]), totals([1, 2]))
    with pytest.raises(RuntimeError, match="no"):
        view.merge(keys_of([1, 2, 3]), totals([1, 1, 1]), failing)
    with pytest.raises(InputError, match="returned 1 rows for 2"):
        view.merge(keys_of([1, 2, 3]), totals([1, 1, 1]), shortening)
    assert contents(view) == {1: 1, 2: 2}


def test_rows_of_one_key_in_a_batch_are_folded_in_their_order(store: MemoryStore) -> None:
    config = keyed_table_config("paths", "", ["id"], pa.schema([("id", pa.int64()), ("path", pa.string())]))

    def join(old: pa.Table, new: pa.Table) -> pa.Table:
        return pa.table([pc.binary_join_element_wise(old["path"], new["path"], "")], schema=new.schema)

    view = KeyedView(config, owned=WHOLE_SPACE, store=store)
    letters = [chr(ord("a") + row % 26) for row in range(100)]
    ids = [row % 3 for row in range(100)]
    view.merge(keys_of(ids), pa.table({"path": letters}), join)
    view.merge(keys_of([0, 0]), pa.table({"path": ["-", "+"]}), join)
    values, _ = view.get(keys_of([0, 1, 2]))
    expected = ["".join(letters[start::3]) for start in range(3)]
    assert values["path"].to_pylist() == [expected[0] + "-+", expected[1], expected[2]]


WIDE = pa.schema(
    [
        ("flag", pa.bool_()),
        ("small", pa.int8()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us", tz="UTC")),
        ("price", pa.decimal128(12, 2)),
        ("raw", pa.binary()),
        ("ratio", pa.float32()),
    ]
)


@pytest.mark.parametrize("column", WIDE.names)
def test_keys_and_values_of_every_kind_survive_a_restore(store: MemoryStore, column: str) -> None:
    samples = {
        "flag": [True, False, None],
        "small": [-1, 127, None],
        "day": [dt.date(2024, 2, 29), dt.date(1969, 12, 31), None],
        "moment": [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC), None],
        "price": [decimal.Decimal("1.50"), decimal.Decimal("-9999999999.99"), None],
        "raw": [b"", b"\x00\xff", None],
        "ratio": [0.5, float("inf"), None],
    }[column]
    field = WIDE.field(column)
    config = keyed_table_config(
        "wide", "", [column], pa.schema([field, field.with_name("copy"), ("items", pa.list_(pa.int64()))])
    )
    keys = pa.table({column: pa.array(samples, field.type)})
    values = pa.table({"copy": keys[column], "items": pa.array([[1, 2], None, []], pa.list_(pa.int64()))})
    view = KeyedView(config, owned=WHOLE_SPACE, store=store)
    view.upsert(keys, values)
    checkpoint = commit(view, store, 1)
    restored = KeyedView(config, owned=WHOLE_SPACE, store=store, parts=[checkpoint.metadata])
    found, held = restored.get(keys)
    assert held.all()
    assert found.to_pydict() == values.to_pydict()


def expiring(clock: TimeToLiveClock) -> TableConfig:
    schema = pa.schema([("id", pa.int64()), ("total", pa.int64())])
    return keyed_table_config("totals", "", ["id"], schema, dt.timedelta(seconds=1), ttl_clock=clock)


def test_rows_expire_while_running_and_files_say_so(store: MemoryStore) -> None:
    config = expiring(TimeToLiveClock.EPOCH_TIME)
    view = KeyedView(config, owned=WHOLE_SPACE, store=store)
    with pytest.raises(InputError, match="advance"):
        view.upsert(keys_of([1]), totals([1]))
    view.advance(0)
    view.upsert(keys_of([1, 2]), totals([1, 2]))
    commit(view, store, 1)
    view.advance(600_000)
    view.merge(keys_of([2]), totals([2]), add)
    assert view.advance(1_000_000) == 1
    assert contents(view) == {2: 4}
    assert view.expired_rows == 1
    restored = KeyedView(config, owned=WHOLE_SPACE, store=store, parts=[commit(view, store, 2).metadata])
    assert contents(restored) == {2: 4}
    assert restored.advance(1_600_000) == 1
    assert contents(restored) == {}


def test_a_late_update_does_not_shorten_the_life_of_a_key(store: MemoryStore) -> None:
    view = KeyedView(expiring(TimeToLiveClock.EVENT_TIME), owned=WHOLE_SPACE, store=store)
    view.upsert(keys_of([1]), totals([1]), times=pa.array([5_000_000]))
    view.upsert(keys_of([1]), totals([2]), times=pa.array([1_000_000]))
    view.advance(5_999_999)
    assert contents(view) == {1: 2}
    view.advance(6_000_000)
    assert contents(view) == {}


@pytest.mark.parametrize(
    ("keys", "values", "message"),
    [
        (pa.table({"id": ["a"]}), totals([1]), "the type string instead of int64"),
        (pa.table({"other": [1]}), totals([1]), "instead of \\['id'\\]"),
        (keys_of([1]), totals([1, 2]), "1 keys and 2 rows"),
        (keys_of([1]), pa.table({"total": [1.5]}), "the type double instead of int64"),
    ],
)
def test_input_of_another_shape_is_refused(store: MemoryStore, keys: pa.Table, values: pa.Table, message: str) -> None:
    view = opened(store, [])
    with pytest.raises(InputError, match=message):
        view.upsert(keys, values)
    assert view.dirty_rows == 0


def test_keys_of_another_subtask_are_refused(store: MemoryStore) -> None:
    view = opened(store, [], owned=owned_range(0, 2))
    with pytest.raises(InputError, match="another subtask"):
        view.upsert(keys_of(range(100)), totals(range(100)))


def test_event_times_in_another_unit_are_refused(store: MemoryStore) -> None:
    view = KeyedView(expiring(TimeToLiveClock.EVENT_TIME), owned=WHOLE_SPACE, store=store)
    with pytest.raises(InputError, match="microseconds"):
        view.upsert(keys_of([1]), totals([1]), times=pa.array([1], pa.timestamp("ns")))


def test_state_with_other_columns_is_refused_before_anything_is_read(store: MemoryStore) -> None:
    view = opened(store, [])
    view.upsert(keys_of([1]), totals([1]))
    metadata = commit(view, store, 1).metadata
    other = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.string())]))
    with pytest.raises(InputError, match="total string"):
        KeyedView(other, owned=WHOLE_SPACE, store=MemoryStore("empty"), parts=[metadata])


def test_p8_duckdb_reads_the_state_as_the_specification_says(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, block_bytes=64 << 10)
    for epoch in range(1, 13):
        changed = range(epoch, 6_000, epoch)
        view.merge(keys_of(changed), totals(changed), add)
        view.delete(keys_of(range(0, 6_000, 7 + epoch)))
        commit(view, store, epoch)
        if epoch == 4:
            job = view.plan_compaction(max_bytes=1)
            assert job is not None
            view.offer_edit(job.run())
    assert {file.level for file in view.metadata().files} >= {1, BASE}
    visible = " UNION ALL BY NAME ".join(
        f"SELECT * FROM read_parquet('{tmp_path / file.path}') "  # paths and numbers of the metadata
        f"WHERE _key_hash BETWEEN {file.owned.first}::UBIGINT AND {file.owned.last}::UBIGINT"
        for file in view.metadata().files
    )
    newest = f"SELECT * FROM ({visible}) QUALIFY row_number() OVER (PARTITION BY id ORDER BY _seq DESC) = 1"  # as above
    rows = duckdb.connect().execute(f"SELECT id, total FROM ({newest}) WHERE NOT _deleted").fetchall()  # as above
    assert dict(rows) == contents(view)
