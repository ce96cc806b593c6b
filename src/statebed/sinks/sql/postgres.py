"""PostgreSQL: rows are loaded with COPY, and the epoch is compared and written in the same transaction.

The connection string is shown in messages, so it must not contain a password; that comes from `password=`, `PGPASSWORD`
or the password file, as for every PostgreSQL client. Every wait has a timeout: for the connection, for locks, for
statements, and for a transaction whose client is suspended, so that it cannot block the next run.
"""

import contextlib
import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from statebed.arrays.columns import one_chunk
from statebed.errors import (
    InputError,
    MissingDependencyError,
    SecretInUrlError,
    SinkError,
    SinkUnavailableError,
    UnsupportedTypeError,
)
from statebed.format.json_values import json_texts
from statebed.format.time_texts import in_four_digits, sql_texts
from statebed.sinks.sql.database import ExistingColumn, TableName, listed

if TYPE_CHECKING:
    import psycopg

_SECRETS = ("password", "sslpassword")
_CONNECT_SECONDS = 30
_MAINTENANCE = "postgres"
"""Database that every server has."""
_NAME_BYTES = 63
_SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
_INDEX_COMMENT = "statebed: key of the table"
_LOCK_NUMBER = int.from_bytes(b"statebed", "big")
_NULLS_NOT_DISTINCT_SINCE = 150_000
_TEXTS = frozenset({"text", "varchar", "bpchar", "citext", "uuid", "json", "jsonb"})
_OF_TARGET = ("25", "28", "40", "42", "53", "55", "57", "58")
"""Classes of SQLSTATE that do not depend on the rows: permissions, missing tables, full disks, locks, shutdowns."""
_FIXES = {
    "22021": "remove the character NUL before the sink, for example with_columns(x=\"replace(x, chr(0), '')\"): "
    "PostgreSQL's text cannot have it",
    "22008": "filter the row before the sink: PostgreSQL has times from 4713 BC to the year 294276, dates to 5874897",
    "54000": "choose a shorter key, for example sha2(x, 256): an entry of PostgreSQL's index has at most 2,704 bytes",
    "54011": "select fewer columns: a table of PostgreSQL has at most 1,600",
}
"""Fix of an error, by its SQLSTATE."""
_ACCEPTED: tuple[tuple[str, str, frozenset[str]], ...] = (
    ("bool", "boolean", frozenset({"bool"})),
    ("int8", "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    ("int16", "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    ("int32", "integer", frozenset({"int4", "int8", "numeric"})),
    ("int64", "bigint", frozenset({"int8", "numeric"})),
    ("uint8", "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    ("uint16", "integer", frozenset({"int4", "int8", "numeric"})),
    ("uint32", "bigint", frozenset({"int8", "numeric"})),
    ("uint64", "numeric(20)", frozenset({"numeric"})),
    ("float", "real", frozenset({"float4", "float8"})),
    ("double", "double precision", frozenset({"float8"})),
    ("string", "text", _TEXTS),
    ("large_string", "text", _TEXTS),
    ("binary", "bytea", frozenset({"bytea"})),
    ("large_binary", "bytea", frozenset({"bytea"})),
    ("date32[day]", "date", frozenset({"date"})),
)
"""Arrow type, type of a new column, and types of existing columns that can hold every value."""
_KEPT = {"bpchar": "(^|[^ ])$", "uuid": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}
"""Patterns of texts that are stored as they are: char(n) ignores spaces at the end, uuid has several spellings."""
_EARLY_YEAR = re.compile(r"0000|-\d+")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


class Postgres:
    """A database of a PostgreSQL server, given by a connection string without password."""

    product = "PostgreSQL"
    exists = True
    lock_clause = " for update"
    temporary_ends = " on commit drop"
    making_lock = f"select pg_advisory_xact_lock({_LOCK_NUMBER})"

    def __init__(self, dsn: str, *, password: str | None, timeout_seconds: float) -> None:
        self._psycopg = _driver()
        try:
            parameters = self._psycopg.conninfo.conninfo_to_dict(dsn)
        except self._psycopg.Error:
            # The message repeats the connection string, which may contain a password.
            raise InputError(
                "dsn= is not a PostgreSQL connection string", fix="write 'host=db.example dbname=results user=writer'"
            ) from None
        if any(name in parameters for name in _SECRETS):
            raise SecretInUrlError(
                "dsn= contains a password, and connection strings end up in logs",
                fix="pass it as password=, in the variable PGPASSWORD, or in the password file (PGPASSFILE)",
            )
        self._given = {"connect_timeout": _CONNECT_SECONDS, **parameters, "client_encoding": "UTF8"}
        self._secrets = {} if password is None else {"password": password}
        self._milliseconds = max(int(timeout_seconds * 1_000), 1)
        shown = (parameters.get("host") or parameters.get("hostaddr"), parameters.get("port"), parameters.get("dbname"))
        self.place = "postgresql " + ("/".join(str(part) for part in shown if part) or "of the environment")

    @property
    def real_place(self) -> str:
        return self.place

    def is_missing(self) -> bool:
        """Return whether the server can be reached and has no such database. A failed connection does not tell."""
        name = self._given.get("dbname")
        if name is None:
            return False
        other = copy.copy(self)
        other._given = {**self._given, "dbname": _MAINTENANCE}  # noqa: SLF001 - of the same class
        with contextlib.suppress(SinkError), other.reading() as transaction:
            return not transaction.run("select 1 from pg_database where datname = $1", name)
        return False

    def parameter(self, number: int) -> str:
        return f"${number}"

    def folded(self, name: str) -> str:
        """Truncate the name to 63 bytes at a character boundary, as PostgreSQL does."""
        return name.encode()[:_NAME_BYTES].decode(errors="ignore")

    def name_problem(self, name: str) -> str | None:
        if not name or "\0" in name:
            return "it contains the character NUL" if name else "it is empty"
        if len(name.encode()) > _NAME_BYTES:
            return f"it is longer than {_NAME_BYTES} bytes, and would be cut to {self.folded(name)}"
        return "each table has a hidden column of that name" if name in _SYSTEM_COLUMNS else None

    def same_table(self, column: str, parameter: int) -> str:
        wanted = f"{self.parameter(parameter)}::text"
        longer = f"octet_length(left({column}, char_length({wanted}) + 1)) > {_NAME_BYTES}"
        return f"({column} = {wanted} or (left({column}, char_length({wanted})) = {wanted} and {longer}))"

    @contextlib.contextmanager
    def reading(self) -> Iterator["PostgresTransaction"]:
        with self.transaction() as transaction:
            transaction.run("set transaction isolation level repeatable read, read only")
            yield transaction

    @contextlib.contextmanager
    def transaction(self) -> Iterator["PostgresTransaction"]:
        psycopg = self._psycopg
        try:
            with (
                psycopg.connect(
                    **self._given,
                    **self._secrets,
                    tcp_user_timeout=self._milliseconds,
                    autocommit=True,
                    cursor_factory=psycopg.RawCursor,
                ) as connection,
                connection.transaction(),
            ):
                # Local to the transaction: a connection pooler may give the connection to another client.
                for setting in ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"):
                    connection.execute(f"set local {setting} = {self._milliseconds}")
                yield PostgresTransaction(connection)
        except psycopg.Error as error:
            text = str(error).strip().expandtabs(2) or type(error).__name__
            if isinstance(error, psycopg.OperationalError) and error.sqlstate in {None, "57P01", "57P02", "57P03"}:
                raise SinkUnavailableError(
                    f"PostgreSQL is unreachable, or closed the connection: {text}",
                    where=self.place,
                    fix="check that the server runs, and host, user and password; then start the job again",
                ) from error
            fix = _FIXES.get(error.sqlstate or "", "see PostgreSQL's message")
            problem = SinkError(f"PostgreSQL reported an error: {text}", where=self.place, fix=fix)
            problem.is_of_target = (error.sqlstate or "").startswith(_OF_TARGET)
            raise problem from error

    def type_of(self, field: pa.Field) -> str:
        kind = field.type
        for name, new, _ in _ACCEPTED:
            if name == str(kind):
                return new
        if pa.types.is_decimal(kind):
            return f"numeric({kind.precision},{kind.scale})"
        if pa.types.is_timestamp(kind):
            return "timestamp with time zone" if kind.tz else "timestamp without time zone"
        if pa.types.is_time(kind):
            return "time without time zone"
        if pa.types.is_duration(kind):
            return "interval"
        if pa.types.is_nested(kind):
            return "jsonb"
        raise UnsupportedTypeError(
            f"PostgreSQL has no type for {field.name} {kind}", fix="cast the column before it is written"
        )

    def mismatch(self, field: pa.Field, column: ExistingColumn) -> str | None:
        wanted, kind = self.type_of(field), field.type
        accepted = next((kinds for name, _, kinds in _ACCEPTED if name == str(kind)), None)
        if pa.types.is_nested(kind):
            accepted = frozenset({"json", "jsonb", "text"})
        if accepted is None:
            fits = column.type == wanted or (pa.types.is_decimal(kind) and _holds(column.type, kind))
        else:
            fits = column.kind in accepted and (column.kind != "numeric" or column.type == "numeric")
        return None if fits else f"{field.name} is {kind}, which needs {wanted}, but the column is {column.type}"

    def staging_type(self, column: ExistingColumn) -> str:
        return "jsonb" if column.kind == "json" else column.type  # json does not support equality

    def analyse(self, table: str) -> str | None:
        return f"analyze {table}"


class PostgresTransaction:
    """A transaction on one connection."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._connection = connection

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch, key: Sequence[str] = ()) -> None:  # noqa: ARG002 - PostgreSQL has every value, NaN included
        data = csv_of([one_chunk(column) for column in rows.columns])
        statement = f"copy {table} ({listed(columns)}) from stdin (format csv)"
        with self._connection.cursor().copy(statement.encode()) as copy:
            copy.write(data)

    def columns(self, table: TableName) -> Mapping[str, ExistingColumn] | None:
        rows = self.run(
            """
            select a.attname, format_type(a.atttypid, a.atttypmod), base.typname,
                   a.attnotnull and not a.atthasdef and a.attidentity = ''
            from pg_attribute a
            join pg_type t on t.oid = a.atttypid
            join pg_type base on base.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
            where a.attrelid = to_regclass($1) and a.attnum > 0 and not a.attisdropped
            """,
            table.sql,
        )
        columns = [ExistingColumn(*row) for row in rows]
        return {column.name: replace(column, kept_texts=_KEPT.get(column.kind, "")) for column in columns} or None

    def folding(self, table: TableName, column: str) -> str | None:
        rows = self.run(
            """
            select case when base.typname = 'citext' then 'the type citext'
                        when not c.collisdeterministic then 'the collation ' || c.collname end
            from pg_attribute a
            join pg_type t on t.oid = a.atttypid
            join pg_type base on base.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
            left join pg_collation c on c.oid = a.attcollation
            where a.attrelid = to_regclass($1) and a.attname = $2::text
            """,
            table.sql,
            column,
        )
        return next((folding for (folding,) in rows), None)

    def has_unique_index(self, table: TableName, key: Sequence[str]) -> bool:
        columns = """
            select array(select a.attname::text from pg_attribute a
                         where a.attrelid = i.indrelid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]))
            from pg_index i
            where i.indrelid = to_regclass($1) and i.indisunique and i.indisvalid and i.indpred is null
                and i.indexprs is null
            """
        return any(set(unique) <= set(key) for (unique,) in self.run(columns, table.sql))

    def make_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        version = int(self.run("show server_version_num")[0][0])
        nulls = " nulls not distinct" if version >= _NULLS_NOT_DISTINCT_SINCE else ""
        self.run(f"create unique index on {table.sql} ({listed(key)}){nulls}")
        newest = "select max(indexrelid)::regclass::text from pg_index where indrelid = to_regclass($1)"
        self.run(f"comment on index {self.run(newest, table.sql)[0][0]} is '{_INDEX_COMMENT}'")

    def replace_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        own = self.run(
            """
            select i.indexrelid::regclass::text,
                   array(select a.attname::text from pg_attribute a
                         where a.attrelid = i.indrelid and a.attnum = any(i.indkey::int2[]))
            from pg_index i
            where i.indrelid = to_regclass($1) and obj_description(i.indexrelid, 'pg_class') = $2
            """,
            table.sql,
            _INDEX_COMMENT,
        )
        for index, old in own:
            if set(old) != set(key):
                self.run(f"drop index {index}")
                if key:
                    self.make_unique_index(table, key)


def _driver() -> Any:
    try:
        import psycopg  # noqa: PLC0415 - an extra, needed by this sink alone
    except ImportError as error:
        raise MissingDependencyError(
            "the sink 'postgres' needs psycopg", fix="pip install 'statebed[postgres]'"
        ) from error
    return psycopg


def _holds(column: str, kind: pa.DataType) -> bool:
    """Return whether a numeric column holds every decimal of a type without rounding."""
    match = _NUMERIC.fullmatch(column)
    if match is None:
        return column == "numeric"
    precision, scale = int(match[1]), int(match[2])
    return bool(scale >= kind.scale and precision - scale >= kind.precision - kind.scale)


_OPTIONS = pyarrow.csv.WriteOptions(include_header=False)


def csv_of(columns: Sequence[pa.Array]) -> bytes:
    """Return the rows as CSV for COPY, without a header, built column by column where possible.

    Null is an empty field without quotes, an empty text one with quotes; every text is quoted.
    """
    texts = [_text(column) for column in columns]
    sink = pa.BufferOutputStream()
    names = [str(number) for number in range(len(texts))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(texts, names=names), sink, _OPTIONS)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _text(array: pa.Array) -> pa.Array:
    """Return the column as it is if Arrow's CSV writer supports it, else as text that PostgreSQL parses."""
    kind = array.type
    if pa.types.is_nested(kind):
        return json_texts(array)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if value is None else f"\\x{value.hex()}" for value in array.to_pylist()], pa.string())
    if pa.types.is_duration(kind):
        micros = array.cast(pa.duration("us")).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(micros, pa.scalar("microseconds"), " ")
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return _times(array)
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        return array.cast(pa.string())
    return array


def _times(array: pa.Array) -> pa.Array:
    """Return dates or timestamps as text."""
    texts = sql_texts(array)
    if in_four_digits(array):
        return texts
    return pa.array([_with_era(text) for text in texts.to_pylist()], pa.string())


def _with_era(text: str | None) -> str | None:
    """Return a date or timestamp with the year as PostgreSQL reads it: there is no year 0, but a year 1 BC."""
    year = _EARLY_YEAR.match(text or "")
    return f"{1 - int(year[0]):04}{text[year.end() :]} BC" if text and year else text
