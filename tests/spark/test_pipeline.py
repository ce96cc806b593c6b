"""A job on Spark: its results equal a batch answer, through restarts, rescaling, failures and idleness."""

import datetime as dt
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import statebed as sb
from statebed.checkpoint import CheckpointLog, Retention, Run, RunOptions, send_request
from statebed.errors import InputError, StateGoneError, StoreUnavailableError, SubtaskError
from statebed.format import checkpoint_pb2 as pb
from statebed.metrics.job_metrics import job_metrics
from statebed.metrics.samples import Sample
from statebed.spark.epoch import epoch_levels as stages_module
from statebed.spark.epoch.level_task import LevelOperator, StageFunction
from statebed.spark.plan.pieces import Piece
from statebed.spark.plan.source_plan import stays_in_place
from statebed.storage import ScopedStore, get_storage_provider


def test_closed_windows_equal_a_batch_answer_and_a_restart_goes_on(rides: Any, tmp_path: Path) -> None:
    rides.state_url = str(tmp_path / "a little state, 50% of 'it' #1")  # folders may have any name
    rides.add_files(3)
    first = rides.run()
    assert rides.results() == rides.expected()
    assert first.status.state is sb.QueryState.FINISHED
    assert record_of(rides.state_url).status == pb.STOPPED
    check_one_job_of_spark_for_each_epoch(rides, first)
    check_plain_files_for_duckdb(rides)
    check_windows_in_utc(rides)
    rides.add_files(2)
    second = rides.run()
    assert rides.results() == rides.expected() != []
    assert second.run > first.run
    assert [progress.batch_id for progress in second.recent_progress] == [3, 4, None]
    assert sum(progress.rows_in for progress in first.recent_progress + second.recent_progress) == 5 * 120
    assert sum(progress.rows_late for progress in first.recent_progress + second.recent_progress) == 0


def record_of(state: str) -> pb.CheckpointMetadata:
    head = CheckpointLog(ScopedStore(get_storage_provider(state), "rides"), "rides").recover().head
    assert head is not None
    return head


def check_one_job_of_spark_for_each_epoch(rides: Any, query: sb.Query) -> None:
    jobs = rides.spark.sparkContext.statusTracker().getJobIdsForGroup(str(query.spark_query.runId))
    assert len(jobs) == 3
    assert rides.spark.conf.get("spark.sql.adaptive.enabled") == "true"  # of the user's own session


def test_what_spark_would_adapt_to_the_rows_is_left_to_it(rides: Any) -> None:
    rides.add_files(1)
    rows = rides.frame()
    known = rides.spark.createDataFrame([("ok", 1), ("void", 0)], "status string, paid int")
    assert stays_in_place(rows.where("cents > 0").withColumn("word", F.explode(F.split("status", ""))))
    assert stays_in_place(
        rows.withWatermark("ts", "1 minute").union(
            rides.spark.readStream.format("rate")
            .load()
            .selectExpr("'a' driver", "1d fare", "value cents", "'ok' status", "timestamp ts")
        )
    )
    assert not stays_in_place(rows.join(known, "status"))
    assert not stays_in_place(rows.repartition(7))


def check_plain_files_for_duckdb(rides: Any) -> None:
    listed = duckdb.read_parquet(sb.table_files(str(rides.out))).sum("trips").fetchall()
    globbed = duckdb.read_parquet(f"{rides.out}/epoch=*/*.parquet").sum("trips").fetchall()
    assert listed == globbed == [(sum(row[3] for row in rides.results()),)]


def check_windows_in_utc(rides: Any) -> None:
    window_start = sb.read_table(str(rides.out)).schema.field("window_start").type
    assert window_start == pa.timestamp("us", "UTC")
    assert min(row[1] for row in rides.results()) == dt.datetime(2024, 3, 10, 6, 30, tzinfo=dt.UTC)


def test_p6_a_restart_at_another_parallelism_gives_the_same_results(rides: Any) -> None:
    for parallelism in (2, 5, 1):
        rides.add_files(1)
        rides.run(parallelism=parallelism)
        assert rides.results() == rides.expected()
        assert len(rides.record().operators[0].subtasks) == parallelism


def test_an_upstream_that_is_provably_empty_still_commits_with_all_subtasks(rides: Any) -> None:
    rides.add_files(1)
    query = rides.run(where="false", parallelism=4)
    assert [progress.rows_in for progress in query.recent_progress] == [0]
    assert len(rides.record().operators[0].subtasks) == 4
    assert rides.results() == []


def test_late_rows_are_counted_and_never_reach_a_closed_window(rides: Any) -> None:
    rides.add_files(3)
    rides.run()
    before = rides.results()
    late = rides._rows(0, 30)
    pq.write_table(late, rides.input / "9999.parquet")
    query = rides.run()
    assert query.recent_progress[0].rows_late == 30
    assert rides.results() == before


def test_p9_a_function_sink_sees_every_epoch_with_rows_once_when_nothing_fails(rides: Any) -> None:
    seen: dict[int, int] = {}

    def collect(df: DataFrame, epoch: int) -> None:
        assert epoch not in seen
        seen[epoch] = sum(row["trips"] for row in df.collect())

    rides.add_files(3)
    job = rides.job(sink=collect)
    assert "at least once" in job.explain()
    assert "exactly once" in job.explain()
    query = job.start(available_now=True)
    assert query.await_termination(120)
    assert sum(seen.values()) == sum(row[3] for row in rides.results())
    assert all(progress.rows_out > 0 for progress in query.recent_progress if progress.epoch in seen)


def test_a_continuous_query_closes_windows_while_its_input_is_idle_and_stops_when_told(rides: Any) -> None:
    rides.add_files(3)
    query = rides.job().start(processing_time="200 milliseconds")
    assert query.await_epoch(query.run + 4, timeout=120)  # three batches, and one epoch without a batch
    deadline = time.monotonic() + 60
    while rides.results() != rides.expected() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert rides.results() == rides.expected() != []
    assert query.is_active
    assert not query.await_termination(timeout=0.1)
    query.stop()
    assert query.status.state is sb.QueryState.STOPPED
    assert query.exception is None
    rides.add_files(1)
    rides.run()
    assert rides.results() == rides.expected()


def test_a_tool_can_stop_a_continuous_query_and_the_record_says_so(rides: Any) -> None:
    rides.add_files(1)
    query = rides.job().start(processing_time="200 milliseconds")
    assert query.await_epoch(query.run + 1, timeout=120)
    store = ScopedStore(get_storage_provider(rides.state), "rides")
    answer = send_request(store, pb.Request(stop=pb.StopRequest()), timeout_s=60)
    assert answer.granted
    assert query.await_termination(60)
    assert query.status.state is sb.QueryState.STOPPED
    assert rides.record().status == pb.STOPPED


# test_tools_on_spark.py has a tool that drains a query.
@pytest.mark.parametrize("asked_by", ["query", pytest.param("tool", marks=pytest.mark.long)])
def test_a_drain_closes_every_window_and_later_rows_of_them_are_late(rides: Any, asked_by: str) -> None:
    rides.add_files(2)
    query = rides.job().start(processing_time="200 milliseconds")
    assert query.await_epoch(query.run + 2, timeout=120)
    if asked_by == "query":
        query.stop(drain=True)
    else:
        store = ScopedStore(get_storage_provider(rides.state), "rides")
        assert send_request(store, pb.Request(stop=pb.StopRequest(drain=True)), timeout_s=60).granted
        assert query.await_termination(60)
    record = rides.record()
    assert record.status == pb.DRAINED
    closed = record.operators[0].highest_closed_end_us
    assert closed == record.operators[0].inputs[0].watermark_us
    assert sum(row[3] for row in rides.results()) == sum(progress.rows_in for progress in query.recent_progress)
    again = rides.job().start(available_now=True)
    assert again.await_termination(120)
    assert rides.record().operators[0].inputs[0].watermark_us >= closed
    with pytest.raises(sb.InputError, match="nothing to drain"):
        again.stop(drain=True)


class FailsOnce(StageFunction):
    """Does all its work, then fails the task the first time."""

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        done = list(super().of_pieces(index, arrivals))
        flag = Path(self.state_url).parent / "failed"
        if self.works[0].task.epoch == 3 and not flag.exists():
            flag.touch()
            raise RuntimeError("the executor's disk is on fire")
        yield from done


class AlwaysFails(StageFunction):
    """Fails as a store does that cannot be reached."""

    def of_pieces(self, index: int, arrivals: Iterator[Piece]) -> Iterator[Piece]:
        if self.works[0].task.epoch == 3:
            raise StoreUnavailableError("the store is away")
        yield from super().of_pieces(index, arrivals)


class Refuses(StageFunction):
    """Raises what no repetition can mend."""

    def _subtask(self, work: LevelOperator, index: int, rows: Any) -> Iterator[Piece]:
        raise InputError("this cannot be", where="subtask", fix="do something else")


@pytest.fixture
def subtasks(monkeypatch: pytest.MonkeyPatch, by_value: None) -> Any:
    del by_value
    return lambda function: monkeypatch.setattr(stages_module, "StageFunction", function)


def test_p6_a_task_that_fails_after_its_side_effects_is_repeated_in_place(rides: Any, subtasks: Any) -> None:
    rides.add_files(3)
    subtasks(FailsOnce)
    query = rides.run()
    assert (rides.folder / "failed").exists()
    for one in query.recent_progress:
        tables = [table for operator in one.figures.operators for table in operator.tables]
        assert sum(table.rows for table in tables) == one.state_rows  # no attempt counts twice
    assert rides.results() == rides.expected() != []


def events(rides: Any) -> dict[str, float]:
    """Return the counts of rare events, from the metrics."""
    samples = job_metrics("rides", str(rides.state)).samples()
    return {one.labels[1]: one.value for one in samples if isinstance(one, Sample) and "events" in one.metric}


def test_p9_subtasks_that_keep_failing_stop_the_query_after_a_bounded_number_of_attempts(
    rides: Any, subtasks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rides.add_files(2)
    subtasks(AlwaysFails)
    query = rides.job().start(available_now=True)
    with pytest.raises(SubtaskError, match=r"failed 3 times.*the store is away"):
        query.await_termination(120)
    assert query.status.state is sb.QueryState.FAILED
    assert events(rides) == {"retry": 2, "failure": 1, "fenced": 0, "collection_failure": 0}
    told = [(one.levelname, one.__dict__.get("job"), one.__dict__.get("epoch")) for one in caplog.records]
    failed = rides.record().epoch + 1
    assert told.count(("WARNING", "rides", failed)) == 2
    assert told.count(("ERROR", "rides", failed)) == 1
    subtasks(StageFunction)
    rides.run()
    assert rides.results() == rides.expected()


def test_an_error_that_no_repetition_mends_arrives_at_the_driver_as_what_it_is(rides: Any, subtasks: Any) -> None:
    rides.add_files(1)
    subtasks(Refuses)
    query = rides.job().start(available_now=True)
    with pytest.raises(InputError) as caught:
        query.await_termination(120)
    assert (caught.value.where, caught.value.fix) == ("subtask", "do something else")


def test_p5_retention_bounds_the_records_and_the_job_goes_on(rides: Any) -> None:
    rides.add_files(4)
    options = RunOptions(retention=Retention(epochs=2, reader_grace="0 s"))
    query = rides.job().start(available_now=True, options=options)
    assert query.await_termination(120)
    head = rides.record()
    records = sorted((rides.state / "rides" / "checkpoints").glob("*/checkpoint.metadata"))
    assert head.min_epoch == head.epoch - 1
    assert len(records) == 2
    rides.forget_spark()
    rides.add_files(1)
    rides.run()
    assert rides.results() == rides.expected()


def test_p3_a_superseded_query_stops_with_the_error_of_being_fenced(rides: Any) -> None:
    rides.add_files(2)
    older = rides.job().start(processing_time="100 milliseconds")
    assert older.await_epoch(older.run + 2, timeout=120)
    newer = Run.open(ScopedStore(get_storage_provider(rides.state), "rides"), "rides")
    rides.add_files(1)
    with pytest.raises(sb.FencedError) as caught:
        older.await_termination(120)
    assert caught.value is older.exception
    assert caught.value.exit_code == 86
    assert events(rides)["fenced"] == 1
    assert rides.record().run == newer.number
    rides.run()
    assert rides.results() == rides.expected()


def test_a_query_whose_state_folder_is_removed_says_so_and_may_be_restarted(rides: Any) -> None:
    rides.add_files(2)
    query = rides.job().start(processing_time="100 milliseconds")
    assert query.await_epoch(query.run + 2, timeout=120)
    away = rides.state.with_name("unmounted")
    rides.state.rename(away)
    rides.add_files(1)
    with pytest.raises(StateGoneError) as caught:
        query.await_termination(120)
    assert caught.value.exit_code == 1
    assert events(rides)["fenced"] == 0
    shutil.rmtree(rides.state, ignore_errors=True)  # whatever was written where the volume had been
    away.rename(rides.state)
    rides.run()
    assert rides.results() == rides.expected()
