"""The table, keys, times and columns requested on the command line, as a `StateTable`."""

import dataclasses
import itertools
import json
from collections.abc import Sequence
from typing import Any

from statebed.cli.pinned_epoch import open_epoch
from statebed.errors import InputError, StateNotFoundError
from statebed.inspect import StateTable, read_state
from statebed.inspect.jobs import open_log
from statebed.inspect.operator_names import OperatorNames

GLOBAL_KEYED = "global keyed"


@dataclasses.dataclass(frozen=True)
class TableRequest:
    """Selects a table and its rows."""

    state: str
    job: str | None = None
    operator: str | None = None
    table: str | None = None
    epoch: int | None = None
    savepoint: str | None = None
    keys: Sequence[str] = ()
    where: str | None = None
    start: str | None = None
    end: str | None = None
    columns: Sequence[str] = ()
    internal: bool = False
    results: bool = False
    """Whether to show final results where the table supports it."""

    @property
    def is_narrow(self) -> bool:
        """Whether the request contains a filter or projection, which applies to one table only."""
        return bool(self.keys or self.where or self.columns or self.start or self.end)

    def read(self) -> StateTable:
        """Return the table with the filters and projections of the request; no data is read yet."""
        # Resolved here, to distinguish a location without state from one without jobs.
        job = open_log(self.state, self.job).job_id
        try:
            table = read_state(
                self.state,
                job=job,
                operator=self.operator,
                table=self.table,
                epoch=self.epoch,
                savepoint=self.savepoint,
                internal=self.internal,
                results=self.results,
            )
        except StateNotFoundError:
            raise
        except InputError:
            self._check_one_table(job)
            raise
        if self.keys:
            table = table.keys(*keys_of(table, self.keys))
        if self.start is not None or self.end is not None:
            table = table.between(self.start, self.end)
        if self.where is not None:
            table = table.filter(self.where)
        if self.columns:
            table = table.select(*(name.strip() for column in self.columns for name in column.split(",")))
        return table

    def _check_one_table(self, job: str) -> None:
        """Raise InputError with the names of the command-line options if there are several tables to choose from."""
        moment = open_epoch(self.state, job, epoch=self.epoch, savepoint=self.savepoint).only(self.operator, self.table)
        if len(moment.tables) > 1:
            names = OperatorNames.of(moment.record)
            raise InputError(
                f"there are several tables: {names.listed(f'{operator}.{table}' for operator, table in moment.tables)}",
                where=f"{self.state}, job {job!r}, epoch {moment.record.epoch}",
                fix="choose one with --operator (and --table)",
            )


def keys_of(table: StateTable, texts: Sequence[str]) -> list[Any]:
    """Parse keys as they are typed: values in the order of the key columns, or `column=value`.

    Several values for a column mean several keys.
    """
    if table.kind == GLOBAL_KEYED:
        return [key for text in texts for key in _any_type(text)]
    columns = table.key_columns
    if not columns:
        raise InputError(
            "the rows of this table have no key",
            where=f"operator {table.operator_name!r}, table {table.table!r}",
            fix="filter with --where, --from and --to instead",
        )
    values: dict[str, list[str]] = {column: [] for column in columns}
    unnamed: list[str] = []
    for text in texts:
        name, separator, value = text.partition("=")
        if separator and name in values:
            values[name].append(value)
        else:
            unnamed.append(text)
    if unnamed and len(columns) == 1:
        values[columns[0]] += unnamed
    elif unnamed and len(unnamed) == len(columns) and not any(values.values()):
        values = {column: [value] for column, value in zip(columns, unnamed, strict=True)}
    elif unnamed or not all(values.values()):
        raise InputError(
            f"{' '.join(map(repr, texts))} is not a key for the key columns {columns}",
            where=f"operator {table.operator_name!r}, table {table.table!r}",
            fix=f"pass a value for each: {' '.join(f'{column}=...' for column in columns)}",
        )
    return [dict(zip(columns, key, strict=True)) for key in itertools.product(*values.values())]


def _any_type(text: str) -> list[Any]:
    """Return the typed text and, if it is JSON, its value: keys of global tables have any type."""
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    return [text] if isinstance(value, dict | list) or value is None else [text, value]
