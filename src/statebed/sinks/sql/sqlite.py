"""SQLite: a file, the standard library, and one writer at a time.

| Arrow | new column | stored as |
|---|---|---|
| integers, boolean | INTEGER | |
| float, double | REAL | NaN becomes NULL, in a key column the text `NaN`: SQLite has no NaN |
| text, decimal | TEXT | decimals exactly, as text |
| timestamp, date, time | TEXT | `2026-01-31 12:00:00.000000Z`, which SQLite's own functions read |
| duration | INTEGER | microseconds |
| binary | BLOB | |
| list, struct, map | TEXT | JSON |
"""

import contextlib
import math
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.errors import SinkError, UnsupportedTypeError
from statebed.format.json_values import json_texts
from statebed.format.time_texts import sql_texts
from statebed.sinks.places import is_there, real_place
from statebed.sinks.sql.database import ExistingColumn, TableName, listed, quoted

_OF_ROWS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError)
"""Errors that other rows might not have."""
_LOCKED = "if the database stays locked, another process is writing to it"


class SQLite:
    """A database in a single file."""

    product = "SQLite"
    lock_clause = ""
    making_lock = None  # transactions are serialised anyway
    temporary_ends = ""  # temporary tables end with the connection, and each transaction has its own

    def __init__(self, path: str, *, timeout_seconds: float) -> None:
        self._shown = str(Path(path))
        self._path = Path(path).absolute()  # the program may change its working directory
        self._timeout_seconds = timeout_seconds

    @property
    def place(self) -> str:
        return self._shown

    @property
    def real_place(self) -> str:
        return real_place(str(self._path))

    def folded(self, name: str) -> str:
        """Lower the case of ASCII letters, which SQLite ignores in names; it does not ignore that of other letters."""
        return _folded(name)

    def name_problem(self, name: str) -> str | None:
        return "it contains the character NUL" if "\0" in name else None

    def same_table(self, column: str, parameter: int) -> str:
        return f"{column} = {self.parameter(parameter)} collate nocase"

    @property
    def exists(self) -> bool:
        return is_there(self._path, where=self.place)

    def parameter(self, number: int) -> str:
        return f"?{number}"

    def reading(self) -> contextlib.AbstractContextManager["SQLiteTransaction"]:
        return self._begun(f"{self._path.as_uri()}?mode=ro", "begin", is_uri=True)

    def transaction(self) -> contextlib.AbstractContextManager["SQLiteTransaction"]:
        return self._begun(str(self._path), "begin immediate")

    @contextlib.contextmanager
    def _begun(self, file: str, begin: str, *, is_uri: bool = False) -> Iterator["SQLiteTransaction"]:
        try:
            with contextlib.closing(
                sqlite3.connect(file, uri=is_uri, timeout=self._timeout_seconds, isolation_level=None)
            ) as connection:
                connection.execute(begin)
                try:
                    yield SQLiteTransaction(connection)
                except BaseException:
                    connection.rollback()
                    raise
                connection.commit()
        except sqlite3.Error as error:
            problem = SinkError(f"SQLite reported an error: {error}", where=self.place, fix=_fix(error))
            problem.is_of_target = not isinstance(error, _OF_ROWS)
            raise problem from error

    def type_of(self, field: pa.Field) -> str:
        kind = field.type
        if pa.types.is_boolean(kind) or pa.types.is_duration(kind) or _is_integer(kind):
            return "INTEGER"
        if pa.types.is_floating(kind):
            return "REAL"
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return "BLOB"
        if _is_text(kind) or pa.types.is_decimal(kind) or pa.types.is_temporal(kind) or pa.types.is_nested(kind):
            return "TEXT"
        raise UnsupportedTypeError(
            f"SQLite has no type for {field.name} {kind}", fix="cast the column before it is written"
        )

    def mismatch(self, field: pa.Field, column: ExistingColumn) -> str | None:
        """Return why the column would change the field's values, or None.

        SQLite converts values by the affinity of their column: digits in a text become a number, and the reverse.
        """
        wanted = self.type_of(field)
        harmless = {
            "INTEGER": {"INTEGER", "NUMERIC", "BLOB"},
            "REAL": {"REAL", "NUMERIC", "BLOB"},
            "TEXT": {"TEXT", "BLOB"} if _is_text(field.type) or pa.types.is_decimal(field.type) else None,
            "BLOB": None,  # bytes never change, nor do dates and JSON
        }[wanted]
        if harmless is None or column.kind in harmless:
            return None
        return f"{field.name} is {field.type}, but the column's type {column.type or 'none'} would change its values"

    def staging_type(self, column: ExistingColumn) -> str:
        return column.type

    def analyse(self, table: str) -> str | None:  # noqa: ARG002 - the planner prefers the index of the large table
        return None


class SQLiteTransaction:
    """A transaction that holds the write lock from its start."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values).fetchall()

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch, key: Sequence[str] = ()) -> None:
        marks = ", ".join("?" * len(columns))
        arrays = zip(columns, map(one_chunk, rows.columns), strict=True)
        values = [_key_values(array) if name in key else _values(array) for name, array in arrays]
        statement = f"insert into {table} ({listed(columns)}) values ({marks})"
        self._connection.executemany(statement, zip(*values, strict=True))

    def columns(self, table: TableName) -> Mapping[str, ExistingColumn] | None:
        rows = self._connection.execute(f"pragma main.table_info({quoted(table.table)})").fetchall()
        row_id = self._row_id(table)
        columns = {
            name: ExistingColumn(
                name,
                kind,
                _affinity(kind),
                must_be_given=bool(not_null) and default is None and not key,
                numbers_nulls=name == row_id,
            )
            for _, name, kind, not_null, default, key in rows
        }
        return columns or None

    def _row_id(self, table: TableName) -> str | None:
        """Return the INTEGER PRIMARY KEY of a table, which is its row number, or None. It has no index of its own."""
        keys = self.run("select name, type from pragma_table_info(?1, 'main') where pk > 0", table.table)
        indexed = self.run("select 1 from pragma_index_list(?1, 'main') where origin = 'pk'", table.table)
        return None if len(keys) != 1 or indexed or keys[0][1].upper() != "INTEGER" else str(keys[0][0])

    def folding(self, table: TableName, column: str) -> str | None:
        """Compare texts as the column does: UNION takes the collation of its first column."""
        for collation, other in (("NOCASE", "'A'"), ("RTRIM", "'a '")):
            texts = f"select {quoted(column)} from {table.sql} where false union select 'a' union select {other}"
            if self.run(f"select count(*) from ({texts})") == [(1,)]:
                return f"the collation {collation}"
        return None

    def has_unique_index(self, table: TableName, key: Sequence[str]) -> bool:
        columns = self.run(
            "select i.name, c.name from pragma_index_list(?1, 'main') i, pragma_index_info(i.name, 'main') c "
            'where i."unique" and not i.partial',
            table.table,
        )
        uniques = [{column for name, column in columns if name == index} for index in {name for name, _ in columns}]
        row_id = self._row_id(table)
        folded = {_folded(name) for name in key}
        return any(
            None not in unique and {_folded(column) for column in unique} <= folded
            for unique in [*uniques, *([{row_id}] if row_id else [])]
        )

    def make_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        self.run(f"create unique index main.{_index_on(table, key)}")

    def replace_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        index = _index_name(table)
        old = [row[0] for row in self.run("select name from pragma_index_info(?1, 'main') order by seqno", index)]
        is_own = self.run(
            "select 1 from main.sqlite_master where type = 'index' and sql = ?1 collate nocase",
            f"create unique index {_index_on(table, old)}",
        )
        if is_own and set(old) != set(key):
            self.run(f"drop index main.{quoted(index)}")
            if key:
                self.make_unique_index(table, key)


def _folded(name: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


def _index_name(table: TableName) -> str:
    return f"{table.table}_by_key"


def _index_on(table: TableName, key: Sequence[str]) -> str:
    """Return the definition of the sink's index, which distinguishes it from an index of the same name."""
    return f"{quoted(_index_name(table))} on {quoted(table.table)} ({listed(key)})"


_FIXES = {
    "SQLITE_BUSY": _LOCKED,
    "SQLITE_LOCKED": _LOCKED,
    "SQLITE_CANTOPEN": "path= must name a file, in a folder that exists and that this user can write to",
    "SQLITE_NOTADB": "path= names a file that is no SQLite database: choose another path",
    "SQLITE_CORRUPT": "the database is damaged: restore it from a backup, or choose another path",
    "SQLITE_READONLY": "let this user write to the file and to its folder",
    "SQLITE_PERM": "let this user write to the file and to its folder",
    "SQLITE_FULL": "free space on the disk, then start the job again",
    "SQLITE_IOERR": "check the disk or file system, then start the job again",
    "SQLITE_CONSTRAINT": "a constraint of the table refuses the rows: let unique indexes have the columns of key= "
    "and no COLLATE, and remove other constraints; or write to a new table",
}
"""Fix of an error, by the name of its primary code."""
_TEXT_FIXES = (
    ("reserved for internal use", "choose a table name that does not start with sqlite_"),
    ("is a view", "choose the name of a table, or a new name, and let statebed create the table"),
    ("no such collation", "write to a table whose columns have no COLLATE of a program's own"),
    ("too many columns", "select fewer columns: SQLite has tables of at most 2000, unless it was built for more"),
    ("already", "choose another table name: SQLite has one set of names for tables, views and indexes"),
)
"""Fix of an error without a code of its own, by a part of its text."""


def _fix(error: sqlite3.Error) -> str:
    primary = "_".join(str(getattr(error, "sqlite_errorname", "")).split("_")[:2])
    by_text = (fix for part, fix in _TEXT_FIXES if part in str(error))
    return _FIXES.get(primary) or next(by_text, "see SQLite's message")


def _key_values(array: pa.Array) -> list[Any]:
    """Return the values of a key column; NaN is a text, because SQLite would store NULL, which is another key."""
    values = _values(array)
    if pa.types.is_floating(array.type):
        return ["NaN" if value is not None and math.isnan(value) else value for value in values]
    return values


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    if pa.types.is_nested(kind):
        array = json_texts(array)
    elif pa.types.is_duration(kind):
        array = array.cast(pa.duration("us")).cast(pa.int64())
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        array = sql_texts(array)
    elif pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        array = array.cast(pa.string())
    values: list[Any] = array.to_pylist()
    return values


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and not kind.equals(pa.uint64()))


def _affinity(declared: str) -> str:
    """Return the affinity of a declared type, by the rules of SQLite's documentation in their order."""
    name = declared.upper()
    for affinity, marks in (
        ("INTEGER", ("INT",)),
        ("TEXT", ("CHAR", "CLOB", "TEXT")),
        ("BLOB", ("BLOB",)),
        ("REAL", ("REAL", "FLOA", "DOUB")),
    ):
        if any(mark in name for mark in marks):
            return affinity
    return "NUMERIC" if name else "BLOB"
