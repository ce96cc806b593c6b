"""Failures of earlier systems around deletions (2): delete then put loses the put, a second delete brings data back."""

from collections import Counter

import pyarrow as pa
import pytest
from unit.state.failure_tables import (
    FARES,
    TRIPS,
    append_fares,
    fares_batch,
    fares_config,
    fares_of,
    put_trips,
    trips_config,
    trips_of,
)
from unit.state.table_cluster import COUNTERS, Cluster

from statebed.state import DataOperation, DeleteKey, DeleteTimeKey, DeleteTimeRange, DeleteValue, RecordBatch, TableData

ALL_KINDS = COUNTERS | trips_config() | fares_config(bin_us=10)
DELETIONS = [DeleteKey(), DeleteTimeKey(), DeleteValue(), DeleteTimeRange(0, 10)]
BY_EACH_OPERATION = pytest.mark.parametrize("operation", DELETIONS, ids=lambda one: type(one).__name__)


def delete_fare(cluster: Cluster, operation: DataOperation) -> None:
    """Delete the fare (1, 5, 7), by whatever it takes."""
    rows = fares_batch([] if isinstance(operation, DeleteTimeRange) else [(1, 5, 7)])
    cluster.managers[0].send(TableData(FARES, RecordBatch(rows, operation)))


@BY_EACH_OPERATION
def test_failure_2_a_row_that_comes_after_a_deletion_in_one_epoch_stays(operation: DataOperation) -> None:
    """2. Delete then put in one epoch loses the put."""
    cluster = Cluster(1, ALL_KINDS)
    append_fares(cluster.managers, [(1, 5, 7), (1, 50, 8)])
    cluster.commit()
    delete_fare(cluster, operation)
    append_fares(cluster.managers, [(1, 5, 7)])
    expected = Counter([(1, 5, 7)] if isinstance(operation, DeleteKey) else [(1, 5, 7), (1, 50, 8)])
    assert fares_of(cluster.managers) == expected
    cluster.commit()
    cluster.restart(1)
    assert fares_of(cluster.managers) == expected
    cluster.close()


@BY_EACH_OPERATION
@pytest.mark.parametrize("commits", [False, True], ids=["in one epoch", "in three epochs"])
def test_failure_2_a_second_deletion_hides_what_came_after_the_first(operation: DataOperation, commits: bool) -> None:
    """2. A second delete does not raise the tombstone, so data comes back."""
    cluster = Cluster(1, ALL_KINDS)
    append_fares(cluster.managers, [(1, 5, 7), (2, 50, 8)])
    cluster.commit()
    for _ in range(2):
        delete_fare(cluster, operation)
        assert (1, 5, 7) not in fares_of(cluster.managers)
        append_fares(cluster.managers, [(1, 5, 7), (3, 60, 8)])
        if commits:
            cluster.commit()
    delete_fare(cluster, operation)
    expected = Counter({(2, 50, 8): 1, (3, 60, 8): 2})
    assert fares_of(cluster.managers) == expected
    cluster.commit()
    for parallelism in (1, 2):
        cluster.restart(parallelism)
        assert fares_of(cluster.managers) == expected
    cluster.close()


def test_failure_2_in_keyed_tables_the_last_of_several_changes_counts() -> None:
    """2. Delete then put in one epoch loses the put; and the same with one more delete."""
    cluster = Cluster(1, ALL_KINDS)
    both = pa.record_batch({"driver": pa.array([1, 2], pa.int64())})
    put_trips(cluster.managers, {1: 1, 2: 1})
    cluster.commit()
    for last in (2, 3):
        cluster.managers[0].send(TableData(TRIPS, RecordBatch(both, DeleteKey())))
        put_trips(cluster.managers, {1: last, 2: last})
        cluster.managers[0].send(TableData(TRIPS, RecordBatch(both.slice(0, 1), DeleteKey())))
        assert trips_of(cluster.managers) == {2: last}
        cluster.commit()
        cluster.restart(1)
        assert trips_of(cluster.managers) == {2: last}
    cluster.close()
