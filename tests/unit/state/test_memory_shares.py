"""Shares of the memory budget: what an operator keeps, what it borrows, and what is shown of it."""

import numpy as np
import pyarrow as pa

from statebed.state import MemoryController, TableManager, TaskInfo, Tiers, keyed_table_config
from statebed.state.memory.budget import guarantees_of
from statebed.storage import MemoryStore
from statebed.subtasks.figures import memory_figures

MIB = 1 << 20
BUDGET = 8 * MIB
COLUMNS = pa.schema([("id", pa.int64()), ("value", pa.int64())])
TABLES = {name: keyed_table_config(name, "", ["id"], COLUMNS) for name in ("small", "large")}
FEW = np.arange(20_000)


def put(manager: TableManager, table: str, ids: np.ndarray) -> None:
    manager.get_keyed(table).upsert(pa.table({"id": ids}), pa.table({"value": ids}))


def spills_of_the_small_table(shares: dict[str, float]) -> tuple[int, Tiers]:
    """A small table that is written once, and a large one that is written again and again."""
    tiers = Tiers(MemoryController(BUDGET, guarantees=guarantees_of(shares, BUDGET)))
    with TableManager(TaskInfo("job", "joined"), TABLES, MemoryStore(), tiers=tiers) as manager:
        put(manager, "small", FEW)
        for start in range(0, 400_000, 20_000):
            put(manager, "large", np.arange(start, start + 20_000))
        spills = manager.get_keyed("small").statistics().spills
        assert manager.get_keyed("large").statistics().spills
        assert manager.get_keyed("small").get(pa.table({"id": FEW}))[1].all()
    return spills, tiers


def test_a_table_with_a_share_is_not_moved_to_disk_on_behalf_of_another() -> None:
    without, _ = spills_of_the_small_table({})
    spills, tiers = spills_of_the_small_table({"joined.small": 0.3})
    assert without
    assert not spills
    assert tiers.memory.snapshot().peak <= BUDGET + 4 * MIB


def test_a_table_may_hold_more_than_its_share_while_there_is_room_and_gives_that_back_first() -> None:
    tiers = Tiers(MemoryController(BUDGET, guarantees=guarantees_of({"joined.small": 0.05}, BUDGET)))
    with TableManager(TaskInfo("job", "joined"), TABLES, MemoryStore(), tiers=tiers) as manager:
        put(manager, "small", FEW)
        assert tiers.memory.snapshot().borrowed["joined.small"] > 0
        assert not manager.get_keyed("small").statistics().spills
        for start in range(0, 400_000, 20_000):
            put(manager, "large", np.arange(start, start + 20_000))
        assert manager.get_keyed("small").statistics().spills


def test_figures_say_what_each_share_is_and_what_is_held_of_it() -> None:
    _, tiers = spills_of_the_small_table({"joined": 0.5, "joined.small": 0.25})
    figures = memory_figures(tiers.memory.snapshot())
    assert dict(figures.shares) == {"joined": BUDGET // 2, "joined.small": BUDGET // 4}
    assert figures.held["joined.small"] >= FEW.nbytes
    assert figures.held["joined"] >= figures.held["joined.small"]
