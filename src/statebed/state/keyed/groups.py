"""Groups of a multiset table: the rows that share the first key columns, found by range of hashes and read in pages.

The rows of a group are in one range of placement hashes, which they share with the few groups whose key hash has the
same upper half. The range yields candidates, whose keys are then compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.canonical_order import sort_indices
from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.hash_order import hash_order, is_ascending
from statebed.arrays.key_hash import Hashes, group_ranges, hash_columns
from statebed.arrays.mutable import Mask, Rows
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.state.keyed.batch import KeyBatch, take_rows
from statebed.state.keyed.batch_matches import BatchMatches
from statebed.state.keyed.input import Batch
from statebed.state.keyed.sorted_run import SortedRun
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.hash_index import ends_of

_PLACE = "_place"
_HASH = "_hash"


@dataclass(frozen=True)
class Groups:
    """Groups to read or delete, each once, ordered by hash."""

    keys: KeyBatch

    @classmethod
    def of(cls, keys: Batch, table: KeyedTable) -> "Groups":
        where = f"table {table.name!r}"
        if not table.prefix_columns:
            raise InputError(
                f"{where} has one row per key, so it has no groups",
                where=where,
                fix="read it with `get`, or define it with `multiset_table_config`",
            )
        batch = KeyBatch.of(keys, table.group_schema, hash_columns, where=where)
        if batch.repeats is not None:
            raise InputError("`keys` contains a group more than once", where=where, fix="pass each group once")
        return cls(batch)

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def firsts(self) -> Hashes:
        """Lowest hash that rows of each group can have."""
        return group_ranges(self.keys.hashes)[0]

    @cached_property
    def lasts(self) -> Hashes:
        """Highest hash that rows of each group can have."""
        return group_ranges(self.keys.hashes)[1]

    def candidates(self, run: SortedRun, span: "GroupSpan") -> tuple[Rows, Rows]:
        """Return the rows of a run that belong to the groups of `span`, and the group of each row: group by group, and
        ascending inside a group.
        """
        at, groups = span.rows_in(run)
        if not len(at):
            return at, groups
        equal: Mask = np.ones(len(at), dtype=np.bool_)
        places = self.keys.place(groups)
        for column, key in zip(run.keys, self.keys.columns, strict=False):
            equal = column.matches(at, key, places, equal)
        return (at, groups) if equal.all() else (at.compress(equal), groups.compress(equal))


@dataclass(frozen=True)
class GroupSpan:
    """Neighbouring groups, and the part of their hashes that one page covers."""

    first_group: int
    firsts: Hashes
    lasts: Hashes
    _known: list[tuple[SortedRun, Rows, Rows]] = field(default_factory=list, init=False, repr=False)
    """Runs that were searched, with the bounds of each group: a page is first measured, and then read."""

    def __len__(self) -> int:
        return len(self.firsts)

    def counts(self, run: SortedRun) -> Rows:
        """Return an upper bound of the number of rows that each group has in a run."""
        starts, ends = self._bounds(run)
        return ends - starts

    def rows_in(self, run: SortedRun) -> tuple[Rows, Rows]:
        """Return the rows of a run in each range, range by range, and the group of the range of each row."""
        starts, ends = self._bounds(run)
        counts = ends - starts
        groups = np.repeat(np.arange(self.first_group, self.first_group + len(self), dtype=np.int64), counts)
        before = np.cumsum(counts) - counts
        return np.arange(len(groups), dtype=np.int64) + np.repeat(starts - before, counts), groups

    def _bounds(self, run: SortedRun) -> tuple[Rows, Rows]:
        for known, starts, ends in self._known:
            if known is run:
                return starts, ends
        starts, _ = run.index.find(self.firsts)
        ends = ends_of(run.hashes, starts, self.lasts)
        self._known.append((run, starts, ends))
        return starts, ends


@dataclass(frozen=True)
class ElementPage:
    """One page of the rows of groups."""

    groups: Rows
    """Group of each row, as its position in the requested keys."""
    rows: pa.Table
    """Rows with the columns of `KeyedTable.element_schema`: elements, `_time` if rows expire, values."""

    def __len__(self) -> int:
        return len(self.groups)


def element_page(table: KeyedTable, keys: KeyBatch, pieces: Sequence[BatchMatches]) -> ElementPage:
    """Build a page of the rows found, ordered by group and hash. The order depends on the rows alone."""
    groups = np.concatenate([np.zeros(0, dtype=np.int64), *(piece.rows for piece in pieces)])
    hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *(piece.run.hashes.take(piece.at) for piece in pieces)])
    schema = table.element_schema
    parts = [_element_rows(table, piece.run, piece.at) for piece in pieces]
    rows = pa.concat_tables([schema.empty_table(), *parts])
    if len(pieces) > 1:
        order, _ = hash_order(hashes)
        if not is_ascending(groups.take(order)):
            # The rows of groups whose hashes share the upper half are interleaved.
            order = order.take(np.argsort(groups.take(order), kind="stable"))
        groups, hashes, rows = groups.take(order), hashes.take(order), take_rows(rows, order)
    tied = np.flatnonzero((hashes[1:] == hashes[:-1]) & (groups[1:] == groups[:-1]))
    if len(tied):
        order = _tie_order(table, groups, hashes, rows, np.union1d(tied, tied + 1))
        groups, rows = groups.take(order), take_rows(rows, order)
    return ElementPage(keys.order.take(groups), rows)


def _tie_order(table: KeyedTable, groups: Rows, hashes: Hashes, rows: pa.Table, tied: Rows) -> Rows:
    """Return the order of rows by group, hash and element, where only the `tied` ones are not in order yet."""
    columns = {_PLACE: from_numpy(groups.take(tied), pa.int64()), _HASH: from_numpy(hashes.take(tied), pa.uint64())}
    at, elements = from_numpy(tied, pa.int64()), table.key_schema.names[table.prefix_columns :]
    keys = pa.table({**columns, **{name: one_chunk(rows[name]).take(at) for name in elements}})
    indices = sort_indices(keys, keys.column_names)
    order: Rows = np.arange(len(groups), dtype=np.int64)
    order[tied] = tied.take(np.frombuffer(indices.buffers()[1], dtype=np.uint64, count=len(indices)).astype(np.int64))
    return order


def _element_rows(table: KeyedTable, run: SortedRun, at: Rows) -> pa.Table:
    columns = [key.take(at) for key in run.keys[table.prefix_columns :]]
    if run.times is not None:
        columns.append(from_numpy(run.times.take(at), TIMESTAMP))
    columns += [value.take(at) for value in run.values]
    schema = table.element_schema
    assert (TIME in schema.names) == (run.times is not None)
    return pa.Table.from_arrays(columns, schema=schema)
