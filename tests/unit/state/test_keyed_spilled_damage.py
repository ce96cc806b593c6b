"""Spilled blocks whose files are damaged: found by the first read, named, and never part of a checkpoint."""

import datetime as dt
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.mutable import column_of
from statebed.errors import CorruptObjectError
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.keyed.block import MAX_FROZEN, Block
from statebed.state.keyed.block_reload import BlockReload
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.sorted_run import DIRTY, SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.tiers import column_files
from statebed.state.tiers.spill_folder import SpillFolder
from statebed.storage import MemoryStore

BUDGET = 8 << 20
ROWS = 5000
"""Enough for a directory of hashes in the file."""
IDS = np.arange(ROWS)
SCHEMA = pa.schema([("id", pa.int64()), ("total", pa.int64()), ("name", pa.string())])
CONFIG = keyed_table_config("totals", "", ["id"], SCHEMA, dt.timedelta(days=1))
TAIL = struct.Struct("<II8s")
PARTS = [
    "hashes",
    "starts",
    "marks",
    "times",
    "bits 0",  # keys
    "bits 1",  # values
    "valid 1",  # which of them are null
    "long text",
    "what the file says of itself",
]


def keys_of(ids: np.ndarray) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def values_of(ids: np.ndarray, factor: int = 1) -> pa.Table:
    totals = pa.array(np.asarray(ids) * factor, mask=np.asarray(ids) % 10 == 3)
    return pa.table({"total": totals, "name": pa.array([f"the rather long name of {one}" for one in ids])})


def times_of(ids: np.ndarray) -> pa.Array:
    return pa.array(np.asarray(ids) + 1_000_000)


def upsert(view: KeyedView, ids: np.ndarray, factor: int = 1) -> None:
    view.upsert(keys_of(ids), values_of(ids, factor), times=times_of(ids))


def checkpoint(view: KeyedView, store: MemoryStore) -> None:
    for upload in view.checkpoint(lambda digest: f"checkpoints/1/data/{digest}").uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()


def spill(tiers: Tiers) -> None:
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()


def spilled_files(tiers: Tiers) -> list[Path]:
    return sorted(tiers.folder.path.glob("*.columns"))


def place_of(path: Path, part: str) -> int:
    """Return the position of the middle of a part."""
    data = path.read_bytes()
    size = int(TAIL.unpack(data[-TAIL.size :])[0])
    start = len(data) - TAIL.size - size
    if part == "what the file says of itself":
        return start + size // 2
    _, fixed, others = msgspec.msgpack.decode(data[start : start + size])
    begins, length, *_ = others if part == "long text" else fixed[part]
    assert length, part
    return int(begins + length // 2)


def flip(path: Path, part: str) -> None:
    place = place_of(path, part)
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("keyed")


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET), folder=tmp_path / "spill")
    yield made
    made.close()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """Count how often each file was opened and checked."""
    counted: Counter[Path] = Counter()
    opened = column_files.column_file

    def counting(data: pa.Buffer, path: Path, *, label: str, check: bool) -> column_files.ColumnFile:
        assert check
        counted[path] += 1
        return opened(data, path, label=label, check=check)

    monkeypatch.setattr(column_files, "column_file", counting)
    return counted


def made(store: MemoryStore, tiers: Tiers, **named: Any) -> KeyedView:
    return KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers, **named)


def spilled(store: MemoryStore, tiers: Tiers) -> KeyedView:
    """One block, in one file."""
    view = made(store, tiers)
    upsert(view, IDS)
    spill(tiers)
    assert view.held_bytes == 0
    return view


READS: dict[str, Callable[[KeyedView], object]] = {
    "get": lambda view: view.get(keys_of(IDS[:1])),
    "get of a key that is not there": lambda view: view.get(keys_of(np.array([ROWS]))),
    "prefetch": lambda view: [one.result(30) for one in view.prefetch(keys_of(IDS))],
    "scan": lambda view: list(view.scan()),
    "upsert": lambda view: upsert(view, np.array([ROWS])),
    "delete": lambda view: view.delete(keys_of(IDS[:1])),
    "expire": lambda view: view.advance(1),
    "checkpoint": lambda view: view.checkpoint(str),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("read", READS)
def test_p7_a_flipped_byte_of_a_spilled_block_is_found_by_whoever_reads_it_first(
    store: MemoryStore, tiers: Tiers, part: str, read: str
) -> None:
    view = spilled(store, tiers)
    (path,) = spilled_files(tiers)
    flip(path, part)
    for one in (read, "get", "scan", "upsert", "checkpoint", "checkpoint"):
        with pytest.raises(CorruptObjectError, match="of the table 'totals' is damaged") as caught:
            READS[one](view)
        assert caught.value.where == str(path)
        assert "restore the state from the last committed record" in caught.value.fix
    assert not view.metadata().files
    assert not list(store.list(""))


def test_an_undamaged_file_is_checked_once_whatever_reads_it(
    store: MemoryStore, tiers: Tiers, checks: Counter[Path]
) -> None:
    view = spilled(store, tiers)
    (path,) = spilled_files(tiers)
    view.statistics()
    assert view.dirty_rows == ROWS
    assert not checks
    assert view.get(keys_of(IDS[:1]))[1].all()
    assert checks == {path: 1}
    upsert(view, IDS[:9], 2)
    assert view.delete(keys_of(IDS[9:12])).all()
    checkpoint(view, store)
    assert sum(rows.num_rows for rows in view.scan()) == ROWS - 3
    assert view.advance(0) == 0
    assert checks == {path: 1}
    restored = made(store, tiers, parts=[view.metadata()], owner="restored")
    assert sum(rows.num_rows for rows in restored.scan()) == ROWS - 3


def test_every_file_that_is_merged_with_others_is_checked_once(
    store: MemoryStore, tiers: Tiers, checks: Counter[Path]
) -> None:
    view = spilled(store, tiers)
    seen = set(spilled_files(tiers))
    for number in range(1, MAX_FROZEN + 3):
        upsert(view, np.arange(number * ROWS, number * ROWS + 10))
        spill(tiers)
        seen |= set(spilled_files(tiers))
    upsert(view, np.array([0]))
    assert len(spilled_files(tiers)) <= MAX_FROZEN
    assert view.get(keys_of(IDS))[1].all()
    assert set(checks) == seen | set(spilled_files(tiers))
    assert set(checks.values()) == {1}


def test_a_file_that_is_dropped_unread_is_never_checked(
    store: MemoryStore, tiers: Tiers, checks: Counter[Path]
) -> None:
    view = made(store, tiers)
    upsert(view, IDS)
    checkpoint(view, store)
    spill(tiers)
    (path,) = spilled_files(tiers)
    flip(path, "marks")
    view.checkpoint(str)
    assert view.release(1 << 30) == 0  # none of it was in memory
    assert not spilled_files(tiers)
    assert view.get(keys_of(IDS))[1].all()
    assert not checks


def test_p7_an_operation_that_damage_has_cut_short_gets_into_no_checkpoint(store: MemoryStore, tiers: Tiers) -> None:
    view = made(store, tiers, block_bytes=BUDGET // 64)
    upsert(view, IDS)
    checkpoint(view, store)
    before = view.metadata()
    spill(tiers)
    paths = spilled_files(tiers)
    assert len(paths) > 1
    last = max(paths, key=lambda path: int(np.fromfile(path, np.uint64, count=1)[0]))
    flip(last, "bits 1")
    with pytest.raises(CorruptObjectError):
        view.delete(keys_of(IDS))
    assert 0 < view.dirty_rows < ROWS
    # All rows of the damaged file are in the store; it stays, so that what is done by half is not forgotten.
    view.release(1 << 30)
    for _ in range(2):
        with pytest.raises(CorruptObjectError) as caught:
            view.checkpoint(str)
        assert caught.value.where == str(last)
    assert view.metadata() == before
    restored = made(store, tiers, parts=[before], owner="restored")
    assert restored.get(keys_of(IDS))[1].all()


TABLE = KeyedTable(keyed_table_config("totals", "", ["id"], SCHEMA))


def frozen(first: int, folder: SpillFolder) -> FrozenRun:
    ids = np.arange(first, first + ROWS)
    hashes = ids.astype(np.uint64)  # any that ascend
    run = SortedRun.of(
        hashes, [column_of(pa.array(ids))], [one.combine_chunks() for one in values_of(ids)], None, DIRTY
    )
    return FrozenRun.write([run], TABLE, folder, max_rows=ROWS)


@pytest.mark.parametrize("part", ["hashes", "starts", "marks", "bits 0", "bits 1", "valid 1", "long text"])
@pytest.mark.parametrize("move", ["come back", "merge"])
def test_p7_a_block_with_a_damaged_file_neither_comes_back_to_memory_nor_is_merged(
    tmp_path: Path, part: str, move: str
) -> None:
    folder = SpillFolder(tmp_path)
    runs = tuple(frozen(number * ROWS, folder) for number in range(MAX_FROZEN + 1))
    files = sorted(folder.path.iterdir())
    flip(files[2], part)
    block = Block(WHOLE_SPACE, TABLE, frozen=runs)
    assert block.rows == block.dirty_rows == (MAX_FROZEN + 1) * ROWS
    block.check_sound()
    moved: dict[str, Callable[[], object]] = {
        "come back": lambda: BlockReload(block).copied(nullcontext),
        "merge": partial(block.merge, folder, max_bytes=BUDGET, piece_bytes=BUDGET // 64),
    }
    for _ in range(2):
        with pytest.raises(CorruptObjectError, match="of the table 'totals' is damaged") as caught:
            moved[move]()
        assert caught.value.where == str(files[2])
    assert block.damaged
    assert len(block.frozen) == MAX_FROZEN + 1
    assert sorted(folder.path.iterdir()) == files
    with pytest.raises(CorruptObjectError):
        block.check_sound()
