"""Rows of segments in memory are found by hash as by looking at all of them, without doing so."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.state.fare_rows import batch, counted, rows_of, view_on
from unit.state.segment_rows import MINUTE, opened_tiers, sorted_rows, spec

from statebed.arrays.columns import from_numpy, uint64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.format.segment import sort_segment
from statebed.state import Purpose, Tiers
from statebed.state.live import row_set
from statebed.state.memory.sizes import held_bytes
from statebed.state.tiers import row_index
from statebed.state.tiers import selection as selection_module
from statebed.state.tiers.row_index import BUILDING_BYTES, ROWS_PER_HASH, SMALL_SEGMENT, WORTH_AN_INDEX, RowIndex
from statebed.state.tiers.segments import Segment
from statebed.state.tiers.selection import Selection
from statebed.storage import MemoryStore

INDEXES = ("rides", Purpose.INDEXES)
LAST = (1 << 64) - 1
COUNT = SMALL_SEGMENT + 1000
FEW = Selection(hashes=np.sort(np.arange(0, 40, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)))
"""Rows 0 to 39 of `sorted_rows`."""

hash_values = st.one_of(st.sampled_from([0, 1, 5, 6, 1 << 63, LAST - 1, LAST]), st.integers(0, LAST))
bin_edges = st.one_of(st.none(), st.integers(-1, 9).map(lambda number: number * MINUTE))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiers]:
    with opened_tiers(tmp_path_factory.mktemp("spill"), budget=256 << 20) as tiers:
        yield tiers


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    with opened_tiers(tmp_path) as tiers:
        yield tiers


@contextlib.contextmanager
def always_indexed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "SMALL_SEGMENT", 0)
        patch.setattr(row_index, "WORTH_AN_INDEX", 0)
        patch.setattr(row_index, "ROWS_PER_HASH", 1e-9)
        yield


def table_of(hashes: npt.NDArray[np.uint64], bins: npt.NDArray[np.int64], *, pieces: int = 1) -> pa.Table:
    """Sorted rows with these hashes and bins, in one or more chunks."""
    numbers = np.arange(len(hashes), dtype=np.int64)
    columns = {
        BIN: from_numpy(bins * MINUTE, TIMESTAMP),
        KEY_HASH: from_numpy(hashes, pa.uint64()),
        "driver": from_numpy(numbers % 3, pa.int64()),
        TIME: from_numpy(bins * MINUTE + numbers % 5, TIMESTAMP),
        SEQUENCE: from_numpy(numbers.astype(np.uint64), pa.uint64()),
        "city": pa.array([f"city {number}" for number in numbers.tolist()]),
        "fare": from_numpy(numbers / 4, pa.float64()),
    }
    rows = sort_segment(pa.table({name: columns[name] for name in spec().schema.names}), spec=spec())
    step = -(-rows.num_rows // pieces)
    return pa.concat_tables(
        pa.Table.from_batches(rows.slice(start, step).combine_chunks().to_batches())
        for start in range(0, rows.num_rows, step)
    )


def built(segment: Segment) -> Segment:
    """Read the segment often enough that it has its index."""
    for _ in range(WORTH_AN_INDEX + 1):
        segment.read(FEW)
    return segment


def made(tiers: Tiers, count: int = COUNT, *, bins: int = 4) -> Segment:
    return tiers.segment(sorted_rows(count, bins=bins), spec=spec(), owner="rides")


def index_bytes(tiers: Tiers) -> int:
    return tiers.memory.snapshot().accounts.get(INDEXES, 0)


@given(
    rows=st.lists(st.tuples(hash_values, st.integers(0, 8)), min_size=1, max_size=60),
    absent=st.lists(hash_values, max_size=8),
    every=st.integers(1, 20),
    pieces=st.integers(1, 3),
    owned=st.one_of(st.none(), st.tuples(hash_values, hash_values)),
    start=bin_edges,
    end=bin_edges,
    columns=st.sampled_from([None, ("fare", "driver"), ("city", BIN), (KEY_HASH,)]),
)
def test_rows_found_through_the_index_are_those_of_a_scan(
    shared: Tiers,
    *,
    rows: list[tuple[int, int]],
    absent: list[int],
    every: int,
    pieces: int,
    owned: tuple[int, int] | None,
    start: int | None,
    end: int | None,
    columns: tuple[str, ...] | None,
) -> None:
    table = table_of(
        np.array([one for one, _ in rows], dtype=np.uint64), np.array([one for _, one in rows]), pieces=pieces
    )
    wanted = np.sort(np.array([*(one for one, _ in rows[::every]), *absent], dtype=np.uint64))
    within = None if owned is None else pb.HashRange(first=min(owned), last=max(owned))
    selection = Selection(columns=columns, owned=within, start_us=start, end_us=end, hashes=wanted)
    segment = shared.segment(table, spec=spec(), owner="rides")
    expected = selection.apply(segment.read())
    with always_indexed():
        found, (group,) = segment.read(selection), segment.row_groups(selection)
    assert segment._resident is not None
    assert segment._resident._index is not None
    assert found.equals(expected)
    assert group.equals(expected)
    assert held_bytes(found) == held_bytes(expected), "neighbours are a slice here and there, others a copy"
    segment.close()
    assert shared.memory.used == 0


@pytest.mark.parametrize("bins", [1, 2, 50])
@pytest.mark.parametrize("rows_of_a_hash", [1, 3, 200])
@pytest.mark.parametrize("pieces", [1, 4])
def test_a_large_segment_is_read_the_same_with_and_without_its_index(
    tiers: Tiers, bins: int, rows_of_a_hash: int, pieces: int
) -> None:
    draw = np.random.default_rng(bins)
    known = draw.integers(0, LAST, COUNT // rows_of_a_hash, dtype=np.uint64)
    table = table_of(draw.choice(known, COUNT), draw.integers(0, bins, COUNT), pieces=pieces)
    segment = tiers.segment(table, spec=spec(), owner="rides")
    for count in (0, 1, 10, 300, COUNT // ROWS_PER_HASH, COUNT):
        wanted = np.sort(np.concatenate([draw.choice(known, count), draw.integers(0, LAST, count, dtype=np.uint64)]))
        for one in (Selection(hashes=wanted), Selection(("fare",), hashes=wanted, start_us=0, end_us=MINUTE)):
            expected = one.apply(segment.read())
            for _ in range(WORTH_AN_INDEX + 2):
                assert segment.read(one).equals(expected)
    assert segment._resident is not None
    assert segment._resident._index is not None


def test_an_index_is_built_only_when_it_pays_and_is_charged_as_such(tiers: Tiers) -> None:
    segment = made(tiers)
    expected = FEW.apply(segment.read())
    rows = tiers.memory.used
    for _ in range(WORTH_AN_INDEX):
        assert segment.read(FEW).equals(expected)
        segment.read(Selection(end_us=MINUTE))
        segment.read(Selection(hashes=uint64_values(segment.read()[KEY_HASH])[:1].repeat(COUNT)))
        assert index_bytes(tiers) == 0
    assert segment.read(FEW).equals(expected)
    index = RowIndex(segment.read())
    numbers, directory = index._numbers, index._index._directory
    assert numbers is not None
    assert directory is not None
    assert index_bytes(tiers) == numbers.nbytes + 8 * COUNT + directory.starts.nbytes <= BUILDING_BYTES * COUNT
    assert tiers.memory.used == rows + index_bytes(tiers)
    assert [offer.nbytes for offer in tiers.memory._offers.values()] == [tiers.memory.used]
    assert sum(segment.bytes_by_tier().values()) == tiers.memory.used
    assert segment.read(FEW).equals(expected)


def test_rows_that_stand_in_the_order_of_hashes_need_no_numbers(tiers: Tiers) -> None:
    segment = built(made(tiers, bins=1))
    assert 0 < index_bytes(tiers) <= 4 * COUNT + 8
    assert segment.read(FEW).equals(FEW.apply(segment.read()))


def test_small_segments_have_no_index(tiers: Tiers) -> None:
    segment = built(made(tiers, SMALL_SEGMENT - 1))
    assert index_bytes(tiers) == 0
    assert segment.read(FEW).num_rows == 40


def test_an_index_goes_when_the_segment_leaves_memory(tiers: Tiers) -> None:
    segment = built(made(tiers))
    expected = segment.read(FEW)
    assert index_bytes(tiers) > 0
    segment.spill()
    assert tiers.memory.used == 0
    assert segment.read(FEW).equals(expected)
    segment.load()
    assert index_bytes(tiers) == 0
    assert built(segment).read(FEW).equals(expected)
    assert index_bytes(tiers) > 0
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()
    assert tiers.memory.used == 0
    segment.load()
    built(segment).close()
    assert tiers.memory.used == 0


def test_p4_no_index_is_built_where_there_is_no_room_for_it(tiers: Tiers) -> None:
    segment, memory = made(tiers), tiers.memory
    expected = FEW.apply(segment.read())
    other = memory.charge("other", Purpose.READS, memory.low_bytes - memory.used - BUILDING_BYTES * COUNT + 1)
    assert built(segment).read(FEW).equals(expected)
    assert index_bytes(tiers) == 0
    other.set(other.nbytes - 1)
    assert segment.read(FEW).equals(expected)
    assert index_bytes(tiers) > 0
    assert memory.snapshot().peak <= memory.low_bytes
    other.release()


def test_a_segment_that_is_closed_while_its_index_is_built_leaves_nothing(
    tiers: Tiers, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = made(tiers)
    expected = FEW.apply(segment.read())

    def closing(table: pa.Table) -> RowIndex:
        segment.close()
        return RowIndex(table)

    monkeypatch.setattr(row_index, "RowIndex", closing)
    for _ in range(WORTH_AN_INDEX + 1):
        assert segment.read(FEW).equals(expected)
    assert segment.closed
    assert tiers.memory.used == 0


def test_an_index_that_cannot_be_built_is_not_charged(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = made(tiers)
    expected, used = FEW.apply(segment.read()), tiers.memory.used

    def failing(_: pa.Table) -> RowIndex:
        raise MemoryError

    monkeypatch.setattr(row_index, "RowIndex", failing)
    with pytest.raises(MemoryError):
        built(segment)
    assert tiers.memory.used == used
    assert segment.read(FEW).equals(expected)


def test_others_read_while_one_builds_the_index(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = made(tiers)
    expected = FEW.apply(segment.read())
    began, resume, builds = threading.Event(), threading.Event(), []

    def paused(table: pa.Table) -> RowIndex:
        builds.append(threading.get_ident())
        began.set()
        assert resume.wait(30)
        return RowIndex(table)

    monkeypatch.setattr(row_index, "RowIndex", paused)
    builder = threading.Thread(target=built, args=(segment,))
    builder.start()
    try:
        assert began.wait(30)
        assert index_bytes(tiers) == BUILDING_BYTES * COUNT
        assert segment.read(FEW).equals(expected)
    finally:
        resume.set()
        builder.join(30)
    assert segment.read(FEW).equals(expected)
    assert builds == [builder.ident]
    assert 0 < index_bytes(tiers) < BUILDING_BYTES * COUNT


def test_threads_read_by_hash_while_the_segment_comes_and_goes(tiers: Tiers) -> None:
    segment = made(tiers)
    expected = FEW.apply(segment.read())
    wrong: list[Any] = []

    def read() -> None:
        for _ in range(60):
            found = segment.read(FEW)
            if not found.equals(expected):
                wrong.append(found)

    readers = [threading.Thread(target=read) for _ in range(3)]
    for one in readers:
        one.start()
    while any(one.is_alive() for one in readers):
        segment.spill()
        segment.load()
    for one in readers:
        one.join(30)
    assert not wrong
    built(segment)
    assert segment._resident is not None
    assert index_bytes(tiers) == segment._resident.index_bytes > 0
    segment.close()
    assert tiers.memory.used == 0


def test_reads_by_few_keys_do_not_look_at_all_rows(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_on(MemoryStore(), tiers=tiers)
    view.append(batch([(float(number), number % 90, number) for number in range(COUNT)]))
    view._state.buffer.seal()
    keys = pa.table({"driver": pa.array([1.0, 2.0, 70.0, 1e9])})
    looked_at: list[int] = []

    def counting(values: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        looked_at.append(len(values))
        return among(values, wanted)

    among = selection_module.among
    monkeypatch.setattr(selection_module, "among", counting)
    monkeypatch.setattr(row_set, "among", counting)
    for number in range(WORTH_AN_INDEX + 5):
        looked_at.clear()
        found = rows_of(view.read(keys=keys))
        assert found == counted([(1.0, 1, 1), (2.0, 2, 2), (70.0, 70, 70)])
        assert sum(looked_at) == (COUNT + 3 if number < WORTH_AN_INDEX else 3)
    view.release()
    assert tiers.memory.used == 0
