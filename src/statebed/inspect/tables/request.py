"""What is asked of a table: columns, keys, times, conditions. Checked when it is asked, before anything is read."""

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy
from statebed.arrays.key_hash import hash_columns, normalise_key, placement_hash
from statebed.errors import InputError, StatebedError
from statebed.expressions import BoundExpression, bind, filter_rows
from statebed.format.schema import KEY_HASH, TIME
from statebed.inspect.tables.table_shape import GLOBAL_KEYED, KEYED, TableShape
from statebed.state.codec import Codec
from statebed.state.live.files import BEGINNING, END
from statebed.state.live.row_set import RowSet

Instant = dt.datetime | str | int
"""A time: a datetime (without a zone: UTC), a text such as '2024-05-31 12:00', or microseconds since 1970."""
Key = Any
"""One key: a value, a tuple of the values of several key columns, or a dict from column to value."""
Condition = Any
"""A BoundExpression, or an expression of pyarrow."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEXT_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys to look for."""

    rows: pa.Table
    """With `_key_hash` in front."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Keys, (self.rows,))

    @cached_property
    def found(self) -> RowSet:
        return RowSet(self.rows, keys=self.rows.column_names[1:])

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Ascending."""
        return self.found.key_hashes


@dataclass(frozen=True, eq=False)
class Request:
    """Which rows and columns are wanted."""

    shape: TableShape
    columns: tuple[str, ...]
    keys: tuple[Keys, ...] = ()
    """Rows must be of a key of each."""
    start_us: int = BEGINNING
    end_us: int = END
    conditions: tuple[Condition, ...] = ()
    also: frozenset[str] = frozenset()
    """Columns of files that are read as well."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.shape.full_schema.field(name) for name in self.columns])

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """Of the keys that are wanted, ascending; None: of all."""
        if not self.keys:
            return None
        found = self.keys[0].hashes
        for more in self.keys[1:]:
            found = np.intersect1d(found, more.hashes)
        return found

    @property
    def by_time(self) -> bool:
        return (self.start_us, self.end_us) != (BEGINNING, END)

    @cached_property
    def shown(self) -> frozenset[str]:
        """The columns that the answer and its conditions need."""
        needed = set(self.columns)
        for one in self.conditions:
            needed |= one.columns if isinstance(one, BoundExpression) else set(self.shape.full_schema.names)
        if self.by_time:
            needed.add(TIME)
        return frozenset(needed)

    def select(self, columns: Iterable[str]) -> "Request":
        """Only these columns."""
        return replace(self, columns=select(columns, self.shape.full_schema.names, where=self._where))

    def of_keys(self, keys: Iterable[Key]) -> "Request":
        """Only rows of these keys."""
        return replace(self, keys=(*self.keys, keys_of(self.shape, list(keys))))

    def between(self, start: Instant | None, end: Instant | None) -> "Request":
        """Only rows with start <= time < end."""
        if not self.shape.timed:
            raise InputError(
                "the rows of this table have no time",
                where=self._where,
                fix="ask by key, or with a filter on its columns",
            )
        first = BEGINNING if start is None else instant_us(start)
        behind = END if end is None else instant_us(end)
        return replace(self, start_us=max(self.start_us, first), end_us=min(self.end_us, behind))

    def where(self, condition: str | pc.Expression) -> "Request":
        """Only rows for which the condition holds."""
        bound = check_condition(condition, self.shape.full_schema, where=self._where)
        return replace(self, conditions=(*self.conditions, bound))

    def answered(self, rows: pa.Table) -> pa.Table:
        """Those of the table's rows that are wanted; they have the columns of `shown`."""
        return matching(rows, self.conditions)

    @property
    def _where(self) -> str:
        """For errors."""
        return f"table {self.shape.config.name!r}"


def select(columns: Iterable[str], known: list[str], *, where: str) -> tuple[str, ...]:
    """Columns that are asked for, each of which must be known and asked for once."""
    wanted = tuple(columns)
    unknown = [name for name in wanted if name not in known]
    if unknown or len(set(wanted)) != len(wanted):
        raise InputError(
            f"the columns {list(wanted)} are not distinct columns of {known}",
            where=where,
            fix="name each column once, as it stands in the table",
        )
    return wanted


def check_condition(condition: str | pc.Expression, schema: pa.Schema, *, where: str) -> Condition:
    """A condition on rows of a schema, bound to its columns; refused where it does not fit them."""
    if isinstance(condition, str):
        bound = bind(condition, schema, where=where)
        filter_rows(bound, schema.empty_table())
        return bound
    if not isinstance(condition, pc.Expression):
        raise InputError(
            f"{condition!r} is no condition", where=where, fix="give SQL text, or an expression of pyarrow.compute"
        )
    try:
        schema.empty_table().filter(condition)
    except (pa.ArrowException, TypeError, KeyError) as error:
        raise InputError(f"the condition {condition} does not fit the table: {error}", where=where) from error
    return condition


def matching(rows: pa.Table, conditions: Iterable[Condition]) -> pa.Table:
    """The rows for which all conditions hold."""
    for condition in conditions:
        bound = isinstance(condition, BoundExpression)
        rows = filter_rows(condition, rows) if bound else rows.filter(condition)
    return rows


def keys_of(shape: TableShape, keys: list[Key]) -> Keys:
    """Keys as users write them, as rows with their hashes."""
    where = f"table {shape.config.name!r}"
    if shape.kind == GLOBAL_KEYED:
        columns = [pa.array([Codec[Any]().encode_key(key) for key in keys], pa.binary())]
    else:
        if not shape.keys:
            raise InputError("the table has no keys", where=where, fix="ask by time, or with a filter")
        parts = [_parts(key, shape.keys, where=where) for key in keys]
        columns = [
            normalise_key(_column(field, [part[index] for part in parts], where=where))
            for index, field in enumerate(shape.key_schema)
        ]
    hashes = _placed(shape, columns) if keys else np.zeros(0, dtype=np.uint64)
    rows = [from_numpy(hashes, pa.uint64()), *columns]
    return Keys(pa.Table.from_arrays(rows, names=[KEY_HASH, *shape.keys]))


def _placed(shape: TableShape, columns: list[pa.Array]) -> npt.NDArray[np.uint64]:
    """The hashes that rows with these keys have in files."""
    prefix = shape.config.keyed.prefix_columns if shape.kind == KEYED else 0
    return placement_hash(columns, prefix) if prefix else hash_columns(columns)


def instant_us(given: Instant) -> int:
    """Microseconds since 1970."""
    if isinstance(given, bool) or not isinstance(given, dt.datetime | str | int):
        raise InputError(f"{given!r} is no time", fix="give a datetime, a text such as '2024-05-31 12:00', or an int")
    if isinstance(given, int):
        return given
    if isinstance(given, str):
        try:
            given = dt.datetime.fromisoformat(given.strip())
        except ValueError as error:
            raise InputError(f"{given!r} is no time", fix="write it as 2024-05-31 12:00:00") from error
    aware = given.replace(tzinfo=dt.UTC) if given.utcoffset() is None else given
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def _parts(key: Key, names: tuple[str, ...], *, where: str) -> tuple[Any, ...]:
    """The values of the key columns, in their order."""
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InputError(
                f"a key has the columns {sorted(map(str, key))} instead of {list(names)}",
                where=where,
                fix="name every key column; `filter` looks for parts of a key",
            )
        return tuple(key[name] for name in names)
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) != len(names):
        raise InputError(
            f"the key {key!r} has {len(parts)} values, and there are the key columns {list(names)}",
            where=where,
            fix="give a tuple with a value for each key column, or a dict; `filter` looks for parts of a key",
        )
    return parts


def _column(field: pa.Field, values: list[Any], *, where: str) -> pa.Array:
    """Values as the column has them; a text may stand for a value of another type."""
    try:
        if field.type not in _TEXT_TYPES and any(isinstance(value, str) for value in values):
            return _from_texts(field.type, values)
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, StatebedError) as error:
        raise InputError(
            f"{values if len(values) > 1 else values[0]!r} cannot be a key: the column {field.name!r} is "
            f"{field.type} ({error})",
            where=where,
            fix="give values of the column's type; as text, a struct or list is written in JSON",
        ) from error


def _from_texts(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_nested(kind):
        return pa.array([json.loads(value) if isinstance(value, str) else value for value in values], kind)
    if pa.types.is_time(kind):
        return pa.array([dt.time.fromisoformat(value) if isinstance(value, str) else value for value in values], kind)
    return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
