"""SQL text over Delta and Iceberg tables: they are read as streams, and written by their primary keys."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import statebed as sb
from statebed.errors import InputError
from statebed.sinks.lake import folder_catalog

pytestmark = pytest.mark.filterwarnings("ignore::statebed.errors.UnboundedStateWarning")
TEXT = """
CREATE TABLE rides (k STRING, n BIGINT) WITH (connector = 'delta', path = '{folder}/rides');
CREATE TABLE fares (k STRING, fare BIGINT) WITH (connector = 'iceberg', path = '{folder}/lake', table = 'rides.fares');
CREATE TABLE totals (k STRING, n BIGINT, PRIMARY KEY (k)) WITH (connector = 'delta', path = '{folder}/totals');
CREATE TABLE counts (k STRING, rides BIGINT, PRIMARY KEY (k))
WITH (connector = 'iceberg', path = '{folder}/lake', table = 'rides.counts');
INSERT INTO totals SELECT k, sum(n) FROM (SELECT k, n FROM rides UNION ALL SELECT k, fare FROM fares) GROUP BY k;
INSERT INTO counts SELECT k, count(*) FROM rides GROUP BY k;
"""


def test_rows_of_a_delta_table_become_totals_in_delta_and_iceberg(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    catalog = folder_catalog(str(tmp_path / "lake")).load()
    catalog.create_namespace("rides")
    fares = catalog.create_table("rides.fares", pa.schema([("k", pa.string()), ("fare", pa.int64())]))

    def run(rows: dict[str, list[object]]) -> None:
        fares.append(pa.table({"k": ["b"], "fare": [100]}))
        deltalake.write_deltalake(str(tmp_path / "rides"), pa.table(rows), mode="append")
        job = sb.Job("rides", spark=spark, state=tmp_path / "state", parallelism=2)
        job.execute(TEXT.format(folder=tmp_path))
        assert job.start(available_now=True).await_termination(120)

    run({"k": ["a", "b"], "n": [1, 2]})
    run({"k": ["a", "c"], "n": [10, 5]})
    totals = deltalake.DeltaTable(str(tmp_path / "totals")).to_pyarrow_table()
    assert sorted(zip(*totals.select(["k", "n"]).to_pydict().values(), strict=True)) == [
        ("a", 11),
        ("b", 202),
        ("c", 5),
    ]
    counts = folder_catalog(str(tmp_path / "lake")).load().load_table("rides.counts").scan().to_arrow()
    found = sorted(zip(*counts.select(["k", "rides"]).to_pydict().values(), strict=True))
    assert found == [("a", 2), ("b", 1), ("c", 1)]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("(k STRING) WITH (connector = 'delta', path = 'x', sort_by = 'k')", "sort_by is an option for writing"),
        ("(k STRING) WITH (connector = 'kafka', topic = 't')", "needs the option 'servers'"),
        ("WITH (connector = 'kafka', topic = 't', servers = 's')", "declares no columns, and messages have no types"),
        ("(k STRING) WITH (connector = 'kafka', topic = 't', servers = 's', value = 'raw')", "messages of JSON only"),
        ("(k STRING) WITH (connector = 'kafka', topic = 't', servers = 's', partitions = 3)", "option for writing"),
        ("(k STRING) WITH (connector = 'iceberg', path = 'x')", "needs the option 'table'"),
        ("WITH (connector = 'iceberg', table = 'a.b', path = 'x', sort_by = 'k')", "sort_by is an option for writing"),
        ("WITH (connector = 'delta', path = 'x', starting = 'soon')", "'all', 'latest' or a version, got 'soon'"),
    ],
)
def test_mistakes_in_tables_are_shown_in_the_text(spark: SparkSession, tmp_path: Path, table: str, words: str) -> None:
    job = sb.Job("rides", spark=spark, state=tmp_path / "state")
    with pytest.raises(InputError, match=words) as raised:
        job.execute(f"CREATE TABLE rides {table}; SELECT k FROM rides")
    assert "^" in str(raised.value)
