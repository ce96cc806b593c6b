"""Failures of earlier systems around time: state that expires at a restart only (6), too early (7), near 1970 (11)."""

from collections import Counter

import pytest
from unit.state.failure_tables import (
    EPOCH,
    append_fares,
    fares_config,
    fares_of,
    micros,
    put_trips,
    trips_config,
    trips_of,
)
from unit.state.table_cluster import Cluster

from statebed.checkpoint import EpochDraft
from statebed.state import operator_entry


def commit_at(cluster: Cluster, watermark_us: int) -> None:
    """One epoch with a watermark."""
    watermark = EPOCH + micros(watermark_us)
    epoch = cluster.run.next_epoch
    stored = [manager.checkpoint(epoch, watermark=watermark).result(timeout=30) for manager in cluster.managers]
    cluster.run.commit(EpochDraft(operators=[operator_entry(stored)]))


def test_failure_6_keyed_rows_leave_while_the_job_runs() -> None:
    """6. A joined side never expires while running, only at restart."""
    cluster = Cluster(1, trips_config(ttl_us=10))
    for now in range(0, 400, 5):
        put_trips(cluster.managers, {now: now}, time_us=now)
        commit_at(cluster, now)
        assert sorted(trips_of(cluster.managers)) == [time for time in (now - 5, now) if time >= 0]
    cluster.restart(2)
    assert sorted(trips_of(cluster.managers)) == [390, 395]
    cluster.close()


def test_failure_6_time_keyed_rows_leave_while_the_job_runs() -> None:
    """6. A joined side never expires while running, only at restart."""
    cluster = Cluster(1, fares_config(retention_us=10, bin_us=4))
    for now in range(0, 400, 5):
        append_fares(cluster.managers, [(now, now, 1)])
        commit_at(cluster, now)
        assert fares_of(cluster.managers) == Counter((time, time, 1) for time in (now - 10, now - 5, now) if time >= 0)
    (manager,) = cluster.managers
    assert len(manager.get_time_keyed("fares").metadata().files) <= 4, "files of rows that left have left, too"
    cluster.close()


def test_failure_7_a_row_is_kept_for_exactly_its_retention() -> None:
    """7. Session state retained gap x 100: here retention is what was asked for, to the microsecond."""
    cluster = Cluster(1, fares_config(retention_us=100, bin_us=30))
    append_fares(cluster.managers, [(1, time, time) for time in range(200)])
    for watermark in (100, 101, 199, 299):
        commit_at(cluster, watermark)
        assert fares_of(cluster.managers) == Counter((1, time, time) for time in range(watermark - 100, 200))
    commit_at(cluster, 300)
    assert not fares_of(cluster.managers)
    cluster.close()


@pytest.mark.parametrize("restarts", [False, True])
def test_failure_7_state_that_is_still_written_to_does_not_expire(restarts: bool) -> None:
    """7. Session state retained gap x 100: long sessions lose rows. Here one lasts for 100 times the time to live."""
    cluster = Cluster(1, trips_config(ttl_us=10))
    put_trips(cluster.managers, {1: 0, 2: 0}, time_us=0)
    for step in range(1, 40 if restarts else 140):
        now = step * 8
        put_trips(cluster.managers, {1: step}, time_us=now)
        commit_at(cluster, now)
        assert trips_of(cluster.managers) == ({1: step, 2: 0} if now < 10 else {1: step})
        if restarts and step % 10 == 0:
            cluster.restart(1 + step % 3)
            assert trips_of(cluster.managers) == {1: step}
    cluster.close()


def test_failure_11_a_watermark_smaller_than_the_retention_drops_nothing() -> None:
    """11. Unsigned wrap near 1970 drops all files."""
    cluster = Cluster(1, fares_config(retention_us=1000, bin_us=60) | trips_config(ttl_us=1000))
    fares = [(1, time, time) for time in range(-500, 500, 7)]
    append_fares(cluster.managers, fares)
    put_trips(cluster.managers, {1: 1}, time_us=-500)
    for watermark in (-400, 0, 1, 499):
        commit_at(cluster, watermark)
        cluster.restart(1)
        assert fares_of(cluster.managers) == Counter(fares)
        assert trips_of(cluster.managers) == {1: 1}
    commit_at(cluster, 1000)
    assert fares_of(cluster.managers) == Counter(fare for fare in fares if fare[1] >= 0)
    assert trips_of(cluster.managers) == {}
    cluster.close()
