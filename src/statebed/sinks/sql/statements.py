"""Statements that apply an epoch of a changelog to a table by key.

The epoch's rows are in a temporary table, with their weights. Two more are derived from it: `net`, the rows whose net
weight is not zero, and `gone`, the keys that had a row and have none after the epoch. Then keys in `gone` are deleted,
rows whose key exists are updated, and the others are inserted. Rows are matched with `=`, which can use an index but is
never true for NULL, so each combination of NULL columns has its own statements.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from statebed.format.stream_schema import WEIGHT
from statebed.sinks.sql.database import listed, quoted

STAGED = quoted("_statebed_staged")
NET = quoted("_statebed_net")
GONE = quoted("_statebed_gone")


@dataclass(frozen=True)
class SqlKeyedTable:
    """A table with one row per key. Column names are quoted in every statement."""

    table: str
    """Name of the table in SQL."""
    columns: tuple[str, ...]
    key: tuple[str, ...]
    types: tuple[str, ...]
    """SQL types of the temporary copies of the columns."""
    temporary_ends: str
    """Clause that ends a temporary table with its transaction."""

    def stage(self) -> str:
        """Return the statement that creates the temporary table for the rows."""
        typed = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(self.columns, self.types, strict=True))
        return f"create temporary table {STAGED} ({typed}, {quoted(WEIGHT)} bigint){self.temporary_ends}"

    def net(self) -> str:
        """Return the statement that creates the net changes: each row once, with its net weight."""
        columns, weight = listed(self.columns), quoted(WEIGHT)
        return (
            f"create temporary table {NET}{self.temporary_ends} as select {columns}, sum({weight}) as {weight} "
            f"from {STAGED} group by {columns} having sum({weight}) <> 0"
        )

    def gone(self) -> str:
        """Return the statement that creates the keys which had a row and have none after the epoch."""
        key, weight = listed(self.key), quoted(WEIGHT)
        return (
            f"create temporary table {GONE}{self.temporary_ends} as "
            f"select {key} from {NET} where {weight} < 0 except select {key} from {NET} where {weight} > 0"
        )

    def repeated(self) -> str:
        """Return the query for a key with several rows after the epoch, which means that the declared key is not
        unique.
        """
        key, weight = listed(self.key), quoted(WEIGHT)
        return (
            f"select {key}, sum({weight}) from {NET} where {weight} > 0 group by {key} having sum({weight}) > 1 limit 1"
        )

    def several(self) -> str:
        """Return the query for the number of rows after the epoch, if a table of one row would have several."""
        weight = quoted(WEIGHT)
        return f"select sum({weight}) from {NET} where {weight} > 0 having sum({weight}) > 1"

    def replacement(self) -> list[str]:
        """Return the statements that replace the row of a table that has one row, if the epoch changes it."""
        columns = listed(self.columns)
        return [
            f"delete from {self.table} where exists (select 1 from {NET})",
            f"insert into {self.table} ({columns}) select {columns} from {NET} where {quoted(WEIGHT)} > 0",
        ]

    def null_patterns(self) -> str:
        """Return the query for the combinations of key columns that are null, each a row of flags."""
        flags = ", ".join(f"{quoted(name)} is null" for name in self.key)
        return f"select distinct {flags} from {NET}"

    def changes(self, nulls: Sequence[bool]) -> list[str]:
        """Return the statements that delete, update and insert the rows whose key has the nulls flagged in `nulls`."""
        valued = [name for name, null in zip(self.key, nulls, strict=True) if not null]
        empty = [name for name, null in zip(self.key, nulls, strict=True) if null]
        others = [name for name in self.columns if name not in self.key]
        statements = [self._delete(valued, empty)]
        matches = " and ".join(
            [f"{self.table}.{quoted(name)} = {NET}.{quoted(name)}" for name in valued]
            + [f"{table}.{quoted(name)} is null" for name in empty for table in (self.table, NET)]
        )
        added = f"{NET}.{quoted(WEIGHT)} > 0"
        if others:
            sets = ", ".join(f"{quoted(name)} = {NET}.{quoted(name)}" for name in others)
            statements.append(f"update {self.table} set {sets} from {NET} where {matches} and {added}")
        of_pattern = " and ".join(
            [added]
            + [f"{NET}.{quoted(name)} is not null" for name in valued]
            + [f"{NET}.{quoted(name)} is null" for name in empty]
        )
        columns = listed(self.columns)
        statements.append(
            f"insert into {self.table} ({columns}) select {listed(self.columns, f'{NET}.')} from {NET} "
            f"where {of_pattern} and not exists (select 1 from {self.table} where {matches})"
        )
        return statements

    def _delete(self, valued: Sequence[str], empty: Sequence[str]) -> str:
        null = [f"{quoted(name)} is null" for name in empty]
        if valued:
            names = listed(valued)
            condition = " where " + " and ".join(null) if null else ""
            matches = f"({names}) in (select {names} from {GONE}{condition})"
        else:
            matches = f"exists (select 1 from {GONE} where {' and '.join(null)})"
        return f"delete from {self.table} where {' and '.join([matches, *null])}"
