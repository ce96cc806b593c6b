"""Broadcast tables: small tables that change while the job runs, with a full copy in every subtask of an operator.

All rows of a broadcast input go to all subtasks. Each subtask writes the keys that it owns to a global keyed table, and
reads those of the others as of the base epoch. Rows take effect at the start of the epoch in which they are read, so
all rows of an epoch see the same table. If an epoch has several rows for a key, the last one wins, by event time and
then by all columns.

In an append-only stream, a row replaces the row of its key, or removes it if its `deleted` column is true. In a
changelog, an insertion replaces the row of its key, and a retraction without an insertion removes it.

Values are stored by column name: a column that is added later is null in rows stored before.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import boolean_values, one_chunk
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Changes, Input, weights_of
from statebed.operators.changelog import consolidated
from statebed.operators.input_rows import gathered
from statebed.operators.keyed_rows import by_key, check_input
from statebed.operators.operator import Tables
from statebed.state import Codec, TableConfig, global_table_config

Key = tuple[Any, ...]


@dataclass(frozen=True)
class BroadcastTable:
    """Definition of a broadcast table: its input, whose keys identify a row, and the column that marks deletions."""

    input: Input
    deleted: str | None = None
    present: str | None = None
    """Column that is true in every row and not stored: in the results of a left lookup, it marks rows with a match."""

    def check(self, *, where: str) -> None:
        """Raise InputError if the columns cannot be stored, or the deletion column does not fit."""
        names.check_part("broadcast table", self.name)
        where = f"{where}, broadcast table {self.name!r}"
        check_input(self.input, where=where)
        if not self.input.keys:
            raise InputError("a broadcast table needs a key", where=where, fix='name its key: broadcast("rule_id")')
        for field in self.input.columns:
            if _has_time_of_day(field.type):
                raise InputError(
                    f"the column {field.name!r} of the type {field.type} cannot be in a broadcast table",
                    where=where,
                    fix="cast it to a string or a number",
                )
        if self.deleted is None:
            return
        if self.input.changes is Changes.CHANGELOG:
            raise InputError(
                "`deleted` is for append-only streams; a changelog deletes a row by retracting it",
                where=where,
                fix="leave `deleted` out",
            )
        columns = self.input.columns
        if self.deleted not in columns.names or not pa.types.is_boolean(columns.field(self.deleted).type):
            raise InputError(
                f"`deleted` must name a boolean column, got {self.deleted!r}",
                where=where,
                fix="add one first: with_columns(gone=\"action = 'delete'\")",
            )

    @property
    def name(self) -> str:
        return self.input.name

    @cached_property
    def columns(self) -> pa.Schema:
        """Columns of the table for its readers."""
        present = [] if self.present is None else [pa.field(self.present, pa.bool_())]
        return pa.schema([*self._stored, *present])

    @cached_property
    def _stored(self) -> pa.Schema:
        """Columns of the input, without the one that marks deletions."""
        return pa.schema([field for field in self.input.columns if field.name != self.deleted])

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        """Configuration of the global keyed table, by name."""
        return global_table_config(self.name, f"broadcast to all subtasks, by {', '.join(self.input.keys)}")

    def described(self) -> dict[str, object]:
        """Return the parts that go into the definition of an operator."""
        return {
            "keys": list(self.input.keys),
            "columns": [[field.name, str(field.type)] for field in self._stored],
            "changes": self.input.changes.value,
            "deleted": self.deleted,
        }

    def update(self, tables: Tables, batches: Iterable[pa.RecordBatch], *, where: str) -> pa.Table:
        """Apply the rows of an epoch, and return all rows of the table, sorted by key."""
        view = tables.get_global_keyed_state(self.name)
        current: dict[Key, dict[str, Any]] = dict(view.items())
        for key, value in self._changes(gathered(batches, self.input, where=where)):
            if value is not None:
                current[key] = value
                if view.owns(key):
                    view.insert(key, value)
            elif current.pop(key, None) is not None and view.owns(key):
                view.remove(key)
        return self._rows(current)

    def _changes(self, rows: pa.Table) -> Iterator[tuple[Key, dict[str, Any] | None]]:
        """Yield the new row of each changed key, or None if it is removed."""
        if not rows.num_rows:
            return
        changelog = self.input.changes is Changes.CHANGELOG
        keyed = by_key(_net(rows) if changelog else rows, self.input)
        if not keyed.count:
            return
        last, removed = keyed.lasts, np.zeros(keyed.count, dtype=np.bool_)
        if changelog:
            places = np.arange(keyed.rows.num_rows, dtype=np.int64)
            inserted = np.maximum.reduceat(np.where(weights_of(keyed.rows) > 0, places, -1), keyed.starts)
            last, removed = np.where(inserted < 0, last, inserted), inserted < 0
        newest = keyed.at(last, keyed.unordered.column_names)
        if self.deleted is not None:
            removed = boolean_values(one_chunk(newest[self.deleted]))
        keys = zip(*(newest[name].to_pylist() for name in self.input.keys), strict=True)
        values = newest.select([name for name in self._stored.names if name not in self.input.keys]).to_pylist()
        for key, value, gone in zip(keys, values, removed.tolist(), strict=True):
            yield key, None if gone else value

    def _rows(self, current: Mapping[Key, Mapping[str, Any]]) -> pa.Table:
        codec: Codec[Key] = Codec()
        ordered = sorted(current.items(), key=lambda item: codec.encode_key(item[0]))
        keys = {name: [key[place] for key, _ in ordered] for place, name in enumerate(self.input.keys)}
        arrays = [
            pa.array(
                keys[field.name] if field.name in keys else [value.get(field.name) for _, value in ordered], field.type
            )
            for field in self._stored
        ]
        if self.present is not None:
            arrays.append(pa.repeat(pa.scalar(True), len(ordered)))
        return pa.Table.from_arrays(arrays, schema=self.columns)


def _net(rows: pa.Table) -> pa.Table:
    """Return the changes of an epoch without rows that it both inserts and retracts."""
    net = consolidated(rows.drop_columns([TIME]))
    return net.append_column(rows.schema.field(TIME), pa.nulls(net.num_rows, TIMESTAMP)).select(rows.schema.names)


def _has_time_of_day(kind: pa.DataType) -> bool:
    """Return whether a type is or contains a time of day, for which the codec of global keyed tables has no form."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return pa.types.is_time(kind) or any(map(_has_time_of_day, inner))
