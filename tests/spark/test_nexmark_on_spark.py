"""The Nexmark queries as jobs on Spark equal DuckDB's answer over all rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duck
import numpy as np
import pyarrow as pa
import pytest

from examples.nexmark import QUERIES, rows_of
from examples.nexmark.on_spark import SCHEMAS, Events, NexmarkJob
from examples.nexmark.reference import REFERENCE
from statebed.demo.nexmark import Nexmark

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
MIDNIGHT_US = 1_767_225_600_000_000
GENERATOR = Nexmark(seed=5, events_per_second=10, out_of_order_us=3_000_000, first_time_us=MIDNIGHT_US - 100_000_000)
EVENTS = 3000
BATCHES = 3
STATELESS = {"q0", "q1", "q2", "q10", "q14", "q21", "q22"}


def together() -> list[tuple[str, ...]]:
    """Queries that can be one job: no two of their operators have one name."""
    groups: list[tuple[list[str], set[str]]] = []
    for name, query in QUERIES.items():
        operators = set(query.flow().graph.operators)
        for names, taken in groups:
            if not operators & taken:
                names.append(name)
                taken.update(operators)
                break
        else:
            groups.append(([name], operators))
    return [tuple(names) for names, _ in groups]


@pytest.fixture
def utc(spark: Any) -> Iterator[Any]:
    """Before the first operator expressions are Spark's, and `date_format` goes by the session's time zone."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    yield spark
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("names", together(), ids="-".join)
def test_p6_queries_of_one_job_equal_duckdb(utc: Any, tmp_path: Path, names: tuple[str, ...]) -> None:
    events, batches = Events(tmp_path / "events"), []
    for number in range(BATCHES):
        first, end = (EVENTS * edge // BATCHES for edge in (number, number + 1))
        rows = rows_of(SCHEMAS, GENERATOR, first=first, count=end - first, now_us=MIDNIGHT_US + number * 7_000_000)
        events.add(number, rows)
        batches.append(rows)
    job = NexmarkJob(names, tmp_path / "state", events, parallelism=3, spark=utc)
    query = job.run()
    assert not sum(one.rows_late for one in query.recent_progress)
    for name in names:
        wanted = expected(name, batches)
        assert wanted.num_rows or name == "q14"
        assert_same(job.results(name), wanted)
    if not set(names) - STATELESS:
        return
    assert any(len(one.operators) > 1 for one in query.recent_progress)


def expected(query: str, batches: list[dict[str, pa.Table]]) -> pa.Table:
    with duck.cursor() as connection:
        for name in batches[0]:
            connection.register(name, without_zones(pa.concat_tables([batch[name] for batch in batches])))
        return connection.sql(REFERENCE[query]).to_arrow_table()


def without_zones(rows: pa.Table) -> pa.Table:
    fields = [
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


def in_order(rows: pa.Table) -> pa.Table:
    """By all columns, floats last: they may differ in the last digits."""
    names = sorted(rows.column_names, key=lambda name: (pa.types.is_floating(rows.schema.field(name).type), name))
    return rows.select(names).sort_by([(name, "ascending") for name in names])


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    found = without_zones(found)
    assert set(found.column_names) == set(wanted.column_names)
    assert found.num_rows == wanted.num_rows
    found, wanted = in_order(found), in_order(wanted.select(found.column_names).cast(found.schema))
    for name in found.column_names:
        if pa.types.is_floating(found.schema.field(name).type):
            np.testing.assert_allclose(found[name].to_numpy(), wanted[name].to_numpy(), rtol=1e-9, atol=0)
        else:
            assert found[name].to_pylist() == wanted[name].to_pylist()
