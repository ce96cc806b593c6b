"""Views and scans that are garbage give back what they held whenever Python collects it: with any lock held."""

import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.state.fare_rows import batch, view_on

from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Tiers, keyed_table_config
from statebed.state.memory import controller
from statebed.state.memory.controller import MemoryController, Purpose
from statebed.state.memory.eviction import choose_victims
from statebed.state.tiers import spill_cache
from statebed.storage import MemoryStore

CONFIG = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.int64()), ("n", pa.int64())]))
IDS = pa.table({"id": pa.array(range(3000), pa.int64())})


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(4 << 20, wait_seconds=20), folder=tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def collecting(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which collects garbage first, as any allocation may."""

    def collected(*arguments: Any, **named: Any) -> Any:
        gc.collect()
        return function(*arguments, **named)

    return collected


def in_time(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for a lock that it holds itself"


def spill(tiers: Tiers) -> None:
    tiers.memory.reserve("other", Purpose.WRITES, tiers.memory.budget).release()


def unreachable(tiers: Tiers) -> KeyedView:
    """A view that only garbage collection finds, as soon as it is let go of."""
    store = MemoryStore("m")
    view = KeyedView(CONFIG, owned=WHOLE_SPACE, store=store, tiers=tiers)
    view.upsert(IDS, pa.table({"n": IDS["id"]}))
    for upload in view.checkpoint(str).uploads:
        store.put(upload.path, upload.content())
        upload.on_stored()
    vars(view)["itself"] = view
    return view


def test_a_view_is_collected_while_room_is_made(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    unreachable(tiers)
    assert tiers.memory.used
    monkeypatch.setattr(controller, "choose_victims", collecting(choose_victims))
    in_time(lambda: spill(tiers))
    assert not tiers.memory.snapshot().accounts


def test_a_view_is_collected_while_the_cache_chooses_what_leaves(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    view = unreachable(tiers)
    spill(tiers)
    view.get(IDS.slice(0, 1))
    assert tiers.cache.used
    del view
    monkeypatch.setattr(spill_cache, "choose_victims", collecting(choose_victims))
    in_time(lambda: tiers.cache.add(1, lambda: None))
    assert tiers.cache.used == 1
    assert not list(tiers.folder.path.glob("*.columns"))


def test_a_scan_is_collected_while_its_segment_comes_to_memory(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    view = view_on(MemoryStore("m"), tiers=tiers)
    view.append(batch([(1.0, number, number) for number in range(100)]))
    view.flush()
    (segment,) = view._state.buffer.segments
    scan = view.scan()
    assert next(scan).num_rows == 100
    cycle: list[Any] = [scan]
    cycle.append(cycle)
    del cycle, scan
    monkeypatch.setattr(tiers.memory, "offer", collecting(tiers.memory.offer))
    in_time(segment.load)
    view.release()
    assert segment.closed
    assert not tiers.memory.snapshot().accounts
