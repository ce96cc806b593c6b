"""examples/fraud: rules change while the job runs, and every payment is compared with the rules of its time."""

import time
from pathlib import Path

import duckdb
import pyarrow as pa
from kafka.server import Broker
from pyspark.sql import SparkSession

import statebed as sb
from examples.fraud.job import PAYMENTS, RULES, fraud_job
from examples.fraud.traffic import FIRST_RULES, SECOND_RULES, alerts, create_topics, payments, send

WAIT_SECONDS = 150


def wait_for_rules(query: sb.Query, state: Path, count: int, text: str) -> None:
    """Wait until the state has `count` rules, one of which contains the text."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            rules = sb.read_state(state, operator="flagged", table="rules").to_arrow().to_pylist()
        except sb.StatebedError:  # no epoch is committed yet
            rules = []
        if len(rules) == count and text in str(rules):
            return
        assert time.monotonic() < deadline, rules
        assert query.is_active, query.exception
        time.sleep(0.2)


def rows_in(query: sb.Query) -> int:
    return sum(epoch.operators["flagged"].rows_in for epoch in query.recent_progress)


def wait_for_rows(query: sb.Query, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while rows_in(query) < count:
        assert time.monotonic() < deadline
        assert query.is_active, query.exception
        time.sleep(0.2)


def test_each_payment_is_compared_with_the_rules_that_were_in_force(
    broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    create_topics(broker.servers)
    state, batches = tmp_path / "state", []
    query = fraud_job(broker.servers, state, spark=spark).start()
    try:
        for number, rules in enumerate([FIRST_RULES, SECOND_RULES]):
            send(broker.servers, RULES, rules, key="rule")
            in_force = [rule for rule in rules if not rule["is_retired"]]
            wait_for_rules(query, state, len(in_force), in_force[-1]["rule"])
            batch = payments(first=1_000 * number, count=1_000)
            before = rows_in(query)
            send(broker.servers, PAYMENTS, batch, key="card")
            wait_for_rows(query, before + len(batch))
            batches.append((pa.Table.from_pylist(batch), pa.Table.from_pylist(rules)))
    finally:
        query.stop(drain=True)
    with duckdb.connect() as connection:
        expected = []
        for batch_rows, rules_rows in batches:
            connection.register("batch", batch_rows)
            connection.register("rules", rules_rows)
            expected += connection.execute(
                "select payment, rule, min_cents from batch, rules where not is_retired and cents >= min_cents "
                "and (only_country is null or country = only_country)"
            ).fetchall()
    found = [(alert["payment"], alert["rule"], alert["min_cents"]) for alert in alerts(broker.servers)]
    assert len(expected) > 100
    assert sorted(found) == sorted(expected)
