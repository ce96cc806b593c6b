"""Failures of earlier systems around durability: acknowledged too early (1), retries that overwrite (8), restored in
part (16).
"""

import threading
from collections import Counter

import pytest
from unit.state.failure_tables import (
    append_fares,
    fares_config,
    fares_of,
    put_trips,
    trips_config,
    trips_of,
)
from unit.state.table_cluster import COUNTERS, JOB, OPERATOR, TABLE, Cluster, managers_at

from statebed.checkpoint import EpochDraft
from statebed.state import TableManager, TaskInfo, operator_entry
from statebed.storage import MemoryStore, ScopedStore
from statebed.testing.faults import FaultStore, Operation, Verb

ALL_KINDS = COUNTERS | trips_config() | fares_config()


@pytest.mark.parametrize("kind", ["global", "keyed", "time-keyed"])
def test_failure_1_nothing_is_acknowledged_while_an_upload_is_on_its_way(kind: str) -> None:
    """1. Acknowledge before durable; restart in a fresh process finds nothing."""
    opened, reached = threading.Event(), threading.Event()

    def hold(operation: Operation) -> None:
        if operation.verb is Verb.PUT and operation.path.endswith(".parquet"):
            reached.set()
            assert opened.wait(30)

    store = ScopedStore(MemoryStore(), JOB)
    with TableManager(TaskInfo(JOB, OPERATOR), ALL_KINDS, FaultStore(store, before=hold)) as manager:
        if kind == "global":
            manager.get_global_keyed_state(TABLE).insert("ann", 1)
        elif kind == "keyed":
            put_trips([manager], {1: 1})
        else:
            append_fares([manager], [(1, 1, 1)])
        stored = manager.checkpoint(2)
        assert reached.wait(30)
        try:
            with pytest.raises(TimeoutError):
                stored.result(timeout=0.3)
            assert not list(store.list("")), "metadata that names the file must not be there before it"
        finally:
            opened.set()
        assert stored.result(timeout=30).files == 1


def test_failure_8_a_second_attempt_does_not_touch_the_files_of_the_first() -> None:
    """8. Retry overwrites the files of the other attempt: here a stalled one stores last, with other rows."""
    cluster = Cluster(1, ALL_KINDS)
    cluster.commit()
    stalled = managers_at(cluster.store, cluster.run.head, 1, ALL_KINDS)
    for managers, value in ((cluster.managers, 1), (stalled, 2)):
        put_trips(managers, {7: value})
        append_fares(managers, [(7, 70, value)])
        managers[0].get_global_keyed_state(TABLE).insert("ann", value)
    epoch = cluster.run.next_epoch
    first = cluster.store_epoch()
    stalled[0].checkpoint(epoch).result(timeout=30)
    stalled[0].close()
    cluster.run.commit(EpochDraft(operators=[operator_entry(first)]))
    cluster.restart(1)
    assert trips_of(cluster.managers) == {7: 1}
    assert fares_of(cluster.managers) == Counter([(7, 70, 1)])
    assert cluster.views()[0].get("ann") == 1
    cluster.close()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_failure_16_rows_without_keys_are_restored_whole(parallelism: int) -> None:
    """16. Row 0 only of an un-keyed aggregate restored."""
    cluster = Cluster(2, fares_config(keys=()))
    fares = [(number % 3, number // 2, number) for number in range(500)]
    for start in (0, 200):
        append_fares(cluster.managers, fares[start : start + 300 if start else 200], keyed=False)
        cluster.commit()
    cluster.restart(parallelism)
    assert fares_of(cluster.managers) == Counter(fares)
    cluster.close()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_failure_16_one_key_with_many_rows_is_restored_whole(parallelism: int) -> None:
    """16. Row 0 only of an un-keyed aggregate restored: the same for a constant key."""
    cluster = Cluster(2, fares_config() | COUNTERS)
    fares = [(0, number // 5, number) for number in range(500)]
    append_fares(cluster.managers, fares)
    cluster.owner("all").insert("all", list(range(500)))
    cluster.commit()
    cluster.restart(parallelism)
    assert fares_of(cluster.managers) == Counter(fares)
    assert cluster.views()[0].get("all") == list(range(500))
    cluster.close()
