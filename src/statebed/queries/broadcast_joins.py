"""Joins of a stream with a broadcast table, declared with `'broadcast' = 'true'`: lookups in the table as it is now.

The stored table has all declared columns, not only those that the query selects, so an edited query keeps its state.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from statebed.errors import StatebedError
from statebed.flow.broadcasts import BroadcastStream
from statebed.flow.joins import eq
from statebed.flow.keys import quoted
from statebed.queries.conditions import JoinConditions
from statebed.queries.relation import BroadcastRows, Relation, fresh_name
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import Expr
from statebed.spark.api.stream import JobStream

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

_SWAPPED = {"inner": "inner", "right": "left"}


def is_lookup(left: Relation, right: Relation) -> bool:
    """Return whether one side of a join is a broadcast table."""
    return left.broadcast is not None or right.broadcast is not None


def lookup_join(
    query: "Translation", left: Relation, right: Relation, how: str, conditions: JoinConditions
) -> Relation:
    """Join the rows of a stream with the rows of a table that match them when they are read."""
    if left.broadcast is not None and right.broadcast is not None:
        raise UntranslatableError(
            "both sides of the join are broadcast tables", "remove the option 'broadcast' from one of them"
        )
    if right.broadcast is None:
        if how not in _SWAPPED:
            raise UntranslatableError(
                f"a {how} join keeps rows of the broadcast table {left.label}, which gives results only for rows of "
                "the stream",
                "put the stream on the side whose rows are kept, or use an inner join",
            )
        rest = [*conditions.rest, *conditions.bounds]
        swapped = JoinConditions(equal=[(b, a) for a, b in conditions.equal], rest=rest)
        return _looked_up(query, right, left, _SWAPPED[how], swapped)
    if how in {"right", "full"}:
        raise UntranslatableError(
            f"a {how} join keeps rows of the broadcast table, which gives results only for rows of the stream",
            "use an inner or a left join",
        )
    whole = JoinConditions(equal=conditions.equal, rest=[*conditions.rest, *conditions.bounds])
    return _looked_up(query, left, right, how, whole)


def _looked_up(
    query: "Translation", stream: Relation, table: Relation, how: str, conditions: JoinConditions
) -> Relation:
    rows = table.broadcast
    assert rows is not None
    columns = _table_columns(table, rows)
    # True in every row of the table, and null in a result without a partner.
    present = fresh_name("is_present", rows.stream.columns)
    names = [f"join_key_{place}" for place in range(len(conditions.equal))]
    keys = dict(zip(names, (a for a, _ in conditions.equal), strict=True))
    left = query.materialised(stream, keys, avoid=[*rows.stream.columns, present])
    pairs = [eq(name, _key_column(value, columns)) for name, (_, value) in zip(names, conditions.equal, strict=True)]
    # In a pair, an equal column of the table has the name of the stream's column.
    in_pair = {pair.right: pair.left for pair in pairs}
    shown = {number: in_pair.get(column, column) for number, column in columns.items()}
    writer = ExpressionText(
        {**left.columns, **shown}, left.windows, {}, query.job.graph.functions, query.catalyst.session
    )
    condition = " and ".join(writer.text(part) for part in conditions.rest) or None
    try:
        results = left.behind.lookup(
            _broadcast(rows, present),
            on=pairs or None,
            how=how,
            condition=condition,
            name=query.operator_name("lookup"),
        )
    except StatebedError as error:
        raise UntranslatableError(error.what, error.fix) from error
    if how not in {"inner", "left"}:
        return _result(stream, left, results)
    moved = _table_values(results, shown, table, rows, present)
    texts = {name: text for name, text in moved.values() if text is not None}
    return _result(
        stream,
        left,
        query.extended(results, texts),
        names=table.names,
        columns={number: name for number, (name, _) in moved.items()},
    )


def _broadcast(rows: BroadcastRows, present: str) -> BroadcastStream:
    broadcast = rows.stream.broadcast(*rows.key, deleted=rows.deleted, name=rows.name)
    return replace(broadcast, table=replace(broadcast.table, present=present))


def _result(
    stream: Relation,
    left: Relation,
    results: JobStream,
    *,
    names: Mapping[int, str] | None = None,
    columns: Mapping[int, str] | None = None,
) -> Relation:
    """Return the results: the columns of the stream, and those of the table."""
    return Relation(
        names={**stream.names, **(names or {})},
        label=stream.label,
        stream=results,
        columns={**left.columns, **(columns or {})},
        windows=left.windows,
        shapes=left.shapes,
        times=stream.times,
        times_or_null=stream.times_or_null,
        shift_us=stream.shift_us,
    )


def _table_values(
    results: JobStream, shown: Mapping[int, str], table: Relation, rows: BroadcastRows, present: str
) -> dict[int, tuple[str, str | None]]:
    """Return the columns of the table in the results by attribute, with the text of those that have to be computed.

    Equal columns have the value of the stream, but are null in a row without a partner. The column that marks deletions
    is false in every row that the table has.
    """
    result: dict[int, tuple[str, str | None]] = {}
    taken = list(results.columns)
    for number, label in table.names.items():
        column = shown.get(number)
        if column is not None and column in rows.columns.values():
            result[number] = (column, None)
            continue
        value = "false" if column is None else quoted(column)
        name = fresh_name(label, taken)
        taken.append(name)
        result[number] = (name, f"case when {quoted(present)} then {value} end")
    return result


def _table_columns(table: Relation, rows: BroadcastRows) -> dict[int, str]:
    """Return the columns of the stored table by the attributes of the query."""
    for number, name in table.names.items():
        if number not in rows.columns:
            raise UntranslatableError(
                f"{name} is computed from the broadcast table {rows.name} before the join",
                f"compute it after the join, or as a column of CREATE TABLE {rows.name} ({name} AS ...)",
            )
    return {number: rows.columns[number] for number in table.names if rows.columns[number] != rows.deleted}


def _key_column(value: Expr, columns: Mapping[int, str]) -> str:
    if not value.is_attribute or value.id not in columns:
        raise UntranslatableError(
            f"{value.sql} is compared with the stream, but it is not a column of the broadcast table",
            "compare a column of the table, of the same type as the stream's, or compute one in CREATE TABLE",
        )
    return columns[value.id]
