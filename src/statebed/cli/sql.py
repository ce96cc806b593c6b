"""SQL over state: tables are scanned where they lie, by DuckDB.

The table that is asked for is `state`; every table of the job at that epoch is `operator.table`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from statebed.cli.extras import require
from statebed.cli.moment import Moment
from statebed.errors import InputError
from statebed.inspect import StateTable

if TYPE_CHECKING:
    import duckdb

STATE = "state"


@contextmanager
def answered(sql: str, *, chosen: StateTable | None, moment: Moment) -> Iterator[pa.RecordBatchReader]:
    """The rows of a query over the chosen table and all tables of the moment; they are made while they are read."""
    require("duckdb")
    import duckdb  # noqa: PLC0415 - an extra

    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if chosen is not None:
            connection.register(STATE, chosen)
        for operator, table in moment.tables:
            if operator.lower() in sql.lower():
                _add(connection, operator, table, moment.read(operator, table))
        try:
            relation = connection.sql(sql)
            if relation is None:
                raise InputError("the statement gives no rows", where=f"SQL: {sql}", fix="write SELECT ... FROM state")
            yield pa.RecordBatchReader.from_stream(relation)
        except duckdb.Error as error:
            names = [STATE] if chosen is not None else []
            names += [f"{operator}.{table}" for operator, table in moment.tables]
            raise InputError(
                str(error).strip(), where=f"SQL: {sql}", fix=f"the tables here are {', '.join(names)}"
            ) from error


def _add(connection: "duckdb.DuckDBPyConnection", operator: str, table: str, rows: StateTable) -> None:
    name = f"{operator}/{table}"
    connection.register(name, rows)
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(operator)}")
    view = f"{_quoted(operator)}.{_quoted(table)}"
    connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {_quoted(name)}")  # noqa: S608 - names are quoted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
