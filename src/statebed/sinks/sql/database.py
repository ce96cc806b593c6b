"""Interface of SQL databases that hold result tables: one transaction writes rows and epoch.

A database provides transactions; a transaction runs statements and loads Arrow rows. Names of tables and columns are
always quoted, so almost any name is valid. Types are mapped both ways: a type for each column of a new table, and a
refusal for an existing column that cannot hold the values.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class TableName:
    """Name of a table, with its schema if the database has schemas."""

    table: str
    schema: str | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}" if self.schema else quoted(self.table)

    def beside(self, table: str) -> "TableName":
        """Return the name of another table in the same schema."""
        return TableName(table, self.schema)


@dataclass(frozen=True)
class ExistingColumn:
    """A column of an existing table."""

    name: str
    type: str
    """SQL type, as in a cast or a column definition."""
    kind: str
    """The database's short name of the type, without length or precision."""
    must_be_given: bool
    """Whether the column is not null and has no default."""
    numbers_nulls: bool = False
    """Whether the database replaces a null by a number of its own."""
    kept_texts: str = ""
    """Pattern of the texts that the column does not change; empty if it changes none."""


class Transaction(Protocol):
    """A transaction: everything in it becomes visible together, or not at all."""

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows, if any. `values` are bound to the placeholders made by `parameter`."""

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch, key: Sequence[str] = ()) -> None:
        """Append rows to a table, whose name is given in SQL; `columns` are in the order of the rows' columns. Values
        in the columns of `key` stay distinct, also where the database lacks a value.
        """

    def columns(self, table: TableName) -> Mapping[str, ExistingColumn] | None:
        """Return the columns of a table by name, or None if the table does not exist."""

    def folding(self, table: TableName, column: str) -> str | None:
        """Return the property of an existing column that makes different texts equal, or None."""

    def has_unique_index(self, table: TableName, key: Sequence[str]) -> bool:
        """Return whether a unique index makes rows with equal keys impossible, unless the keys have nulls."""

    def make_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        """Create a unique index on the key of a new table; nulls count as equal if the database supports that."""

    def replace_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        """Replace the index that `make_unique_index` created if its key differs; without a key, drop it."""


class Database(Protocol):
    """A database that holds result tables."""

    @property
    def product(self) -> str:
        """Name of the product."""

    @property
    def place(self) -> str:
        """Location of the database, for messages. Never contains a secret."""

    @property
    def real_place(self) -> str:
        """Normalised location of the database, as far as it is known. Never contains a secret."""

    def folded(self, name: str) -> str:
        """Return the normal form of a name: the database treats names with the same one as equal, even if quoted."""

    def name_problem(self, name: str) -> str | None:
        """Return why no column can have the name, or None if one can."""

    def same_table(self, column: str, parameter: int) -> str:
        """Return a condition that is true if the name in the column equals the folded one for the database."""

    @property
    def exists(self) -> bool:
        """Whether the database exists. If it does not, connecting would create it."""

    @property
    def lock_clause(self) -> str:
        """Clause of a SELECT that locks the rows until the transaction ends."""

    @property
    def temporary_ends(self) -> str:
        """Clause that drops a temporary table at the end of the transaction, if one is needed."""

    @property
    def making_lock(self) -> str | None:
        """Statement that serialises transactions that create tables, or None if they are serialised anyway."""

    def parameter(self, number: int) -> str:
        """Return the placeholder of the n-th value in a statement, counted from 1."""

    def reading(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that sees one state of the database, locks no row and cannot write."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Return a transaction that commits on exit and rolls back on an error. Database errors become SinkErrors."""

    def type_of(self, field: pa.Field) -> str:
        """Return the type of a new column for a field; raise UnsupportedTypeError if there is none."""

    def mismatch(self, field: pa.Field, column: ExistingColumn) -> str | None:
        """Return why an existing column cannot hold the field's values unchanged, or None if it can."""

    def staging_type(self, column: ExistingColumn) -> str:
        """Return the type of a temporary column for the column's values; it must support equality."""

    def analyse(self, table: str) -> str | None:
        """Return the statement that gives the planner statistics of a temporary table, or None if it needs none."""


def quoted(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str], prefix: str = "") -> str:
    """Return quoted names, separated by commas."""
    return ", ".join(prefix + quoted(name) for name in names)
