"""Keys that were asked for last are remembered, so that who writes them next pays less: few bytes, and charged."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
from unit.state.segment_rows import opened_tiers

from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
MIB = 1 << 20


def view_on(tiers: Tiers) -> KeyedView:
    config = keyed_table_config("riders", "", ["rider"], SCHEMA)
    return KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore(), tiers=tiers)


def keys(count: int) -> pa.Table:
    return pa.table({"rider": pa.array(np.arange(count, dtype=np.int64))})


def test_p4_many_keys_leave_nothing_behind_when_they_were_asked_for(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=16 * MIB) as tiers:
        views = [view_on(tiers) for _ in range(4)]
        many = keys(200_000)
        # Enough that the compiled loops are loaded before.
        views[0].get(keys(10_000))
        views[0].delete(keys(10_000))
        tracemalloc.start()
        try:
            for view in views:
                view.get(many)
                view.delete(many)
                view.prefetch(many)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert held < MIB, "hashes, order and places of 200,000 keys take more than that"


def test_p4_few_keys_are_charged_while_they_are_remembered(tmp_path: Path) -> None:
    with opened_tiers(tmp_path, budget=64 * MIB) as tiers:
        view, other = view_on(tiers), view_on(tiers)
        few = keys(1000)
        before = tiers.memory.used
        view.get(few)
        other.get(few)
        both = tiers.memory.used - before
        assert both >= 2 * (8 + 48) * 1000
        other.delete(few)
        assert tiers.memory.used - before == both // 2
        view.upsert(few, pa.table({"fare": few["rider"]}))
        view.give_up()
        assert tiers.memory.used == before
