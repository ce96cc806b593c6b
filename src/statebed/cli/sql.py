"""SQL over state: DuckDB scans the tables in place.

The chosen table is called `state`; every table of the job at that epoch is called `operator.table`. The positions of
the job's sources and sinks are called `positions.sources` and `positions.sinks`.
"""

from collections.abc import Iterator, Mapping, Sequence
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

    def __init__(self, table: StateTable | pa.Table) -> None:
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
    tables: dict[tuple[str, ...], StateTable | pa.Table] = {} if chosen is None else {(STATE,): chosen}
    for operator, table in moment.selectable:
        if operator.lower() in sql.lower():
            tables[operator, table] = moment.read(operator, table, results=results)
    listed = [".".join(name) for name in ([(STATE,)] if chosen is not None else []) + list(moment.selectable)]
    with answered_over(sql, tables, listed=listed) as answer:
        yield answer


class Interrupts:
    """Ends a query that another thread runs."""

    def __init__(self) -> None:
        self._connection: duckdb.DuckDBPyConnection | None = None

    @contextmanager
    def during(self, connection: "duckdb.DuckDBPyConnection") -> Iterator[None]:
        """Let `interrupt` end the queries of a connection inside the block."""
        self._connection = connection
        try:
            yield
        finally:
            self._connection = None

    def interrupt(self) -> None:
        if self._connection is not None:
            self._connection.interrupt()


@contextmanager
def answered_over(
    sql: str,
    tables: Mapping[tuple[str, ...], StateTable | pa.Table],
    *,
    listed: Sequence[str] | None = None,
    interrupts: Interrupts | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """Run a query over tables of state by the parts of their names, and yield its rows lazily.

    `listed` are the names that an error lists; by default those of the tables.
    """
    require("duckdb")
    import duckdb

    scanned = {name: _Scanned(table) for name, table in tables.items()}
    with duckdb.connect() as connection, (interrupts or Interrupts()).during(connection):
        connection.execute("SET TimeZone = 'UTC'")
        for name, rows in scanned.items():
            _add(connection, name, rows)
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
            for failure in (scan.failure for scan in scanned.values() if scan.failure is not None):
                raise failure from error
            names = [".".join(name) for name in tables] if listed is None else listed
            raise InputError(
                str(error).strip(), where=f"SQL: {sql}", fix=f"the tables here are {', '.join(names)}"
            ) from error


def _add(connection: "duckdb.DuckDBPyConnection", name: tuple[str, ...], rows: _Scanned) -> None:
    """Register a table: under its only part, as schema.table, or as database.schema.table."""
    registered = "/".join(name)
    connection.register(registered, rows)
    if len(name) == 1:
        return
    *databases, schema, _ = name
    for database in databases:
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_quoted(database)}")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(map(_quoted, [*databases, schema]))}")
    view = ".".join(map(_quoted, name))
    connection.execute(f"CREATE VIEW {view} AS SELECT * FROM {_quoted(registered)}")  # noqa: S608 - names are quoted


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
