"""Properties of SQLite: no NaN, row numbers as keys, and errors with a fix that fits."""

import contextlib
import math
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from published import publication

from statebed.errors import SinkError
from statebed.format.stream_schema import Changes, Output
from statebed.sinks.sql import SQLite, SqlTable, SqlTableSink, TableName

NUMBERED = Output(pa.schema([("k", pa.int64()), ("n", pa.int64())]))


def sink(path: Path, *, table: str = "results", output: Output = NUMBERED, key: tuple[str, ...] = ()) -> SqlTableSink:
    written = SqlTable(TableName(table), output, key, None)
    database = SQLite(str(path), timeout_seconds=0.1)
    return SqlTableSink(sink_id="out", job_id="rides", database=database, table=written)


def run(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize("declared", [None, "double", "numeric", ""])
def test_not_a_number_and_null_are_two_keys(path: Path, kind: pa.DataType, declared: str | None) -> None:
    if declared is not None:
        run(path, f"create table results (k {declared}, n double)")
    output = Output(pa.schema([("k", kind), ("n", pa.float64())]), Changes.CHANGELOG)
    written = sink(path, output=output, key=("k",))
    written.open(1)

    def changes(*rows: tuple[float | None, float, int]) -> pa.Table:
        weight = pa.field("_weight", pa.int64(), nullable=False)
        return pa.table(list(map(list, zip(*rows, strict=True))), schema=pa.schema([*output.columns, weight]))

    written.publish(publication(1, 2, changes((math.nan, 1, 1), (None, 2, 1), (0.5, 3, 1))))
    assert set(run(path, "select k, n from results")) == {("NaN", 1), (None, 2), (0.5, 3)}
    written.publish(publication(1, 3, changes((math.nan, 1, -1), (math.nan, 4, 1), (0.5, 3, -1), (0.5, math.nan, 1))))
    assert set(run(path, "select k, n from results")) == {("NaN", 4), (None, 2), (0.5, None)}
    written.publish(publication(1, 4, changes((math.nan, 4, -1))))
    assert set(run(path, "select k, n from results")) == {(None, 2), (0.5, None)}


def test_the_file_stays_the_same_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = sink(Path("results.db"))
    target = written.target
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    written.open(1)
    written.publish(publication(1, 2, pa.table([[1], [2]], schema=NUMBERED.columns)))
    assert run(tmp_path / "results.db", "select k, n from results") == [(1, 2)]
    assert (written.target, list(Path().iterdir())) == (target, [])


def test_errors_of_the_rows_differ_from_those_of_the_file(path: Path) -> None:
    """Only for the former, leaving the rows out is a way to continue."""
    run(path, "create table results (k integer, n integer check (n > 0))")
    written = sink(path)
    written.open(1)

    def raised(value: int) -> SinkError:
        with pytest.raises(SinkError) as caught:
            written.publish(publication(1, 2, pa.table([[1], [value]], schema=NUMBERED.columns)))
        return caught.value

    assert not raised(-1).is_of_target
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("begin immediate")
        assert raised(1).is_of_target, "the database is locked"
    run(path, "drop table results")
    assert raised(1).is_of_target
    path.write_bytes(b"no database" * 1000)
    assert raised(1).is_of_target


@pytest.mark.parametrize("key", [(), ("k",), ("n",)])
def test_a_null_that_would_get_a_row_number_is_refused(path: Path, key: tuple[str, ...]) -> None:
    run(path, "create table results (k integer primary key, n integer)")
    written = sink(path, key=key)
    written.open(1)
    written.publish(publication(1, 2, pa.table({"k": [7], "n": [1]}, schema=NUMBERED.columns)))
    with pytest.raises(
        SinkError, match="epoch 3 has a null in the column k, which is the INTEGER PRIMARY KEY"
    ) as caught:
        written.publish(publication(1, 3, pa.table({"k": [8, None], "n": [2, 3]}, schema=NUMBERED.columns)))
    assert "k is INTEGER with a unique index" in caught.value.fix
    assert run(path, "select * from results") == [(7, 1)]


@pytest.mark.parametrize("declared", ["k integer primary key desc", "k int primary key", "k integer unique"])
def test_a_null_that_stays_null_is_written(path: Path, declared: str) -> None:
    run(path, f"create table results ({declared}, n integer)")
    written = sink(path, key=("k",))
    written.open(1)
    for epoch in (2, 3):
        written.publish(publication(1, epoch, pa.table({"k": [None], "n": [epoch]}, schema=NUMBERED.columns)))
    assert run(path, "select * from results") == [(None, 3)]


def test_an_index_of_others_stays_although_it_has_the_name_of_the_sinks_index(path: Path) -> None:
    run(path, "create table results (k integer, n integer)")
    run(path, "CREATE UNIQUE INDEX results_by_key ON results (k)")
    sink(path, key=("k", "n")).open(1)
    assert run(path, "select name from pragma_index_info('results_by_key')") == [("k",)]


def test_a_locked_database_names_another_process(path: Path) -> None:
    sink(path).open(1)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(SinkError, match="locked") as caught:
            sink(path).open(2)
    assert caught.value.fix == "if the database stays locked, another process is writing to it"


def opened_with_a_folder(path: Path) -> None:
    path.mkdir()
    sink(path).open(1)


def opened_in_a_missing_folder(path: Path) -> None:
    sink(path / "missing" / "results.db").open(1)


def opened_without_a_database(path: Path) -> None:
    path.write_bytes(b"a text that is no database, and longer than a header" * 100)
    sink(path).open(1)


def opened_with_a_reserved_name(path: Path) -> None:
    sink(path, table="sqlite_results").open(1)


def published_to_a_view(path: Path) -> None:
    run(path, "create view results as select 1 as k, 2 as n")
    written = sink(path)
    written.open(1)
    written.publish(publication(1, 2, pa.table({"k": [1], "n": [1]}, schema=NUMBERED.columns)))


def opened_with_the_name_of_an_index(path: Path) -> None:
    run(path, "create table other (k integer)")
    run(path, "create index results on other (k)")
    sink(path).open(1)


def opened_with_a_taken_index_name(path: Path) -> None:
    run(path, "create table results_by_key (k integer)")
    sink(path, key=("k",)).open(1)


def published_against_a_constraint(path: Path) -> None:
    run(path, "create table results (k integer, n integer unique)")
    written = sink(path, key=("k",))
    written.open(1)
    written.publish(publication(1, 2, pa.table({"k": [1, 2], "n": [1, 1]}, schema=NUMBERED.columns)))


@pytest.mark.parametrize(
    ("attempt", "fix"),
    [
        (opened_with_a_folder, "path= must name a file"),
        (opened_in_a_missing_folder, "in a folder that exists"),
        (opened_without_a_database, "no SQLite database"),
        (opened_with_a_reserved_name, "does not start with sqlite_"),
        (published_to_a_view, "the name of a table"),
        (opened_with_the_name_of_an_index, "choose another table name"),
        (opened_with_a_taken_index_name, "choose another table name"),
        (published_against_a_constraint, "a constraint of the table refuses the rows"),
    ],
)
def test_an_error_has_a_fix_that_fits(path: Path, attempt: Any, fix: str) -> None:
    with pytest.raises(SinkError, match="SQLite reported an error") as caught:
        attempt(path)
    assert fix in caught.value.fix
    assert "locked" not in caught.value.fix


def test_a_column_of_an_existing_table_is_found_in_any_case(path: Path) -> None:
    run(path, "create table results (K integer not null, N integer)")
    written = sink(path, key=("k",))
    written.check(last_number=0)
    written.open(1)
    written.publish(publication(1, 2, pa.table([[1], [2]], schema=NUMBERED.columns)))
    written.publish(publication(1, 3, pa.table([[1], [3]], schema=NUMBERED.columns)))
    assert run(path, "select K, N from results") == [(1, 3)]


@pytest.mark.parametrize("name", ["x" * 300, "loop/results.db"])
def test_a_file_that_cannot_be_looked_for_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    written = sink(tmp_path / name)
    assert name in written.target
    with pytest.raises(SinkError) as caught:
        written.probe() if "loop" in name else written.check(last_number=0)
    assert caught.value.is_of_target
    assert "path" in caught.value.fix
