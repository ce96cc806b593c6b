"""Native scans return what Spark's reader returns, or leave the files to it."""

import datetime as dt
import os
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from function_rows import CASES, far_rows, random_rows
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark.queries.harness import configured
from spark.test_functions_against_spark import AT_ONCE, with_numbers

import statebed as sb
from statebed.queries.catalyst import outputs
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import analysed_plan
from statebed.spark.scan import batch_files
from statebed.spark.scan.parquet_reader import FileColumn, FilePart, ScanRefusedError, batches_of
from statebed.spark.scan.translation import programs_of

WHOLE = 1 << 40
TIMES = [dt.datetime(2024, 2, 29, 23, 59, 59, 999_999, tzinfo=dt.UTC), None, dt.datetime(1970, 1, 1, tzinfo=dt.UTC)]
OLD = [dt.datetime(1500, 1, 1, tzinfo=dt.UTC), None]
STORED: dict[str, tuple[pa.Array, str, pa.DataType]] = {
    "boolean": (pa.array([True, None, False]), "boolean", pa.bool_()),
    "tinyint": (pa.array([1, None, -128], pa.int8()), "tinyint", pa.int8()),
    "smallint": (pa.array([1, None, -32768], pa.int16()), "smallint", pa.int16()),
    "int": (pa.array([1, None, -(2**31)], pa.int32()), "int", pa.int32()),
    "bigint": (pa.array([1, None, 2**63 - 1]), "bigint", pa.int64()),
    "float": (pa.array([1.5, None, float("nan")], pa.float32()), "float", pa.float32()),
    "double": (pa.array([-0.0, None, float("inf")]), "double", pa.float64()),
    "string": (pa.array(["", None, "é\0"]), "string", pa.string()),
    "large string": (pa.array(["a", None], pa.large_string()), "string", pa.string()),
    "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), "string", pa.string()),
    "binary": (pa.array([b"", None, b"\xff"]), "binary", pa.binary()),
    "date": (pa.array([dt.date(2024, 2, 29), None, dt.date(1700, 1, 1)]), "date", pa.date32()),
    "decimal": (pa.array([Decimal("1.25"), None]).cast(pa.decimal128(9, 2)), "decimal(9,2)", pa.decimal128(9, 2)),
    "wide decimal": (pa.array([Decimal("1e20")]).cast(pa.decimal128(38, 2)), "decimal(38,2)", pa.decimal128(38, 2)),
    "micros": (pa.array(TIMES, pa.timestamp("us", tz="UTC")), "timestamp", pa.timestamp("us", tz="UTC")),
    "millis": (pa.array(TIMES[1:], pa.timestamp("ms", tz="UTC")), "timestamp", pa.timestamp("us", tz="UTC")),
    "another zone": (pa.array(TIMES, pa.timestamp("us", tz="Asia/Tokyo")), "timestamp", pa.timestamp("us", tz="UTC")),
    "without zone": (pa.array([10**15, None], pa.timestamp("us")), "timestamp_ntz", pa.timestamp("us")),
    "int as bigint": (pa.array([1, None, -(2**31)], pa.int32()), "bigint", pa.int64()),
    "smallint as int": (pa.array([1, None], pa.int16()), "int", pa.int32()),
    "float as double": (pa.array([0.1, None], pa.float32()), "double", pa.float64()),
    "list": (pa.array([[1, None], [], None]), "array<bigint>", pa.list_(pa.int64())),
    "struct": (
        pa.array([{"a": 1, "b": "x"}, None]),
        "struct<a: bigint, b: string>",
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
    ),
}
"""Columns of files, the type in the stream for Spark, and for the scan."""
REFUSED: dict[str, tuple[pa.Array, pa.DataType]] = {
    "nanoseconds": (pa.array([1], pa.timestamp("ns", tz="UTC")), pa.timestamp("us", tz="UTC")),
    "local times as instants": (pa.array([10**15], pa.timestamp("us")), pa.timestamp("us", tz="UTC")),
    "unsigned": (pa.array([1], pa.uint64()), pa.int64()),
    "bigint as int": (pa.array([1]), pa.int32()),
    "int as smallint": (pa.array([1], pa.int32()), pa.int16()),
    "binary as string": (pa.array([b"x"]), pa.string()),
    "string as bigint": (pa.array(["1"]), pa.int64()),
    "another scale": (pa.array([Decimal("1.25")]).cast(pa.decimal128(9, 2)), pa.decimal128(9, 3)),
    "fields in another order": (pa.array([{"b": 1, "a": 2}]), pa.struct([("a", pa.int64()), ("b", pa.int64())])),
    "an old date": (pa.array([dt.date(1500, 1, 1)]), pa.date32()),
    "an old time": (pa.array(OLD, pa.timestamp("us", tz="UTC")), pa.timestamp("us", tz="UTC")),
}


def scanned(path: Path, *columns: FileColumn, start: int = 0, end: int = WHOLE, **values: str | None) -> pa.Table:
    schema = pa.schema([column.field for column in columns])
    return pa.Table.from_batches(list(batches_of(FilePart(str(path), start, end, values), columns)), schema)


def column(name: str, kind: pa.DataType) -> FileColumn:
    return FileColumn(name, pa.field(name, kind))


@pytest.mark.parametrize("case", STORED)
def test_columns_are_read_as_spark_reads_them(spark: SparkSession, tmp_path: Path, case: str) -> None:
    values, ddl, kind = STORED[case]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values}), path)
    expected = spark.read.schema(f"x {ddl}").parquet(str(path)).toArrow()["x"]
    got = scanned(path, column("x", kind))["x"]
    assert got.type == kind
    assert repr(got.to_pylist()) == repr(expected.cast(kind).to_pylist())  # repr, because NaN differs from itself


def test_times_that_spark_writes_as_int96_are_instants(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    try:
        texts = ["2024-02-29 23:59:59.999999", "1900-01-01 00:00:00", "1582-10-03 12:00:00", None]
        frame = spark.createDataFrame([(text,) for text in texts], "t string").select(F.col("t").cast("timestamp"))
        frame.coalesce(1).write.parquet(str(tmp_path / "out"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    path = next((tmp_path / "out").glob("*.parquet"))
    assert pq.ParquetFile(path).schema.column(0).physical_type == "INT96"
    kind = pa.timestamp("us", tz="UTC")
    got = scanned(path, column("t", kind))["t"]
    assert got.to_pylist() == spark.read.parquet(str(path)).toArrow()["t"].cast(kind).to_pylist()


@pytest.mark.parametrize("case", REFUSED)
def test_what_spark_might_read_differently_is_refused(tmp_path: Path, case: str) -> None:
    values, kind = REFUSED[case]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values}), path)
    with pytest.raises(ScanRefusedError, match=r"a\.parquet"):
        scanned(path, column("x", kind))


def test_files_that_are_gone_or_damaged_are_left_to_spark(tmp_path: Path) -> None:
    with pytest.raises(ScanRefusedError, match="gone"):
        scanned(tmp_path / "gone.parquet", column("x", pa.int64()))
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 no footer PAR1")
    with pytest.raises(ScanRefusedError, match="damaged"):
        scanned(tmp_path / "damaged.parquet", column("x", pa.int64()))


def test_files_of_old_versions_of_spark_are_left_to_spark(tmp_path: Path) -> None:
    rows = pa.table({"x": pa.array([dt.date(2024, 1, 1)])})
    for number, metadata in enumerate(
        [
            {"org.apache.spark.version": "2.4.8"},
            {"org.apache.spark.version": "4.0.0", "org.apache.spark.legacyDateTime": ""},
        ]
    ):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(rows.replace_schema_metadata(metadata), path)
        with pytest.raises(ScanRefusedError, match="calendar"):
            scanned(path, column("x", pa.date32()))


def test_names_differ_in_case_missing_columns_are_null_and_partitions_come_from_the_path(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"X": [1, 2]}), path)
    wanted = [column("x", pa.int64()), column("gone", pa.string()), column("p", pa.int32())]
    assert scanned(path, *wanted, p="7").to_pylist() == [{"x": n, "gone": None, "p": 7} for n in (1, 2)]
    assert scanned(path, *wanted[1:], p=None).to_pylist() == [{"gone": None, "p": None}] * 2
    with pytest.raises(ScanRefusedError, match="partition"):
        scanned(path, *wanted, p="seven")
    pq.write_table(pa.table({"X": [1], "x": [2]}), path)
    with pytest.raises(ScanRefusedError, match="several columns"):
        scanned(path, wanted[0])


def test_each_row_group_belongs_to_one_part(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(1000)}), path, row_group_size=90)
    size = path.stat().st_size
    for parts in (1, 2, 3, 7, 40):
        cuts = [size * place // parts for place in range(parts + 1)]
        ranges = zip(cuts[:-1], [*cuts[1:-1], WHOLE], strict=True)
        got = [scanned(path, column("x", pa.int64()), start=start, end=end)["x"] for start, end in ranges]
        assert [value for values in got for value in values.to_pylist()] == list(range(1000))


def test_wide_rows_come_in_small_batches(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = [f"{n}" + "x" * 100_000 for n in range(50)] * 40
    pq.write_table(pa.table({"x": texts}), path)  # a dictionary of 50 values: 5 MB in the file, 200 MB in memory
    part = FilePart(str(path), 0, WHOLE, {})
    sizes = [(batch.nbytes, batch.num_rows) for batch in batches_of(part, [column("x", pa.string())])]
    assert max(nbytes for nbytes, _ in sizes) <= 10 << 20
    assert sum(rows for _, rows in sizes) == 2000


# ---- steps before the first operator ---------------------------------------------------------------------------------

SCHEMA = "k bigint, v int, name string, ts timestamp, unused double"
STEPS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "columns": lambda df: df.select("k", F.col("v").alias("w"), "ts"),
    "expressions": lambda df: df.select((F.col("k") * 2 + F.col("v")).alias("x"), F.upper("name").alias("name")),
    "conditions": lambda df: df.where("k > 3 and name is not null").where(F.col("v") < 8).select("v", "k"),
    "watermark": lambda df: df.withWatermark("ts", "1 minute").where("v > 2").select("ts", "k"),
    "no column": lambda df: df.where("v > 1").select(F.lit(1).alias("one")),
    "no column at all": lambda df: df.select("name").select(
        F.lit(1).alias("one"), F.lit(None).cast("string").alias("n")
    ),
    "view": lambda df: df.alias("a").where("a.k = 1").select("a.*"),
    "union": lambda df: df.select("k", "v").union(df.where("k = 2").select("v", "k")),
    "twice": lambda df: df.select("k", F.col("k").alias("k2"), "name").select(
        "k2", F.concat("name", "name").alias("n")
    ),
    "branches": lambda df: df.select(
        F.explode(
            F.array_compact(
                F.array(
                    F.struct(F.lit(0).alias("b"), F.col("k").alias("x")),
                    F.when(F.col("v") > 5, F.struct(F.lit(1).alias("b"), (F.col("k") + 1).alias("x"))),
                )
            )
        ).alias("row")
    ).select("row.*"),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    for number in range(2):
        pq.write_table(
            pa.table(
                {
                    "k": [n % 5 + number for n in range(20)],
                    "v": pa.array([n % 11 if n % 4 else None for n in range(20)], pa.int32()),
                    "name": [None if n % 3 == 0 else f"n{n}" for n in range(20)],
                    "ts": pa.array(range(20), pa.timestamp("us", tz="UTC")),
                }
            ),
            folder / f"{number}.parquet",
        )
    return folder


@pytest.mark.parametrize("case", STEPS)
def test_steps_give_the_rows_that_spark_gives(spark: SparkSession, rows: Path, case: str) -> None:
    stream = STEPS[case](spark.readStream.schema(SCHEMA).parquet(str(rows)))
    expected = STEPS[case](spark.read.schema(SCHEMA).parquet(str(rows))).toArrow()
    programs = programs_of(analysed_plan(stream), spark)
    batches = [
        result
        for program in programs
        for path in sorted(rows.iterdir())
        for batch in batches_of(FilePart(str(path), 0, WHOLE, {}), program.columns)
        for result in program.rows(batch, {})
    ]
    assert ("unused" in {read.name for program in programs for read in program.columns}) == (case == "view")
    got = pa.Table.from_batches(batches)
    assert got.column_names == expected.column_names
    assert sorted(map(repr, _plain(got))) == sorted(map(repr, _plain(expected)))


# ---- functions -------------------------------------------------------------------------------------------------------

INTERPRETED = {
    "spark.sql.subexpressionElimination.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings with which few rows are computed faster."""
BY_SPARK = {"org.apache.spark.version": "4.1.0"}


@pytest.fixture(scope="module")
def in_utc(spark: SparkSession) -> SparkSession:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    return session


@pytest.mark.parametrize("policy", ["CORRECTED", "EXCEPTION"])
def test_functions_in_steps_give_exactly_what_spark_gives(in_utc: SparkSession, tmp_path: Path, policy: str) -> None:
    """Every function is computed as Spark does to the last digit, or left to it. One of the files has far times."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for name, rows in {"near": random_rows(3), "far": far_rows(3)}.items():
        columns = rows.select([field.name for field in rows.schema if not pa.types.is_map(field.type)])
        # Times are known to be of today's calendar if a recent Spark is named as the writer.
        pq.write_table(columns.replace_schema_metadata(BY_SPARK), folder / f"{name}.parquet")
    stored = in_utc.read.parquet(str(folder))
    texts = [text for text in CASES if not re.search(r"\b(ms|ms2|mi)\b", text)]
    if policy != "CORRECTED":
        texts = [text for text in texts if re.search(r"\b(ts|ts2|ntz|day|day2)\b", text)]
    with configured(in_utc, {"spark.sql.legacy.timeParserPolicy": policy, **INTERPRETED}):
        left, different = [], []
        for start in range(0, len(texts), AT_ONCE):
            wanted, refused = _accepted(in_utc, stored, texts[start : start + AT_ONCE])
            left += refused
            columns = [f"{text} as e{number}" for number, text in enumerate(wanted)]
            stream = in_utc.readStream.schema(stored.schema).parquet(str(folder)).selectExpr(*columns)
            (program,) = programs_of(analysed_plan(stream), in_utc)
            for path in folder.iterdir():
                part = FilePart(str(path), 0, WHOLE, {})
                batches = [result for rows in batches_of(part, program.columns) for result in program.rows(rows, {})]
                got = pa.Table.from_batches(batches)
                expected = in_utc.read.schema(stored.schema).parquet(str(path)).selectExpr(*columns).toArrow()
                for text, ours, native in zip(wanted, got.columns, expected.columns, strict=True):
                    values = [repr(with_numbers(column.combine_chunks()).to_pylist()) for column in (ours, native)]
                    if values[0] != values[1]:
                        different.append(f"{path.name}: {text}\n  spark {values[1]}\n  ours  {values[0]}")
    assert not different, "\n".join(different)
    assert all("digits" in reason or "arrays_zip" in reason for reason in left), "\n".join(left)
    assert len(left) < len(texts) / 8


def _accepted(session: SparkSession, stored: DataFrame, texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the texts that a scan computes, and those that are left to Spark, with the reasons."""
    plan = analysed_plan(stored.selectExpr(*(f"{text} as e{number}" for number, text in enumerate(texts))))
    names = {number: f"c{number}" for number in outputs(plan.child.handle).names}
    kinds = random_rows(3).schema
    schema = pa.schema(
        [(names[number], kinds.field(name).type) for number, name in outputs(plan.child.handle).names.items()]
    )
    writer = ExpressionText(names, session=session, exact=True)
    accepted, refused = [], []
    for text, expression in zip(texts, plan.expressions("projectList"), strict=True):
        try:
            writer.bound(expression, schema)
        except UntranslatableError as error:
            refused.append(f"{text}: {error.why}")
        else:
            accepted.append(text)
    return accepted, refused


def _plain(table: pa.Table) -> list[Any]:
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return list(table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True)))).to_pylist())


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        (lambda df: df.select(F.udf(lambda k: k, "bigint")("k").alias("k")), "PythonUDF"),
        (lambda df: df.select(F.explode(F.sequence(F.lit(0), "v")).alias("x")), "only Spark can run"),
        (lambda df: df.select("_metadata.file_path"), "only Spark"),
        (lambda df: df.select(F.exp("v").alias("x")), "digits of Exp"),
        (lambda df: df.select(F.round(F.col("unused"), 1).alias("x")), "digits of Round"),
        (lambda df: df.select(F.date_format("ts", "yyyy").alias("x")), "time zone, America/New_York"),
    ],
)
def test_other_steps_are_left_to_spark(
    spark: SparkSession, rows: Path, steps: Callable[[DataFrame], DataFrame], reason: str
) -> None:
    stream = steps(spark.readStream.schema(SCHEMA).parquet(str(rows)))
    with pytest.raises(UntranslatableError, match=reason):
        programs_of(analysed_plan(stream), spark)


# ---- jobs ------------------------------------------------------------------------------------------------------------


def totals(spark: SparkSession, source: Path, state: Path, *, native: bool) -> tuple[list[Any], list[tuple[int, ...]]]:
    """Run a job over a folder, one file per batch: its results, and the rows that each epoch scanned."""
    spark.conf.set("spark.statebed.native_scan", str(native).lower())
    try:
        stream = spark.readStream.schema("k bigint, v bigint, p string, ts timestamp")
        job = sb.Job("scan", state=str(state / "state"), spark=spark, parallelism=2)
        rides = job.source(stream.option("maxFilesPerTrigger", 1).parquet(str(source)), watermark=("ts", "1 second"))
        counted = rides.where("v > 1").group_by("p", sb.tumbling("10 seconds"), name="windows")
        counted.agg(n=sb.count(), total=sb.sum("v")).write("parquet", path=str(state / "windows"))
        summed = rides.where("k < 3").key_by("k", name="sums").agg(total=sb.sum("v"))
        summed.write("parquet", path=str(state / "sums"))
        with pytest.warns(sb.UnboundedStateWarning):
            query = job.start(available_now=True)
        query.await_termination()
        scans = [epoch.scanned_rows for epoch in query.recent_progress if epoch.batch_id is not None]
        tables = [sb.read_table(str(state / name)) for name in ("windows", "sums")]
        return [sorted(map(repr, table.to_pylist())) for table in tables], scans
    finally:
        spark.conf.unset("spark.statebed.native_scan")


def partitioned(folder: Path, *, numbers: range, kind: pa.DataType) -> None:
    for number in numbers:
        place = folder / f"p={'a' if number % 2 else '__HIVE_DEFAULT_PARTITION__'}"
        place.mkdir(parents=True, exist_ok=True)
        times = pa.array([(number * 100 + n) * 1_000_000 for n in range(50)]).cast(pa.timestamp("us", tz="UTC"))
        values = {"k": [n % 5 for n in range(50)], "v": pa.array([n % 7 for n in range(50)], kind), "ts": times}
        pq.write_table(pa.table(values), place / f"{number}.parquet")
        os.utime(place / f"{number}.parquet", (10**9 + number, 10**9 + number))  # read in this order


PLACINGS = ("in place", "moved")


def place(placing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each subtask read all files, or move rows from tasks that read to subtasks."""
    if placing == "moved":
        monkeypatch.setattr(batch_files, "READ_AGAIN_BYTES", -1)


def test_p6_a_job_gives_the_same_rows_whoever_reads_its_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last file might be read differently: there Spark takes over."""
    partitioned(tmp_path / "in", numbers=range(2), kind=pa.int64())
    partitioned(tmp_path / "in", numbers=range(2, 3), kind=pa.uint32())
    expected, unscanned = totals(spark, tmp_path / "in", tmp_path / "spark", native=False)
    assert unscanned == [()] * 3
    assert all(expected)
    for placing in PLACINGS:
        place(placing, monkeypatch)
        got, scans = totals(spark, tmp_path / "in", tmp_path / placing, native=True)
        assert got == expected
        assert [sum(scan) for scan in scans] == [100, 100, 0]  # two branches with conditions of their own
        assert scans[2] == ()


def test_explain_tells_who_reads_the_sources(spark: SparkSession, rows: Path, tmp_path: Path) -> None:
    def explained(df: DataFrame) -> str:
        job = sb.Job("scan", state=str(tmp_path / "state"), spark=spark)
        job.source(df).key_by("k").agg(n=sb.count()).write("memory")
        return next(line for line in str(job.explain()).splitlines() if line.strip().startswith("read by"))

    stream = spark.readStream.schema(SCHEMA)
    assert "tasks, with Arrow" in explained(stream.parquet(str(rows)))
    assert "PythonUDF" in explained(stream.parquet(str(rows)).select(F.udf(lambda k: k, "bigint")("k").alias("k")))
    assert "format json" in explained(stream.json(str(rows)))
    assert "mergeSchema" in explained(stream.option("mergeSchema", "true").parquet(str(rows)))


@pytest.mark.parametrize("placing", PLACINGS)
def test_p6_spark_takes_over_when_an_expression_fails_for_a_row(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placing: str
) -> None:
    """Spark does not divide if the other operand is null; statebed's expressions divide whole batches."""
    place(placing, monkeypatch)
    source = tmp_path / "in"
    source.mkdir()
    divisors = pa.array([2, 0, 5], pa.int64())
    pq.write_table(pa.table({"k": pa.array([1, None, 3], pa.int64()), "v": divisors}), source / "a.parquet")
    stream = spark.readStream.schema("k bigint, v bigint").parquet(str(source))
    job = sb.Job("scan", state=str(tmp_path / "state"), spark=spark, parallelism=2)
    rows = job.source(stream.select("k", F.expr("k + 10 div v").alias("x")))
    rows.key_by("k").agg(total=sb.sum("x")).write("parquet", path=str(tmp_path / "out"))
    assert "tasks, with Arrow" in str(job.explain())
    with pytest.warns(sb.UnboundedStateWarning):
        query = job.start(available_now=True)
    query.await_termination()
    totals = {row["k"]: row["total"] for row in sb.read_table(str(tmp_path / "out")).to_pylist()}
    assert totals == {1: 6, None: None, 3: 5}
    assert [epoch.scanned_rows for epoch in query.recent_progress if epoch.batch_id is not None] == [()]
