"""Spark's checkpoint is a projection: whatever stands in its place, a run builds it from the record."""

import json
import shutil
from typing import Any

import pytest
from spark.queries.harness import configured

import statebed as sb
from statebed.checkpoint import Origin, RollbackPolicy, Run, RunOptions
from statebed.errors import CorruptObjectError, RollbackError
from statebed.storage import ScopedStore, get_storage_provider


def test_p2_without_sparks_checkpoint_the_job_goes_on_from_the_record(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    query_id = rides.record().source_position.query_id
    rides.forget_spark()
    rides.add_files(2)
    query = rides.run()
    assert [progress.batch_id for progress in query.recent_progress] == [3, 4, None]
    assert rides.record().source_position.query_id == query_id
    assert rides.results() == rides.expected() != []


def test_p2_what_stands_in_the_place_of_a_runs_checkpoint_is_not_believed(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    older = shutil.copytree(rides.checkpoint, rides.folder / "older")
    rides.add_files(2)
    rides.run()
    query_id = rides.record().source_position.query_id
    cut = shutil.copytree(rides.checkpoint, rides.folder / "cut")
    (cut / "sources" / "0" / "1").unlink()
    foreign = shutil.copytree(rides.checkpoint, rides.folder / "foreign")
    (foreign / "metadata").write_text(json.dumps({"id": "11111111-2222-3333-4444-555555555555"}))
    for wrong in (older, cut, foreign):
        next_run = rides.record().epoch + 1
        shutil.copytree(wrong, rides.checkpoint.with_name(f"{next_run:012d}"))
        rides.add_files(1)
        query = rides.run()
        assert query.run == next_run
        assert [progress.rows_in for progress in query.recent_progress] == [120, 0]
        assert rides.results() == rides.expected()
    assert rides.record().source_position.query_id == query_id


def test_p7_a_damaged_copy_of_a_source_log_is_named(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    log = rides.record().source_position.source_logs[0]
    path = rides.state / "rides" / log.path
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CorruptObjectError, match="checksum of an object"):
        rides.run()


def test_p5_only_the_folders_of_this_run_and_the_one_before_are_left(rides: Any) -> None:
    for _ in range(4):
        rides.add_files(1, rows=10)
        query = rides.run()
    folders = sorted(int(folder.name) for folder in rides.checkpoint.parent.iterdir())
    assert len(folders) == 2
    assert folders[-1] == query.run


def test_p2_many_batches_with_a_compacted_source_log_restart_from_the_record_alone(rides: Any) -> None:
    with configured(rides.spark, {"spark.sql.streaming.fileSource.log.compactInterval": "3"}):
        rides.add_files(5, rows=20)
        rides.run()
        logs = [log.name for log in rides.record().source_position.source_logs]
        assert sorted(logs) == ["sources/0/2.compact", "sources/0/3", "sources/0/4"]
        rides.forget_spark()
        rides.add_files(2, rows=20)
        query = rides.run()
    assert sum(progress.rows_in for progress in query.recent_progress) == 40
    assert rides.results() == rides.expected()


def test_an_epoch_whose_record_exists_is_published_and_not_computed_again(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    head = rides.record()
    marker = rides.state / "rides" / "checkpoints" / f"{head.epoch:012d}" / "published-minutes"
    # As if the driver had died after the record: neither the sink nor Spark's commit log has the epoch.
    marker.unlink()
    max((rides.out / "_statebed").glob("*.json")).unlink()
    assert rides.results() == []
    query = rides.run()
    assert query.recent_progress == []
    assert marker.exists()
    assert rides.record().epoch == head.epoch + 1  # the run_start alone
    assert rides.results() == rides.expected()


def test_p3_a_fork_replays_the_same_batch_ids_with_other_rows_and_takes_published_epochs_back(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    base = rides.record().epoch
    rides.add_files(2)
    rides.run()
    assert rides.results() == rides.expected()
    origin = Origin(epoch=base)
    with pytest.raises(RollbackError):
        rides.job().start(available_now=True, options=RunOptions(origin=origin))
    for path in sorted(rides.input.iterdir())[2:]:
        path.unlink()
    rides.files = 2
    rides.chance.seed(99)
    rides.add_files(2)
    query = rides.job().start(available_now=True, options=RunOptions(origin=origin, rollback=RollbackPolicy.ALLOW))
    assert query.await_termination(120)
    assert [progress.batch_id for progress in query.recent_progress] == [2, 3, None]
    assert rides.results() == rides.expected() != []
    assert query.status.state is sb.QueryState.FINISHED


def test_p3_a_superseded_run_whose_checkpoint_was_removed_says_that_it_is_fenced(rides: Any) -> None:
    rides.add_files(1)
    older = rides.job().start(processing_time="100 milliseconds")
    assert older.await_epoch(older.run + 1, timeout=120)
    Run.open(ScopedStore(get_storage_provider(rides.state), "rides"), "rides")
    shutil.rmtree(rides.checkpoint)  # as later runs do
    rides.add_files(1)
    with pytest.raises(sb.FencedError):
        older.await_termination(120)
