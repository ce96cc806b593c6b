"""The programs of examples/: each runs as it is, in two starts, and must agree with DuckDB over all its input."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from postgres.server import PostgresSchema
from pyspark.sql import SparkSession

import statebed as sb
from examples.clickstream.clicks import add_clicks
from examples.clickstream.job import TABLE as SESSIONS
from examples.clickstream.job import sessions_job
from examples.devices.job import devices_job
from examples.devices.readings import add_readings
from examples.features.job import FEATURES, features_job, follow
from examples.features.purchases import add_purchases
from examples.orders.events import add_events
from examples.orders.job import TABLE as BALANCE
from examples.orders.job import balance_job
from statebed.sinks.lake import folder_catalog

MIB = 1 << 20


def answer(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for name, table in tables.items():
            connection.register(name, table)
        return sorted(connection.execute(query).fetchall(), key=repr)


def run(job: sb.Job, seconds: float = 250) -> sb.Query:
    query = job.start(available_now=True)
    assert query.await_termination(seconds)
    return query


def test_clickstream_sessions_in_iceberg_equal_those_that_duckdb_finds(spark: SparkSession, tmp_path: Path) -> None:
    clicks, lake = tmp_path / "clicks", tmp_path / "lake"
    for _ in range(2):
        add_clicks(clicks, users=60, files=2)
        run(sessions_job(clicks, tmp_path / "state", lake, spark=spark))
    rows = folder_catalog(str(lake)).load().load_table(SESSIONS).scan().to_arrow()
    columns = "user_id, started_at, ended_at, clicks, pages, landing_page, exit_page, bought"
    expected = f"""
        with steps as (
            select *, lag(ts) over visitor is null or ts - lag(ts) over visitor >= interval '30 minutes' as is_first
            from '{clicks}/*.parquet' window visitor as (partition by user_id order by ts)),
        visits as (select *, sum(is_first::int) over (partition by user_id order by ts) as visit from steps),
        sessions as (
            select user_id, min(ts) as started_at, max(ts) + interval '30 minutes' as ended_at, count(*) as clicks,
                   count(distinct page) as pages, arg_min(page, (ts, page)) as landing_page,
                   arg_min(page, (-epoch_us(ts), page)) as exit_page, count(*) filter (page = '/checkout') as bought
            from visits group by user_id, visit)
        select {columns} from sessions
        where ended_at <= (select max(ts) from '{clicks}/*.parquet') - interval '10 minutes'
        """
    found = answer(f"select {columns} from sessions", sessions=rows)
    assert len(found) > 100
    assert found == answer(expected)


def test_order_balances_in_postgres_equal_duckdbs_join_of_the_newest_events(
    spark: SparkSession, tmp_path: Path, postgres: PostgresSchema
) -> None:
    events = tmp_path / "events"
    target = {"sink": "postgres", "dsn": postgres.dsn, "password": postgres.password}
    for _ in range(2):
        add_events(events, files=1)
        job = balance_job(events, tmp_path / "state", target, spark=spark)
        with pytest.warns(sb.UnboundedStateWarning):
            run(job)
    newest = """
        select unnest(arg_max({row}, source.lsn)) from '{events}/{table}/*.json'
        group by coalesce(after.id, before.id) having arg_max(op, source.lsn) <> 'd'
        """
    orders = newest.format(row="after", events=events, table="orders")
    payments = newest.format(row="after", events=events, table="payments")
    expected = f"""
        with orders as ({orders}), payments as ({payments}),
        paid as (select order_id, count(*) as payments, sum(cents)::bigint as cents from payments group by order_id)
        select id, customer, total_cents, coalesce(payments, 0), total_cents - coalesce(cents, 0),
               case when coalesce(cents, 0) >= total_cents then 'paid'
                    when payments > 0 then 'partly paid' else 'open' end
        from orders left join paid on id = order_id
        """
    columns = "order_id, customer, total_cents, payments, open_cents, status"
    found = postgres.run(f"select {columns} from {BALANCE}")
    assert {row[-1] for row in found} == {"paid", "partly paid", "open"}
    assert sorted(found, key=repr) == answer(expected)


@pytest.mark.parametrize(
    ("devices", "memory"),
    [(20_000, "64m"), pytest.param(1_000_000, "256m", marks=[pytest.mark.long, pytest.mark.timeout(1500)])],
)
def test_readings_of_many_devices_are_passed_on_once_within_the_memory_budget(
    spark: SparkSession, tmp_path: Path, devices: int, memory: str
) -> None:
    readings, out = tmp_path / "readings", tmp_path / "out"
    progress = []
    for _ in range(2):
        add_readings(readings, devices=devices, rounds=2)
        query = run(devices_job(readings, tmp_path / "state", out, memory=memory, spark=spark), 1200)
        progress += query.recent_progress
    found = sb.read_table(str(out))
    counts = answer(
        f"""
        select (select count(*) from '{readings}/*.parquet'), (select count(*) from once),
               (select count(*) from (from once intersect all select distinct * from '{readings}/*.parquet'))
        """,
        once=found.select(["device", "sequence", "celsius", "ts"]),
    )
    assert counts == [(4 * devices + 3 * (devices // 2), 4 * devices, 4 * devices)]
    assert progress[-1].state_rows == 4 * devices
    hosts = [host for epoch in progress for host in epoch.figures.hosts]
    for host in hosts:
        print(f"peak {host.peak_bytes / MIB:.1f} of {host.budget_bytes / MIB:.1f} MiB")  # noqa: T201 - shown with -s
    assert hosts
    assert max(host.peak_bytes for host in hosts) <= hosts[0].budget_bytes


def test_the_online_store_follows_the_features_of_the_job(spark: SparkSession, tmp_path: Path) -> None:
    purchases, online = tmp_path / "purchases", tmp_path / "online.db"
    state, history = tmp_path / "state", tmp_path / "history"
    for _ in range(2):
        add_purchases(purchases, customers=300, files=1)
        run(features_job(purchases, state, history, spark=spark))
        follow(state, online, tmp_path / "follower", spark=spark)
    expected = f"""
        select customer, count(*), sum(cents)::bigint, max(cents), count(distinct category),
               epoch_us(max(ts))
        from '{purchases}/*.parquet' group by customer
        """
    with contextlib.closing(sqlite3.connect(online)) as database:
        rows = database.execute("select * from features").fetchall()
    served = pa.table(dict(zip(("customer", *FEATURES), zip(*rows, strict=True), strict=True)))
    assert answer(
        "select * replace (epoch_us(last_purchase::timestamptz) as last_purchase) from f", f=served
    ) == answer(expected)
    offline = sb.read_state(str(state), operator="features", results=True).to_arrow()
    columns = "customer, purchases, spent_cents, largest_cents, categories, epoch_us(last_purchase)"
    assert answer(f"select {columns} from offline", offline=offline) == answer(expected)
