"""A join whose interval has the wrong sign runs without an error, and warns in log, `show` and dashboard."""

import datetime as dt
import logging
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dashboard_client import DashboardClient
from pyspark.sql import SparkSession

import statebed as sb
from statebed.cli.render_show import Epoch, render_epoch
from statebed.inspect.contents import contents_of
from statebed.inspect.jobs import open_log
from statebed.inspect.records import record_at, summarise

ROWS = 60
"""Number of rows in each of the six files of a stream, one per second."""


def test_a_join_that_finds_no_pair_warns_once_and_is_shown(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
    for name, later in (("orders", 0), ("payments", 120)):
        (tmp_path / name).mkdir()
        for minute in range(6):
            seconds = range(minute * ROWS, (minute + 1) * ROWS)
            times = pa.array([noon + dt.timedelta(seconds=one + later) for one in seconds], pa.timestamp("us", "UTC"))
            path = tmp_path / name / f"{minute}.parquet"
            pq.write_table(pa.table({"id": list(seconds), "ts": times}), path)
            os.utime(path, (minute + 1, minute + 1))
    job = sb.Job("shop", state=tmp_path / "state", spark=spark, parallelism=2)
    streams = [
        job.source(
            spark.readStream.schema("id bigint, ts timestamp")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(tmp_path / name)),
            name=name,
            watermark=("ts", "0 seconds"),
        )
        for name in ("orders", "payments")
    ]
    # Payments come two minutes after their orders, not before.
    paid = streams[0].join(streams[1], on="id", within=sb.between("-150 seconds", "0s"))
    sink = sb.MemorySink("paid")
    paid.write(sink)
    with caplog.at_level(logging.WARNING, logger="statebed"):
        assert job.start(available_now=True).await_termination(180)
    assert not sink.rows
    told = [record.getMessage() for record in caplog.records if "no pair" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("join(on=id): the join has found no pair")
    assert "the right row is 0 seconds to 2 minutes 30 seconds before the left one" in told[0]
    log = open_log(str(tmp_path / "state"), "shop")
    record = record_at(log, None)
    summary, contents = summarise(record, held=0), contents_of(log, record)
    pieces = render_epoch(Epoch(record=record, summary=summary, contents=contents, figures=None))
    assert any("join(on=id): the join has found no pair" in str(piece) for piece in pieces)
    page = DashboardClient(tmp_path / "state").get("/jobs/shop").text
    assert "the join has found no pair" in page
    assert not re.search("(?<!/)join_[0-9a-f]{10}", page)
    entry = record.operators[0]
    assert (entry.matches.pairs, entry.matches.left.rows, entry.matches.right.rows) == (0, 360, 360)
