"""A failure of earlier systems around rescaling: every subtask reads every file (9)."""

from collections import Counter

import pytest
from unit.state.failure_tables import (
    FARES,
    TRIPS,
    append_fares,
    fares_config,
    fares_of,
    put_trips,
    trips_config,
    trips_of,
)
from unit.state.table_cluster import Cluster, managers_at

from statebed.format import segment_writer
from statebed.storage import ScopedStore

SUBTASKS = 4


class Meter(ScopedStore):
    """Counts the bytes of data files that are read."""

    def __init__(self, store: ScopedStore) -> None:
        super().__init__(store._store, store._prefix)
        self.read = 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.read += len(data) if path.endswith(".parquet") else 0
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = super().get_range(path, start, length)
        self.read += len(data)
        return data


def test_failure_9_after_rescaling_a_subtask_reads_what_it_owns(monkeypatch: pytest.MonkeyPatch) -> None:
    """9. Unsorted files: rescale makes every subtask read every file."""
    monkeypatch.setattr(segment_writer, "ROW_GROUP_ROWS", 1 << 10)
    configs = trips_config() | fares_config(bin_us=1 << 40)
    cluster = Cluster(1, configs)
    trips = {number: number * number for number in range(20_000)}
    fares = [(number, number, number * number) for number in range(20_000)]
    put_trips(cluster.managers, trips)
    append_fares(cluster.managers, fares)
    cluster.commit()
    cluster.close()
    found: dict[int, int] = {}
    appended: Counter[tuple[int, int, int]] = Counter()
    for index in range(SUBTASKS):
        meter = Meter(cluster.store)
        manager = managers_at(meter, cluster.run.head, SUBTASKS, configs)[index]
        assert meter.read == 0, "nothing is read before it is needed"
        found |= trips_of([manager])
        assert meter.read < stored_bytes(cluster, TRIPS) * 1.5 / SUBTASKS
        meter.read = 0
        appended += fares_of([manager])
        assert meter.read < stored_bytes(cluster, FARES) * 1.5 / SUBTASKS
        manager.close()
    assert found == trips
    assert appended == Counter(fares)


def stored_bytes(cluster: Cluster, table: str) -> int:
    return sum(info.size for info in cluster.store.list("") if f"-{table}-" in info.path)
