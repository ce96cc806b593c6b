"""Deleted rows of a run, where most runs have none; and what a checkpoint writes of several runs."""

import io
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from statebed.arrays.key_hash import hash_columns
from statebed.arrays.mutable import column_of
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, keyed_table_config
from statebed.state.keyed import delta, files
from statebed.state.keyed.sorted_run import DELETED, DIRTY, STORED, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.storage import MemoryStore


def run_of(ids: Iterable[int], marks: np.uint8) -> SortedRun:
    keys = np.array(list(ids), dtype=np.int64)
    hashes = hash_columns([pa.array(keys)])
    order = np.argsort(hashes)
    column = pa.array(keys[order])
    return SortedRun.of(hashes[order], [column_of(column)], [column], None, marks)


def alive_rows(run: SortedRun) -> int:
    mask = run.alive(np.arange(len(run), dtype=np.int64), None)
    return len(run) if mask is None else int(np.count_nonzero(mask))


def test_a_run_knows_when_none_of_its_rows_is_deleted() -> None:
    run, other = run_of(range(100), DIRTY), run_of(range(100, 150), STORED)
    merged = run.merged([other])
    for one in (run, other, merged, merged.slice(10, 20), merged.select(np.arange(5, 90))):
        assert one.alive(np.arange(3), None) is None
        assert one.marks_at(np.arange(3)) is None
        assert one.without_forgotten() is one


def test_rows_that_are_deleted_are_told_from_others_in_all_that_is_made_of_them() -> None:
    run, other = run_of(range(100), DIRTY), run_of(range(100, 150), STORED)
    run.delete(np.arange(10, 30))
    assert alive_rows(run) == 80
    merged = run.merged([other], forget=False)
    assert alive_rows(merged) == 130
    assert alive_rows(run.select(np.arange(20, 60))) == 30
    assert alive_rows(run.slice(20, 60)) == 30
    assert alive_rows(run_of(range(5), DELETED | DIRTY)) == 0
    assert len(merged.without_forgotten()) == 130
    run.mark_written()
    assert run.marks[[9, 10, 29, 30]].tolist() == [STORED, DELETED, DELETED, STORED]
    other.put(np.arange(50), [pa.array(range(50))], None)
    other.mark_written()
    assert (other.marks == STORED).all()


def test_a_checkpoint_writes_the_rows_of_several_runs_in_the_order_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    config = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.int64()), ("text", pa.string())]))
    view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("m"))

    def put(ids: Iterable[int], word: str) -> None:
        column = pa.array(list(ids), pa.int64())
        view.upsert(pa.table({"id": column}), pa.table({"text": [f"{word} {one}" for one in column.to_pylist()]}))

    def written() -> tuple[pa.Table, dict[int, str | None]]:
        (upload,) = view.checkpoint(lambda digest: f"data/{digest}.parquet").uploads
        rows = pq.read_table(io.BytesIO(bytes(upload.content())))
        return rows, dict(zip(rows["id"].to_pylist(), rows["text"].to_pylist(), strict=True))

    put(range(6000), "first")
    # Long text, which runs hold in another way than short text.
    put(range(6000, 7000), "second" * 20)
    (block,) = [slot.block for slot in view._blocks]
    assert len(block._loose.runs) == 2
    sorted_there: list[bool] = []
    newest_rows = files.newest_rows

    def spy(table: KeyedTable, rows: pa.Table) -> pa.Table:
        hashes = rows["_key_hash"].to_numpy()
        sorted_there.append(bool((hashes[1:] > hashes[:-1]).all()))
        return newest_rows(table, rows)

    monkeypatch.setattr(delta, "newest_rows", spy)
    rows, texts = written()
    assert texts == {one: f"{'first' if one < 6000 else 'second' * 20} {one}" for one in range(7000)}
    view.delete(pa.table({"id": [5, 6500]}))
    put([7, 6501, 8000, 8001], "third")
    view.delete(pa.table({"id": [8001]}))
    rows, texts = written()
    assert texts == {5: None, 6500: None, 7: "third 7", 6501: "third 6501", 8000: "third 8000"}
    assert rows["_deleted"].to_pylist().count(True) == 2
    assert sorted_there == [True, True]
