"""Frozen runs: written in pieces and merged in pieces, with what the same runs in memory have."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from statebed.arrays.key_hash import Hashes, hash_columns
from statebed.arrays.mutable import FixedColumn, column_of
from statebed.state import keyed_table_config
from statebed.state.keyed.mapped_run import FrozenRun, batch_of, merged_parts
from statebed.state.keyed.sorted_run import DELETED, DIRTY, STORED, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.spill_folder import SpillFolder

SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("name", pa.string()), ("open", pa.bool_())])
TABLE = KeyedTable(keyed_table_config("totals", "", ["id"], SCHEMA))
Rows = dict[int, tuple[int, int | None, str | None, bool | None]]


@pytest.fixture
def folder(tmp_path: Path) -> SpillFolder:
    return SpillFolder(tmp_path)


def run_of(ids: Sequence[int] | npt.NDArray[np.int64], *, factor: int = 1, marks: int = int(DIRTY)) -> SortedRun:
    """Rows by hash; those in the upper half of hashes have nulls here and there, and one name is long."""
    hashes = hash_columns([pa.array(ids, pa.int64())])
    order = np.argsort(hashes)
    keys, hashes = [int(ids[row]) for row in order], hashes[order]
    null = [bool(one >= 1 << 63) and key % 3 == 0 for key, one in zip(keys, hashes.tolist(), strict=True)]
    names = [f"name {key * factor} " + ("x" * 100 if key == 7 else "") for key in keys]
    values = [
        pa.array([None if gone else key * factor for key, gone in zip(keys, null, strict=True)], pa.int64()),
        pa.array([None if gone else name for name, gone in zip(names, null, strict=True)], pa.string()),
        pa.array([None if gone else key % 2 == 0 for key, gone in zip(keys, null, strict=True)], pa.bool_()),
    ]
    return SortedRun.of(hashes, [column_of(pa.array(keys, pa.int64()))], values, None, np.uint8(marks))


def rows_of(run: SortedRun) -> Rows:
    rows = np.arange(len(run), dtype=np.int64)
    columns = [column.take(rows).to_pylist() for column in (*run.keys, *run.values)]
    return {
        key: (mark, *values) for key, mark, *values in zip(columns[0], run.marks.tolist(), *columns[1:], strict=True)
    }


def pieces_of(run: SortedRun, count: int) -> list[SortedRun]:
    cuts = [len(run) * number // count for number in range(count + 1)]
    return [run.select(np.arange(start, end, dtype=np.int64)) for start, end in itertools.pairwise(cuts)]


def frozen(run: SortedRun, folder: SpillFolder) -> FrozenRun:
    return FrozenRun.write([run], TABLE, folder, max_rows=len(run))


def no_edges() -> Hashes:
    return np.zeros(0, dtype=np.uint64)


@pytest.mark.parametrize("count", [1, 2, 9])
def test_a_run_written_in_pieces_has_all_rows_and_finds_them(folder: SpillFolder, count: int) -> None:
    run = run_of(range(6000))
    written = FrozenRun.write(pieces_of(run, count), TABLE, folder, max_rows=7000)
    assert rows_of(written.run) == rows_of(run)
    assert written.dirty_rows == 6000
    assert written.run.index.held_bytes == 0
    some = np.arange(0, 6000, 7, dtype=np.int64)
    at, held = written.run.find(batch_of(run, some))
    assert held.all()
    assert np.array_equal(at, some)
    assert not written.run.find(batch_of(run_of(range(6000, 6100)), np.arange(100, dtype=np.int64)))[1].any()


def test_merged_runs_have_the_newest_row_of_each_key_whatever_the_pieces(folder: SpillFolder) -> None:
    runs = [run_of(range(0, 3000, 5), factor=3), run_of(range(0, 3000, 2), factor=2), run_of(range(3000))]
    expected = rows_of(runs[2]) | rows_of(runs[1]) | rows_of(runs[0])
    spilled = [frozen(run, folder) for run in runs]
    for piece_bytes in (2000, 1 << 20):
        (merged,) = merged_parts(spilled, no_edges(), TABLE, folder, complete=True, piece_bytes=piece_bytes)
        assert rows_of(merged.run) == expected
        assert (merged.run.hashes[1:] >= merged.run.hashes[:-1]).all()
        merged.remove()


def test_p4_runs_that_lie_side_by_side_are_merged_in_small_pieces(
    folder: SpillFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(range(6000))
    expected = rows_of(run)
    spilled = [frozen(piece, folder) for piece in pieces_of(run, 20)]
    row_bytes = max(one.disk_bytes / len(one.run) for one in spilled)
    sizes: list[int] = []
    write = FrozenRun.write

    def measured(pieces: Iterable[SortedRun], *given: Any, **named: Any) -> FrozenRun:
        def seen() -> Iterator[SortedRun]:
            for piece in pieces:
                sizes.append(len(piece))
                yield piece

        return write(seen(), *given, **named)

    monkeypatch.setattr(FrozenRun, "write", measured)
    (merged,) = merged_parts(spilled, no_edges(), TABLE, folder, complete=True, piece_bytes=int(500 * row_bytes))
    assert rows_of(merged.run) == expected
    assert max(sizes) <= 600
    assert len(sizes) <= 20


def test_merged_runs_are_cut_at_the_edges(folder: SpillFolder) -> None:
    runs = [run_of(range(0, 2000, 3), factor=3), run_of(range(2000))]
    edges = np.array([1 << 62, 1 << 63, (1 << 64) - 1], dtype=np.uint64)
    spilled = [frozen(run, folder) for run in runs]
    parts = merged_parts(spilled, edges, TABLE, folder, complete=True, piece_bytes=5000)
    assert len(parts) == 4
    assert len(parts[3].run) == 0
    assert parts[0].run.hashes[-1] < edges[0] <= parts[1].run.hashes[0]
    assert {key: row for part in parts for key, row in rows_of(part.run).items()} == rows_of(runs[1]) | rows_of(runs[0])


@pytest.mark.parametrize("complete", [True, False])
def test_deleted_rows_stay_as_long_as_they_hide_something(folder: SpillFolder, complete: bool) -> None:
    deleted = run_of(range(0, 100, 2), marks=int(DIRTY | DELETED))
    stored = run_of(range(1, 100, 2), marks=int(DIRTY | DELETED | STORED))
    spilled = [frozen(deleted, folder), frozen(stored, folder)]
    (merged,) = merged_parts(spilled, no_edges(), TABLE, folder, complete=complete, piece_bytes=1000)
    assert len(merged.run) == (50 if complete else 100)


def test_a_merge_that_fails_leaves_no_file_behind(folder: SpillFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    spilled = [frozen(run_of(range(0, 2000, 3)), folder), frozen(run_of(range(2000)), folder)]
    before = sorted(folder.path.iterdir())
    whole = FrozenRun.below
    calls = itertools.count()

    def failing(one: FrozenRun, newer: SortedRun | None, start: int, end: int) -> SortedRun:
        if next(calls) == 5:
            raise OSError("the disk is gone")
        return whole(one, newer, start, end)

    monkeypatch.setattr(FrozenRun, "below", failing)
    edges = np.array([1 << 62, 1 << 63], dtype=np.uint64)
    with pytest.raises(OSError, match="the disk is gone"):
        merged_parts(spilled, edges, TABLE, folder, complete=True, piece_bytes=20_000)
    assert sorted(folder.path.iterdir()) == before


@pytest.mark.parametrize("empty", [{0}, {1}, {2}, {0, 1}, {0, 2}, {1, 2}, {0, 1, 2}], ids=str)
def test_nothing_is_written_of_columns_without_values(folder: SpillFolder, empty: set[int]) -> None:
    """Whichever pieces have no values, the others come back where they were."""
    pieces = pieces_of(run_of(range(900)), 3)
    for number in empty:
        pieces[number].values = tuple(
            column_of(pa.nulls(len(pieces[number]), kind)) for kind in TABLE.value_schema.types
        )
    written = FrozenRun.write(pieces, TABLE, folder, max_rows=900)
    read = rows_of(written.run)
    assert read == {key: row for piece in pieces for key, row in rows_of(piece).items()}
    full = FrozenRun.write(pieces_of(run_of(range(900)), 3), TABLE, folder, max_rows=900)
    assert written.disk_bytes <= full.disk_bytes
    if len(empty) == 3:
        assert [column.held_bytes for column in written.run.values if isinstance(column, FixedColumn)] == [0, 0]
