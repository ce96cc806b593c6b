"""P6, P9: how far time has come is part of a checkpoint: what was late before a restart is late after it."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest
from unit.state.table_cluster import Cluster

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import EpochDraft
from statebed.errors import InputError
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


WRONG = [dt.datetime(2024, 2, 29), "2024", 1.5, True, 1 << 63, -(1 << 70)]  # noqa: DTZ001 - without its zone


@pytest.mark.parametrize("moment", WRONG, ids=str)
def test_a_time_that_is_none_or_cannot_be_stored_is_refused_before_any_row_expires(moment: Any) -> None:
    cluster = Cluster(1, CONFIGS)
    (manager,) = cluster.managers
    rides, last = manager.get_time_keyed("rides"), manager.get_keyed("last")
    keys = pa.table({"driver": [7]})
    rides.append(pa.table({"driver": [7], "_time": OLD, "fare": [1]}))
    last.upsert(keys, pa.table({"fare": [1]}), times=OLD)
    for advance in (
        lambda: rides.advance(moment),
        lambda: last.advance(moment),
        lambda: manager.advance(watermark=moment),
        lambda: manager.advance(time=moment),
        lambda: manager.checkpoint(cluster.run.next_epoch, watermark=moment),
        lambda: manager.checkpoint(cluster.run.next_epoch, time=moment),
    ):
        with pytest.raises(InputError) as refused:
            advance()
        assert refused.value.where
        assert refused.value.fix
    assert (rides.read().num_rows, last.get(keys)[1].tolist()) == (1, [True])
    assert manager.watermark_us is None
    manager.checkpoint(cluster.run.next_epoch, watermark=EPOCH).result(30)


@pytest.mark.parametrize("epoch", [5.5, "a", None, True, 1 << 70], ids=str)
def test_a_number_that_no_epoch_has_is_refused_and_the_manager_goes_on(epoch: Any) -> None:
    cluster = Cluster(1, CONFIGS)
    (manager,) = cluster.managers
    for numbers in ((epoch, 0), (7, epoch)):
        with pytest.raises(InputError, match="epoch"):
            manager.checkpoint(*numbers)
    assert manager.checkpoint(7).result(30).epoch == 7
