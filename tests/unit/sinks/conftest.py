"""One set of cases for every SQL database: SQLite in a file, PostgreSQL on a socket."""

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from statebed.format.stream_schema import Output
from statebed.sinks.sql import Database, Postgres, SQLite, SqlTable, SqlTableSink, TableName


@dataclass(frozen=True)
class SqlWorld:
    """A database, and what a test does with it beside the sink."""

    name: str
    place: Any

    def database(self, timeout_seconds: float = 30.0) -> Database:
        if self.name == "sqlite":
            return SQLite(str(self.place), timeout_seconds=timeout_seconds)
        return Postgres(self.place.dsn, password=self.place.password, timeout_seconds=timeout_seconds)

    def sink(
        self,
        output: Output,
        *,
        key: Sequence[str] = (),
        table: str = "results",
        epoch_column: str | None = None,
        sink_id: str = "out",
        timeout_seconds: float = 30.0,
    ) -> SqlTableSink:
        written = SqlTable(TableName(table), output, tuple(key), epoch_column)
        database = self.database(timeout_seconds)
        return SqlTableSink(sink_id=sink_id, job_id="rides", database=database, table=written)

    def run(self, statement: str) -> list[tuple[Any, ...]]:
        if self.name == "postgres":
            rows: list[tuple[Any, ...]] = self.place.run(statement)
            return rows
        with contextlib.closing(sqlite3.connect(self.place)) as connection:
            found = connection.execute(statement).fetchall()
            connection.commit()
            return found

    def rows(self, query: str = "select * from results") -> list[tuple[Any, ...]]:
        return sorted(self.run(query), key=repr)


@pytest.fixture(params=["sqlite", "postgres"])
def sql(request: pytest.FixtureRequest, tmp_path: Path) -> SqlWorld:
    """A database without tables."""
    if request.param == "sqlite":
        return SqlWorld("sqlite", tmp_path / "results.db")
    return SqlWorld("postgres", request.getfixturevalue("postgres"))
