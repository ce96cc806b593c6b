"""Functions against Spark's own answer over random rows: values, nulls, types, and errors."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from docs.functions_page import PAGE, is_between, page, spark_functions
from expression_cases import EXPRESSIONS
from function_rows import CASES, far_rows, random_rows
from pyspark.sql import SparkSession

from statebed.expressions import FUNCTIONS, bind

AT_ONCE = 120
"""Expressions in one query: more make Spark's analysis slower than another query."""


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    """A session whose times are UTC, as ours are, and that interprets expressions, which is faster for few rows."""
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "UTC")
    session.conf.set("spark.sql.subexpressionElimination.enabled", "false")
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


def comparable(value: Any) -> Any:
    """Return a value that is equal for equal results. Doubles may differ in their last digits."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, list | tuple):
        return [comparable(one) for one in value]
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items()}
    return value


def differences(session: SparkSession, folder: Path, rows: pa.Table, texts: list[str]) -> list[str]:
    path = folder / "rows.parquet"
    pq.write_table(rows, path)
    frame = session.read.parquet(str(path))
    different = []
    for start in range(0, len(texts), AT_ONCE):
        cases = texts[start : start + AT_ONCE]
        native = frame.selectExpr(*(f"{text} as e{number}" for number, text in enumerate(cases))).toArrow()
        for text, column in zip(cases, native.columns, strict=True):
            difference = compared(text, rows, column.combine_chunks())
            if difference:
                different.append(f"{text}\n{difference}")
    return different


def compared(text: str, rows: pa.Table, theirs: pa.Array) -> str | None:
    bound = bind(text, rows.schema)
    ours = bound.evaluate(rows)
    ours.validate(full=True)
    assert ours.type == bound.type, text
    assert bound.nullable or not ours.null_count, text
    if str(ours.type) != str(theirs.type):
        return f"  spark {theirs.type}\n  ours  {ours.type}"
    pairs = zip(with_numbers(ours).to_pylist(), with_numbers(theirs).to_pylist(), strict=True)
    for row, (mine, native) in enumerate(pairs):
        if repr(comparable(mine)) != repr(comparable(native)):
            columns = {name: with_numbers(rows.column(name).combine_chunks()) for name in sorted(bound.columns)}
            given = {name: column[row].as_py() for name, column in columns.items()}
            return f"  row {row} {given}\n  spark {native!r}\n  ours  {mine!r}"
    return None


def with_numbers(array: pa.Array) -> pa.Array:
    """Return times as numbers, because Python has no times after the year 9999."""
    return array.cast(_with_numbers(array.type))


def _with_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_numbers(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_numbers(field.type)) for field in kind])
    return kind


def test_functions_give_what_spark_gives(session: SparkSession, tmp_path: Path) -> None:
    assert len(CASES) > 450
    different = differences(session, tmp_path, random_rows(1), CASES)
    assert not different, "\n".join(different)


@pytest.mark.parametrize("policy", ["CORRECTED", "EXCEPTION"])
def test_functions_of_times_give_what_spark_gives_for_far_years(
    session: SparkSession, tmp_path: Path, policy: str
) -> None:
    times = [text for text in CASES if re.search(r"\b(ts|ts2|ntz|day|day2)\b", text)]
    assert len(times) > 100
    session.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    try:
        different = differences(session, tmp_path, far_rows(1), times)
    finally:
        session.conf.unset("spark.sql.legacy.timeParserPolicy")
    assert not different, "\n".join(different)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2, 12))
def test_functions_give_what_spark_gives_for_more_rows(session: SparkSession, tmp_path: Path, seed: int) -> None:
    different = differences(session, tmp_path, random_rows(seed), CASES)
    assert not different, "\n".join(different)


def test_the_page_of_functions_is_up_to_date(session: SparkSession) -> None:
    functions = spark_functions(session)
    assert sum(is_between(name) for name, _ in functions) >= 200
    assert PAGE.read_text(encoding="utf-8") == page(functions, session.version), (
        "run: python tests/docs/functions_page.py"
    )


def test_every_function_between_operators_is_compared(session: SparkSession) -> None:
    compared_in = "\n".join([*CASES, *EXPRESSIONS])
    functions = {name for name, _ in spark_functions(session) if name in FUNCTIONS} - {"window"}
    assert not {name for name in functions if name.isidentifier() and not re.search(rf"\b{name}\b", compared_in)}


def test_the_window_of_a_time_is_sparks(session: SparkSession, tmp_path: Path) -> None:
    rows = random_rows(1).select(["ts"]).drop_null()  # Spark drops rows without a time
    pq.write_table(rows, tmp_path / "rows.parquet")
    frame = session.read.parquet(str(tmp_path / "rows.parquet"))
    for text in ("window(ts, '10 minutes')", "window(ts, '7 days')", "window(ts, '1 hour').end"):
        theirs = frame.selectExpr(f"{text} as w").toArrow().column(0).to_pylist()
        assert bind(text, rows.schema).evaluate(rows).to_pylist() == theirs
