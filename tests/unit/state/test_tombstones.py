"""Tombstones: what they hide, where they apply, when they retire."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns, normalise_key
from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE, owned_range
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.state.live import tombstones
from statebed.state.live.deletions import Deletions
from statebed.state.live.files import LiveFiles
from statebed.state.live.tombstones import DeletionKind

NAN = float("nan")
KEYS = ["driver", "city"]
Row = tuple[float | None, str | None, int, int, float | None, list[float | None] | None]
"""Driver and city (the key), time, sequence, fare and tips (the values)."""
COLUMNS = {DeletionKind.KEY: KEYS, DeletionKind.TIME_KEY: [*KEYS, TIME], DeletionKind.VALUE: [*KEYS, "fare", "tips"]}


def table(rows: list[Row]) -> pa.Table:
    drivers = normalise_key(pa.array([row[0] for row in rows], pa.float64()))
    cities = pa.array([row[1] for row in rows], pa.string())
    return pa.table(
        {
            KEY_HASH: from_numpy(hash_columns([drivers, cities]), pa.uint64()),
            "driver": drivers,
            "city": cities,
            TIME: from_numpy(np.array([row[2] for row in rows], dtype=np.int64), TIMESTAMP),
            SEQUENCE: from_numpy(np.array([row[3] for row in rows], dtype=np.uint64), pa.uint64()),
            "fare": pa.array([row[4] for row in rows], pa.float64()),
            "tips": pa.array([row[5] for row in rows], pa.list_(pa.float64())),
        }
    )


def tombstone(
    kind: DeletionKind, rows: list[Row], *, sequence: int = 5, owned: pb.HashRange = WHOLE_SPACE
) -> pb.Tombstone:
    deleted = table(rows).select([KEY_HASH, *COLUMNS[kind]])
    return tombstones.of_rows(kind, deleted, sequence=sequence, owned=owned)


def visible(rows: list[Row], *some: pb.Tombstone) -> list[bool]:
    found: list[bool] = Deletions(some, keys=KEYS).visible(table(rows)).tolist()
    return found


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(one) for one in value]
    return "NaN" if isinstance(value, float) and np.isnan(value) else value


def compared(kind: DeletionKind, row: Row) -> Any:
    parts = {DeletionKind.KEY: row[:2], DeletionKind.TIME_KEY: row[:3], DeletionKind.VALUE: (*row[:2], *row[4:])}[kind]
    return [plain(part) for part in parts]


floats = st.sampled_from([0.0, -0.0, 1.0, NAN, None])
some_rows = st.lists(
    st.tuples(
        floats,
        st.sampled_from(["", "rome", None]),
        st.integers(-2, 2),
        st.integers(1, 9),
        floats,
        st.none() | st.lists(st.sampled_from([0.0, -0.0, NAN, None]), max_size=1),
    ),
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(
    rows=some_rows, deleted=st.lists(st.tuples(st.sampled_from(DeletionKind), st.integers(1, 9), some_rows), max_size=4)
)
def test_a_row_is_hidden_by_what_equals_it_and_is_not_older(
    rows: list[Row], deleted: list[tuple[DeletionKind, int, list[Row]]]
) -> None:
    some = [tombstone(kind, batch, sequence=sequence) for kind, sequence, batch in deleted if batch]
    expected = [
        not any(
            row[3] <= sequence and compared(kind, row) in [compared(kind, one) for one in batch]
            for kind, sequence, batch in deleted
        )
        for row in rows
    ]
    assert visible(rows, *some) == expected


def test_a_row_outside_a_range_of_time_its_sequence_or_its_hashes_is_visible() -> None:
    half = owned_range(0, 2)
    one = tombstones.of_range(0, 10, sequence=7, owned=half)
    hashes = np.array([0, half.last, half.last + 1, 0, 0, 0], dtype=np.uint64)
    rows = pa.table(
        {
            KEY_HASH: from_numpy(hashes, pa.uint64()),
            TIME: from_numpy(np.array([0, 9, 5, 10, -1, 5], dtype=np.int64), TIMESTAMP),
            SEQUENCE: from_numpy(np.array([7, 1, 1, 1, 1, 8], dtype=np.uint64), pa.uint64()),
        }
    )
    assert Deletions([one], keys=[]).visible(rows).tolist() == [False, False, True, True, True, True]


def test_many_times_of_one_key_are_told_apart_by_their_hash() -> None:
    rows: list[Row] = [(1.0, "rome", time, 1, None, None) for time in range(20_000)]
    assert sum(visible(rows, tombstone(DeletionKind.TIME_KEY, rows[::2]))) == 10_000


@pytest.mark.parametrize("kind", DeletionKind)
@pytest.mark.parametrize("parallelism", [1, 2, 7])
def test_clipped_to_subtasks_and_joined_again_a_tombstone_hides_the_same(kind: DeletionKind, parallelism: int) -> None:
    rows: list[Row] = [(float(number), "rome", number, 1, float(number), None) for number in range(100)]
    whole = tombstone(kind, rows[:50])
    parts = [tombstones.clipped(whole, owned_range(index, parallelism)) for index in range(parallelism)]
    alive = [part for part in parts if part is not None]
    assert sum(len(tombstones.rows_of(part)) for part in alive) == 50
    assert visible(rows, *alive) == visible(rows, whole) == [False] * 50 + [True] * 50
    if parallelism == 1:
        assert alive == [whole]


def test_a_tombstone_says_nothing_where_none_of_its_keys_is_owned() -> None:
    one = tombstone(DeletionKind.KEY, [(1.0, "rome", 0, 1, None, None)])
    key_hash = one.delete_key.min_key_hash
    assert one.delete_key.max_key_hash == key_hash
    assert tombstones.clipped(one, pb.HashRange(first=key_hash + 1, last=(1 << 64) - 1)) is None
    assert tombstones.clipped(one, pb.HashRange(first=key_hash, last=key_hash)) is not None


def file_with(rows: list[Row], *, applied_sequence: int = 0) -> pb.FileEntry:
    hashes = table(rows)[KEY_HASH].to_pylist()
    return pb.FileEntry(
        path="one",
        owned=WHOLE_SPACE,
        min_key_hash=min(hashes),
        max_key_hash=max(hashes),
        min_time_us=min(row[2] for row in rows),
        max_time_us=max(row[2] for row in rows),
        min_sequence=min(row[3] for row in rows),
        max_sequence=max(row[3] for row in rows),
        applied_sequence=applied_sequence,
    )


MINE: list[Row] = [(1.0, "rome", 10, 3, 1.0, None)]
OTHER: list[Row] = [(2.0, "rome", 10, 3, 1.0, None)]
LATER: list[Row] = [(1.0, "rome", 11, 3, 1.0, None)]


@pytest.mark.parametrize("kind", DeletionKind)
def test_a_tombstone_retires_when_nothing_older_overlaps(kind: DeletionKind) -> None:
    one = tombstone(kind, MINE)
    assert LiveFiles(owned=WHOLE_SPACE, files=(file_with(MINE),)).with_tombstone(one).tombstones == (one,)
    for gone in ((), (file_with(OTHER),), (file_with(MINE, applied_sequence=5),)):
        live = LiveFiles(owned=WHOLE_SPACE, files=gone, tombstones=(one,))
        assert not live.without_idle_tombstones().tombstones
        assert live.without_idle_tombstones(fresh=[file_with(MINE)]).tombstones == (one,)
    newer = [(*row[:3], 6, *row[4:]) for row in MINE]
    live = LiveFiles(owned=WHOLE_SPACE, files=(file_with(newer),), tombstones=(one,))
    assert not live.without_idle_tombstones().tombstones
    other_time = LiveFiles(owned=WHOLE_SPACE, files=(file_with(LATER),), tombstones=(one,))
    assert bool(other_time.without_idle_tombstones().tombstones) == (kind is not DeletionKind.TIME_KEY)


def test_a_tombstone_of_a_range_retires_when_nothing_older_overlaps() -> None:
    one = tombstones.of_range(0, 11, sequence=5, owned=WHOLE_SPACE)
    for files, needed in [
        ([file_with(MINE)], True),
        ([file_with(LATER)], False),
        ([file_with(MINE, applied_sequence=5)], False),
        ([file_with([(1.0, "rome", 10, 6, 1.0, None)])], False),
        ([], False),
    ]:
        live = LiveFiles(owned=WHOLE_SPACE, files=tuple(files), tombstones=(one,))
        assert bool(live.without_idle_tombstones().tombstones) == needed


@pytest.mark.parametrize("kind", DeletionKind)
def test_a_deletion_that_is_repeated_raises_its_tombstone(kind: DeletionKind) -> None:
    live = LiveFiles(owned=WHOLE_SPACE, next_sequence=5, files=(file_with(MINE),))
    rows = table(MINE).select([KEY_HASH, *COLUMNS[kind]])
    again = live.delete_rows(kind, rows).delete_rows(kind, rows)
    assert [one.sequence for one in again.tombstones] == [6]
    assert again.next_sequence == 7
    assert live.delete_rows(kind, rows.slice(0, 0)) == live


def test_p7_a_damaged_tombstone_is_named() -> None:
    one = tombstone(DeletionKind.KEY, MINE)
    one.delete_key.arrow_ipc = one.delete_key.arrow_ipc[:50]
    with pytest.raises(CorruptObjectError, match="cannot be decoded"):
        Deletions([one], keys=KEYS)
    with pytest.raises(CorruptObjectError, match="does not know"):
        Deletions([pb.Tombstone(sequence=1, owned=WHOLE_SPACE)], keys=KEYS)
    two = tombstone(DeletionKind.KEY, MINE)
    two.delete_key.rows = 2
    with pytest.raises(CorruptObjectError, match="instead of 2 rows"):
        Deletions([two], keys=KEYS)
