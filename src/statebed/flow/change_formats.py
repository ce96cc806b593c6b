"""Formats of change events: which columns hold the row, whether it was deleted, and the position in the log.

| format | row | deleted | position |
|---|---|---|---|
| debezium | `after`, keys of a deletion from `before` | `op` is d | fields of `source` that the connector has |
| row_kind | the other columns | `row_kind` is delete or -D | must be given |
| delta_cdf | the other columns | `_change_type` is delete | `_commit_version` |

Events that describe the row before an update (update_before, update_preimage) are dropped: the state has that row.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import InputError
from statebed.flow.keys import quoted

DELETED = "_is_deleted"
POSITION = "_position"


class ChangeFormat(enum.Enum):
    """Format of change events."""

    DEBEZIUM = "debezium"
    ROW_KIND = "row_kind"
    DELTA_CDF = "delta_cdf"


_POSITIONS = (("lsn",), ("change_lsn", "event_serial_no"), ("file", "pos", "row"), ("scn",), ("ord",), ("offset",))
"""Fields of Debezium's `source` that are a position in the log: PostgreSQL, SQL Server, MySQL, Oracle, MongoDB."""
_DELTA_COLUMNS = ("_change_type", "_commit_version", "_commit_timestamp")
_DROPPED = {
    ChangeFormat.ROW_KIND: ("row_kind", ("update_before", "-U", "UPDATE_BEFORE")),
    ChangeFormat.DELTA_CDF: ("_change_type", ("update_preimage",)),
}
_DELETES = {
    ChangeFormat.ROW_KIND: ("row_kind", ("delete", "-D", "DELETE")),
    ChangeFormat.DELTA_CDF: ("_change_type", ("delete",)),
}


@dataclass(frozen=True)
class ChangeColumns:
    """Expressions that turn an event into a row with its position, as SQL over the columns of the source."""

    condition: str
    """Events that count; empty for all."""
    columns: tuple[tuple[str, str], ...]
    """Columns of the row: name and expression."""
    deleted: str
    positions: tuple[str, ...]

    @property
    def selected(self) -> list[tuple[str, str]]:
        """All columns of the operator's input: those of the row, then deletion and position."""
        positions = [(f"{POSITION}_{number}", text) for number, text in enumerate(self.positions)]
        return [*self.columns, (DELETED, self.deleted), *positions]

    @property
    def order(self) -> list[str]:
        """Order of events: by position. At the same position, a deletion comes before an insertion."""
        return [*(f"{POSITION}_{number}" for number in range(len(self.positions))), f"{DELETED} desc"]


def change_columns(
    schema: pa.Schema, *, key: Sequence[str], change_format: ChangeFormat, order: Sequence[str], where: str
) -> ChangeColumns:
    """Return how to read the events of a source; raise InputError if it lacks a column."""
    if change_format is ChangeFormat.DEBEZIUM:
        return _debezium(schema, key, order, where=where)
    column, values = _DELETES[change_format]
    needed = ["_change_type", "_commit_version"] if change_format is ChangeFormat.DELTA_CDF else ["row_kind"]
    _check_there(schema, needed, change_format, where=where)
    _check_key(key, schema.names, "the source", where=where)
    own = _DELTA_COLUMNS if change_format is ChangeFormat.DELTA_CDF else ("row_kind",)
    positions = list(order) or (["_commit_version"] if change_format is ChangeFormat.DELTA_CDF else [])
    if not positions:
        raise InputError(
            "format='row_kind' needs `order`, because its events do not say which change of a key is newer",
            where=where,
            fix="write changelog(..., order='lsn'), with the columns that hold the position of a change in its log",
        )
    dropped, kinds = _DROPPED[change_format]
    return ChangeColumns(
        condition=f"{dropped} is null or {dropped} not in ({_listed(kinds)})",
        columns=tuple((name, quoted(name)) for name in schema.names if name not in own),
        deleted=f"{column} in ({_listed(values)})",
        positions=tuple(positions),
    )


def _debezium(schema: pa.Schema, key: Sequence[str], order: Sequence[str], *, where: str) -> ChangeColumns:
    _check_there(schema, ["before", "after", "op"], ChangeFormat.DEBEZIUM, where=where)
    row = schema.field("after").type
    if not pa.types.is_struct(row) or schema.field("before").type != row:
        raise InputError(
            f"`before` and `after` must be structs of the same type, got {schema.field('before').type} and {row}",
            where=where,
            fix="parse the messages first: from_json(value, 'before STRUCT<...>, after STRUCT<...>, op STRING, ...')",
        )
    columns = [field.name for field in row]
    _check_key(key, columns, "`after`", where=where)
    return ChangeColumns(
        condition="op is not null",  # a tombstone of a compacted topic repeats a deletion
        columns=tuple(
            (
                name,
                f"case when op = 'd' then before.{quoted(name)} else after.{quoted(name)} end"
                if name in key
                else f"after.{quoted(name)}",
            )
            for name in columns
        ),
        deleted="op = 'd'",
        positions=tuple(order) or _log_position(schema, where=where),
    )


def _log_position(schema: pa.Schema, *, where: str) -> tuple[str, ...]:
    """Return the fields of `source` that are the position of an event in the log of its database."""
    source = schema.field("source").type if "source" in schema.names else None
    fields = [field.name for field in source] if source is not None and pa.types.is_struct(source) else []
    for names in _POSITIONS:
        if all(name in fields for name in names):
            return tuple(f"source.{quoted(name)}" for name in names)
    raise InputError(
        "the position of an event in its log is unknown: "
        + (f"`source` has only the fields {', '.join(fields)}" if fields else "the events have no struct `source`"),
        where=where,
        fix="keep source.lsn (PostgreSQL), source.file, pos and row (MySQL) or source.scn (Oracle) when messages are "
        "parsed; or changelog(..., order='offset') for messages of a Kafka topic that is partitioned by key",
    )


def _check_there(schema: pa.Schema, names: Sequence[str], change_format: ChangeFormat, *, where: str) -> None:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InputError(
            f"events of the format {change_format.value!r} have the columns {', '.join(names)}, but the source has "
            f"only {', '.join(schema.names)}",
            where=where,
            fix="choose the format of the events: 'debezium', 'row_kind' or 'delta_cdf'; or rename their columns",
        )


def _check_key(key: Sequence[str], columns: Sequence[str], holder: str, *, where: str) -> None:
    missing = [name for name in key if name not in columns]
    if missing:
        raise InputError(
            f"the key column {', '.join(missing)} is not in {holder}, which has {', '.join(columns)}",
            where=where,
            fix="name columns that identify a row of the table: changelog('id', ...)",
        )


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)
