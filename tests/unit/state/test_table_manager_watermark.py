"""P6, P9: how far time has come is part of a checkpoint: what was late before a restart is late after it."""

import datetime as dt

import pyarrow as pa
import pytest
from unit.state.table_cluster import Cluster

from statebed.checkpoint import EpochDraft
from statebed.format.keyhash import hash_columns
from statebed.format.ranges import subtask_of
from statebed.state import keyed_table_config, operator_entry, timestamp_table_config

SECOND = dt.timedelta(seconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
COLUMNS = pa.schema([("driver", pa.int64()), ("fare", pa.int64())])
CONFIGS = {
    "rides": timestamp_table_config("rides", "", 10 * SECOND, False, COLUMNS, keys=["driver"]),
    "last": keyed_table_config("last", "", ["driver"], COLUMNS, 10 * SECOND),
}
OLD = pa.array([5_000_000], pa.timestamp("us", "UTC"))


@pytest.mark.parametrize("later_watermark", [EPOCH + 1000 * SECOND, EPOCH + 3 * SECOND, None], ids=str)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_p9_rows_whose_time_was_over_before_a_restart_are_late_after_it(
    parallelism: int, later_watermark: dt.datetime | None
) -> None:
    cluster = Cluster(2, CONFIGS)
    for watermark in (EPOCH + 1000 * SECOND, later_watermark):
        epoch = cluster.run.next_epoch
        stored = [manager.checkpoint(epoch, watermark=watermark).result(30) for manager in cluster.managers]
        cluster.run.commit(EpochDraft(operators=[operator_entry(stored)]))
    cluster.restart(parallelism)
    keys, values = pa.table({"driver": [7]}), pa.table({"fare": [1]})
    owner = cluster.managers[int(subtask_of(hash_columns([keys["driver"].chunk(0)]), parallelism)[0])]
    rides, last = owner.get_time_keyed("rides"), owner.get_keyed("last")
    rides.append(pa.table({"driver": [7], "_time": OLD, "fare": [1]}))
    last.upsert(keys, values, times=OLD)
    assert (rides.late_rows, rides.read().num_rows) == (1, 0)
    assert not last.get(keys)[1].any()


def test_p9_rows_expire_at_once_when_time_advances_between_checkpoints_even_beyond_what_datetime_reaches() -> None:
    cluster = Cluster(1, CONFIGS)
    (manager,) = cluster.managers
    rides, last = manager.get_time_keyed("rides"), manager.get_keyed("last")
    far = 400_000_000_000_000_000  # in the year 14645
    times = pa.array([5_000_000, far], pa.timestamp("us", "UTC"))
    rides.append(pa.table({"driver": [7, 8], "_time": times, "fare": [1, 2]}))
    last.upsert(pa.table({"driver": [7, 8]}), pa.table({"fare": [1, 2]}), times=times)
    manager.advance(watermark=far)
    assert rides.read()["driver"].to_pylist() == [8]
    assert last.get(pa.table({"driver": [7, 8]}))[1].tolist() == [False, True]
    assert manager.checkpoint(cluster.run.next_epoch, watermark=far + 1).result(30).watermark_us == far + 1
