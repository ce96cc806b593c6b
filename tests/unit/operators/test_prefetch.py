"""Operators that can tell what they read next have it loaded while the rows of the epoch come in."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from conformance.every_operator import OPERATORS
from effort import every_third
from unit.subtasks.test_subtask_compaction import grown, node_of

from statebed.flow.graph import OperatorNode
from statebed.operators.operator import Clock
from statebed.state import MemoryController, TableManager, TaskInfo, Tiers, TimeKeyedView
from statebed.state.memory.controller import Purpose
from statebed.storage import MemoryStore
from statebed.subtasks.subtask import OPTIONS

BUDGET = 64 << 20
LOADER = "statebed-load"
PREFETCHING = [
    "tumbling",
    "window_top",
    "window_functions",
    "window_join_full",
    "interval_join_full",
    "as_of",
    "session",
    "process",
]


class WatchedStore(MemoryStore):
    """Notes which threads read parts of data files of some tables."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[str] = []
        """Tables."""
        self.readers: list[str] = []

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if any(f"-{table}-" in path for table in self.watched):
            self.readers.append(threading.current_thread().name)
        return super().get_range(path, start, length)


class ClosingEpoch:
    """An epoch of an operator without rows, in which all that its state holds is over."""

    def __init__(self, node: OperatorNode, tiers: Tiers) -> None:
        self.store = WatchedStore()
        self.operator = node.operator
        self.tiers = tiers
        self.world = grown(node, 2, store=self.store)
        closing = self.operator.closing_watermark(1_000)
        self.clock = Clock(late_us=None, watermark_us=closing, epoch_time_us=closing)

    def run(self, *, wait: bool) -> tuple[int, int, int]:
        """Loads into memory by prefetches, how many of them were used, and parts of files that the step itself read."""
        head = self.world.run.head
        assert head is not None
        manager = TableManager(
            TaskInfo("job", self.operator.operator_id),
            self.operator.tables,
            self.world.store,
            restore_from=head,
            options=OPTIONS,
            tiers=self.tiers,
            combines=self.operator.combines,
        )
        with manager:
            tables = self.operator.tables.items()
            self.store.watched = [name for name, config in tables if config.WhichOneof("kind") == "time_keyed"]
            views = [manager.get_time_keyed(name) for name in self.store.watched]
            self.store.readers.clear()
            inputs = [self._input(views, wait=wait) for _ in self.operator.inputs]
            self.operator.step(manager, inputs, self.clock)
            statistics = [view.statistics() for view in views]
        by_step = [name for name in self.store.readers if not name.startswith(LOADER)]
        return sum(one.prefetches for one in statistics), sum(one.prefetch_hits for one in statistics), len(by_step)

    def _input(self, views: list[TimeKeyedView], *, wait: bool) -> Iterator[pa.RecordBatch]:
        """No rows, for which the operator waits until its prefetches are done."""
        deadline = time.monotonic() + 20
        while wait and any(loading for view in views for loading in loads_of(view)) and time.monotonic() < deadline:
            time.sleep(0.005)
        yield from ()


def loads_of(view: TimeKeyedView) -> list[bool]:
    """Loads of segments that are under way."""
    loading = [segment._loading for segment in view._state.segments()]
    return [not one.done() for one in loading if one is not None and not one.done()]


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(MemoryController(BUDGET), folder=tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("operator", PREFETCHING)
def test_what_closes_is_loaded_before_the_step_reads_it(operator: str, tiers: Tiers) -> None:
    prefetched, used, read_by_step = ClosingEpoch(node_of(OPERATORS[operator]), tiers).run(wait=True)
    assert prefetched > 0
    assert used > 0
    assert read_by_step == 0, "the step waited for the store"


@pytest.mark.parametrize("operator", every_third(PREFETCHING))
def test_under_memory_pressure_nothing_is_prefetched_and_nothing_leaves_memory_for_it(
    operator: str, tiers: Tiers
) -> None:
    epoch = ClosingEpoch(node_of(OPERATORS[operator]), tiers)
    left: list[str] = []

    def leave() -> None:
        left.append("hot rows")

    with tiers.memory.charge("others", Purpose.SEGMENTS, int(0.75 * BUDGET)):
        offer = tiers.memory.offer("others", BUDGET // 2, leave)
        assert epoch.run(wait=True)[:2] == (0, 0)
        tiers.memory.withdraw(offer)
    assert not left


def test_a_read_that_comes_early_waits_for_the_load_and_reads_nothing_twice(tiers: Tiers) -> None:
    epoch = ClosingEpoch(node_of(OPERATORS["tumbling"]), tiers)
    epoch.run(wait=True)
    parts_once = len(epoch.store.readers)
    epoch.run(wait=False)
    assert len(epoch.store.readers) == parts_once
