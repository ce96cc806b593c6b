"""Keys that are read and then written are hashed and looked up once, whatever happens to the block in between."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from statebed.arrays.key_hash import Hashes, hash_columns
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, MemoryController, Tiers, keyed_table_config
from statebed.storage import MemoryStore

CONFIG = keyed_table_config("totals", "", ["id"], pa.schema([("id", pa.int64()), ("total", pa.int64())]))
Rows = dict[int, int]


class World:
    def __init__(self, folder: Path) -> None:
        self.hashed = 0
        tiers = Tiers(MemoryController(64 << 20), folder=folder)
        self.view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers, hash_function=self._hash)
        self.memory = tiers.memory
        self.put(keys_of(range(0, 2000, 2)), 1)

    def _hash(self, columns: Sequence[pa.Array]) -> Hashes:
        self.hashed += 1
        return hash_columns(columns)

    def put(self, keys: pa.Table, total: int) -> None:
        self.view.upsert(keys, pa.table({"total": pa.array([total] * keys.num_rows, pa.int64())}))

    def rows(self) -> Rows:
        return {row["id"]: row["total"] for piece in self.view.scan() for row in piece.to_pylist()}

    def spill(self) -> None:
        (slot,) = self.view._blocks
        assert self.view._blocks._evict(slot)
        assert slot.block.spilled

    def write_others(self) -> None:
        self.put(keys_of(range(1, 500, 2)), 5)

    def delete_some(self) -> None:
        self.view.delete(keys_of(range(100)))

    def checkpoint(self) -> None:
        for upload in self.view.checkpoint(lambda digest: digest).uploads:
            upload.on_stored()

    def all_of_it(self) -> None:
        self.checkpoint()
        self.spill()
        self.delete_some()

    def nothing(self) -> None:
        """Do nothing between reading and writing."""


def keys_of(ids: Sequence[int]) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


BETWEEN: list[Callable[[World], None]] = [
    World.nothing,
    World.spill,
    World.write_others,
    World.delete_some,
    World.checkpoint,
    World.all_of_it,
]


@pytest.mark.parametrize("between", BETWEEN)
def test_what_is_written_after_it_was_read_is_written_right(tmp_path: Path, between: Callable[[World], None]) -> None:
    world = World(tmp_path)
    keys = keys_of(range(900, 1100))
    _, found = world.view.get(keys)
    assert found.sum() == 100
    between(world)
    expected = world.rows() | dict.fromkeys(range(900, 1100), 7)
    world.put(keys, 7)
    assert world.rows() == expected
    assert world.view.get(keys)[0]["total"].to_pylist() == [7] * 200


def test_keys_are_hashed_once_to_be_read_and_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    before = world.hashed
    keys = keys_of(range(900, 1100))
    world.view.get(keys)
    world.put(keys, 7)
    assert world.hashed == before + 1
    world.view.get(keys_of(range(900, 1100)))
    assert world.hashed == before + 2


def test_p4_nothing_is_kept_of_a_batch_once_it_is_written(tmp_path: Path) -> None:
    world = World(tmp_path)
    keys = keys_of(range(900, 1100, 2))
    world.view.get(keys)
    world.put(keys, 7)
    assert world.view._last_batch is None
    assert all(slot.block._located is None for slot in world.view._blocks)
