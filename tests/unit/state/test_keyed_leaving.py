"""A block on its way to disk: read and written meanwhile; and runs in memory that become one when that pays."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.keyed.mapped_run import FrozenRun
from statebed.state.keyed.run_files import MappedColumn
from statebed.state.keyed.slots import Slot
from statebed.state.memory.controller import MemoryController, Purpose, Reservation
from statebed.storage import MemoryStore

CONFIG = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.string()), ("text", pa.string())]))
LONG = "of more than thirty-nine bytes, which columns hold in another way "
ROWS = 3000
Contents = dict[str, str]


def keys_of(ids: range) -> pa.Table:
    return pa.table({"id": [f"key {one}" for one in ids]})


def values_of(ids: range, word: str) -> pa.Table:
    return pa.table({"text": [f"{word} {one}" for one in ids]})


class World:
    """A view of one block, and what it should hold."""

    def __init__(self, folder: Path, *, budget: int = 64 << 20) -> None:
        self.folder = folder
        self.memory = MemoryController(budget, wait_seconds=5)
        self.view = KeyedView(
            CONFIG, owned=WHOLE_SPACE, store=MemoryStore("m"), tiers=Tiers(self.memory, folder=folder)
        )
        self.model: Contents = {}

    @property
    def slot(self) -> Slot:
        (slot,) = self.view._blocks
        return slot

    def put(self, ids: range, word: str = LONG) -> None:
        self.view.upsert(keys_of(ids), values_of(ids, word))
        self.model |= zip(keys_of(ids)["id"].to_pylist(), values_of(ids, word)["text"].to_pylist(), strict=True)

    def delete(self, ids: range) -> None:
        self.view.delete(keys_of(ids))
        for one in keys_of(ids)["id"].to_pylist():
            del self.model[one]

    def checkpoint(self) -> None:
        for upload in self.view.checkpoint(lambda digest: digest).uploads:
            upload.on_stored()

    def contents(self) -> Contents:
        return {row["id"]: row["text"] for piece in self.view.scan() for row in piece.to_pylist()}

    def files(self) -> list[str]:
        return [path.name for path in self.folder.rglob("*.columns")]

    @contextmanager
    def leaving(self, monkeypatch: pytest.MonkeyPatch, fails: bool = False) -> Iterator[Callable[[], bool]]:
        """Move the block to disk on another thread, which waits before it writes; calling the yielded function lets it
        continue.
        """
        began, go = threading.Event(), threading.Event()
        moved: list[bool | IndexError] = []
        write = FrozenRun.write

        def slow(*arguments: Any, **options: Any) -> FrozenRun:
            began.set()
            assert go.wait(20)
            if fails:
                raise IndexError("a row that is not there")
            return write(*arguments, **options)

        def move() -> None:
            try:
                moved.append(self.view._blocks._evict(self.slot))
            except IndexError as error:
                moved.append(error)

        def go_on() -> bool:
            go.set()
            thread.join(20)
            (outcome,) = moved
            if isinstance(outcome, IndexError):
                raise outcome
            return bool(outcome)

        thread = threading.Thread(target=move, daemon=True)
        monkeypatch.setattr(FrozenRun, "write", slow)
        thread.start()
        try:
            assert began.wait(20)
            yield go_on
        finally:
            go.set()
            thread.join(20)


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.put(range(ROWS), "short")
    world.put(range(ROWS, ROWS + 500))
    return world


def test_rows_are_read_while_their_block_is_on_its_way_to_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.leaving(monkeypatch) as go_on:
        values, found = world.view.get(keys_of(range(10)))
        assert found.all()
        assert values["text"].to_pylist() == [f"short {one}" for one in range(10)]
        assert world.contents() == world.model
        assert not world.view._blocks._evict(world.slot)  # another thread that needs room must look elsewhere
        assert go_on()
    assert world.slot.block.spilled
    assert world.slot.block.held_bytes == 0
    assert world.contents() == world.model


@pytest.mark.parametrize(
    "write",
    [
        lambda world: world.put(range(5)),
        lambda world: world.put(range(9000, 9005)),
        lambda world: world.delete(range(5)),
        lambda world: world.checkpoint(),
    ],
    ids=["written", "new", "deleted", "checkpointed"],
)
def test_a_block_that_changes_on_its_way_to_disk_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, write: Callable[[World], None]
) -> None:
    with world.leaving(monkeypatch) as go_on:
        write(world)
        assert world.contents() == world.model
        assert not go_on()
    assert not world.slot.block.spilled
    assert world.files() == []
    assert world.contents() == world.model
    monkeypatch.undo()
    assert world.view._blocks._evict(world.slot)
    assert world.contents() == world.model


def test_what_was_read_half_written_is_no_failure_and_everything_else_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.leaving(monkeypatch, fails=True) as go_on:
        world.put(range(5))
        assert not go_on()
    monkeypatch.undo()
    with world.leaving(monkeypatch, fails=True) as go_on, pytest.raises(IndexError):
        go_on()
    assert world.contents() == world.model


def test_runs_in_memory_become_one_before_the_next_operation_in_room_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.put(range(20_000), "first")
    world.put(range(20_000, 22_000), "second")
    block, reserve = world.slot.block, world.memory.reserve
    reserved: list[int] = []

    def spy(owner: str, purpose: Purpose, nbytes: int) -> Reservation:
        if purpose is Purpose.MERGES:
            reserved.append(nbytes)
            assert len(block._loose.runs) == 2
        return reserve(owner, purpose, nbytes)

    monkeypatch.setattr(world.memory, "reserve", spy)
    held, counts = block.held_bytes, []
    for _ in range(7):
        world.put(range(20_000, 22_000), "third")
        counts.append(len(block._loose.runs))
    # 11,000 keys that were looked for in the small run are half of the rows: after the sixth batch.
    assert counts == [2, 2, 2, 2, 2, 2, 1]
    assert reserved == [pytest.approx(held, rel=0.2)]
    assert world.contents() == world.model


def test_keys_in_mapped_files_are_read_only_where_they_may_be_the_ones_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.view._blocks._evict(world.slot)
    asked: list[int] = []
    take = MappedColumn.take

    def counted(column: MappedColumn, rows: np.ndarray) -> pa.Array:
        asked.append(len(rows))
        return take(column, rows)

    monkeypatch.setattr(MappedColumn, "take", counted)
    _, found = world.view.get(keys_of(range(ROWS + 499, ROWS + 900)))
    assert found.tolist() == [True] + [False] * 400
    assert max(asked) == 1
