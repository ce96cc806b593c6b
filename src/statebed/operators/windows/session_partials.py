"""Partials of sessions, and where the values of a session are if they are rows of their own.

A session with many values is large (`large_groups`): its partials list none, and `LARGE_AS` has the name under which
the tables of entries have them. That is the start that the session had when it became large. It stays the same when the
session grows or absorbs others, and no other session of the key can have it, because each contains its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.aggregates.partials import Partials
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.grouping import Grouping
from statebed.format.schema import TIMESTAMP

LARGE_AS = "_large_as"
LARGE_VALUES = "_large_values"
"""Column with the number of values that were added to a large session; it changes whenever they do."""


@dataclass(frozen=True)
class SessionPartials:
    """Partials of the sessions of one operator."""

    partials: Partials
    lists_values: bool
    """Whether some of the partials list values, so that sessions may be large."""

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Columns of partials, and those about large sessions."""
        large = (pa.field(LARGE_AS, TIMESTAMP), pa.field(LARGE_VALUES, pa.int64())) if self.lists_values else ()
        return (*self.partials.fields, *large)

    def fold(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        """Fold rows to partials of sessions that are not large."""
        added = [pa.nulls(grouping.groups, field.type) for field in self.fields[len(self.partials.fields) :]]
        return [*self.partials.fold(rows, grouping), *added]

    def merge(self, rows: pa.Table, grouping: Grouping) -> list[pa.Array]:
        """Merge partials of sessions; the largest of those that are large gives its name to the result."""
        merged = self.partials.merge(rows, grouping)
        if not self.lists_values:
            return merged
        names, sizes = one_chunk(rows[LARGE_AS]), one_chunk(rows[LARGE_VALUES])
        is_large = validity(names)
        if not is_large.any():
            return [*merged, *(pa.nulls(grouping.groups, column.type) for column in (names, sizes))]
        counts = np.where(is_large, int64_values(sizes.fill_null(0)), -1)
        group_of_rows = grouping.group_of_rows()
        # The last row of each group is the largest; the first of equal ones.
        order = np.lexsort((-np.arange(len(counts)), counts, group_of_rows))
        lasts = np.append(np.flatnonzero(np.diff(group_of_rows[order])), len(order) - 1)
        largest = from_numpy(order[lasts], pa.int64())
        return [*merged, names.take(largest), sizes.take(largest)]

    def finish(self, partials: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the results of partials."""
        return self.partials.finish(partials[: len(self.partials.fields)])
