"""Rows of one key and time become fewer when files are written and merged, and never say anything else."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.fare_rows import Row, batch, store_all, view_on
from unit.state.segment_rows import opened_tiers

from statebed.arrays.columns import from_numpy, int64_values, uint64_values
from statebed.format.schema import KEY_HASH, SEQUENCE, TIME
from statebed.state import TimeKeyedView
from statebed.state.time_keyed import row_merge
from statebed.state.time_keyed.row_merge import combined
from statebed.storage import MemoryStore


def added(rows: pa.Table) -> pa.Table:
    """One row per driver and time, with the sum of the fares."""
    hashes, times = uint64_values(rows[KEY_HASH]), int64_values(rows[TIME])
    starts = np.flatnonzero(np.concatenate([[True], (hashes[1:] != hashes[:-1]) | (times[1:] != times[:-1])]))
    kept = rows.take(from_numpy(starts, pa.int64()))
    sums = from_numpy(np.add.reduceat(int64_values(rows["fare"]), starts), pa.int64())
    newest = from_numpy(np.maximum.reduceat(uint64_values(rows[SEQUENCE]), starts), pa.uint64())
    for name, column in (("fare", sums), (SEQUENCE, newest)):
        kept = kept.set_column(kept.schema.get_field_index(name), kept.schema.field(name), column)
    return kept


def sums_of(view: TimeKeyedView) -> Counter[tuple[float | None, int]]:
    rows = view.read()
    sums: Counter[tuple[float | None, int]] = Counter()
    for driver, time, fare in zip(
        rows["driver"].to_pylist(), int64_values(rows[TIME]).tolist(), rows["fare"].to_pylist(), strict=True
    ):
        sums[driver, time] += fare
    return sums


def test_an_epoch_and_a_compaction_leave_one_row_for_each_key_and_time(tmp_path: Path) -> None:
    with opened_tiers(tmp_path) as tiers:
        store = MemoryStore()
        view = view_on(store, tiers=tiers, combine=added)
        for epoch in range(4):
            view.append(batch([(1.0, 3, 10), (2.0, 3, 5)]))
            view.append(batch([(1.0, 3, 1), (1.0, 40, 7)]))
            store_all(view, store, epoch)
        assert view.metadata().rows == 4 * 3, "rows of one epoch were not combined"
        job = view.plan_compaction(max_bytes=1 << 30, everything=True)
        assert job is not None
        view.offer_edit(job.run())
        store_all(view, store, 9)
        assert view.metadata().rows == 3
        assert sums_of(view) == {(1.0, 3): 44, (2.0, 3): 20, (1.0, 40): 28}


Step = tuple[str, list[Row]]
rows = st.lists(
    st.tuples(st.sampled_from([1.0, 2.0, None]), st.sampled_from([-5, 0, 3, 40]), st.integers(-9, 9)), max_size=6
)
steps = st.lists(
    st.tuples(st.sampled_from(["append", "checkpoint", "compact", "delete", "restore"]), rows), max_size=14
)


@given(steps)
@settings(max_examples=examples(25), deadline=None)
def test_p2_combining_says_the_same_whatever_is_deleted_and_restored_between(script: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder, opened_tiers(Path(folder)) as tiers:
        store = MemoryStore()
        view = view_on(store, tiers=tiers, combine=added)
        model: Counter[tuple[float | None, int]] = Counter()
        for epoch, (step, some) in enumerate(script):
            if step == "append":
                view.append(batch(some))
                for driver, time, fare in some:
                    model[driver, time] += fare
            elif step == "delete":
                view.delete_times(-5, 1)
                model = Counter({place: fare for place, fare in model.items() if place[1] >= 1})
            elif step == "compact":
                job = view.plan_compaction(max_bytes=1 << 30, everything=True)
                if job is not None:
                    view.offer_edit(job.run())
            else:
                store_all(view, store, epoch)
                if step == "restore":
                    view = view_on(store, tiers=tiers, combine=added, parts=[view.metadata()])
            assert {place: fare for place, fare in sums_of(view).items() if fare} == {
                place: fare for place, fare in model.items() if fare
            }


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_group_is_handed_over_as_a_whole_however_the_rows_are_cut(size: int) -> None:
    hashes = np.repeat(np.array([1, 1, 7, 9], dtype=np.uint64), [2, 3, 1, 4])
    times = np.repeat(np.array([5, 6, 5, 5], dtype=np.int64), [2, 3, 1, 4])
    rows = pa.table(
        {KEY_HASH: hashes, "driver": hashes.astype(np.float64), TIME: times, SEQUENCE: np.arange(10, dtype=np.uint64)}
    )
    seen: list[int] = []

    def note(group: pa.Table) -> pa.Table:
        seen.append(group.num_rows)
        return group

    pieces = (rows.slice(start, size) for start in range(0, 10, size))
    assert pa.concat_tables(combined(pieces, ["driver"], note)).equals(rows)
    # What has no group of several rows is not handed over at all.
    assert seen in ([2, 3, 4], [5, 4], [2, 4, 4], [6, 4], [2, 3, 1, 4])


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_p4_rows_of_a_key_that_stay_large_are_passed_on_in_pieces(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_merge, "_MAX_HELD_BYTES", 150)
    counts = [2, 30, 1, 4]
    hashes = np.repeat(np.array([1, 2, 7, 9], dtype=np.uint64), counts)
    rows = pa.table(
        {
            KEY_HASH: hashes,
            "driver": hashes.astype(np.float64),
            TIME: np.full(37, 5, dtype=np.int64),
            SEQUENCE: np.arange(37, dtype=np.uint64),
            "fare": np.ones(37, dtype=np.int64),
        }
    )
    combined_rows: list[int] = []

    def same(group: pa.Table) -> pa.Table:
        combined_rows.append(group.num_rows)
        return group

    assert pa.concat_tables(combined(pieces_of(rows, size), ["driver"], same)).equals(rows)
    assert max(combined_rows) < 15, "rows that stay large are held together"
    reduced = pa.concat_tables(combined(pieces_of(rows, size), ["driver"], added))
    assert reduced["fare"].to_pylist() == counts, "rows that become small are combined"


def pieces_of(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    return (rows.slice(start, size) for start in range(0, rows.num_rows, size))
