"""Every Nexmark query, run epoch by epoch with all that can happen in between, equals DuckDB's answer over all rows.

Events are a few minutes around midnight, out of order by up to three seconds; epochs are cut at random, and rows
are shuffled inside an epoch.
"""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from effort import diagonals
from nexmark_answers import assert_same, expected

from examples.nexmark import QUERIES, rows_of
from examples.nexmark.queries import RESULT
from statebed import testing
from statebed.demo.nexmark import Nexmark

ROOT = Path(__file__).resolve().parents[2]

EVENTS = 1500
MIDNIGHT_US = 1_767_225_600_000_000
AROUND_MIDNIGHT = Nexmark(
    seed=5, events_per_second=10, out_of_order_us=3_000_000, first_time_us=MIDNIGHT_US - 100_000_000
)
IN_THE_EVENING = Nexmark(seed=5, events_per_second=1, first_time_us=MIDNIGHT_US - (5 * 60 + 5) * 60_000_000)
"""Events from 18:55 on."""
EVENING_EVENTS = 4000
"""Time span until 20:01: day, evening and night."""
END = "9999-01-01"
Rows = dict[str, pa.Table]
Event = Callable[[testing.TestRun], None]


@dataclass(frozen=True)
class Way:
    """Settings of a query: number of subtasks and epochs, memory, and what happens before some of the epochs."""

    seed: int
    parallelism: int
    epochs: int
    happens: dict[int, Event]
    memory: int = 64 << 20


WAYS = {
    "one_subtask": Way(1, 1, 3, {1: lambda run: run.crash(), 2: lambda run: run.rescale(3)}),
    "three_subtasks": Way(
        2,
        3,
        5,
        {
            1: lambda run: run.spill(),
            2: lambda run: run.crash(),
            3: lambda run: run.rescale(1),
            4: lambda run: run.compact(),
        },
    ),
    "little_memory": Way(3, 2, 8, {3: lambda run: run.crash(), 6: lambda run: run.rescale(1)}, memory=4 << 20),
}
WINDOWED = {"q5", "q7", "q8", "q11", "q12"}
BOUNDED_JOIN = "bids_in_time"


def events_of(query: str) -> tuple[Nexmark, int]:
    """Return the generator of the events and their number."""
    if query == "q14":
        return IN_THE_EVENING, EVENING_EVENTS
    return AROUND_MIDNIGHT, 2 * EVENTS if query == "q2" else EVENTS  # few bids are on the auctions of q2


def epochs_of(query: str, way: Way) -> list[Rows]:
    """The events, cut at random; shuffled inside an epoch."""
    random = np.random.default_rng(way.seed)
    generator, count = events_of(query)
    cuts = sorted(int(cut) for cut in random.choice(np.arange(1, count), way.epochs - 1, replace=False))
    sources = QUERIES[query].flow().graph.sources
    made = []
    for number, (first, end) in enumerate(pairwise([0, *cuts, count])):
        now_us = MIDNIGHT_US + number * 7_000_000
        rows = rows_of(sources, generator, first=first, count=end - first, now_us=now_us)
        made.append({name: one.take(random.permutation(one.num_rows)) for name, one in rows.items()})
    return made


def answered(query: str, way: Way, epochs: list[Rows]) -> pa.Table:
    """The query's own answer, with crashes and the like on the way."""
    flow = QUERIES[query].flow()
    with testing.run(flow, parallelism=way.parallelism, memory=way.memory) as run:
        for number, rows in enumerate(epochs):
            if number in way.happens:
                way.happens[number](run)
            run.feed_all(rows)
        run.watermark(END)
        assert not sum(count for (_, kind), count in run.counts.items() if kind in {"rows_late", "unknown_retractions"})
        released = [name for name in flow.graph.operators if query in WINDOWED or name == BOUNDED_JOIN]
        assert [run.state_rows(name) for name in released] == [0] * len(released), "all is closed"
        return run.table(RESULT)


@pytest.mark.parametrize(("query", "way"), diagonals(QUERIES, WAYS))
def test_p6_a_query_equals_duckdb_whatever_happens_on_the_way(query: str, way: str) -> None:
    epochs = epochs_of(query, WAYS[way])
    wanted = expected(query, epochs)
    assert wanted.num_rows, "a test over nothing shows nothing"
    assert_same(answered(query, WAYS[way], epochs), wanted)


def test_the_events_of_the_calculation_are_of_all_times_of_day() -> None:
    wanted = expected("q14", epochs_of("q14", WAYS["one_subtask"]))
    assert set(wanted["bid_time_type"].to_pylist()) == {"dayTime", "otherTime", "nightTime"}


def test_a_query_can_be_run_from_the_command_line() -> None:
    arguments = ["q11", "--events", "2000", "--epochs", "3", "--parallelism", "2", "--rows", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.nexmark", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    about, speed, row = done.stdout.splitlines()
    assert about.startswith("q11  User sessions")
    assert speed.startswith("2,000 events in 3 epochs: ")
    assert row.startswith("  bidder=10")
