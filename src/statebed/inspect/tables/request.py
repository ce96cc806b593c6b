"""A request to a table: columns, keys, times, conditions. Validated when it is built, before anything is read."""

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
from statebed.arrays.exact_values import exact_array
from statebed.arrays.key_hash import hash_columns, normalise_key, placement_hash
from statebed.errors import InputError, StatebedError
from statebed.expressions import BoundExpression, bind, filter_rows
from statebed.format.schema import KEY_HASH, TIME
from statebed.inspect.tables.table_shape import GLOBAL_KEYED, KEYED, TableShape
from statebed.state.codec import Codec
from statebed.state.live.files import BEGINNING, END
from statebed.state.live.row_set import RowSet

Instant = dt.datetime | str | int
"""A time: a datetime (UTC if it has no zone), a text such as '2024-05-31 12:00', or microseconds since 1970."""
Key = Any
"""One key: a value, a tuple of the values of several key columns, or a dict from column to value."""
Condition = Any
"""A BoundExpression, or a pyarrow expression."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_TEXT_TYPES = (pa.string(), pa.binary(), pa.large_string(), pa.large_binary())


@dataclass(frozen=True, eq=False)
class Keys:
    """Keys to look up."""

    rows: pa.Table
    """Key columns, preceded by `_key_hash`."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Keys, (self.rows,))

    @cached_property
    def row_set(self) -> RowSet:
        return RowSet(self.rows, keys=self.rows.column_names[1:])

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """Hashes of the keys in ascending order."""
        return self.row_set.key_hashes


@dataclass(frozen=True, eq=False)
class Request:
    """Selects rows and columns."""

    shape: TableShape
    columns: tuple[str, ...]
    keys: tuple[Keys, ...] = ()
    """Sets of keys; a row must match a key of each set."""
    start_us: int = BEGINNING
    end_us: int = END
    conditions: tuple[Condition, ...] = ()
    also: frozenset[str] = frozenset()
    """Additional columns of files to read."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.shape.full_schema.field(name) for name in self.columns])

    @cached_property
    def hashes(self) -> npt.NDArray[np.uint64] | None:
        """Hashes of the requested keys in ascending order, or None for all keys."""
        if not self.keys:
            return None
        common = self.keys[0].hashes
        for more in self.keys[1:]:
            common = np.intersect1d(common, more.hashes)
        return common

    @property
    def by_time(self) -> bool:
        return (self.start_us, self.end_us) != (BEGINNING, END)

    @cached_property
    def shown(self) -> frozenset[str]:
        """Columns that the result and its conditions need."""
        needed = set(self.columns)
        for condition in self.conditions:
            needed |= condition.columns if isinstance(condition, BoundExpression) else set(self.shape.full_schema.names)
        if self.by_time:
            needed.add(TIME)
        return frozenset(needed)

    def select(self, columns: Iterable[str]) -> "Request":
        """Return a copy with only these columns."""
        return replace(self, columns=select(columns, self.shape.full_schema.names, where=self._where))

    def of_keys(self, keys: Iterable[Key]) -> "Request":
        """Return a copy with only rows of these keys."""
        return replace(self, keys=(*self.keys, keys_of(self.shape, list(keys))))

    def between(self, start: Instant | None, end: Instant | None) -> "Request":
        """Return a copy with only rows with start <= time < end."""
        if not self.shape.timed:
            raise InputError(
                "the rows of this table have no time",
                where=self._where,
                fix="select by key, or with a filter on its columns",
            )
        first = BEGINNING if start is None else instant_us(start)
        behind = END if end is None else instant_us(end)
        return replace(self, start_us=max(self.start_us, first), end_us=min(self.end_us, behind))

    def where(self, condition: str | pc.Expression) -> "Request":
        """Return a copy with only rows that satisfy the condition."""
        bound = check_condition(condition, self.shape.full_schema, where=self._where)
        return replace(self, conditions=(*self.conditions, bound))

    def answered(self, rows: pa.Table) -> pa.Table:
        """Return the matching rows of the table; they must have the columns of `shown`."""
        return matching(rows, self.conditions)

    @property
    def _where(self) -> str:
        """Location shown in errors."""
        return f"table {self.shape.config.name!r}"


def select(columns: Iterable[str], known: list[str], *, where: str) -> tuple[str, ...]:
    """Return the requested columns. Raise InputError if one is unknown or repeated."""
    wanted = tuple(columns)
    unknown = [name for name in wanted if name not in known]
    if unknown or len(set(wanted)) != len(wanted):
        raise InputError(
            f"the columns {list(wanted)} must be distinct columns of {known}",
            where=where,
            fix="name each column once, as in the table",
        )
    return wanted


def check_condition(condition: str | pc.Expression, schema: pa.Schema, *, where: str) -> Condition:
    """Bind a condition to the columns of a schema. Raise InputError if it does not match them."""
    if isinstance(condition, str):
        bound = bind(condition, schema, where=where)
        filter_rows(bound, schema.empty_table())
        return bound
    if not isinstance(condition, pc.Expression):
        raise InputError(
            f"a condition must be SQL text or a pyarrow expression, got {condition!r}",
            where=where,
            fix="pass SQL text, or an expression of pyarrow.compute",
        )
    try:
        schema.empty_table().filter(condition)
    except (pa.ArrowException, TypeError, KeyError) as error:
        raise InputError(f"the condition {condition} does not match the table: {error}", where=where) from error
    return condition


def matching(rows: pa.Table, conditions: Iterable[Condition]) -> pa.Table:
    """Return the rows that satisfy all conditions."""
    for condition in conditions:
        bound = isinstance(condition, BoundExpression)
        rows = filter_rows(condition, rows) if bound else rows.filter(condition)
    return rows


def keys_of(shape: TableShape, keys: list[Key]) -> Keys:
    """Convert keys as users write them to rows with their hashes."""
    where = f"table {shape.config.name!r}"
    if shape.kind == GLOBAL_KEYED and shape.broadcast is None:
        columns = [_encoded(keys)]
    else:
        if not shape.keys:
            raise InputError("the table has no keys", where=where, fix="select by time, or with a filter")
        parts = [_parts(key, shape.keys, where=where) for key in keys]
        columns = [
            _column(field, [part[index] for part in parts], where=where) for index, field in enumerate(shape.key_schema)
        ]
        if shape.broadcast is None:
            columns = [normalise_key(column) for column in columns]
        else:
            columns = [_encoded(zip(*(column.to_pylist() for column in columns), strict=True))]
    hashes = _placed(shape, columns) if keys else np.zeros(0, dtype=np.uint64)
    rows = [from_numpy(hashes, pa.uint64()), *columns]
    return Keys(pa.Table.from_arrays(rows, names=[KEY_HASH, *shape.stored_keys]))


def _encoded(keys: Iterable[Key]) -> pa.Array:
    """Return keys of a global keyed table as stored."""
    return pa.array([Codec[Any]().encode_key(key) for key in keys], pa.binary())


def _placed(shape: TableShape, columns: list[pa.Array]) -> npt.NDArray[np.uint64]:
    """Return the hashes that rows with these keys have in files."""
    prefix = shape.config.keyed.prefix_columns if shape.kind == KEYED else 0
    return placement_hash(columns, prefix) if prefix else hash_columns(columns)


def instant_us(instant: Instant) -> int:
    """Convert a time to microseconds since 1970."""
    if isinstance(instant, bool) or not isinstance(instant, dt.datetime | str | int):
        raise InputError(
            f"expected a time, got {instant!r}", fix="pass a datetime, a text such as '2024-05-31 12:00', or an int"
        )
    if isinstance(instant, int):
        return instant
    if isinstance(instant, str):
        try:
            instant = dt.datetime.fromisoformat(instant.strip())
        except ValueError as error:
            raise InputError(f"expected a time, got {instant!r}", fix="write it as 2024-05-31 12:00:00") from error
    aware = instant.replace(tzinfo=dt.UTC) if instant.utcoffset() is None else instant
    return (aware - _EPOCH) // dt.timedelta(microseconds=1)


def _parts(key: Key, names: tuple[str, ...], *, where: str) -> tuple[Any, ...]:
    """Return the values of the key columns, in order."""
    if isinstance(key, Mapping):
        if set(key) != set(names):
            raise InputError(
                f"a key must have the columns {list(names)}, got {sorted(map(str, key))}",
                where=where,
                fix="name every key column; use `filter` for parts of a key",
            )
        return tuple(key[name] for name in names)
    parts = key if isinstance(key, tuple) else (key,)
    if len(parts) != len(names):
        raise InputError(
            f"a key must have {len(names)} values, for {list(names)}; got {key!r}",
            where=where,
            fix="pass a tuple with a value for each key column, or a dict; use `filter` for parts of a key",
        )
    return parts


def _column(field: pa.Field, values: list[Any], *, where: str) -> pa.Array:
    """Convert values to the type of the column; text is parsed for other types."""
    try:
        if field.type not in _TEXT_TYPES and any(isinstance(value, str) for value in values):
            return _from_texts(field.type, values)
        return exact_array(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, StatebedError) as error:
        raise InputError(
            f"{values if len(values) > 1 else values[0]!r} cannot be a key: the column {field.name!r} is "
            f"{field.type} ({error})",
            where=where,
            fix="pass values of the column's type; as text, write a struct or list in JSON",
        ) from error


def _from_texts(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_nested(kind):
        return exact_array([json.loads(value) if isinstance(value, str) else value for value in values], kind)
    if pa.types.is_time(kind):
        return pa.array([dt.time.fromisoformat(value) if isinstance(value, str) else value for value in values], kind)
    return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(kind)
