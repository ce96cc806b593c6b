"""Spark's checkpoint is a projection: deleted, stale, ahead, forked or another job's, the results stay right."""

import json
import shutil
from typing import Any

import pytest

import statebed as sb
from statebed.checkpoint import Origin, RollbackPolicy, RunOptions
from statebed.errors import RollbackError


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


def test_p2_an_older_copy_of_sparks_checkpoint_neither_repeats_nor_skips_rows(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    shutil.copytree(rides.checkpoint, rides.folder / "older")
    rides.add_files(2)
    rides.run()
    shutil.rmtree(rides.checkpoint)
    shutil.copytree(rides.folder / "older", rides.state / "rides" / "spark" / rides.record().lineage)
    rides.add_files(1)
    query = rides.run()
    assert [progress.rows_in for progress in query.recent_progress] == [120, 0]
    assert rides.results() == rides.expected()


def test_p2_the_checkpoint_of_another_job_is_not_believed(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    position = rides.record().source_position
    (rides.checkpoint / "metadata").write_text(json.dumps({"id": "11111111-2222-3333-4444-555555555555"}))
    shutil.copy(rides.checkpoint / "offsets" / "0", rides.checkpoint / "offsets" / "1")
    rides.add_files(1)
    rides.run()
    assert rides.record().source_position.query_id == position.query_id
    assert rides.results() == rides.expected()


def test_p2_a_cut_source_log_is_noticed_before_spark_could_read_files_again(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    (rides.checkpoint / "sources" / "0" / "1").unlink()
    rides.add_files(1)
    query = rides.run()
    assert [progress.rows_in for progress in query.recent_progress] == [120, 0]
    assert rides.results() == rides.expected()


def test_p2_many_batches_with_a_compacted_source_log_restart_from_the_record_alone(rides: Any) -> None:
    rides.add_files(13, rows=20)
    rides.run()
    logs = [log.name for log in rides.record().source_position.source_logs]
    assert logs[0] == "sources/0/10"
    assert "sources/0/9.compact" in logs
    assert not any(name in logs for name in ("sources/0/0", "sources/0/8"))
    rides.forget_spark()
    rides.add_files(2, rows=20)
    query = rides.run()
    assert sum(progress.rows_in for progress in query.recent_progress) == 40
    assert rides.results() == rides.expected()


def test_a_batch_whose_record_exists_is_published_and_not_computed_again(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    head = rides.record()
    marker = rides.state / "rides" / "checkpoints" / f"{head.epoch:012d}" / "published-minutes"
    # As if the driver had died after the record: neither the sink nor Spark's commit log has the epoch.
    marker.unlink()
    max((rides.out / "_statebed").iterdir()).unlink()
    assert rides.results() == []
    for name in ("1", ".1.crc"):
        (rides.checkpoint / "commits" / name).unlink()
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
    assert [folder.name for folder in (rides.state / "rides" / "spark").iterdir()] == [rides.record().lineage]
