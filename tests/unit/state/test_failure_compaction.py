"""Failures of earlier systems around compaction (10): off by default, duplicates kept, tombstones dropped too early."""

from collections import Counter
from collections.abc import Callable

import pytest
from unit.state.failure_tables import (
    FARES,
    append_fares,
    fares_batch,
    fares_config,
    fares_of,
    put_trips,
    trips_config,
    trips_of,
)
from unit.state.table_cluster import COUNTERS, OPTIONS, Cluster

from statebed.checkpoint.objects import fetch_subtask
from statebed.format import checkpoint_pb2 as pb
from statebed.state import Compaction, DeleteTimeRange, RecordBatch, TableData

ALL_KINDS = COUNTERS | trips_config() | fares_config(bin_us=10)
MAX_FILES = 24
EPOCHS = 75


def live_files(cluster: Cluster, record: pb.CheckpointMetadata) -> list[pb.FileEntry]:
    references = [reference for operator in record.operators for reference in operator.subtasks]
    parts = [fetch_subtask(cluster.store, reference) for reference in references]
    return [
        file
        for part in parts
        for table in part.tables.values()
        for subtask in table.subtasks.values()
        for file in subtask.files
    ]


def change_a_counter(cluster: Cluster, step: int) -> None:
    cluster.owner(step % 5).insert(step % 5, step)


def change_trips(cluster: Cluster, step: int) -> None:
    put_trips(cluster.managers, {step % 50: step, 50 + step % 7: step})


def append_a_fare(cluster: Cluster, step: int) -> None:
    append_fares(cluster.managers, [(step % 5, step, step)])


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(one, id=name)
        for name, one in (("global", change_a_counter), ("keyed", change_trips), ("time-keyed", append_a_fare))
    ],
)
def test_failure_10_files_stay_bounded_without_being_asked_for(change: Callable[[Cluster, int], None]) -> None:
    """10. Compaction off by default, level 0 only: here it runs without a request, and files stay few."""
    cluster = Cluster(1, ALL_KINDS)
    for step in range(EPOCHS):
        change(cluster, step)
        record = cluster.commit()
        cluster.run.clean_up()
        assert len(live_files(cluster, record)) <= MAX_FILES
    rows = sum(file.rows for file in live_files(cluster, record))
    assert rows <= (EPOCHS if change is append_a_fare else 57 * 3)
    # Files that were merged away leave the store with the epochs that named them.
    stored = [info.path for info in cluster.store.list("") if info.path.endswith(".parquet")]
    assert len(stored) <= MAX_FILES + 2 * OPTIONS.retention.epochs
    cluster.close()


def test_failure_10_a_merge_keeps_one_row_for_each_key() -> None:
    """10. No de-duplication."""
    cluster = Cluster(1, trips_config())
    for step in range(6):
        put_trips(cluster.managers, dict.fromkeys(range(100), step))
        cluster.commit()
    for _ in range(3):
        cluster.managers[0].send(Compaction())
        record = cluster.commit()
    assert sum(file.rows for file in live_files(cluster, record)) == 100
    cluster.restart(2)
    assert trips_of(cluster.managers) == dict.fromkeys(range(100), 5)
    cluster.close()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_failure_10_a_merge_keeps_tombstones_that_older_files_still_need(parallelism: int) -> None:
    """10. Drops tombstones that older files still need: here newer files are merged while an old one stays."""
    cluster = Cluster(1, fares_config(bin_us=10))
    kept = Counter((number, number, 1) for number in range(100) if not 40 <= number < 60)
    append_fares(cluster.managers, [(number, number, 1) for number in range(100)])
    cluster.commit()
    nothing = RecordBatch(fares_batch([]), DeleteTimeRange(40, 60))
    cluster.managers[0].send(TableData(FARES, nothing))
    for step in range(30):
        append_fares(cluster.managers, [(step, 1000 + step, 2)])
        kept[(step, 1000 + step, 2)] += 1
        cluster.commit()
        assert fares_of(cluster.managers) == kept
    cluster.restart(parallelism)
    assert fares_of(cluster.managers) == kept
    for manager in cluster.managers:
        manager.send(Compaction())
    for _ in range(3):
        cluster.commit()
    assert fares_of(cluster.managers) == kept
    cluster.restart(1)
    assert fares_of(cluster.managers) == kept
    cluster.close()


def test_failure_10_a_reader_of_files_that_are_merged_meanwhile_finishes() -> None:
    """10. Deletes inputs under a reader: the rows of an earlier epoch stay readable while it is retained."""
    cluster = Cluster(1, trips_config())
    put_trips(cluster.managers, dict.fromkeys(range(100), 1))
    earlier = cluster.commit()
    cluster.run.clean_up()
    paths = {file.path for file in live_files(cluster, earlier)}
    put_trips(cluster.managers, dict.fromkeys(range(100), 2))
    cluster.managers[0].send(Compaction())
    for _ in range(2):
        cluster.commit()
        cluster.run.clean_up()
    assert all(cluster.store.head(path) is not None for path in paths)
    cluster.close()
