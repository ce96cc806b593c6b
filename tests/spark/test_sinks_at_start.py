"""Sinks that change between two starts of a job on Spark: nothing is lost without a word."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame

import statebed as sb
from statebed.checkpoint import CheckpointLog, Retention, RunOptions
from statebed.errors import InputError, SinkError, SinkStartError
from statebed.storage import ScopedStore, get_storage_provider

FEW = RunOptions(retention=Retention(epochs=2, reader_grace="0 s"))


class Failing:
    """A function that fails from one call on."""

    def __init__(self) -> None:
        self.broken = False
        self.seen: dict[int, int] = {}

    def __call__(self, df: DataFrame, epoch: int) -> None:
        if self.broken:
            raise ZeroDivisionError("the sink is down")
        self.seen[epoch] = df.count()


def windows(rides: Any, name: str = "rides") -> tuple[sb.Job, Any]:
    job = sb.Job(name, state=rides.state, parallelism=1, spark=rides.spark)
    source = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    return job, source.group_by("driver", sb.tumbling("1 minute"), name="per_minute").agg(trips=sb.count())


def finish(job: sb.Job, **arguments: Any) -> None:
    assert job.start(available_now=True, **arguments).await_termination(120)


def heads(rides: Any) -> int:
    log = CheckpointLog(ScopedStore(get_storage_provider(rides.state), "rides"), "rides")
    return log.recover().last_number


def test_steps_without_state_before_a_sink_may_change(rides: Any) -> None:
    sink = Failing()

    def store(df: DataFrame, epoch: int) -> None:
        sink(df, epoch)

    def job(condition: str) -> sb.Job:
        made = sb.Job("rides", state=rides.state, parallelism=1, spark=rides.spark)
        made.source(rides.frame(), name="rides").where(f"cents is null or {condition}").write(store)
        return made

    rides.add_files(1)
    finish(job("cents > -1000000"))
    rides.add_files(1)
    finish(job("cents > -2000000"))
    assert sum(sink.seen.values()) == 240
    sink.broken = True
    rides.add_files(1)
    with pytest.raises(SinkError, match="the sink is down"):
        finish(job("cents > -2000000"))
    sink.broken = False
    with pytest.raises(SinkStartError, match="still missing epoch"):
        finish(job("cents > -3000000"))
    finish(job("cents > -2000000"))
    assert sum(sink.seen.values()) == 360, "nothing is lost"


def test_one_more_step_before_a_sink_does_not_rename_it_and_loses_no_window(rides: Any) -> None:
    sink = Failing()

    def store(df: DataFrame, epoch: int) -> None:
        sink(df, epoch)

    def job(*, edited: bool) -> sb.Job:
        made, results = windows(rides)
        stream = results.with_columns(twice="trips * 2") if edited else results
        stream.select("driver", "trips").write(store)
        results.write("parquet", path=str(rides.out), name="minutes")
        return made

    rides.add_files(4)
    sink.broken = True
    with pytest.raises(SinkError):
        finish(job(edited=False))
    sink.broken = False
    rides.add_files(2)
    finish(job(edited=True))
    assert sum(sink.seen.values()) == len(sb.read_table(str(rides.out))) == len(rides.expected()) > 0


def test_a_sink_that_left_the_job_with_undelivered_epochs_is_refused_before_anything_is_written(rides: Any) -> None:
    sink = Failing()
    sink.broken = True
    rides.add_files(3)
    with pytest.raises(SinkError):
        rides.run(sink=sink)
    before = heads(rides)
    with pytest.raises(SinkStartError, match=r"no longer has the sink extra, which is still missing epoch"):
        rides.job().start(available_now=True)
    assert heads(rides) == before
    finish(rides.job(), abandon=["extra"])
    assert rides.results() == rides.expected() != []


def test_a_database_restored_from_an_old_backup_is_refused_and_the_live_run_goes_on(rides: Any, tmp_path: Path) -> None:
    database, copy = tmp_path / "results.db", tmp_path / "backup.db"

    def job() -> sb.Job:
        made, results = windows(rides)
        results.write("sqlite", path=str(database), table="minutes")
        return made

    rides.add_files(4)
    finish(job(), options=FEW)
    shutil.copy(database, copy)
    for _ in range(3):
        rides.add_files(3)
        finish(job(), options=FEW)
    live = job().start(processing_time="100 milliseconds", options=FEW)
    shutil.copy(copy, database)
    before = heads(rides)
    with pytest.raises(SinkStartError, match=r"sink per_minute is at epoch \d+, and epochs \d+ to \d+ are no longer"):
        job().start(available_now=True)
    assert heads(rides) == before
    assert live.is_active
    live.stop()
    shutil.copy(copy, database)
    database.unlink()
    with pytest.raises(SinkStartError, match="holds nothing at its target, though epochs up to"):
        job().start(available_now=True)
    assert not database.exists()
    finish(job(), sinks={"per_minute": "start_empty"})
    with pytest.raises(InputError, match="is not a valid choice"):
        job().start(sinks={"per_minute": "somehow"})


def test_a_sink_that_an_older_statebed_named_by_its_position_is_found_again(rides: Any) -> None:
    def job(name: str | None) -> sb.Job:
        made, results = windows(rides)
        results.select("driver", "trips").write("parquet", path=str(rides.out), name=name)
        return made

    rides.add_files(3)
    finish(job("rows_2"))  # as it was derived before
    rides.add_files(3)
    finish(job(None))
    assert sb.read_table(str(rides.out)).num_rows == len(rides.expected()) > 0


def test_tables_that_the_database_does_not_tell_apart_are_refused_where_they_are_written(
    rides: Any, tmp_path: Path
) -> None:
    rides.add_files(1)
    _, results = windows(rides)
    database = tmp_path / "results.db"
    results.write("sqlite", path=str(database), table="T", name="a")
    with pytest.raises(InputError, match="sink a and sink b write to the same target"):
        results.write("sqlite", path=str(database), table="t", name="b")
    assert not database.exists()
    with sqlite3.connect(database) as connection:
        assert connection.execute("select count(*) from sqlite_master").fetchone() == (0,)


@pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
def test_a_table_of_updating_results_is_written_anew_from_finished_state(rides: Any, tmp_path: Path) -> None:
    database = tmp_path / "results.db"

    def job() -> sb.Job:
        made = sb.Job("rides", state=rides.state, parallelism=2, spark=rides.spark)
        source = made.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
        totals = source.key_by("driver", name="totals").agg(trips=sb.count(), mean=sb.mean("cents"))
        stream = totals.where("trips > 1").with_columns(twice="trips * 2")
        stream.write("sqlite", path=str(database), table="totals", key="driver", name="totals")
        return made

    def rows() -> list[Any]:
        with sqlite3.connect(database) as connection:
            return sorted(connection.execute("select driver, trips, mean, twice from totals").fetchall(), key=repr)

    for _ in range(3):
        rides.add_files(2)
        finish(job(), options=FEW)
    before = rows()
    assert len(before) == 5
    database.unlink()
    with pytest.raises(SinkStartError, match="holds nothing at its target") as refused:
        finish(job(), options=FEW)
    assert "'rebuild'" in refused.value.fix
    finish(job(), options=FEW, sinks={"totals": "rebuild"})
    assert rows() == before
    rides.add_files(1)
    finish(job(), options=FEW, sinks={"totals": sb.SinkStart.REBUILD})
    assert [row[1] for row in rows()] != [row[1] for row in before]


def test_swapped_paths_of_sinks_without_names_are_refused(rides: Any) -> None:
    def job(minutes: str, hours: str) -> sb.Job:
        job = sb.Job("rides", state=rides.state, parallelism=2, spark=rides.spark)
        stream = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
        for name, window, path in (("by_minute", "1 minute", minutes), ("by_hour", "1 hour", hours)):
            results = stream.group_by("driver", sb.tumbling(window), name=name).agg(trips=sb.count())
            results.write("parquet", path=str(rides.folder / path))
        return job

    rides.add_files(4)
    finish(job("minutes", "hours"))
    with pytest.raises(SinkStartError, match="which has the rows of operator by_"):
        job("hours", "minutes").start(available_now=True)
    finish(job("minutes", "hours"))
