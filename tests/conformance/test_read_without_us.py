"""P8: what statebed writes is read without statebed, to the same rows."""

import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import polars as pl
import pyarrow as pa
import pytest

READER = Path(__file__).with_name("independent_reader.py")


def read(folder: Path, epoch: int, compiled_schema: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(READER), str(folder), str(epoch)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(compiled_schema), "PATH": os.environ["PATH"], "TZ": "UTC"},
    )


def as_text(value: Any) -> str | None:
    if isinstance(value, dt.datetime):
        return str(value.astimezone(dt.UTC))
    return None if value is None else str(value)


def as_set(columns: list[str], rows: list[list[str | None]]) -> list[list[tuple[str, str | None]]]:
    return sorted(
        (sorted(zip(columns, row, strict=True)) for row in rows), key=lambda row: [str(value) for _, value in row]
    )


@pytest.mark.parametrize("epoch", [2, 3])
def test_p8_a_checkpoint_is_read_with_nothing_but_protobuf_and_duckdb(
    written: Any, compiled_schema: Path, epoch: int
) -> None:
    answer = read(written.folder, epoch, compiled_schema)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert found["epoch"] == epoch
    assert set(found["tables"]) == {"op_windows/windows", "op_cards/cards"}
    for name, expected in written.expected[epoch].items():
        columns, *rows = found["tables"][name]
        assert len(rows) == len(expected) >= 100
        wanted = [[as_text(row[column]) for column in columns] for row in expected]
        assert as_set(columns, rows) == as_set(columns, wanted)


def test_p8_the_head_is_the_record_with_the_highest_number(written: Any, compiled_schema: Path) -> None:
    assert json.loads(read(written.folder, 0, compiled_schema).stdout)["epoch"] == 3


def test_p7_the_independent_reader_notices_damage_by_the_written_checksums(written: Any, compiled_schema: Path) -> None:
    victim = written.data_files[-1]
    intact = victim.read_bytes()
    try:
        victim.write_bytes(intact[:100] + bytes([intact[100] ^ 1]) + intact[101:])
        answer = read(written.folder, 3, compiled_schema)
    finally:
        victim.write_bytes(intact)
    assert answer.returncode != 0
    assert victim.name in answer.stderr


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_p8_duckdb_polars_and_pandas_read_every_data_file(written: Any) -> None:
    assert len(written.data_files) == 6
    for path in written.data_files:
        expected = rows_of(written.rows_of_file[path])
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            relation = connection.execute(f"SELECT * FROM read_parquet('{path}')")  # a path of this test
            columns = [column[0] for column in relation.description]
            assert [dict(zip(columns, row, strict=True)) for row in relation.fetchall()] == expected
        assert pl.read_parquet(path).to_dicts() == expected
        frame = pd.read_parquet(path)
        assert list(frame.columns) == list(expected[0])
        for name in frame.columns:
            values = [None if pd.isna(value) else value for value in frame[name]]
            assert values == [row[name] for row in expected]


def test_p8_filters_are_answered_by_the_statistics_of_others(written: Any) -> None:
    path = next(path for path in written.data_files if "windows" in path.name)
    table = written.rows_of_file[path]
    middle = 1 << 63
    above = sum(1 for value in table["_key_hash"].to_pylist() if value >= middle)
    assert 0 < above < table.num_rows
    query = f"SELECT count(*) FROM read_parquet('{path}') WHERE _key_hash >= {middle}::UBIGINT"  # as above
    with duckdb.connect() as connection:
        assert connection.execute(query).fetchone() == (above,)
    assert pl.scan_parquet(path).filter(pl.col("_key_hash") >= middle).collect().height == above


def test_p8_every_type_is_read_by_duckdb_and_polars(file_of_all_types: tuple[Path, pa.Table]) -> None:
    path, table = file_of_all_types
    expected = rows_of(table)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        relation = connection.execute(f"SELECT * FROM read_parquet('{path}')")  # a path of this test
        columns = [column[0] for column in relation.description]
        assert [dict(zip(columns, row, strict=True)) for row in relation.fetchall()] == expected
    assert pl.read_parquet(path).to_dicts() == expected


def test_p8_every_type_is_read_by_pandas(file_of_all_types: tuple[Path, pa.Table]) -> None:
    path, table = file_of_all_types
    frame = pd.read_parquet(path, dtype_backend="pyarrow")
    for name in table.column_names:
        assert pa.array(frame[name].array).cast(table[name].type).to_pylist() == table[name].to_pylist(), name
