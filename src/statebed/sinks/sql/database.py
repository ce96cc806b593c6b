"""What a SQL database must be able to do for a table of results: one transaction with rows and epoch in it.

A database gives transactions; a transaction runs statements and loads Arrow rows. Names of tables and columns are
always quoted, so any name is a name. Types are mapped both ways: a type for each column of a new table, and a refusal
for a column of an existing table that could not hold what comes.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa


@dataclass(frozen=True)
class TableName:
    """A table, and the schema it is in, where the database has such."""

    table: str
    schema: str | None = None

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}" if self.schema else self.table

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.table)}" if self.schema else quoted(self.table)

    def beside(self, table: str) -> "TableName":
        """Another table of the same schema."""
        return TableName(table, self.schema)


@dataclass(frozen=True)
class ExistingColumn:
    """A column of a table that is there already."""

    name: str
    type: str
    """In SQL, as a cast or a new table would name it."""
    kind: str
    """The database's short name of the type, without length or precision."""
    must_be_given: bool
    """It may not be null and has no default."""


class Transaction(Protocol):
    """One transaction; everything in it becomes visible together, or not at all."""

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement; its rows, if it gives some. Values stand where the database's `parameter` stands."""

    def load(self, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
        """Add rows to a table, given in SQL; columns in the order of the rows'."""

    def columns(self, table: TableName) -> Mapping[str, ExistingColumn] | None:
        """The columns of a table by name, or None when there is no such table."""

    def make_unique_index(self, table: TableName, key: Sequence[str]) -> None:
        """An index of a new table: one row per key, also where parts of it are null, if the database can do that."""


class Database(Protocol):
    """Where a table of results is kept."""

    @property
    def product(self) -> str:
        """Its name for people."""

    @property
    def place(self) -> str:
        """Which one it is, for messages; never with a secret."""

    @property
    def real_place(self) -> str:
        """Which one it is, in one spelling for one database as far as that is known; never with a secret."""

    def folded(self, name: str) -> str:
        """The one spelling of all names that the database does not tell apart, even where they are quoted."""

    def same_table(self, column: str, parameter: int) -> str:
        """A condition: the name in the column is one that the database does not tell from a folded one."""

    @property
    def exists(self) -> bool:
        """False when nothing was ever written there, and looking would make it."""

    @property
    def lock_clause(self) -> str:
        """What makes a SELECT keep others from changing the row until the transaction ends."""

    @property
    def temporary_ends(self) -> str:
        """What lets a temporary table end with its transaction, where that must be said."""

    @property
    def making_lock(self) -> str | None:
        """The statement that lets one transaction at a time make tables, where making them does not."""

    def parameter(self, number: int) -> str:
        """How the n-th value is written in a statement, from 1."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Committed at the end of the block, undone by an error; every failure of the database is a SinkError."""

    def type_of(self, field: pa.Field) -> str:
        """The type of a new column for a field; UnsupportedTypeError when there is none."""

    def misfit(self, field: pa.Field, column: ExistingColumn) -> str | None:
        """Why an existing column could not hold the field's values as they are; None when it can."""

    def staging_type(self, column: ExistingColumn) -> str:
        """The type of a temporary column for values of that column; it has to know equality."""

    def analyse(self, table: str) -> str | None:
        """The statement after which the planner knows a temporary table, if it needs one."""


def quoted(name: str) -> str:
    """A name in SQL, whatever it consists of."""
    return '"' + name.replace('"', '""') + '"'


def listed(names: Sequence[str], prefix: str = "") -> str:
    """Names in SQL, with commas between them."""
    return ", ".join(prefix + quoted(name) for name in names)
