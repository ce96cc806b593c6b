"""The Nexmark queries as jobs on Spark equal DuckDB's answer over all rows."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nexmark_answers import assert_same, expected
from spark.test_sql_text import CORE

from examples.nexmark import QUERIES, rows_of
from examples.nexmark.on_spark import Events, NexmarkJob
from statebed.demo.nexmark import Nexmark

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
MIDNIGHT_US = 1_767_225_600_000_000
GENERATOR = Nexmark(seed=5, events_per_second=10, out_of_order_us=3_000_000, first_time_us=MIDNIGHT_US - 100_000_000)
EVENTS = 2000
BATCHES = 2
SOURCES = ("person", "auction", "bid", "bid_on_arrival", "side_input")
STATELESS = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}
COVERED = {*CORE, "q9", "q20"}
"""Queries that test_sql_text.py runs on Spark as text, and those whose operators q6 and q23 have as well."""


def together(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Queries that can be one job: no two of their operators have one name."""
    groups: list[tuple[list[str], set[str]]] = []
    for name in names:
        operators = set(QUERIES[name].flow().graph.operators)
        for group, taken in groups:
            if not operators & taken:
                group.append(name)
                taken.update(operators)
                break
        else:
            groups.append(([name], operators))
    return [tuple(group) for group, _ in groups]


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    """Before the first operator, expressions are Spark's, and `date_format` goes by the session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    "names",
    [
        *together(name for name in QUERIES if name not in COVERED),
        *(pytest.param(names, marks=pytest.mark.long) for names in together(QUERIES)),
    ],
    ids="-".join,
)
def test_p6_queries_of_one_job_equal_duckdb(utc: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    events, batches = Events(tmp_path / "events"), []
    for number in range(BATCHES):
        first, end = (EVENTS * edge // BATCHES for edge in (number, number + 1))
        rows = rows_of(SOURCES, GENERATOR, first=first, count=end - first, now_us=MIDNIGHT_US + number * 7_000_000)
        events.add(number, rows)
        batches.append(rows)
    job = NexmarkJob(names, tmp_path / "state", events, parallelism=3, spark=utc)
    assert "tasks, with Arrow (native scan)" in str(job.job.explain())
    query = job.run()
    assert not sum(one.rows_late for one in query.recent_progress)
    for name in names:
        wanted = expected(name, batches)
        assert wanted.num_rows or name == "q14"
        assert_same(job.results(name), wanted)
    if not set(names) - STATELESS:
        return
    assert any(len(one.operators) > 1 for one in query.recent_progress)
