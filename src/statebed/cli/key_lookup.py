"""`statebed get`: looks up one key in every table of a job whose keys have that form."""

import dataclasses
from collections.abc import Sequence

import pyarrow as pa

from statebed.cli import output, row_output, state_rows
from statebed.cli.pinned_epoch import PinnedEpoch, read_at
from statebed.cli.table_request import GLOBAL_KEYED, TableRequest, keys_of
from statebed.errors import InputError
from statebed.format.json_values import json_objects
from statebed.inspect import StateTable
from statebed.inspect.operator_names import OperatorNames


@dataclasses.dataclass(frozen=True)
class TableRows:
    """A table and its rows for the key."""

    table: StateTable
    rows: pa.Table
    more: bool


@dataclasses.dataclass(frozen=True)
class Lookup:
    """Result of looking up one key."""

    moment: PinnedEpoch
    matched: Sequence[TableRows]
    unfit: Sequence[tuple[str, str, str]]
    """Operator, table and reason for each table whose keys have another form."""


def print_key(request: TableRequest, *, limit: int | None, as_json: bool) -> bool:
    """Look up the key and print the rows of each table. Return whether any table has it."""
    lookup = read_at(
        request.state,
        request.job,
        epoch=request.epoch,
        savepoint=request.savepoint,
        read=lambda moment: _look(moment.only(request.operator, request.table), request, limit=limit),
    )
    if as_json:
        output.print_json(_document(lookup, request.keys))
    else:
        _print(lookup, request.keys)
    return any(table.rows.num_rows for table in lookup.matched)


def _look(moment: PinnedEpoch, request: TableRequest, *, limit: int | None) -> Lookup:
    matched, unfit = [], []
    for operator, name in moment.tables:
        table = moment.read(operator, name, results=request.results)
        try:
            of_key = table.keys(*_one_key(table, request.keys))
        except InputError as error:
            unfit.append((operator, name, error.what))
            continue
        read = of_key.to_arrow() if limit is None else of_key.head(limit + 1)
        matched.append(TableRows(of_key, read.slice(0, limit), more=limit is not None and read.num_rows > limit))
    if not matched and unfit:
        raise InputError(
            f"no table has keys of this form: {unfit[0][2]}",
            where=f"{moment.state}, job {moment.job!r}, epoch {moment.record.epoch}",
            fix="`statebed show STATE JOB --schema` lists the key columns of every table",
        )
    return Lookup(moment, matched, unfit)


def _one_key(table: StateTable, typed: Sequence[str]) -> list[object]:
    """Return the key in the table's types. For a global table, return every value that the typed text may mean."""
    keys = keys_of(table, typed)
    if len(keys) > 1 and table.kind != GLOBAL_KEYED:
        raise InputError(
            f"{' '.join(map(repr, typed))} names several keys of the key columns {table.key_columns}",
            where=f"operator {table.operator_name!r}, table {table.table!r}",
            fix="look up one key; `statebed state` takes several with --key",
        )
    return keys


def _print(lookup: Lookup, key: Sequence[str]) -> None:
    for of_table in lookup.matched:
        if of_table.rows.num_rows:
            row_output.print_table(
                of_table.rows.to_batches(),
                of_table.rows.schema,
                title=state_rows.title_of(of_table.table),
                keys=of_table.table.key_columns,
                limit=None,
            )
            if of_table.more:
                output.say(f"showing the first {of_table.rows.num_rows:,} rows; --limit 0 shows all")
    empty = [
        f"{matched.table.operator_name}.{matched.table.table}"
        for matched in lookup.matched
        if not matched.rows.num_rows
    ]
    if empty:
        output.say(f"no row for {' '.join(key)} in: {', '.join(empty)}")
    if lookup.unfit:
        names = OperatorNames.of(lookup.moment.record)
        others = names.listed(f"{operator}.{table}" for operator, table, _ in lookup.unfit)
        output.say(f"tables with other keys: {others}")


def _document(lookup: Lookup, key: Sequence[str]) -> dict[str, object]:
    return {
        "job": lookup.moment.job,
        "epoch": lookup.moment.record.epoch,
        "key": list(key),
        "tables": [
            {**state_rows.head_of(matched.table), "rows": json_objects(matched.rows), "more": matched.more}
            for matched in lookup.matched
        ],
        "other_keys": [{"operator": o, "table": t, "why": why} for o, t, why in lookup.unfit],
    }
