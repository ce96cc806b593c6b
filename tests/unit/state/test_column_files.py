"""Columns in one mapped file: whole though written piece by piece, checked when first read, and gone when they are not
finished.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebed.errors import CorruptObjectError, SpillError
from statebed.state.tiers.column_files import ColumnFileWriter
from statebed.state.tiers.spill_folder import SpillFolder

KINDS = {"hashes": np.uint64, "marks": np.uint8}


@pytest.fixture
def folder(tmp_path: Path) -> SpillFolder:
    return SpillFolder(tmp_path)


def files_in(folder: SpillFolder) -> list[Path]:
    return list(folder.path.iterdir())


def test_each_column_is_in_one_piece_though_columns_were_written_in_turn(folder: SpillFolder) -> None:
    pieces = np.array_split(np.arange(10_000, dtype=np.uint64), 7)
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=20_000, label="the table t") as writer:
        for piece in pieces:
            writer.append("hashes", piece)
            writer.append("marks", (piece % 5).astype(np.uint8))
            writer.append_others(pa.table({"name": [f"name {one}" for one in piece]}))
        assert writer.count("hashes") == 10_000
        assert np.array_equal(writer.written("hashes"), np.arange(10_000))
        file = writer.finish().read()
    assert np.array_equal(file.fixed["hashes"], np.arange(10_000))
    assert np.array_equal(file.fixed["marks"], np.arange(10_000) % 5)
    assert file.others is not None
    assert file.others["name"].to_pylist() == [f"name {one}" for one in range(10_000)]


def test_room_that_is_not_used_takes_no_disk(folder: SpillFolder) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=100_000_000, label="the table t") as writer:
        writer.append("hashes", np.arange(1000, dtype=np.uint64))
        writer.append("marks", np.zeros(1000, dtype=np.uint8))
        file = writer.finish()
    assert file.size == file.read().size == 9000
    assert 512 * file.path.stat().st_blocks < 100_000


def test_a_mapped_file_is_read_on_after_it_was_removed(folder: SpillFolder) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=3, label="the table t") as writer:
        writer.append("hashes", np.array([1, 2, 3], dtype=np.uint64))
        file = writer.finish()
    file.remove()
    assert not files_in(folder)
    assert file.read().fixed["hashes"].tolist() == [1, 2, 3]


def test_columns_without_values_need_no_bytes(folder: SpillFolder) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=0, label="the table t") as writer:
        writer.append("hashes", np.zeros(0, dtype=np.uint64))
        file = writer.finish()
    assert file.size == 0
    columns = file.read()
    assert columns.fixed["hashes"].dtype == np.uint64
    assert len(columns.fixed["marks"]) == 0
    assert columns.others is None


def flip(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(5)
        byte = file.read(1)[0]
        file.seek(5)
        file.write(bytes([byte ^ 1]))


def cut(path: Path) -> None:
    os.truncate(path, 9)


@pytest.mark.parametrize("sealed", [False, True], ids=["before it was sealed", "afterwards"])
@pytest.mark.parametrize("damage", [flip, cut])
def test_p7_a_flipped_or_missing_byte_is_found_by_the_first_read_and_named(
    folder: SpillFolder, damage: Callable[[Path], None], sealed: bool
) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=100_000, label="the table t") as writer:
        writer.append("hashes", np.arange(100_000, dtype=np.uint64))
        (path,) = files_in(folder)
        if not sealed:
            damage(path)
        file = writer.finish()
    if sealed:
        damage(path)
    file.check_sound()
    assert not file.damaged
    for read in (file.read, file.read, file.check_sound):
        with pytest.raises(CorruptObjectError, match="of the table t is damaged") as caught:
            read()
        assert caught.value.where == str(path)
        assert "restore the state from the last committed record" in caught.value.fix
        assert file.damaged
    file.remove()
    assert not files_in(folder)


def test_p7_a_file_that_was_found_to_be_damaged_stays_so(folder: SpillFolder) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=100, label="the table t") as writer:
        writer.append("hashes", np.arange(100, dtype=np.uint64))
        file = writer.finish()
    flip(file.path)
    with pytest.raises(CorruptObjectError):
        file.read()
    flip(file.path)
    with pytest.raises(CorruptObjectError):
        file.read()


def test_a_file_that_is_not_finished_leaves_nothing_behind(folder: SpillFolder) -> None:
    with ColumnFileWriter.in_folder(folder, KINDS, max_rows=10, label="the table t") as writer:
        writer.append("hashes", np.arange(10, dtype=np.uint64))
        assert files_in(folder)
    assert not files_in(folder)
    folder.path.rmdir()
    with pytest.raises(SpillError, match="cannot write"):
        ColumnFileWriter.in_folder(folder, KINDS, max_rows=10, label="the table t")
