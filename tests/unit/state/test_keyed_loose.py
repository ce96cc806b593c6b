"""New keys of a block in memory: found whichever of its small runs has them, and copied a few times at most."""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebed.arrays.key_hash import Hashes, hash_columns
from statebed.arrays.mutable import FixedColumn
from statebed.arrays.packed_text import PackedText
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import WHOLE_SPACE
from statebed.state.keyed import memory_runs
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.cuts import edges_of, merged_at, piece_end
from statebed.state.keyed.memory_runs import LooseRuns, runs_to_merge
from statebed.state.keyed.sorted_run import DELETED, DIRTY, STORED, SortedRun

KEYS = pa.schema([("id", pa.int64())])
MAX_SMALL = 8
Ids = npt.NDArray[np.int64]


def crowded(columns: Sequence[pa.Array | PackedText]) -> Hashes:
    """A hash that many keys share."""
    return hash_columns(columns) & np.uint64(0xFF00000000000003)


def batch_of(ids: Ids, *, many_collide: bool) -> KeyBatch:
    keys = pa.table([pa.array(ids)], schema=KEYS)
    return KeyBatch.of(keys, KEYS, crowded if many_collide else hash_columns, where="test")


def run_of(ids: Ids, *, many_collide: bool, marks: np.uint8 = DIRTY) -> SortedRun:
    batch = batch_of(ids, many_collide=many_collide)
    rows = np.arange(len(ids))
    keys = batch.taken(rows)
    return SortedRun.of(batch.hashes, keys, [keys[0].take(rows)], None, marks)


def ids_of(run: SortedRun, at: npt.NDArray[np.int64]) -> list[int]:
    column = run.keys[0]
    assert isinstance(column, FixedColumn)
    return [int(one) for one in column.bits[at].astype(np.int64)]


@pytest.mark.parametrize("many_collide", [False, True], ids=["spread", "colliding"])
@given(
    sizes=st.lists(st.one_of(st.integers(1, 30), st.integers(200, 600)), min_size=1, max_size=30),
    hinted=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=examples(60))
def test_keys_are_found_in_the_run_that_has_them_and_others_nowhere(
    sizes: list[int], hinted: bool, seed: int, many_collide: bool
) -> None:
    ids = np.random.default_rng(seed).permutation(20_000)
    cuts = [0, *itertools.accumulate([2000, *sizes])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_runs, "_FEW_ROWS", 0 if hinted else 1 << 20)
        runs = LooseRuns(WHOLE_SPACE)
        for start, end in itertools.pairwise(cuts):
            runs.add(run_of(ids[start:end], many_collide=many_collide), forget=True)
        assert sum(len(run) for run in runs.runs) == cuts[-1]
        assert len(runs.runs) <= 1 + MAX_SMALL
        there, nowhere = ids[: cuts[-1] : 3], ids[cuts[-1] : cuts[-1] + 500]
        batch = batch_of(np.concatenate([there, nowhere]), many_collide=many_collide)
        rows = np.arange(len(batch), dtype=np.int64) + 7
        pieces, missing = runs.find(batch, rows)
    wanted = np.concatenate([there, nowhere])[batch.order]
    for piece in pieces:
        assert any(piece.run is run for run in runs.runs)
        assert ids_of(piece.run, piece.at) == wanted[piece.rows - 7].tolist()
    assert sorted(wanted[missing - 7].tolist()) == sorted(nowhere.tolist())
    assert sorted(np.concatenate([missing, *(piece.rows for piece in pieces)]).tolist()) == rows.tolist()
    assert sorted(ids_of(runs.as_one(forget=True), np.arange(cuts[-1]))) == sorted(ids[: cuts[-1]].tolist())


@pytest.mark.parametrize("owned", [WHOLE_SPACE, pb.HashRange(first=1 << 62, last=(1 << 62) + 5)], ids=["all", "few"])
def test_hints_hold_to_the_ends_of_the_range(owned: pb.HashRange) -> None:
    hashes = np.array([owned.first, owned.first + 1, owned.last - 1, owned.last], dtype=np.uint64)
    hints = memory_runs._Hints(owned, places=1000)
    hints.add(3, hashes[[0, 3]])
    hints.add(5, hashes[[1, 2]])
    assert ((hints.of(hashes) & np.uint8(8)) != 0)[[0, 3]].all()
    assert ((hints.of(hashes) & np.uint8(32)) != 0)[[1, 2]].all()
    hints.forget_from(5)
    assert not (hints.of(hashes) & np.uint8(32)).any()
    assert (hints.of(hashes)[[0, 3]] == 8).all()


@given(sizes=st.lists(st.integers(1, 1 << 22), min_size=1, max_size=MAX_SMALL + 1))
def test_there_is_a_bit_for_each_small_run_whatever_their_sizes(sizes: list[int]) -> None:
    count = runs_to_merge(sizes)
    assert 1 <= count <= len(sizes)
    assert len(sizes) - count + 1 <= MAX_SMALL


@pytest.mark.parametrize(("rows", "batches", "times"), [(10, 400, 20), (3000, 64, 2), (20_000, 256, 4)])
def test_a_row_of_a_small_run_is_copied_a_few_times(rows: int, batches: int, times: int) -> None:
    sizes: list[int] = []
    copied = 0
    for _ in range(batches):
        sizes.append(rows)
        count = runs_to_merge(sizes)
        if count > 1:
            copied += sum(sizes[-count:])
            sizes[-count:] = [sum(sizes[-count:])]
        assert len(sizes) <= MAX_SMALL
    assert copied <= times * batches * rows


def test_small_runs_without_new_keys_go_into_the_large_one_when_looking_into_them_has_cost_as_much() -> None:
    ids = np.random.default_rng(3).permutation(12_000)
    runs = LooseRuns(WHOLE_SPACE)
    for start, end in ((0, 9000), (9000, 10_000)):
        runs.add(run_of(ids[start:end], many_collide=False), forget=True)

    def looked_up(some: Ids) -> bool:
        batch = batch_of(some, many_collide=False)
        runs.find(batch, np.arange(len(batch), dtype=np.int64))
        return runs.worth_merging

    # Small runs cost nothing when all keys are in the large one.
    assert not any(looked_up(ids[:9000]) for _ in range(9))
    assert not looked_up(ids[8500:9600])
    runs.add(run_of(ids[10_000:10_100], many_collide=False), forget=True)
    # A new key has come: counted from there, 17 times 300 keys are half of the rows.
    assert [looked_up(ids[8100:9300]) for _ in range(17)] == [*[False] * 16, True]
    assert sorted(ids_of(runs.as_one(forget=True), np.arange(10_100))) == sorted(ids[:10_100].tolist())
    assert not any(looked_up(ids[8000:10_000]) for _ in range(9))


def test_what_is_deleted_and_in_no_file_goes_when_runs_are_merged() -> None:
    ids = np.arange(1000)
    runs = LooseRuns(WHOLE_SPACE)
    runs.add(run_of(ids[:900], many_collide=False), forget=True)
    runs.add(run_of(ids[900:950], many_collide=False, marks=DELETED | DIRTY), forget=True)
    runs.add(run_of(ids[950:], many_collide=False, marks=DELETED | DIRTY | STORED), forget=True)
    assert len(runs.as_one(forget=True)) == 950


def test_runs_that_are_cut_hold_the_values_of_their_rows_alone() -> None:
    random = np.random.default_rng(5)
    runs = []
    for count in (30_000, 9000):
        ids = random.choice(1 << 40, count, replace=False)
        batch = batch_of(ids, many_collide=False)
        texts = pa.array([f"{one:060}" for one in ids[batch.order]])
        runs.append(SortedRun.of(batch.hashes, batch.taken(np.arange(len(batch))), [texts], None, DIRTY))
    edges = edges_of(runs[0].hashes, parts=2)
    parts = merged_at(runs, edges)
    whole = sum(run.values[0].held_bytes for run in runs)
    assert sum(part.values[0].held_bytes for part in parts) <= 1.05 * whole
    ends = [[0, *np.searchsorted(run.hashes, edges).tolist(), len(run)] for run in runs]
    assert [len(part) for part in parts] == [
        sum(run_ends[number + 1] - run_ends[number] for run_ends in ends) for number in range(2)
    ]
    for part in parts:
        every = np.arange(len(part))
        assert part.values[0].take(every).to_pylist() == [f"{one:060}" for one in ids_of(part, every)]
        assert (part.hashes[1:] >= part.hashes[:-1]).all()
        assert part.dirty_rows == len(part)


@pytest.mark.parametrize("runs", [1, 2])
def test_deleted_rows_that_are_in_no_file_are_dropped_when_a_block_is_cut(runs: int) -> None:
    ids = np.arange(1000)
    kept = run_of(ids[:600], many_collide=False)
    gone = run_of(ids[600:900], many_collide=False, marks=DELETED | DIRTY)
    stored = run_of(ids[900:], many_collide=False, marks=DELETED | DIRTY | STORED)
    some = [kept.merged([gone, stored], forget=False)] if runs == 1 else [kept, gone.merged([stored], forget=False)]
    parts = merged_at(some, edges_of(some[0].hashes, parts=3))
    assert sum(map(len, parts)) == 700


@settings(max_examples=examples(60))
@given(
    st.lists(st.lists(st.integers(0, 60), max_size=40), min_size=1, max_size=6),
    st.integers(0, 61),
    st.integers(1, 50),
)
def test_a_piece_has_as_many_rows_as_it_may_have_counting_all_runs(
    hashes: list[list[int]], first: int, rows: int
) -> None:
    runs = [np.array(sorted(run), dtype=np.uint64) for run in hashes]
    end = piece_end(runs, first, rows=rows)
    left = sorted(value for run in hashes for value in run if value >= first)
    if end is None:
        assert len(left) <= rows
        return
    piece = [value for value in left if value <= end]
    assert piece
    assert len(piece) <= rows or len(set(piece)) == 1


def test_p4_runs_that_are_merged_are_counted_so_that_their_memory_is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that a large one replaces leave holes of its size."""
    counted: list[int] = []
    monkeypatch.setattr(memory_runs, "count_processed", counted.append)
    loose = LooseRuns(WHOLE_SPACE, run_of(np.arange(1_000), many_collide=False))
    for first in range(1_000, 20_000, 1_000):
        loose.add(run_of(np.arange(first, first + 1_000), many_collide=False), forget=False)
    assert loose.as_one(forget=False).held_bytes == counted[-1]
    assert counted == sorted(counted)
