"""`statebed get`: one key in every table of a job that has such keys."""

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
    """A table that was looked into, and the rows of the key."""

    table: StateTable
    rows: pa.Table
    more: bool


@dataclasses.dataclass(frozen=True)
class Lookup:
    """What became of one key."""

    moment: PinnedEpoch
    found: Sequence[TableRows]
    unfit: Sequence[tuple[str, str, str]]
    """Operators and tables that have no such keys, and why."""


def print_key(question: TableRequest, *, limit: int | None, as_json: bool) -> bool:
    """Look the key up and print what each table has; whether any has it."""
    lookup = read_at(
        question.state,
        question.job,
        epoch=question.epoch,
        savepoint=question.savepoint,
        read=lambda moment: _look(moment.only(question.operator, question.table), question, limit=limit),
    )
    if as_json:
        output.print_json(_document(lookup, question.keys))
    else:
        _print(lookup, question.keys)
    return any(one.rows.num_rows for one in lookup.found)


def _look(moment: PinnedEpoch, question: TableRequest, *, limit: int | None) -> Lookup:
    found, unfit = [], []
    for operator, name in moment.tables:
        table = moment.read(operator, name, results=question.results)
        try:
            asked = table.keys(*_one_key(table, question.keys))
        except InputError as error:
            unfit.append((operator, name, error.what))
            continue
        read = asked.to_arrow() if limit is None else asked.head(limit + 1)
        found.append(TableRows(asked, read.slice(0, limit), more=limit is not None and read.num_rows > limit))
    if not found and unfit:
        raise InputError(
            f"no table has such keys: {unfit[0][2]}",
            where=f"{moment.state}, job {moment.job!r}, epoch {moment.record.epoch}",
            fix="`statebed show STATE JOB --schema` lists the key columns of every table",
        )
    return Lookup(moment, found, unfit)


def _one_key(table: StateTable, typed: Sequence[str]) -> list[object]:
    """The key, as the table has keys; of a global table's the several values that it may stand for."""
    keys = keys_of(table, typed)
    if len(keys) > 1 and table.kind != GLOBAL_KEYED:
        raise InputError(
            f"{' '.join(map(repr, typed))} are several keys of the key columns {table.key_columns}",
            where=f"operator {table.operator_name!r}, table {table.table!r}",
            fix="look one key up; `statebed state` takes several with --key",
        )
    return keys


def _print(lookup: Lookup, key: Sequence[str]) -> None:
    for one in lookup.found:
        if one.rows.num_rows:
            row_output.print_table(
                one.rows.to_batches(),
                one.rows.schema,
                title=state_rows.title_of(one.table),
                keys=one.table.key_columns,
                limit=None,
            )
            if one.more:
                output.say(f"the first {one.rows.num_rows:,} rows; --limit 0 shows all")
    empty = [f"{one.table.operator_name}.{one.table.table}" for one in lookup.found if not one.rows.num_rows]
    if empty:
        output.say(f"no row of {' '.join(key)} in: {', '.join(empty)}")
    if lookup.unfit:
        names = OperatorNames.of(lookup.moment.record)
        others = names.listed(f"{operator}.{table}" for operator, table, _ in lookup.unfit)
        output.say(f"other keys have: {others}")


def _document(lookup: Lookup, key: Sequence[str]) -> dict[str, object]:
    return {
        "job": lookup.moment.job,
        "epoch": lookup.moment.record.epoch,
        "key": list(key),
        "tables": [
            {**state_rows.head_of(one.table), "rows": json_objects(one.rows), "more": one.more} for one in lookup.found
        ],
        "other_keys": [{"operator": o, "table": t, "why": why} for o, t, why in lookup.unfit],
    }
