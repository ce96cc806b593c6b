"""Finished results from stored state: the rows that an operator would emit now.

A record keeps the definition of each operator as JSON. The operator is rebuilt from it and from the columns of the
stored table, and then finishes its own rows. This is only needed for tables whose rows are partials (aggregates) or
lists of rows (top-n); the rows of other tables are results already.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from statebed.aggregates.accumulators import UserAggregate, check_user_aggregate, user_description
from statebed.aggregates.aggregate import BoundAggregate, bound_from_description
from statebed.aggregates.declaration import USER_DEFINED
from statebed.arrays.columns import int64_values
from statebed.arrays.row_numbers import Numbering
from statebed.arrays.sort_order import order_by
from statebed.errors import InputError
from statebed.format.schema import TIME
from statebed.format.stream_schema import Changes, Input
from statebed.operators.aggregation import WINDOW_START, Emit
from statebed.operators.input_rows import filtered
from statebed.operators.keyed_rows import EVERYTHING
from statebed.operators.labels import stored_label
from statebed.operators.operator import MAIN, Elements
from statebed.operators.updating.aggregate import GROUPS, UpdatingAggregate
from statebed.operators.updating.top_n import ROW_TIME, ROWS, STANDING, TopN
from statebed.operators.window_definition import SessionWindow, Window
from statebed.operators.windows.aggregate import PARTIALS, WindowAggregate
from statebed.operators.windows.session_tables import SESSIONS
from statebed.operators.windows.sessions import SessionAggregate

UserAggregates = Mapping[str, UserAggregate]
"""User-defined aggregates by the name of their result column."""


@dataclass(frozen=True)
class StoredTable:
    """Stored table of an operator, with the times of its epoch."""

    operator_id: str
    definition: str
    """Definition of the operator as JSON, as stored in the record."""
    keys: tuple[pa.Field, ...]
    columns: pa.Schema
    """Key and value columns."""
    watermark_us: int | None


class Results(Protocol):
    """Turns rows of a stored table into results. Implementations are picklable."""

    @property
    def columns(self) -> pa.Schema:
        """Columns of the results."""

    @property
    def time_column(self) -> str | None:
        """Column that `between` compares, which is the start of the window; None if results have no time."""

    @property
    def span_us(self) -> int | None:
        """Maximum time for which a result has rows in the state after its own; None if not selected by time."""

    @property
    def in_time_order(self) -> bool:
        """Whether rows must be passed in time order."""

    def finish(self, pieces: Iterable[pa.Table], elements: Elements) -> Iterator[pa.Table]:
        """Yield the results of the rows of one subtask, passed in pieces with all columns of the table's files.

        `elements` reads other tables of the operator.
        """


@dataclass(frozen=True)
class RowResults:
    """Results of tables in which one row holds the state of its key, without values that are in tables of elements."""

    operator: UpdatingAggregate | SessionAggregate | TopN

    @property
    def columns(self) -> pa.Schema:
        return self.operator.outputs[MAIN].columns

    @property
    def time_column(self) -> str | None:
        return WINDOW_START if isinstance(self.operator, SessionAggregate) else None

    @property
    def span_us(self) -> int | None:
        return None

    @property
    def in_time_order(self) -> bool:
        return False

    def finish(self, pieces: Iterable[pa.Table], elements: Elements) -> Iterator[pa.Table]:
        for rows in pieces:
            if isinstance(self.operator, UpdatingAggregate):
                yield from self.operator.finished(rows, elements)
            elif isinstance(self.operator, SessionAggregate):
                yield self.operator.finished(rows, elements)
            else:
                yield self.operator.finished(rows)


@dataclass(frozen=True)
class WindowResults:
    """Results so far of the windows that are still open at the watermark."""

    operator: WindowAggregate
    closed_until_us: int | None
    """Windows that end at or before this time are closed, and some of their rows are already deleted."""

    @property
    def columns(self) -> pa.Schema:
        return self.operator.outputs[MAIN].columns

    @property
    def time_column(self) -> str | None:
        return WINDOW_START

    @property
    def span_us(self) -> int | None:
        return self.operator.window.width_us

    @property
    def in_time_order(self) -> bool:
        return True

    def finish(self, pieces: Iterable[pa.Table], elements: Elements) -> Iterator[pa.Table]:
        """Yield the results of each window as soon as all its panes have been read; panes of incomplete windows are
        buffered.
        """
        window = self.operator.window
        held: list[pa.Table] = []
        done_us = self.closed_until_us
        for rows in pieces:
            held.append(rows)
            # More rows of the last pane may follow in the next piece.
            complete_us = window.last_closed_end(int(int64_values(rows[TIME])[-1]))
            if done_us is None or complete_us > done_us:
                panes = pa.concat_tables(held)
                yield self.operator.finished(panes, elements, after_us=done_us, until_us=complete_us)
                held = [filtered(panes, int64_values(panes[TIME]) >= window.first_open(complete_us))]
                done_us = complete_us
        if held:
            yield self.operator.finished(pa.concat_tables(held), elements, after_us=done_us, until_us=None)


def result_table(definition: str) -> str | None:
    """Return the name of the table from which an operator's results are computed; None if its tables hold results
    already.
    """
    kind = _parsed(definition).get("kind")
    return _TABLES[kind][0] if kind in _TABLES else None


def results_of(table: str, stored: StoredTable, users: UserAggregates | None = None) -> Results | None:
    """Return the converter from rows of a table to results; None if the rows are results already."""
    described = _parsed(stored.definition)
    name, build = _TABLES.get(described.get("kind"), ("", None))
    if build is None or name != table:
        _check_all_used(users or {}, (), stored)
        return None
    return build(stored, described, users or {})


def _parsed(definition: str) -> dict[str, Any]:
    content = json.loads(definition) if definition else {}
    return content if isinstance(content, dict) else {}


# ---- operators from their definitions ------------------------------------------------------------------------------


def _updating(stored: StoredTable, described: dict[str, Any], users: UserAggregates) -> Results:
    return RowResults(UpdatingAggregate(**_aggregation(stored, described, users)))


def _sessions(stored: StoredTable, described: dict[str, Any], users: UserAggregates) -> Results:
    window = SessionWindow(int(described["gap"]), described.get("on"))
    return RowResults(SessionAggregate(window=window, **_emitted(described), **_aggregation(stored, described, users)))


def _windows(stored: StoredTable, described: dict[str, Any], users: UserAggregates) -> Results:
    window = Window.from_data(described["window"])
    operator = WindowAggregate(window=window, **_emitted(described), **_aggregation(stored, described, users))
    reached = stored.watermark_us
    return WindowResults(operator, None if reached is None else reached - operator.lateness_us)


def _top_n(stored: StoredTable, described: dict[str, Any], users: UserAggregates) -> Results:
    _check_all_used(users, (), stored)
    values = {field.name: field for field in stored.columns.field(ROWS).type.value_type if field.name != ROW_TIME}
    fields = {key.name: key for key in stored.keys} | values
    columns = pa.schema([fields[name] for name, _ in described["columns"]])
    source = Input("input", columns, tuple(described["keys"]), Changes(described["changes"]))
    return RowResults(
        TopN(
            stored.operator_id,
            source,
            int(described["n"]),
            order_by(*described["order"]),
            Numbering(described["numbering"]),
            described["number"],
        )
    )


def _aggregation(stored: StoredTable, described: dict[str, Any], users: UserAggregates) -> dict[str, Any]:
    changes = Changes(described["changes"])
    aggregates = [_bound(aggregate, changes, users, stored) for aggregate in described["aggregates"]]
    _check_all_used(users, [aggregate.name for aggregate in aggregates if aggregate.user is not None], stored)
    return {
        "operator_id": stored.operator_id,
        "keys": tuple(key.remove_metadata() for key in stored.keys if key.name != EVERYTHING.name),
        "aggregates": tuple(aggregates),
        "changes": changes,
    }


def _emitted(described: dict[str, Any]) -> dict[str, Any]:
    emit, lateness_us = described["emit"]
    return {"emit": Emit(emit), "lateness_us": int(lateness_us)}


def _bound(
    description: list[float | str], changes: Changes, users: UserAggregates, stored: StoredTable
) -> BoundAggregate:
    name, function = str(description[0]), description[1]
    user = users.get(name) if function == USER_DEFINED else None
    if function == USER_DEFINED:
        _check_user(name, description, user, stored)
    return bound_from_description(description, changelog=changes is Changes.CHANGELOG, user=user)


def _check_user(name: str, description: list[float | str], user: UserAggregate | None, stored: StoredTable) -> None:
    where = stored_label(stored.operator_id, stored.definition)
    trailing = description[: -1 if description[-1] == "changelog" else None]
    kept = tuple(map(str, trailing[-4:]))
    if user is None:
        raise InputError(
            f"the aggregate {name!r} is user-defined ({kept[0]}), and its code is not stored in the state",
            where=where,
            fix=f"pass it: read_state(..., results=True, aggregates={{{name!r}: {kept[0]}(...)}}), or read the table "
            "without results",
        )
    check_user_aggregate(user)
    if user_description(user) != kept:
        raise InputError(
            f"the aggregate passed as {name!r} is {user_description(user)}, but the state was "
            f"written by {kept} (class, version, state, output)",
            where=where,
            fix="pass the aggregate of the job that wrote this epoch",
        )


def _check_all_used(users: UserAggregates, names: Iterable[str], stored: StoredTable) -> None:
    unused = [name for name in users if name not in set(names)]
    if unused:
        raise InputError(
            f"there is no user-defined aggregate {', '.join(map(repr, unused))}",
            where=stored_label(stored.operator_id, stored.definition),
            fix=f"pass only user-defined aggregates of the operator: {', '.join(names) or 'it has none'}",
        )


_TABLES: dict[Any, tuple[str, Callable[[StoredTable, dict[str, Any], UserAggregates], Results]]] = {
    "updating_aggregate": (GROUPS, _updating),
    "session_aggregate": (SESSIONS, _sessions),
    "window_aggregate": (PARTIALS, _windows),
    "top_n": (STANDING, _top_n),
}
