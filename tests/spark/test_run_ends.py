"""Ends of runs on Spark, and what the job's folder records of them."""

import time
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame

import statebed as sb
from statebed.checkpoint import CheckpointLog
from statebed.errors import FencedError, SinkError, StatebedError
from statebed.inspect.jobs import JobSummary, summarise_jobs
from statebed.inspect.run_states import RunReport, RunState, run_reports
from statebed.storage import ScopedStore, get_storage_provider


def summary(rides: Any) -> JobSummary:
    (found,) = summarise_jobs(str(rides.state))
    return found


def newest_run(rides: Any) -> RunReport:
    found = summary(rides).run
    assert found is not None
    return found


def all_runs(rides: Any) -> list[RunReport]:
    log = CheckpointLog(ScopedStore(get_storage_provider(rides.state), "rides"), "rides")
    head = log.head()
    assert head is not None
    return run_reports(log, head, now_us=time.time_ns() // 1000, limit=10)


def test_a_job_whose_sink_function_raised_is_listed_as_failed_with_what_it_owes(rides: Any) -> None:
    def fail(_df: DataFrame, _epoch: int) -> None:
        raise ZeroDivisionError("division of the user's")

    rides.add_files(2)
    with pytest.raises(SinkError):
        rides.job(sink=fail).start(available_now=True).await_termination(120)
    found = summary(rides)
    assert found.status == "failed"
    run = newest_run(rides)
    assert run.code == "SINK"
    assert "ZeroDivisionError: division of the user's" in run.what
    assert "start the job again" in run.fix
    assert run.traceback.endswith("ZeroDivisionError: division of the user's")
    assert "test_run_ends.py" in run.traceback
    assert [(one.sink, one.first_epoch, one.epochs) for one in run.undelivered] == [("extra", found.head, 1)]
    assert f"undelivered: extra (epoch {found.head})" in found.problem
    with pytest.raises(SinkError):  # before the query has begun: the sink is given what it lacks first
        rides.job(sink=fail).start(available_now=True)
    assert [run.state for run in all_runs(rides)] == [RunState.FAILED, RunState.FAILED]
    rides.run(sink=lambda _df, _epoch: None)
    assert summary(rides).status == "finished"
    assert not summary(rides).problem
    assert [run.state for run in all_runs(rides)] == [RunState.FINISHED, RunState.FAILED, RunState.FAILED]


class Doubled(sb.Process):
    output = "driver string"

    def on_batch(self, rows: pa.RecordBatch, ctx: sb.Context) -> pa.Table:
        return pa.table({"driver": [rows.num_rows // 0]})


@pytest.mark.usefixtures("by_value")
def test_a_job_whose_user_code_raised_in_a_worker_is_listed_as_failed(rides: Any) -> None:
    rides.add_files(1)
    job = sb.Job("rides", state=rides.state, spark=rides.spark, settings={"attempts": 1})
    stream = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute")).key_by("driver")
    stream.process(Doubled(), name="doubled").write(lambda _df, _epoch: None, name="out")
    with pytest.raises(StatebedError):
        job.start(available_now=True).await_termination(120)
    run = newest_run(rides)
    assert run.state is RunState.FAILED
    assert "ZeroDivisionError" in run.what
    assert run.code == "PROCESS"


def test_a_job_that_is_stopped_or_drained_says_so(rides: Any) -> None:
    rides.add_files(2)
    query = rides.job().start(processing_time="0 seconds")
    assert query.await_epoch(3, timeout=120)
    assert summary(rides).status == "running"
    query.stop()
    assert summary(rides).status == "stopped"
    query = rides.job().start(processing_time="0 seconds")
    query.stop(drain=True)
    assert summary(rides).status == "drained"
    assert not newest_run(rides).is_problem


def test_a_run_that_a_later_one_superseded_says_who_did(rides: Any) -> None:
    rides.add_files(1)
    older = rides.job().start(processing_time="0 seconds")
    assert older.await_epoch(2, timeout=120)
    rides.run()
    rides.add_files(1)
    with pytest.raises(FencedError):
        older.await_termination(120)
    newest, before = all_runs(rides)
    assert newest.state is RunState.FINISHED
    assert before.state is RunState.FENCED
    assert before.code == "FENCED"
    assert summary(rides).status == "finished"
