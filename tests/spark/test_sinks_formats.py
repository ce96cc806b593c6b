"""Sinks on a real Spark: its own formats, functions before sinks, and tables that Spark and DuckDB read."""

import contextlib
import datetime as dt
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from published import publication
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import statebed as sb
from statebed.checkpoint import Guarantee
from statebed.errors import InputError, SinkError
from statebed.format.stream_schema import Changes, Output
from statebed.sinks.base import BaseSink
from statebed.spark.api.outputs import described, make_sink, probe_sinks

COLUMNS = pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
WEIGHTED = pa.schema([*COLUMNS, pa.field("_weight", pa.int64(), nullable=False)])
APPEND, CHANGES = Output(COLUMNS), Output(COLUMNS, Changes.CHANGELOG)
AT = 1_767_225_600_000_000


def rows(*values: tuple[str | None, int]) -> pa.Table:
    return pa.table([*map(list, zip(*((k, n, AT) for k, n in values), strict=True))], schema=COLUMNS)


def changes(*values: tuple[str | None, int, int]) -> pa.Table:
    return pa.table([*map(list, zip(*((k, n, AT, w) for k, n, w in values), strict=True))], schema=WEIGHTED)


@pytest.fixture
def make(spark: SparkSession) -> Any:
    """A sink as a job makes it, opened by run 1."""

    def made(sink: Any, output: Output = APPEND, *, run: int = 1, **given: Any) -> Any:
        transform = given.pop("transform", None)
        known = {name: given.pop(name) for name in ("path", "name", "key") if name in given}
        one = make_sink(
            sink,
            output=output,
            operator_id="per_minute",
            job_id="rides",
            session=spark,
            options=given,
            transform=transform,
            **known,
        )
        assert isinstance(one, BaseSink)
        one.check(last_number=100)
        probe_sinks([one])
        one.open(run)
        return one

    return made


def test_json_in_a_folder_per_epoch_is_there_once_though_it_is_written_twice(make: Any, tmp_path: Path) -> None:
    sink = make("json", path=f"{tmp_path}/{{epoch}}", mode="overwrite", epoch_column="epoch")
    for epoch, number in ((2, 1), (2, 1), (3, 2)):
        sink.publish(publication(1, epoch, rows(("a", number), (None, number))))
    lines = [json.loads(line) for file in sorted(tmp_path.glob("0*/*.json")) for line in file.read_text().splitlines()]
    assert sorted((line["epoch"], line.get("k"), line["n"]) for line in lines if line.get("k")) == [
        (2, "a", 1),
        (3, "a", 2),
    ]
    assert len(lines) == 4
    assert "at least once" in described(sink)
    assert "Spark format json" in described(sink)


def test_a_table_behind_jdbc_gets_rows_by_the_formats_own_options(
    make: Any, spark: SparkSession, tmp_path: Path
) -> None:
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", f"{tmp_path}/derby.log")  # type: ignore[union-attr]
    url = f"jdbc:derby:{tmp_path}/derby;create=true"
    driver = "org.apache.derby.jdbc.EmbeddedDriver"
    sink = make("jdbc", url=url, dbtable="results", driver=driver, epoch_column="epoch")
    sink.publish(publication(1, 2, rows(("a", 1), ("b", 2))))
    sink.publish(publication(1, 3, rows(("c", 3))))
    read = spark.read.format("jdbc").options(url=url, dbtable="results", driver=driver).load()
    assert sorted((row["k"], row["n"], row["epoch"]) for row in read.collect()) == [
        ("a", 1, 2),
        ("b", 2, 2),
        ("c", 3, 3),
    ]
    with pytest.raises(SinkError, match="Spark's format jdbc of sink broken failed"):
        make("jdbc", name="broken", url="jdbc:nothing:x", dbtable="t").publish(publication(1, 2, rows(("a", 1))))


@pytest.mark.long  # to the sink it is the same as json and jdbc
def test_a_format_written_in_python_is_a_format_like_any_other(make: Any, spark: SparkSession, tmp_path: Path) -> None:
    class Tally(DataSource):
        """Writes how many rows each epoch has."""

        @classmethod
        def name(cls) -> str:
            return "tally"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
            folder = self.options["path"]

            class Writer(DataSourceWriter):
                def write(self, iterator: "Iterator[Row]") -> "WriterCommitMessage":
                    with (Path(folder) / "rows").open("a") as file:
                        file.writelines(f"{row['k']} {row['epoch']}\n" for row in iterator)
                    return WriterCommitMessage()

            return Writer()

    spark.dataSource.register(Tally)
    sink = make("tally", path=str(tmp_path), epoch_column="epoch")
    sink.publish(publication(1, 2, rows(("a", 1), ("b", 2))))
    assert sorted((tmp_path / "rows").read_text().splitlines()) == ["a 2", "b 2"]


def test_a_format_that_spark_lacks_is_refused_with_what_there_is(make: Any) -> None:
    with pytest.raises(InputError, match="there is no sink 'parqet'") as caught:
        make("parqet", path="out")
    assert "console, debezium, delta, iceberg, kafka, memory, parquet, postgres, sqlite" in caught.value.fix


def test_a_changelog_needs_a_word_about_its_form_where_rows_are_only_added(make: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only appends rows") as caught:
        make("json", CHANGES, path=str(tmp_path / "out"))
    assert "key='k'" in caught.value.fix
    sink = make("json", CHANGES, path=str(tmp_path / "out"), key="k", partition_by="row_kind")
    sink.publish(publication(1, 2, changes(("a", 1, -1)), changes(("a", 2, 1), ("b", 1, 1))))
    kinds = sorted(folder.name for folder in (tmp_path / "out").glob("row_kind=*"))
    assert kinds == ["row_kind=insert", "row_kind=update_after", "row_kind=update_before"]


def test_a_function_gets_a_dataframe_of_the_epoch_after_the_function_before_it(make: Any) -> None:
    seen: list[tuple[int, list[Any]]] = []

    def before(df: DataFrame) -> DataFrame:
        return df.where("n > 1").select(F.upper("k").alias("name"), "n")

    sink = make(lambda df, epoch: seen.append((epoch, [tuple(row) for row in df.collect()])), transform=before)
    sink.publish(publication(1, 2, rows(("a", 1), ("b", 2))))
    assert seen == [(2, [("B", 2)])]
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    with pytest.raises(InputError, match="a function sink does not accept lines"):
        make(print, lines=3)


def test_spark_and_duckdb_read_the_table_by_manifest_and_by_folder(
    make: Any, spark: SparkSession, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    sink = make("parquet", CHANGES, path=out, name="totals")
    sink.publish(publication(1, 2, changes(("a", 1, 1), (None, 5, 1)), changes(("b", 1, 1))))
    sink.publish(publication(1, 3, changes(("a", 1, -1), ("a", 2, 1), ("b", 1, -1))))
    expected = [("a", 2), (None, 5)]
    by_epoch = [(2, 3), (3, 3)]
    fold = "select k, n from {} group by k, n, ts having sum(_weight) > 0 order by k nulls last"
    files = sb.table_files(out)

    spark.read.parquet(*files).createOrReplaceTempView("by_manifest")
    spark.read.parquet(out).createOrReplaceTempView("by_folder")
    for view in ("by_manifest", "by_folder"):
        assert [tuple(row) for row in spark.sql(fold.format(view)).collect()] == expected
    counted = spark.sql("select epoch, count(*) from by_folder group by epoch order by epoch")
    assert [tuple(row) for row in counted.collect()] == by_epoch

    with duckdb.connect() as connection:
        glob = f"read_parquet('{out}/epoch=*/*.parquet', hive_partitioning = true)"
        for table in (f"read_parquet({files})", glob):
            assert connection.execute(fold.format(table)).fetchall() == expected
        counted_by_duckdb = connection.execute(f"select epoch::int, count(*) from {glob} group by all order by all")
        assert counted_by_duckdb.fetchall() == by_epoch
    assert sb.read_table(out).schema.names == ["k", "n", "ts", "_weight"]


def test_what_a_function_makes_goes_into_tables_once(make: Any, tmp_path: Path) -> None:
    def doubled(df: DataFrame) -> DataFrame:
        return df.select(F.col("k"), (F.col("n") * 2).alias("twice"), F.current_date().alias("day"), "_weight")

    sinks = [
        make("parquet", CHANGES, path=str(tmp_path / "out"), name="files", transform=doubled),
        make("sqlite", CHANGES, path=str(tmp_path / "out.db"), name="rows", table="t", key="k", transform=doubled),
    ]
    for sink in sinks:
        for epoch, change in ((2, changes(("a", 1, 1))), (3, changes(("a", 1, -1), ("a", 3, 1)))):
            for _ in range(2):
                sink.publish(publication(1, epoch, change))
        assert sink.guarantee is Guarantee.EXACTLY_ONCE
    assert sb.read_table(str(tmp_path / "out")).select(["twice", "_weight"]).to_pylist() == [
        {"twice": 2, "_weight": 1},
        {"twice": 2, "_weight": -1},
        {"twice": 6, "_weight": 1},
    ]
    with contextlib.closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        assert connection.execute("select k, twice from t").fetchall() == [("a", 6)]
    with pytest.raises(InputError, match="returns rows without _weight"):
        make("memory", CHANGES, transform=lambda df: df.select("k"))
    with pytest.raises(InputError, match="must list columns of the stream"):
        make("sqlite", path=str(tmp_path / "x.db"), table="t", key="n", transform=lambda df: df.select("k"))
    with pytest.raises(InputError, match="returns a column '_weight', which is reserved"):
        make("memory", transform=lambda df: df.selectExpr("k", "1 as _weight"))


def test_memory_is_a_view_of_all_rows(make: Any, spark: SparkSession) -> None:
    sink = make("memory", name="seen")
    assert spark.table("seen").columns == COLUMNS.names
    sink.publish(publication(1, 2, rows(("a", 1))))
    sink.publish(publication(1, 3, rows(("b", 2))))
    assert sorted((row["k"], row["n"]) for row in spark.table("seen").collect()) == [("a", 1), ("b", 2)]
    assert [row["k"] for row in sink.rows] == ["a", "b"]


def test_local_times_stay_local_in_every_sink_though_the_sessions_zone_skips_them(
    make: Any, spark: SparkSession, tmp_path: Path
) -> None:
    skipped = dt.datetime(2024, 3, 10, 2, 30)  # noqa: DTZ001 - a local time; in New York clocks went from 2 to 3
    local = pa.timestamp("us")
    columns = pa.schema([("at", local), ("seen", pa.list_(pa.struct([("at", local)])))])
    output, seen = Output(columns), [{"at": skipped}]
    given: list[Any] = []

    def found(df: DataFrame) -> Any:
        return df.schema.simpleString(), *map(tuple, df.collect())

    sinks = [
        make(lambda df, _: given.append(found(df)), output),
        make("orc", output, path=f"{tmp_path}/{{epoch}}", mode="overwrite", name="files"),
        make("memory", output, name="locals"),
        make("parquet", output, path=f"{tmp_path}/out", name="made", transform=lambda df: df.filter("at is not null")),
    ]
    for sink in sinks:
        sink.publish(publication(1, 2, pa.table([[skipped], [seen]], schema=columns)))
    frames = [spark.read.orc(str(next(tmp_path.glob("0*")))), spark.table("locals")]
    given += map(found, frames)
    kind = "struct<at:timestamp_ntz,seen:array<struct<at:timestamp_ntz>>>"
    assert given == [(kind, (skipped, [Row(at=skipped)]))] * 3
    assert sb.read_table(f"{tmp_path}/out").select(["at", "seen"]).to_pylist() == [{"at": skipped, "seen": seen}]


def test_a_function_gets_columns_with_the_types_and_nulls_of_the_stream(make: Any) -> None:
    columns = pa.schema(
        [
            pa.field("k", pa.string(), nullable=False),
            pa.field("price", pa.decimal128(12, 2)),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("counts", pa.map_(pa.string(), pa.int64())),
            pa.field("parts", pa.struct([pa.field("day", pa.date32()), pa.field("raw", pa.binary())])),
            pa.field("took", pa.duration("us")),
        ]
    )
    schemas: list[StructType] = []
    make(lambda df, _: schemas.append(df.schema), Output(columns)).publish(
        publication(1, 2, pa.table([["a"], *([None] for _ in columns.names[1:])], schema=columns))
    )
    assert schemas[0].simpleString() == (
        "struct<k:string,price:decimal(12,2),at:timestamp,counts:map<string,bigint>,"
        "parts:struct<day:date,raw:binary>,took:interval day to second>"
    )
    assert [field.nullable for field in schemas[0]] == [False, True, True, True, True, True]


def test_a_sink_of_the_users_own_takes_no_options(make: Any) -> None:
    own = sb.MemorySink("mine")
    assert make(own) is own
    with pytest.raises(InputError, match="takes rows as they are"):
        make(sb.MemorySink("other"), key="k")
    with pytest.raises(InputError, match="expected a sink, got 3"):
        make(3)
