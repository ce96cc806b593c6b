"""The scale benchmark: requests are counted as S3 would, and formulas agree with jobs they were not fitted to."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.scale import point
from bench.scale.estimate import Target, estimate, fit, line
from bench.scale.limits import limits
from bench.scale.s3 import PUBLISHED, measure, stored_dollars
from bench.scale.simulated_job import Shape, SimulatedJob
from bench.scale.simulated_store import SimulatedStore
from statebed.storage import MemoryStore
from statebed.storage.verified import put_verified

SHAPE = Shape(
    "updating aggregate", subtasks=2, keys=50, rows=10, retained_epochs=2, grace_seconds=10.0, collect_every=4
)


def test_requests_are_counted_as_s3_would() -> None:
    store = SimulatedStore(PUBLISHED)
    put_verified(store, "a/small", b"x" * 1000)
    small = store.taken("start")
    assert (small.put, small.get, small.put_bytes, small.get_bytes) == (1, 1, 1000, 1000)
    put_verified(store, "a/large", b"x" * (11 << 20))
    large = store.taken("start")
    assert (large.put, large.get, large.get_bytes) == (5, 1, 0)  # three parts, begin and end; then a look at its ETag
    for number in range(1500):
        store.put(f"many/{number}", b"")
    store.taken("start")
    assert len(list(store.list("many"))) == 1500
    store.delete_many([f"many/{number}" for number in range(1500)])
    many = store.taken("start")
    assert (many.list, many.delete, many.deleted) == (2, 2, 1500)
    assert many.seconds == pytest.approx(2 * PUBLISHED.list_page + 2 * PUBLISHED.delete_page)


def test_latencies_are_measured_at_any_store() -> None:
    latencies = measure(MemoryStore(), source="memory", times=4)
    assert 0 < latencies.get_seconds < latencies.get(1 << 30)


def test_a_simulated_job_commits_compacts_cleans_up_and_restarts(tmp_path: Path) -> None:
    job = SimulatedJob(replace(SHAPE, compaction_every=6), tmp_path, PUBLISHED)
    job.fill()
    for _ in range(14):
        job.epoch()
    totals = job.totals
    assert totals.subtasks.put == 3 * 2 * 14  # delta, outbox and metadata of two subtasks
    assert totals.compaction.put > 0
    assert totals.cleanups[-1].deleted > 0
    before = job.run.number
    opened, restored = job.restart()
    assert job.run.number > before
    assert opened.get > 2
    assert restored.get_bytes > totals.state_bytes / 4
    job.close()


def test_formulas_give_back_what_they_were_fitted_to_and_find_where_a_job_breaks() -> None:
    few = point(SHAPE, 9)
    more = point(replace(SHAPE, subtasks=4), 9)
    wide = point(replace(SHAPE, subtasks=8), 1)
    large = (point(replace(SHAPE, subtasks=1, keys=2000, rows=100), 1), point(replace(SHAPE, keys=9000, rows=400), 1))
    formulas = fit((few, more), large, wide)
    assert formulas.record_fixed + 8 * formulas.record_per_subtask == pytest.approx(wide.totals.record_bytes, rel=0.05)
    assert formulas.requests.put == 3
    target = Target(subtasks=100, state_bytes=1e9)
    result = estimate(target, formulas, PUBLISHED)
    assert result.epoch.put >= 300
    assert result.dollars_per_day > result.storage_dollars > 0

    def grown(subtasks: int) -> object:
        return estimate(replace(target, subtasks=subtasks, state_bytes=subtasks * 1e7), formulas, PUBLISHED)

    by_name = {limit.what: limit for limit in limits(result, grown)}  # type: ignore[arg-type]
    puts = by_name["PUT rate of one prefix"]
    assert puts.value < puts.allowed
    assert 100 < puts.subtasks < math.inf


def test_a_line_through_two_points_neither_starts_below_zero_nor_falls() -> None:
    assert line([(1, 3), (2, 5)]) == (1, 2)
    assert line([(1, 1), (2, 4)]) == (0, 2)
    assert line([(1, 4), (2, 3)]) == (4, 0)


def test_storage_costs_less_per_byte_in_higher_tiers() -> None:
    assert stored_dollars(100e12) < 2 * stored_dollars(50e12)
