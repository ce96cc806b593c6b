"""SQL over state: DuckDB scans the tables in place.

The chosen table is called `state`; every table of the job at that epoch is called `operator.table`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from statebed.cli.extras import require
from statebed.cli.pinned_epoch import PinnedEpoch
from statebed.errors import InputError, StatebedError
from statebed.inspect import StateTable

if TYPE_CHECKING:
    import duckdb

STATE = "state"
_LOCKED = (
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""Settings applied before a query runs. It can read only the tables passed to it: no files, network, extensions, or
variables of this program.
"""


class _Scanned:
    """A table as DuckDB scans it. DuckDB turns errors of the scan into text, so the original error is kept here."""

    def __init__(self, table: StateTable) -> None:
        self._table = table
        self.failure: StatebedError | None = None

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._table.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._table.to_batches()
        except StatebedError as failure:
            self.failure = failure
            raise


@contextmanager
def answered(
    sql: str, *, chosen: StateTable | None, moment: PinnedEpoch, results: bool = False
) -> Iterator[pa.RecordBatchReader]:
    """Run a query over the chosen table and all tables of the epoch, and yield its rows lazily.

    With `results`, tables show final results where they support it.
    """
    require("duckdb")
    import duckdb

    scanned: list[_Scanned] = []
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        if chosen is not None:
            scanned.append(_Scanned(chosen))
            connection.register(STATE, scanned[-1])
        for operator, table in moment.tables:
            if operator.lower() in sql.lower():
                scanned.append(_Scanned(moment.read(operator, table, results=results)))
                _add(connection, operator, table, scanned[-1])
        for setting in _LOCKED:
            connection.execute(setting)
        try:
            relation = connection.sql(sql)
            if relation is None:
                raise InputError(
                    "the statement returns no rows", where=f"SQL: {sql}", fix="write SELECT ... FROM state"
                )
            yield pa.RecordBatchReader.from_stream(relation)
        except (duckdb.Error, pa.ArrowException) as error:
            for failure in (scan.failure for scan in scanned if scan.failure is not None):
                raise failure from error
            names = [STATE] if chosen is not None else []
            names += [f"{operator}.{table}" for operator, table in moment.tables]
            raise InputError(
                str(error).strip(), where=f"SQL: {sql}", fix=f"the tables here are {', '.join(names)}"
            ) from error


def _add(connection: "duckdb.DuckDBPyConnection", operator: str, table: str, rows: _Scanned) -> None:
    name = f"{operator}/{table}"
    connection.register(name, rows)
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_quoted(operator)}")
    view = f"{_quoted(operator)}.{_quoted(table)}"
    connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {_quoted(name)}")  # noqa: S608 - names are quoted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
