"""Row-wise steps on Arrow tables: conditions, columns, and the columns that an operator needs.

Each takes and returns tables with `_time` and, in a changelog, `_weight` after the user's columns; both pass unchanged.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.aggregate import Aggregate
from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.key_hash import HASH_SEED, hash_columns, normalise_key
from statebed.expressions import filter_rows
from statebed.expressions.list_parts import ListParts, split_lists, taken_or_null
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input, Output


class Value(Protocol):
    """One value for each row."""

    @property
    def type(self) -> pa.DataType: ...

    def evaluate(self, batch: pa.Table) -> pa.Array: ...


class Expression(Value, Protocol):
    """A named value, as a user wrote it."""

    @property
    def name(self) -> str: ...

    @property
    def nullable(self) -> bool: ...

    @property
    def text(self) -> str: ...

    @property
    def where(self) -> str:
        """Place of the expression, for errors."""

    @property
    def plain_column(self) -> str | None:
        """Name of the column if the expression is just a column, or None if it computes something."""


class Step(Protocol):
    """A row-wise step."""

    @property
    def columns(self) -> pa.Schema:
        """Columns of the result, without `_time` and `_weight`."""

    @property
    def text(self) -> str:
        """Description of the step."""

    def apply(self, rows: pa.Table) -> pa.Table: ...


@dataclass(frozen=True)
class Where:
    """Keeps rows for which a condition holds."""

    condition: Expression
    columns: pa.Schema

    @property
    def text(self) -> str:
        return f"where {self.condition.text}"

    def apply(self, rows: pa.Table) -> pa.Table:
        return filter_rows(self.condition, rows)


@dataclass(frozen=True)
class Select:
    """Replaces the columns: names and values, in order."""

    values: tuple[tuple[str, Expression], ...]

    @property
    def text(self) -> str:
        return "select " + ", ".join(f"{value.text} as {name}" for name, value in self.values)

    @property
    def shown(self) -> str:
        """The step as a user would write it. `text` must stay as it is: unnamed operators are named after it."""
        return "select " + ", ".join(_shown(name, value) for name, value in self.values)

    @cached_property
    def columns(self) -> pa.Schema:
        return pa.schema([pa.field(name, value.type, nullable=value.nullable) for name, value in self.values])

    def apply(self, rows: pa.Table) -> pa.Table:
        columns = {name: value.evaluate(rows) for name, value in self.values}
        hidden = {name: rows[name] for name in (TIME, WEIGHT) if name in rows.schema.names}
        fields = [*self.columns, *(rows.schema.field(name) for name in hidden)]
        return pa.Table.from_arrays([*columns.values(), *hidden.values()], schema=pa.schema(fields))


def _shown(name: str, value: Expression) -> str:
    if value.plain_column == name:
        return name
    has_alias = re.search(rf"\sas\s+`?{re.escape(name)}`?\s*$", value.text, re.IGNORECASE)
    return value.text if has_alias else f"{value.text} as {name}"


def shown_step(step: Step) -> str:
    """Return a step as a user would write it."""
    return step.shown if isinstance(step, Select) else step.text


@dataclass(frozen=True)
class Explode:
    """Makes a row for each element of a list or map: its other columns are repeated."""

    value: Expression
    names: tuple[str, ...]
    """Names of the new columns: the position if there is one, then the element, or key and value, or fields."""
    before: pa.Schema
    outer: bool = False
    """Whether a row without elements gives a row with nulls."""
    position: bool = False
    inline: bool = False
    """Whether the fields of structs become columns."""

    @property
    def text(self) -> str:
        kind = ("pos" if self.position else "") + ("inline" if self.inline else "explode")
        return f"{kind}{'_outer' if self.outer else ''}({self.value.text}) as {', '.join(self.names)}"

    @cached_property
    def columns(self) -> pa.Schema:
        new_fields = dict(zip(self.names, self._fields(), strict=True))
        kept = [new_fields.pop(field.name, field) for field in self.before]
        return pa.schema([*kept, *new_fields.values()])

    def _element_fields(self) -> list[pa.Field]:
        kind = self.value.type
        if pa.types.is_map(kind):
            return [pa.field("key", kind.key_type, nullable=False), kind.item_field]
        return list(kind.value_type) if self.inline else [kind.value_field]

    def _fields(self) -> list[pa.Field]:
        null_elements = self.inline and self.value.type.value_field.nullable
        fields = [
            field.with_nullable(field.nullable or self.outer or null_elements) for field in self._element_fields()
        ]
        if self.position:
            fields.insert(0, pa.field("pos", pa.int32(), nullable=self.outer))
        return [field.with_name(name) for field, name in zip(fields, self.names, strict=True)]

    def apply(self, rows: pa.Table) -> pa.Table:
        parts = split_lists(self.value.evaluate(rows))
        places = np.arange(len(parts.values), dtype=np.int64)
        sources, valid = parts.rows, None
        if self.outer:
            missing = np.flatnonzero(parts.lengths == 0)
            order = np.argsort(np.concatenate([parts.rows, missing]), kind="stable")
            sources = np.concatenate([parts.rows, missing])[order]
            places = np.concatenate([places, np.full(len(missing), -1)])[order]
            valid = places >= 0
        repeated = rows.take(from_numpy(sources, pa.int64()))
        elements = dict(zip(self.names, self._elements(parts, places, valid), strict=True))
        schema = pa.schema([*self.columns, *(field for field in rows.schema if field.name in (TIME, WEIGHT))])
        columns = [elements[name] if name in elements else one_chunk(repeated[name]) for name in schema.names]
        return pa.Table.from_arrays(columns, schema=schema)

    def _elements(
        self, parts: ListParts, places: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_] | None
    ) -> list[pa.Array]:
        values = parts.values if valid is None else taken_or_null(parts.values, places, valid)
        columns = [values]
        if pa.types.is_map(self.value.type) or self.inline:
            columns = [pc.struct_field(values, index) for index in range(values.type.num_fields)]
        if not self.position:
            return columns
        numbers = parts.positions if valid is None else np.where(valid, parts.positions[places], 0)
        return [from_numpy(numbers.astype(np.int32), pa.int32(), valid=valid), *columns]


@dataclass(frozen=True)
class EventTimeValue:
    """Event time as a value."""

    type: pa.DataType = TIMESTAMP

    def evaluate(self, batch: pa.Table) -> pa.Array:
        return one_chunk(batch[TIME])


@dataclass(frozen=True)
class AggregateValue:
    """One of the input columns of an aggregate; null where the aggregate's condition does not hold."""

    aggregate: Aggregate
    part: int
    values: tuple[Value, ...]
    condition: Expression | None
    type: pa.DataType

    def evaluate(self, batch: pa.Table) -> pa.Array:
        holds = None if self.condition is None else self.condition.evaluate(batch)
        return self.aggregate.input_columns([value.evaluate(batch) for value in self.values], holds)[self.part]


@dataclass(frozen=True)
class Lag:
    """Bounds of `event time - column`, in microseconds, for a time column of a stream."""

    min_us: int
    max_us: int


EXACT = Lag(0, 0)
"""Lag of a column that equals the event time."""


@dataclass(frozen=True)
class TimeColumn:
    """Column that an operator uses as the time of its rows instead of the event time."""

    name: str
    lag: Lag | None
    """Lag behind the event time, or None if it is unbounded; rows that lag may then be late."""


@dataclass(frozen=True)
class Feed:
    """Derives the rows of an operator's input from those of a stream."""

    input: Input
    values: tuple[tuple[str, Value], ...]
    """Computed columns of the input; the others are the stream's columns of the same name."""
    time: TimeColumn | None = None
    """Column that becomes the time of the input's rows, or None for the event time."""

    @property
    def lag(self) -> Lag:
        """Bounds of the difference between the event time and the time of the input's rows."""
        return EXACT if self.time is None or self.time.lag is None else self.time.lag

    def apply(self, rows: pa.Table) -> pa.Table:
        values = dict(self.values)
        columns = {
            name: values[name].evaluate(rows) if name in values else one_chunk(rows[name])
            for name in self.input.columns.names
        }
        columns[KEY_HASH] = from_numpy(key_hashes([columns[key] for key in self.input.keys], rows.num_rows), pa.int64())
        columns[TIME] = rows[TIME if self.time is None else self.time.name]
        if WEIGHT in self.input.schema.names:
            ones = np.ones(rows.num_rows, dtype=np.int64)
            columns[WEIGHT] = rows[WEIGHT] if WEIGHT in rows.schema.names else from_numpy(ones, pa.int64())
        return pa.Table.from_arrays(
            [
                columns[name].cast(kind)
                for name, kind in zip(self.input.schema.names, self.input.schema.types, strict=True)
            ],
            schema=self.input.schema,
        )


def with_weights(rows: pa.Table, output: Output) -> pa.Table:
    """Return the rows with the schema of an output; in a changelog, rows without weights get the weight 1."""
    if output.changes is Changes.CHANGELOG and WEIGHT not in rows.schema.names:
        ones = from_numpy(np.ones(rows.num_rows, dtype=np.int64), pa.int64())
        rows = rows.append_column(output.schema.field(WEIGHT), ones)
    columns = [column.cast(kind) for column, kind in zip(rows.columns, output.schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=output.schema)


def key_hashes(keys: Sequence[pa.Array], count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the hashes that route rows to subtasks; without keys all rows have the same one."""
    if not keys:
        return np.full(count, HASH_SEED, dtype=np.int64)
    return hash_columns([normalise_key(key) for key in keys]).view(np.int64)
