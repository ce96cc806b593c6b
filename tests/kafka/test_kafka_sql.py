"""SQL text from a topic to a topic."""

import json
from pathlib import Path

import pytest
from kafka.server import Broker
from pyspark.sql import SparkSession

import statebed as sb

TEXT = """
CREATE TABLE rides (driver STRING, fare BIGINT, ts TIMESTAMP, WATERMARK FOR ts AS ts - INTERVAL '0' SECOND)
WITH (connector = 'kafka', topic = '{rides}', servers = '{servers}', max-offsets-per-trigger = 1000);
CREATE TABLE totals (driver STRING, total BIGINT, PRIMARY KEY (driver))
WITH (connector = 'kafka', topic = '{totals}', servers = '{servers}', partitions = 2);
INSERT INTO totals SELECT driver, sum(fare) FROM rides GROUP BY driver;
"""


@pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
def test_totals_of_a_topic_are_published_by_key(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    rides, totals = broker.new_topic(partitions=2), f"totals-{tmp_path.name}"
    text = TEXT.format(rides=rides, totals=totals, servers=broker.servers)
    for fares in ({"ann": 3, "bob": 4}, {"ann": 10}):
        broker.send(
            rides, [json.dumps({"driver": d, "fare": f, "ts": "2026-01-31T12:00:00Z"}) for d, f in fares.items()]
        )
        job = sb.Job("rides", state=tmp_path / "state", parallelism=2, spark=spark)
        job.execute(text)
        assert job.start(available_now=True).await_termination(120)
    newest = {
        json.loads(message.key() or b"")["driver"]: json.loads(message.value() or b"")["total"]
        for message in broker.messages(totals)
    }
    assert newest == {"ann": 13, "bob": 4}
