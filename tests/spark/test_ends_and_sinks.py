"""Ends of a query, and conditions on its sinks: stops on a busy query, namesakes, failing functions, refused forks."""

import itertools
import threading
import time
from typing import Any

import pytest
from pyspark.sql import DataFrame

import statebed as sb
from statebed.checkpoint import Origin, RollbackPolicy, Run, RunOptions
from statebed.errors import InputError, SinkError
from statebed.format import checkpoint_pb2 as pb
from statebed.sinks import ParquetTableSink
from statebed.spark.api import query as query_module
from statebed.spark.checkpoint.folder import SparkProjection
from statebed.spark.epoch import controller as controller_module


def test_a_stop_that_a_batch_comes_upon_is_a_stop_and_no_failure(rides: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_module, "_POLL_SECONDS", 2.0)  # so that a batch looks before the watching thread does
    asked = threading.Event()
    queries: list[sb.Query] = []

    def ask(_df: DataFrame, _epoch: int) -> None:
        while not queries:
            time.sleep(0.01)
        queries[0]._controller.request_stop(drain=False)
        asked.set()

    rides.add_files(5, rows=20)
    queries.append(rides.job(sink=ask).start(processing_time="0 seconds"))
    assert queries[0].await_termination(120)
    assert asked.is_set()
    assert queries[0].status.state is sb.QueryState.STOPPED
    assert queries[0].exception is None
    assert rides.record().status == pb.STOPPED
    rides.run(sink=lambda _df, _epoch: None)
    assert rides.results() == rides.expected() != []


def test_p9_a_drain_asked_for_while_the_last_batch_runs_is_done_or_refused(rides: Any) -> None:
    rides.add_files(3)
    queries: list[sb.Query] = []

    def ask(_df: DataFrame, _epoch: int) -> None:
        while not queries:
            time.sleep(0.01)
        queries[0]._controller.request_stop(drain=True)

    queries.append(rides.job(sink=ask).start(available_now=True))
    assert queries[0].await_termination(120)
    assert rides.record().status == pb.DRAINED
    assert sum(row[3] for row in rides.results()) == 3 * 120
    assert queries[0].status.state is sb.QueryState.STOPPED


def test_p9_a_drain_right_after_the_start_reads_what_was_available_first(rides: Any) -> None:
    rides.add_files(3)
    query = rides.job().start(available_now=True)
    query.stop(drain=True, timeout=120)
    assert rides.record().status == pb.DRAINED
    assert sum(row[3] for row in rides.results()) == 3 * 120
    assert query.status.state is sb.QueryState.STOPPED


def test_p1_an_epoch_whose_function_failed_is_handed_over_again_before_any_other(rides: Any) -> None:
    def fail(_df: DataFrame, _epoch: int) -> None:
        raise ZeroDivisionError("division of the user's")

    rides.add_files(4)
    query = rides.job(sink=fail).start(available_now=True)
    with pytest.raises(SinkError, match=r"sink extra raised ZeroDivisionError: division of the user's") as caught:
        query.await_termination(120)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    failed = rides.record()
    assert f"epoch {failed.epoch}" in caught.value.where
    assert "start the job again" in caught.value.fix
    with pytest.raises(SinkError):
        rides.job(sink=fail).start(available_now=True)
    seen: dict[int, int] = {}
    rides.run(sink=lambda df, epoch: seen.update({epoch: df.agg({"trips": "sum"}).first()[0]}))
    assert min(seen) == failed.epoch
    assert sum(seen.values()) == sum(row[3] for row in rides.results())
    assert rides.results() == rides.expected() != []


class DeathError(Exception):
    """Stands for the death of the driver."""


STEPS: list[tuple[Any, str, int]] = [
    (SparkProjection, "position", 1),  # in the epoch of a batch
    (Run, "commit", 1),
    (ParquetTableSink, "_copy", 1),
    (ParquetTableSink, "publish", 1),
    (Run, "mark_published", 1),
    (controller_module, "accepted", 2),  # in the epoch without a batch that follows it
    (Run, "commit", 2),
    (ParquetTableSink, "_copy", 2),
]


def test_p2_p6_a_driver_that_dies_after_any_step_of_an_epoch_neither_loses_nor_repeats_rows(rides: Any) -> None:
    for number, (owner, name, occasion) in enumerate(STEPS):
        rides.add_files(1)
        step = getattr(owner, name)
        calls = itertools.count(1)

        def deadly(*arguments: Any, step: Any = step, calls: Any = calls, last: int = occasion, **named: Any) -> Any:
            done = step(*arguments, **named)
            if next(calls) == last:
                raise DeathError
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, deadly)
            with pytest.raises(DeathError):
                rides.run(parallelism=1 + number % 3)
    rides.add_files(1)
    rides.run()
    assert rides.results() == rides.expected()
    assert len(rides.results()) >= 5 * len(STEPS)


def test_an_input_that_cannot_be_read_is_named(rides: Any) -> None:
    rides.add_files(1)
    (rides.input / "0000.parquet").write_bytes(b"this is no file of the kind")
    with pytest.raises(InputError, match=r"cannot be read: .*0000\.parquet is not a Parquet file"):
        rides.run()


def test_two_jobs_of_one_name_with_states_of_their_own_run_in_one_session(rides: Any, tmp_path: Any) -> None:
    other = type(rides)(rides.spark, tmp_path / "other")
    worlds = [rides, other]
    queries = []
    for world, files in zip(worlds, (3, 4), strict=True):
        world.add_files(files, rows=50)
        queries.append(world.job().start(available_now=True))
    for world, query in zip(worlds, queries, strict=True):
        assert query.await_termination(120)
        assert world.results() == world.expected() != []


def test_p3_one_job_started_twice_in_one_process_goes_on_as_the_second(rides: Any) -> None:
    rides.add_files(2)
    job = rides.job()
    older = job.start(processing_time="100 milliseconds")
    assert older.await_epoch(older.run + 1, timeout=120)
    newer = job.start(processing_time="100 milliseconds")
    with pytest.raises(sb.FencedError):
        older.await_termination(120)
    rides.add_files(1)
    deadline = time.monotonic() + 60
    while rides.results() != rides.expected() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert rides.results() == rides.expected() != []
    newer.stop()
    assert newer.exception is None


def test_a_fork_that_is_refused_leaves_the_log_as_it_was(rides: Any) -> None:
    rides.add_files(2)
    rides.run()
    base = rides.record().epoch
    rides.add_files(1)
    rides.run()
    head = rides.record().epoch
    job = sb.Job("rides", state=rides.state, spark=rides.spark)
    stream = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    grouped = stream.group_by("driver", sb.tumbling("1 minute"), name="per_minute")
    grouped.agg(trips=sb.count()).write("parquet", path=str(rides.out), name="minutes")
    options = RunOptions(origin=Origin(epoch=base), rollback=RollbackPolicy.ALLOW)
    with pytest.raises(InputError, match="differs from the one that wrote its state: aggregates was"):
        job.start(available_now=True, options=options)
    assert rides.record().epoch == head

    # The same fork with the job as it was, to before the first batch: everything is read again, nothing is there twice.
    options = RunOptions(origin=Origin(epoch=1), rollback=RollbackPolicy.ALLOW)
    query = rides.job().start(available_now=True, options=options)
    assert query.await_termination(120)
    assert [progress.batch_id for progress in query.recent_progress] == [0, 1, 2, None]
    assert rides.results() == rides.expected() != []


def test_rows_of_a_source_may_be_written_to_several_sinks(rides: Any) -> None:
    rides.add_files(1)
    job = sb.Job("copies", state=rides.state, spark=rides.spark, parallelism=2)
    rows = job.source(rides.frame(), name="rides").select("driver", "cents")
    first, second = sb.MemorySink("first"), sb.MemorySink("second")
    rows.write(first)
    rows.write(second)
    assert job.start(available_now=True).await_termination(120)
    assert len(first.rows) == 120
    assert sorted(map(repr, first.rows)) == sorted(map(repr, second.rows))
