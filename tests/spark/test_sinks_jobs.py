"""Whole jobs into databases and files: running totals are the same everywhere, whatever dies in between."""

import contextlib
import itertools
import json
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import statebed as sb
from statebed.checkpoint import Run
from statebed.errors import InputError
from statebed.sinks.sql import SqlTableSink

Totals = dict[str | None, tuple[int, int]]


class DeathError(Exception):
    """Stands for the death of the driver."""


def totals_job(rides: Any, postgres: Any) -> sb.Job:
    """Trips and cents of each driver, kept up to date, in five places; and results of windows in two."""
    job = sb.Job("rides", state=rides.state, parallelism=2, spark=rides.spark)
    stream = job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
    totals = stream.key_by("driver", name="totals").agg(trips=sb.count(), cents=sb.sum("cents"), ttl="365 days")
    totals.write("postgres", name="rows", key="driver", table="totals", dsn=postgres.dsn, password=postgres.password)
    totals.write("sqlite", name="file", key="driver", table="totals", path=str(rides.folder / "totals.db"))
    totals.write("parquet", name="changes", path=str(rides.folder / "changes"))
    totals.write("debezium", name="messages", key="driver", path=str(rides.folder / "messages"))
    doubled = totals.transform(lambda df: df.withColumn("cents", F.col("cents") * 2))
    doubled.write("sqlite", name="doubled", key="driver", table="doubled", path=str(rides.folder / "doubled.db"))
    minutes = stream.group_by("driver", sb.tumbling("1 minute"), name="minutes").agg(trips=sb.count())
    minutes.write(
        "postgres",
        name="minutes_rows",
        table="minutes",
        dsn=postgres.dsn,
        password=postgres.password,
        epoch_column="epoch",
    )
    minutes.write("json", name="minutes_json", path=f"{rides.folder}/minutes/{{epoch}}", mode="overwrite")
    return job


def run(rides: Any, postgres: Any) -> None:
    assert totals_job(rides, postgres).start(available_now=True).await_termination(200)


def expected_totals(rides: Any) -> Totals:
    rows = pq.read_table(rides.input)
    with duckdb.connect() as connection:
        connection.register("rides", rows)
        found = connection.execute("select driver, count(*), sum(cents)::bigint from rides group by driver").fetchall()
    return {driver: (trips, cents) for driver, trips, cents in found}


def test_p2_p6_totals_are_the_same_everywhere_though_the_driver_dies_between_table_and_marker(
    rides: Any, postgres: Any
) -> None:
    for owner, name, occasion in (
        (SqlTableSink, "publish", 1),
        (SqlTableSink, "publish", 4),
        (Run, "mark_published", 3),
    ):
        rides.add_files(1)
        step, calls = getattr(owner, name), itertools.count(1)

        def deadly(*arguments: Any, step: Any = step, calls: Any = calls, last: int = occasion, **named: Any) -> Any:
            done = step(*arguments, **named)
            if next(calls) == last:
                raise DeathError
            return done

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, deadly)
            with pytest.raises(DeathError):
                run(rides, postgres)
    rides.add_files(1)
    run(rides, postgres)

    expected = expected_totals(rides)
    assert len(expected) == 5
    in_postgres = postgres.run("select driver, trips, cents from totals")
    assert {row[0]: row[1:] for row in in_postgres} == expected
    assert len(in_postgres) == len(expected)
    assert read_sqlite(rides.folder / "totals.db", "totals") == expected
    doubled = read_sqlite(rides.folder / "doubled.db", "doubled")
    assert doubled == {driver: (trips, 2 * cents) for driver, (trips, cents) in expected.items()}
    assert fold_with_spark(rides) == expected
    assert applied_messages(rides.folder / "messages") == expected

    minutes = "select driver, extract(epoch from window_start)::bigint, trips from minutes"
    in_table = sorted(postgres.run(minutes), key=repr)
    in_files = sorted(read_minutes(rides), key=repr)
    assert in_table == in_files
    assert len(in_table) > 10
    assert len({row[:2] for row in in_table}) == len(in_table)


def read_sqlite(path: Path, table: str) -> Totals:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(f"select driver, trips, cents from {table}").fetchall()
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows}


def fold_with_spark(rides: Any) -> Totals:
    changes: DataFrame = rides.spark.read.parquet(*sb.table_files(str(rides.folder / "changes")))
    folded = changes.groupBy("driver", "trips", "cents").agg(F.sum("_weight").alias("weight")).where("weight <> 0")
    rows = folded.collect()
    assert all(row["weight"] == 1 for row in rows)
    return {row["driver"]: (row["trips"], row["cents"]) for row in rows}


def applied_messages(path: Path) -> Totals:
    found: Totals = {}
    for file in sb.table_files(str(path)):
        for line in Path(file).read_text().splitlines():
            message = json.loads(line)
            before, after = message["before"], message["after"]
            if before:
                assert found.pop(before["driver"]) == (before["trips"], before["cents"])
            if after:
                found[after["driver"]] = (after["trips"], after["cents"])
    return found


def read_minutes(rides: Any) -> list[tuple[Any, ...]]:
    frame = rides.spark.read.json(f"{rides.folder}/minutes/*/*.json")
    seconds = F.unix_timestamp(F.col("window_start").cast("timestamp"))
    return [tuple(row) for row in frame.select("driver", seconds, "trips").collect()]


def test_a_changelog_without_key_is_refused_before_anything_is_written(rides: Any) -> None:
    rides.input.mkdir()
    job = sb.Job("rides", state=rides.state, spark=rides.spark)
    totals = (
        job.source(rides.frame(), name="rides", watermark=("ts", "1 minute"))
        .key_by("driver", name="totals")
        .agg(trips=sb.count(), ttl="365 days")
    )
    with pytest.raises(InputError, match="which columns identify a row") as caught:
        totals.write("sqlite", path=str(rides.folder / "x.db"), table="t")
    assert "key='driver'" in caught.value.fix
    with pytest.raises(InputError, match="unknown options: tabel"):
        totals.write("sqlite", path=str(rides.folder / "x.db"), key="driver", tabel="t")
    totals.write("sqlite", path=str(rides.folder / "x.db"), table="t", key="driver")
    text = job.explain()
    assert f"SQLite table t in {rides.folder}/x.db, one row per driver (exactly once)" in text
    assert not (rides.folder / "x.db").exists()
    assert not rides.state.exists()
