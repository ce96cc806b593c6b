"""The statements that bring a changelog's epoch into a table by key.

The epoch's rows are in a temporary table, with their weights. From it come two more: `net`, the rows whose weights do
not come to nothing, and `gone`, the keys that had a row and have none after the epoch. Then: keys that are gone are
deleted, rows whose key is there are updated, the others are inserted. Rows are found with `=`, which an index can
answer, and which is never true of NULL: so each combination of columns that are NULL has statements of its own.
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
    """A table that has one row per key. Names of columns come quoted into every statement."""

    table: str
    """In SQL."""
    columns: tuple[str, ...]
    key: tuple[str, ...]
    types: tuple[str, ...]
    """In SQL, of the temporary copies of the columns."""
    temporary_ends: str
    """What is said of the end of a temporary table when it is made."""

    def stage(self) -> str:
        """Make the temporary table that the rows are loaded into."""
        typed = ", ".join(f"{quoted(name)} {kind}" for name, kind in zip(self.columns, self.types, strict=True))
        return f"create temporary table {STAGED} ({typed}, {quoted(WEIGHT)} bigint){self.temporary_ends}"

    def net(self) -> str:
        """What the epoch changes: each row once, with its net weight."""
        columns, weight = listed(self.columns), quoted(WEIGHT)
        return (
            f"create temporary table {NET}{self.temporary_ends} as select {columns}, sum({weight}) as {weight} "
            f"from {STAGED} group by {columns} having sum({weight}) <> 0"
        )

    def gone(self) -> str:
        """The keys that had a row and have none after the epoch."""
        key, weight = listed(self.key), quoted(WEIGHT)
        return (
            f"create temporary table {GONE}{self.temporary_ends} as "
            f"select {key} from {NET} where {weight} < 0 except select {key} from {NET} where {weight} > 0"
        )

    def repeated(self) -> str:
        """One key that has several rows after the epoch, if the declared key is none."""
        key, weight = listed(self.key), quoted(WEIGHT)
        return (
            f"select {key}, sum({weight}) from {NET} where {weight} > 0 group by {key} having sum({weight}) > 1 limit 1"
        )

    def null_patterns(self) -> str:
        """Which columns of the key are null together; a row of flags for each combination."""
        flags = ", ".join(f"{quoted(name)} is null" for name in self.key)
        return f"select distinct {flags} from {NET}"

    def changes(self, nulls: Sequence[bool]) -> list[str]:
        """Delete, update and insert the rows whose key has its nulls there."""
        valued = [name for name, null in zip(self.key, nulls, strict=True) if not null]
        empty = [name for name, null in zip(self.key, nulls, strict=True) if null]
        others = [name for name in self.columns if name not in self.key]
        statements = [self._delete(valued, empty)]
        matches = " and ".join(
            [f"{self.table}.{quoted(name)} = {NET}.{quoted(name)}" for name in valued]
            + [f"{one}.{quoted(name)} is null" for name in empty for one in (self.table, NET)]
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
            asked = " where " + " and ".join(null) if null else ""
            found = f"({names}) in (select {names} from {GONE}{asked})"
        else:
            found = f"exists (select 1 from {GONE} where {' and '.join(null)})"
        return f"delete from {self.table} where {' and '.join([found, *null])}"
