"""Lakehouse tables that somebody rolls back, restores, copies or moves: no epoch is missing without an error."""

import datetime as dt
import shutil
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from lake_tables import Lake
from published import publication

from statebed.errors import InputError, SinkError
from statebed.protocol import SinkPosition
from statebed.sinks.lake import LakeSink

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64())])


@pytest.fixture(params=["delta", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(request.param, tmp_path / "table")


@pytest.fixture
def delta(tmp_path: Path) -> Lake:
    return Lake("delta", tmp_path / "table")


def rows(key: str, number: int) -> pa.Table:
    return pa.table([[key], [number]], schema=COLUMNS)


def test_a_table_that_goes_back_while_the_job_runs_is_an_error(lake: Lake, tmp_path: Path) -> None:
    """The epochs in between would be missing, and the position of the next one would hide it."""
    sink: LakeSink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows("a", 1)))
    if lake.format == "delta":
        shutil.copytree(lake.path, tmp_path / "backup")
    else:
        older = lake.table.current_snapshot().snapshot_id
    sink.publish(publication(1, 3, rows("b", 2)))
    if lake.format == "delta":
        shutil.rmtree(lake.path)
        (tmp_path / "backup").rename(lake.path)
    else:
        lake.table.manage_snapshots().rollback_to_snapshot(older).commit()
    for publish in (sink.publish, sink.skip):
        with pytest.raises(SinkError, match="is at epoch 2 of run 1, but this run left epoch 3 of run 1") as refused:
            publish(publication(1, 4, rows("c", 3)))
        assert refused.value.is_of_target
    assert lake.rows() == [("a", 1)]
    again = lake.sink(COLUMNS)
    assert again.open(5) == SinkPosition(run=1, epoch=2)
    again.publish(publication(5, 3, rows("b", 2)))
    assert lake.rows() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("to", ["version", "time", "twice", "before the sink", "elsewhere"])
def test_epochs_that_a_restore_of_delta_removed_are_missing_at_the_next_start(delta: Lake, to: str) -> None:
    """RESTORE keeps the transactions of the table, so these have an epoch whose rows are gone."""
    deltalake.write_deltalake(str(delta.path), rows("before", 0))
    sink = delta.sink(COLUMNS)
    sink.open(1)
    for epoch, key in ((2, "a"), (3, "b"), (4, "c")):
        sink.publish(publication(1, epoch, rows(key, epoch)))
        if to == "time":
            time.sleep(0.2)
    first, second = (commit for commit in delta.table.history() if commit.get("statebed.epoch") in {"2", "3"})
    table = delta.table
    if to == "time":
        at = dt.datetime.fromtimestamp(second["timestamp"] / 1000, dt.UTC) + dt.timedelta(milliseconds=100)
        table.restore(at)
    elif to == "before the sink":
        table.restore(0)
    else:
        table.restore(second["version"])
    if to == "twice":
        table.restore(first["version"])
    epoch = {"twice": 3, "before the sink": 0}.get(to, 2)
    kept = {"twice": ["a", "b"], "before the sink": []}.get(to, ["a"])
    if to == "elsewhere":  # another program compacts its files
        for _ in range(3):
            deltalake.write_deltalake(str(delta.path), rows("other", 1), mode="append")
        kept = ["a", "other", "other", "other"]
    assert [key for key, _ in delta.rows()] == sorted([*kept, "before"])
    error = f"is at epoch {epoch} of run 1, but this run left epoch 4 of run 1" if epoch else "no longer exists, or was"
    with pytest.raises(SinkError, match=error):
        sink.publish(publication(1, 5, rows("d", 5)))
    again = delta.sink(COLUMNS)
    assert again.peek() == SinkPosition(run=1, epoch=epoch)
    assert again.open(6) == SinkPosition(run=1, epoch=epoch)
    again.publish(publication(6, 7, rows("e", 7)))
    assert delta.sink(COLUMNS).peek() == SinkPosition(run=6, epoch=7)
    assert [key for key, _ in delta.rows()] == sorted([*kept, "before", "e"])


@pytest.mark.parametrize("is_copied", [True, False])
def test_an_iceberg_folder_that_was_copied_or_moved_is_refused(tmp_path: Path, *, is_copied: bool) -> None:
    """Absolute paths: epochs written through a copy went to the old folder, and were lost with it."""
    lake, other = Lake("iceberg", tmp_path / "table"), Lake("iceberg", tmp_path / "other")
    sink = lake.sink(COLUMNS)
    sink.open(1)
    sink.publish(publication(1, 2, rows("a", 1)))
    before = sorted(lake.path.rglob("*"))
    shutil.copytree(lake.path, other.path)
    if not is_copied:
        lake.path.rename(tmp_path / "away")
    with pytest.raises(InputError, match="is missing" if not is_copied else "not in this folder, but in") as refused:
        other.sink(COLUMNS).open(3)
    assert "moved or copied" in refused.value.fix
    if is_copied:
        assert sorted(lake.path.rglob("*")) == before
        return
    (tmp_path / "away").rename(lake.path)
    (tmp_path / "link").symlink_to(lake.path)  # another name of the same folder
    again = Lake("iceberg", tmp_path / "link").sink(COLUMNS)
    assert again.open(3) == SinkPosition(run=1, epoch=2)
    again.publish(publication(3, 4, rows("b", 2)))
    assert lake.rows() == [("a", 1), ("b", 2)]
