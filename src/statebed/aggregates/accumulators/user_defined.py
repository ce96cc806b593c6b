"""User-defined aggregates on whole Arrow arrays.

The user's partials are stored unchanged, `_{name}_{column}` for each column of state, with `_{name}_rows`, the number
of rows they were made of (null if no row was passed). Rows are passed group by group and sorted by their inputs,
partials sorted by their columns, so the result does not depend on the order of arrival. A row in which every input is
null, as when the aggregate's condition does not hold, is not passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.base import check_weights
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Flags, Grouping, Integers
from statebed.arrays.sort_order import sorted_by, total_keys
from statebed.errors import AggregateError, InputError, error_text, raised_at
from statebed.expressions.type_text import schema_of, type_of

_METHODS = ("accumulate", "merge", "finish")
_ROWS = "rows"
_MAX_ROWS = 1 << 27
"""Maximum number of rows of one batch passed at once; a row with weight n counts n times."""


class UserAggregate(Protocol):
    """Interface of a user's class; `version` ("1") and the method `retract`, with the signature of `accumulate`, are
    optional.

    `groups` holds the group number of each row, from 0, sorted; each group has at least one row.
    """

    state: str | pa.Schema
    """Columns of a partial: `total double, n bigint`."""
    output: str | pa.DataType
    """Type of the result: `double`."""

    def accumulate(self, groups: pa.Array, n_groups: int, *inputs: pa.Array) -> Sequence[pa.Array]:
        """Convert rows to partials: one array per column of state, one value per group."""

    def merge(self, groups: pa.Array, n_groups: int, *state: pa.Array) -> Sequence[pa.Array]:
        """Merge partials; the result must not depend on order and grouping, and a single partial must stay as it is."""

    def finish(self, *state: pa.Array) -> pa.Array:
        """Return the result of each partial."""


def check_user_aggregate(user: Any) -> None:
    """Raise InputError if `user` is not an aggregate, before anything runs."""
    name = user.__name__ if isinstance(user, type) else type(user).__name__
    if isinstance(user, type):
        raise InputError(
            f"aggregate() needs an instance, got the class {name}", fix=f"create one: aggregate({name}(), 'fare')"
        )
    missing = [method for method in _METHODS if not callable(getattr(user, method, None))]
    missing += [attribute for attribute in ("state", "output") if not hasattr(user, attribute)]
    if missing:
        raise InputError(
            f"{name} is not an aggregate: it lacks {', '.join(missing)}",
            fix="give it the attributes state and output, and the methods accumulate, merge and finish",
        )
    where = f"aggregate {name}"
    if _ROWS in schema_of(user.state, where=where).names:
        raise InputError("a column of state is called 'rows', which is reserved", where=where, fix="rename it")
    type_of(user.output, where=where)


def user_description(user: UserAggregate) -> tuple[str, ...]:
    """Return the identity of a user-defined aggregate; a new version marks a change of the same class."""
    version = str(getattr(user, "version", "1"))
    return (type(user).__qualname__, version, str(schema_of(user.state)), str(type_of(user.output)))


@dataclass(frozen=True)
class UserDefined:
    """A user's aggregate over some inputs."""

    name: str
    user: UserAggregate
    changelog: bool = False

    @property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        columns = [pa.field(f"_{self.name}_{field.name}", field.type) for field in schema_of(self.user.state)]
        return (pa.field(f"_{self.name}_{_ROWS}", pa.int64()), *columns)

    @property
    def output_field(self) -> pa.Field:
        return pa.field(self.name, type_of(self.user.output))

    def fold(
        self, inputs: Sequence[pa.Array], grouping: Grouping, weights: Integers | None = None
    ) -> tuple[pa.Array, ...]:
        check_weights(weights, self.name, changelog=self.changelog)
        handed = np.logical_or.reduce([validity(column) for column in inputs])
        if weights is None:
            return _scattered(self._fold("accumulate", inputs, grouping, np.where(handed, 1, 0)), grouping.groups)
        pieces = [
            self._fold(method, inputs, grouping, np.where(handed, np.maximum(sign * weights, 0), 0), sign=sign)
            for method, sign in (("accumulate", 1), ("retract", -1))
        ]
        groups = np.concatenate([piece[0] for piece in pieces])
        columns = [pa.concat_arrays(list(column)) for column in zip(*(piece[1] for piece in pieces), strict=True)]
        return _scattered(self._merge(groups, columns), grouping.groups)

    def merge(self, partials: Sequence[pa.Array], grouping: Grouping) -> tuple[pa.Array, ...]:
        present = np.flatnonzero(validity(partials[0]))
        rows = from_numpy(present, pa.int64())
        merged = self._merge(grouping.group_of_rows()[present], [column.take(rows) for column in partials])
        return _scattered(merged, grouping.groups)

    def finish(self, partials: Sequence[pa.Array]) -> pa.Array:
        there = validity(partials[0]) & (int64_values(partials[0]) > 0)
        if not there.any():
            return pa.nulls(len(there), self.output_field.type)
        rows = from_numpy(np.flatnonzero(there), pa.int64())
        state = [column.take(rows) for column in partials[1:]]
        (results,) = self._call("finish", (self.output_field,), len(rows), *state)
        return results.take(from_numpy(np.cumsum(there) - 1, pa.int64(), valid=there))

    def _fold(
        self, method: str, inputs: Sequence[pa.Array], grouping: Grouping, times: Integers, *, sign: int = 1
    ) -> tuple[Integers, list[pa.Array]]:
        """Return the groups that have rows, and their partials; each row counts `times` times."""
        if times.sum() > _MAX_ROWS:
            raise AggregateError(
                f"the weights of a batch add up to {times.sum()} rows, which is too many",
                where=f"aggregate {self.name!r}",
                fix="use a built-in aggregate, or smaller batches",
            )
        rows = np.repeat(np.arange(len(times), dtype=np.int64), times)
        groups = grouping.group_of_rows()[rows]
        columns = [column.take(from_numpy(rows, pa.int64())) for column in inputs]
        present, counts, sorted_columns, numbers = _in_order(groups, columns)
        if not len(present):
            return present, [pa.nulls(0, field.type) for field in self.partial_fields]
        state = self._call(method, self.partial_fields[1:], len(present), numbers, len(present), *sorted_columns)
        return present, [from_numpy(sign * counts, pa.int64()), *state]

    def _merge(self, groups: Integers, partials: Sequence[pa.Array]) -> tuple[Integers, list[pa.Array]]:
        """Return the groups that have partials, and one partial for each; no partial is null."""
        present, counts, columns, numbers = _in_order(groups, partials)
        if len(present) == len(groups):
            return present, columns
        state = self._call("merge", self.partial_fields[1:], len(present), numbers, len(present), *columns[1:])
        starts = np.cumsum(counts) - counts
        rows = np.add.reduceat(int64_values(columns[0]), starts)
        return present, [from_numpy(rows, pa.int64()), *state]

    def _call(self, method: str, fields: Sequence[pa.Field], length: int, *arguments: Any) -> list[pa.Array]:
        """Call the user's method and check its result against what the class declares."""
        where = f"aggregate {self.name!r}, {type(self.user).__qualname__}.{method}"
        try:
            returned = getattr(self.user, method)(*arguments)
        except (Exception, SystemExit) as error:
            raise AggregateError(
                f"{method} of {length} groups raised {error_text(error)}",
                where=f"{where}; {raised_at(error)}",
                fix="see the traceback of its cause; nothing of this epoch was stored",
            ) from error
        arrays = [returned] if isinstance(returned, pa.Array | pa.ChunkedArray) else list(returned)
        wanted = ", ".join(str(field.type) for field in fields)
        if len(arrays) != len(fields):
            raise AggregateError(
                f"it returned {len(arrays)} arrays instead of {len(fields)}",
                where=where,
                fix=f"return arrays of {wanted}",
            )
        for array, field in zip(arrays, fields, strict=True):
            if not isinstance(array, pa.Array | pa.ChunkedArray):
                raise AggregateError(f"it returned a {type(array).__name__}", where=where, fix="return Arrow arrays")
            if len(array) != length or not array.type.equals(field.type):
                raise AggregateError(
                    f"it returned {len(array)} values of {array.type} instead of {length} of {field.type}",
                    where=where,
                    fix="return one value per group, of the type that the class declares",
                )
        return [one_chunk(array) for array in arrays]


def _in_order(groups: Integers, columns: Sequence[pa.Array]) -> tuple[Integers, Integers, list[pa.Array], pa.Array]:
    """Return the groups, their row counts, and rows sorted by group and columns, with group numbers from 0."""
    table = pa.table({str(place): column for place, column in enumerate(columns)})
    order = sorted_by([groups, *total_keys(table, table.column_names)])
    present, counts = np.unique(groups, return_counts=True)
    numbers = np.repeat(np.arange(len(present), dtype=np.int64), counts)
    rows = from_numpy(order, pa.int64())
    return present, counts, [column.take(rows) for column in columns], from_numpy(numbers, pa.int64())


def _scattered(partials: tuple[Integers, list[pa.Array]], groups: int) -> tuple[pa.Array, ...]:
    """Return partials of all groups, null for groups without any."""
    present, columns = partials
    if len(present) == groups:
        return tuple(columns)
    rows = np.zeros(groups, dtype=np.int64)
    there: Flags = np.zeros(groups, dtype=np.bool_)
    rows[present], there[present] = np.arange(len(present)), True
    return tuple(column.take(from_numpy(rows, pa.int64(), valid=there)) for column in columns)
