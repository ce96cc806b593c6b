"""Memory that the allocators of a process keep: enough that the next batch need not request all pages again."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from statebed.state.memory import pages

BATCHES = """
import resource
import numpy as np
import pyarrow as pa
from statebed.format.ranges import WHOLE_SPACE
from statebed.state import KeyedView, Merge, keyed_table_config, merge_columns
from statebed.storage import MemoryStore

config = keyed_table_config("t", "", ["id"], pa.schema([("id", pa.string()), ("value", pa.int64())]))
view = KeyedView(config, owned=WHOLE_SPACE, store=MemoryStore("t"))
random = np.random.default_rng(1)
add = merge_columns(value=Merge.SUM)

def apply(ids):
    keys = pa.table({"id": pa.array(ids).cast(pa.string())})
    view.merge(keys, pa.table({"value": pa.array(ids % 100).cast(pa.int64())}), add)

for first in (0, 500_000):
    apply(np.arange(first, first + 500_000, dtype=np.uint64) + np.uint64(10**19))
batches = [random.integers(0, 1_000_000, 100_000, dtype=np.uint64) + np.uint64(10**19) for _ in range(8)]
for number, ids in enumerate(batches):
    if number == 3:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    apply(ids)
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 5)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other C libraries have no such settings")
def test_batches_of_one_size_take_the_pages_of_the_one_before() -> None:
    done = subprocess.run([sys.executable, "-c", BATCHES], capture_output=True, text=True, check=True, timeout=120)
    # All arrays of a batch are some 5,000 pages.
    assert int(done.stdout) < 500


HUGE_PAGES = """
import sys
import pyarrow
from pathlib import Path
from statebed.state.memory.pages import keep_pages
keep_pages(int(sys.argv[1]))
print(dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())["THP_enabled"].strip())
print(pyarrow.default_memory_pool().backend_name)
"""


@pytest.mark.parametrize(("budget", "enabled"), [(32 << 20, "0"), (1 << 30, "0"), (2 << 30, "1")])
def test_a_process_with_a_small_budget_uses_no_huge_pages_and_one_allocator(budget: int, enabled: str) -> None:
    status = Path("/proc/self/status")
    if not status.exists() or "THP_enabled:\t1" not in status.read_text(encoding="ascii"):
        pytest.skip("this system has no huge pages")
    command = [sys.executable, "-c", HUGE_PAGES, str(budget)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    huge, allocator = done.stdout.split()
    assert huge == enabled
    assert (allocator == "system") == (enabled == "0")


RETURNS = """
import sys
from statebed.state.memory import pages
for budget in sys.argv[1:]:
    pages.keep_pages(int(budget))
    returned = []
    pages.give_back_pages = lambda: returned.append(True)
    for _ in range(64):
        pages.count_processed(1 << 20)
    print(len(returned))
"""


def test_p4_pages_are_returned_more_often_if_the_budget_is_small() -> None:
    """Memory that the C library keeps in between depends on chance, and is a large part of a small budget."""
    budgets = [16 << 20, 64 << 20, 256 << 20, 1 << 30]
    command = [sys.executable, "-c", RETURNS, *map(str, budgets)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert [int(line) for line in done.stdout.split()] == [64, 32, 2, 1]


def test_pages_are_returned_each_time_a_part_of_the_budget_was_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    returned: list[bool] = []
    monkeypatch.setattr(pages, "give_back_pages", lambda: returned.append(True))
    monkeypatch.setattr(pages, "_processed", pages._Processed())
    pages._processed.limit = 4 << 20
    for _ in range(7):
        pages.count_processed(1 << 20)
    assert len(returned) == 1
    pages.count_processed(1 << 20)
    assert len(returned) == 2


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Event that is set when pages are returned."""
    event = threading.Event()
    monkeypatch.setattr(pages, "give_back_pages", event.set)
    return event


def test_pages_are_returned_once_the_process_is_idle(returned: threading.Event) -> None:
    idle = pages.IdlePages(0.05, by_thread=False)
    with idle.working():
        with idle.working():
            pass
        assert not returned.wait(0.3), "pages of a task that still runs"
    assert returned.wait(60)


def test_pages_stay_for_the_next_task(returned: threading.Event) -> None:
    idle = pages.IdlePages(0.2, by_thread=False)
    with idle.working():
        pass
    with idle.working():
        assert not returned.wait(0.6)


def test_a_task_that_fails_leaves_no_pages(returned: threading.Event) -> None:
    idle = pages.IdlePages(0.01, by_thread=False)
    with pytest.raises(ValueError, match="lost"), idle.working():
        raise ValueError("lost")
    assert returned.wait(60)


def test_a_thread_that_alone_can_return_its_pages_does_not_wait(returned: threading.Event) -> None:
    with pages.IdlePages(3600.0, by_thread=True).working():
        assert not returned.is_set()
    assert returned.is_set()


DAEMON = """
import sys
import types
import statebed.spark.epoch.worker_daemon as daemon
daemon.LOADED = ("statebed.state.memory.pages",)
sys.modules["pyspark.daemon"] = types.SimpleNamespace(manager=lambda: None, worker=None)
daemon.main()
from statebed.state.memory.pages import idle_pages
print(idle_pages._by_thread)
"""


@pytest.mark.parametrize(("chosen", "by_thread"), [(None, "False"), ("mimalloc", "True")])
def test_workers_of_our_daemon_return_pages_while_they_wait(chosen: str | None, by_thread: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    environment |= {} if chosen is None else {"ARROW_DEFAULT_MEMORY_POOL": chosen}
    done = subprocess.run(
        [sys.executable, "-c", DAEMON], capture_output=True, text=True, check=True, timeout=120, env=environment
    )
    assert done.stdout.strip() == by_thread
