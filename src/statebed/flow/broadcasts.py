"""Broadcast tables as users write them, and lookups in them."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from statebed.errors import InputError
from statebed.expressions import bind
from statebed.expressions.column_like import ColumnLike
from statebed.flow.joins import On, check_columns, equal_columns, join_kind
from statebed.flow.spark_names import line_of
from statebed.operators.broadcast_table import BroadcastTable
from statebed.operators.joins.lookup import LookupJoin, lookup_columns
from statebed.operators.labels import step_label

if TYPE_CHECKING:
    from statebed.flow.stream import Stream

S = TypeVar("S", bound="Stream")


@dataclass(frozen=True, repr=False)
class BroadcastStream:
    """A stream as a small table by key that every subtask has: use it in `lookup(...)` or `process(..., tables=...)`.

    >>> flow = sb.Flow("fraud")
    >>> rules = flow.source("rules", "rule_id string, threshold double").broadcast("rule_id")
    >>> rules.table.name
    'rules'
    """

    stream: "Stream"
    table: BroadcastTable

    def __repr__(self) -> str:
        return line_of(f"<BroadcastStream {self.table.name} by {', '.join(self.table.input.keys)} of {self.stream!r}>")


def broadcast(stream: "Stream", keys: tuple[str, ...], deleted: str | None, name: str | None) -> BroadcastStream:
    """Return a stream as a broadcast table."""
    where = step_label("broadcast", name)
    check_columns(stream, keys, where, what="keys of the table")
    if name is None:
        origins = stream.graph.origins_of(stream.edge)
        if len(origins) != 1:
            raise InputError(
                f"the table has no name, and its rows come from {list(origins)}",
                where=where,
                fix='name the table: broadcast("rule_id", name="rules")',
            )
        name = origins[0]
    table = BroadcastTable(replace(stream.input_of(name, keys), broadcast=True), deleted)
    table.check(where=where)
    return BroadcastStream(stream, table)


def looked_up(
    left: S,
    other: BroadcastStream,
    on: On | None,
    *,
    how: str,
    condition: ColumnLike | None,
    suffixes: tuple[str, str],
    name: str | None,
) -> S:
    """Return the stream of a lookup's results."""
    where = step_label("lookup", name)
    check_broadcast(left, other, where=where)
    pairs = [] if on is None else equal_columns(on)
    check_columns(left, [pair.left for pair in pairs], where)
    check_columns(other.stream, [pair.right for pair in pairs], where)
    rows, kind = left.input_of("left", [pair.left for pair in pairs]), join_kind(how, where)
    equal = tuple(pair.right for pair in pairs)
    bound = None
    if condition is not None:
        columns = lookup_columns(rows, other.table, equal, kind, suffixes)
        place = f"{where}, condition"
        bound = bind(left.written(condition, place), columns.pairs, where=place, functions=left.graph.functions)
    operator = LookupJoin(name or "lookup", rows, other.table, equal, kind, bound, suffixes)
    return left.add_operator(operator, other.stream, unnamed=name is None)


def check_broadcast(stream: "Stream", other: object, *, where: str) -> None:
    """Raise InputError if a table is not a broadcast table of the same flow."""
    if not isinstance(other, BroadcastStream):
        raise InputError(
            f"the table must be a broadcast stream, got {type(other).__name__}",
            where=where,
            fix='convert it first: rules.broadcast("rule_id")',
        )
    if other.stream.graph is not stream.graph:
        raise InputError(
            "the table belongs to another flow", where=where, fix="create both streams from the same Flow or Job"
        )
