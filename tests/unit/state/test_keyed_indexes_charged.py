"""Indexes of keyed state are charged as such, as long as they take memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from statebed.arrays.columns import from_numpy
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, MemoryController, Purpose, Tiers, keyed_table_config
from statebed.storage import MemoryStore

ROWS = 40_000
BUDGET = 64 << 20
CONFIG = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.int64())]))
ROWS_HELD, INDEXES_HELD = ("totals", Purpose.SEGMENTS), ("totals", Purpose.INDEXES)


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET), folder=tmp_path)
    yield made
    made.close()


def keys(start: int, end: int) -> pa.Table:
    return pa.table({"id": from_numpy(np.arange(start, end, dtype=np.int64), pa.int64())})


def written(tiers: Tiers, *, block_bytes: int | None = None) -> KeyedView:
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, block_bytes=block_bytes)
    put(view, 0, ROWS)
    return view


def put(view: KeyedView, start: int, end: int) -> None:
    some = keys(start, end)
    view.upsert(some, some.rename_columns(["total"]))


def look_up(view: KeyedView) -> None:
    """Ask for all keys a few times, so that an index pays."""
    for start in [*range(0, ROWS, 5_000)] * 3:
        view.get(keys(start, start + 5_000))


def directories(view: KeyedView) -> int:
    """Bytes of all directories in memory, as arrays say it."""
    runs = [run for slot in view._blocks for run in slot.block._loose.runs]
    return sum(run.index._directory.starts.nbytes for run in runs if run.index._directory is not None)


def offered(tiers: Tiers) -> int:
    return sum(offer.nbytes for offer in tiers.memory._offers.values())


@pytest.mark.parametrize("block_bytes", [None, 256 << 10])
def test_p4_indexes_of_runs_are_charged_as_such(tiers: Tiers, block_bytes: int | None) -> None:
    view = written(tiers, block_bytes=block_bytes)
    assert directories(view) == 0
    before = tiers.memory.snapshot()
    assert INDEXES_HELD not in before.accounts
    look_up(view)
    charged = tiers.memory.snapshot().accounts
    assert charged[INDEXES_HELD] == directories(view) >= 4 * ROWS // 2
    assert charged[ROWS_HELD] == before.accounts[ROWS_HELD], "of the rows nothing has changed"
    assert charged[ROWS_HELD] + charged[INDEXES_HELD] == view.held_bytes == offered(tiers)


def test_p4_hints_of_small_runs_are_charged_as_indexes(tiers: Tiers) -> None:
    view = written(tiers, block_bytes=8 << 20)
    put(view, ROWS, ROWS + 5_000)
    (slot,) = view._blocks
    assert slot.block._loose._hints is not None
    charged = tiers.memory.snapshot().accounts
    assert charged[INDEXES_HELD] == directories(view) + len(slot.block._loose._hints._bits)
    assert charged[ROWS_HELD] + charged[INDEXES_HELD] == view.held_bytes == offered(tiers)


def test_p4_indexes_go_with_the_rows(tiers: Tiers) -> None:
    view = written(tiers)
    look_up(view)
    assert tiers.memory.snapshot().accounts[INDEXES_HELD] > 0
    tiers.memory.reserve("other", Purpose.WRITES, BUDGET).release()
    assert not {ROWS_HELD, INDEXES_HELD} & tiers.memory.snapshot().accounts.keys()
    assert view.held_bytes == 0
    look_up(view)  # often enough that they are reloaded
    assert tiers.memory.snapshot().accounts[INDEXES_HELD] == directories(view) > 0
    view.give_up()
    assert not {ROWS_HELD, INDEXES_HELD} & tiers.memory.snapshot().accounts.keys()


def test_p4_a_view_that_is_gone_has_no_index_charged(tiers: Tiers) -> None:
    view = written(tiers)
    look_up(view)
    assert tiers.memory.snapshot().accounts[INDEXES_HELD] > 0
    del view
    assert tiers.memory.used == 0
