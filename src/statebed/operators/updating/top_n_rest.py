"""Rows of a changelog beyond the first ones of a key, each a separate row of the state.

The list of a key holds its first rows and some spare ones. All rows after them are in a multiset table, where a changed
row is looked up and written alone. When a list becomes too short to hold the first n rows, the next ones are read from
the table, in pages. When it becomes too long, its last rows move to the table.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.row_numbers import Numbering, Partitions
from statebed.arrays.sort_order import Flags, Integers, changes, sorted_by, total_keys, user_keys
from statebed.format.schema import TIME
from statebed.format.stream_schema import WEIGHT
from statebed.operators.keyed_rows import KeyedRows, taken
from statebed.operators.updating.ranked_rows import RankedRows, RankingStep
from statebed.operators.weighted_rows import TouchedKeys, WeightedTable
from statebed.state import KeyedView

_SPARE = 64
"""Minimum number of spare rows beyond the first n in a list that has just been cut or filled."""


@dataclass(frozen=True)
class SettledRows:
    """Rows in the lists after a step."""

    standing: RankingStep
    kept: tuple[Integers, Integers]
    """Rows in the lists of touched keys, in order, and their weights."""
    unknown: int
    """Number of retractions that matched no row."""


@dataclass(frozen=True)
class RowsBeyond:
    """Rows of one step that may be beyond the lists."""

    table: WeightedTable
    view: KeyedView
    keyed: KeyedRows

    def settle(self, standing: RankingStep) -> SettledRows:
        """Divide the rows of a step between lists and table; `standing` treats all of them as rows of the lists."""
        has_rest = self._has_rest(standing)
        beyond = self._is_beyond(standing, has_rest)
        unknown = 0
        if beyond.any():
            rest = np.flatnonzero(beyond)
            unknown = self._add(taken(self.keyed.rows, rest), self.keyed.key_index[rest])
            standing = replace(standing, new=_some(standing.new, np.flatnonzero(~beyond)))
        lacking = np.flatnonzero(has_rest & (_sizes(standing, *standing.all_kept) < standing.n))
        if len(lacking):
            standing = replace(standing, new=_both(standing.new, self._next_rows(standing, lacking)))
        return SettledRows(standing, self._cut(standing), unknown + standing.unknown)

    def _has_rest(self, standing: RankingStep) -> Flags:
        """Return which keys have rows beyond their lists; a key whose list has fewer than n rows has none."""
        old = standing.old
        long = np.flatnonzero(_sizes(standing, np.arange(len(old.index), dtype=np.int64), old.weights) >= standing.n)
        has_rest = np.zeros(standing.keys, dtype=np.bool_)
        if len(long):
            has_rest[long] = self.table.counts(self.view, self._touched, long, np.zeros(len(long), dtype=np.int64)) > 0
        return has_rest

    def _is_beyond(self, standing: RankingStep, has_rest: Flags) -> Flags:
        """Return which new rows are after the last row of their key's list, for keys with rows beyond it."""
        beyond = np.zeros(len(standing.new.index), dtype=np.bool_)
        new = np.flatnonzero(has_rest[standing.new.index])
        if not len(new):
            return beyond
        keys = np.flatnonzero(has_rest)
        lasts = np.searchsorted(standing.old.index, keys, side="right") - 1
        both = _both(_some(standing.old, lasts), _some(standing.new, new))
        place = _places(both, standing)
        last = np.zeros(standing.keys, dtype=np.int64)
        last[keys] = place[: len(keys)]
        beyond[new] = place[len(keys) :] > last[standing.new.index[new]]
        return beyond

    def _next_rows(self, standing: RankingStep, lacking: Integers) -> RankedRows:
        """Remove the first rows of keys from the table and return them."""
        best = _some(standing.new, np.zeros(0, dtype=np.int64))
        for page in self.table.pages(self.view, self._touched, lacking):
            rows = _values_of(page.rows, standing.new.rows.schema)
            best = _both(best, RankedRows(page.places, rows, page.weights))
            best = _some(best, _first(best, standing))
        order = np.argsort(best.index, kind="stable")
        best = _some(best, order)
        self._move(best, -best.weights)
        return best

    def _cut(self, standing: RankingStep) -> tuple[Integers, Integers]:
        """Move rows of lists that are too long to the table; return the rows that stay."""
        at, weights = standing.kept
        limit = 2 * _length(standing.n)
        long = np.bincount(standing.index[at], minlength=standing.keys) > limit
        if not long.any():
            return at, weights
        rows = RankedRows(standing.index[at], taken(standing.rows, at), weights)
        stays = ~long[rows.index]
        stays[_first(rows, standing)] = True
        moved = _some(rows, np.flatnonzero(~stays))
        self._move(moved, moved.weights)
        return at[stays], weights[stays]

    def _move(self, rows: RankedRows, change: Integers) -> None:
        """Add `change` to the weights of rows in the table."""
        columns = {name: one_chunk(rows.rows[name]) for name in rows.rows.column_names}
        times = columns.pop(rows.rows.column_names[-1])
        keys = taken(self.keyed.keys, rows.index)
        columns.update({name: one_chunk(keys[name]) for name in self.table.input.keys})
        names = self.table.input.columns.names
        table = pa.table({**{name: columns[name] for name in names}, TIME: times, WEIGHT: pa.array(change)})
        self._add(table, rows.index)

    def _add(self, rows: pa.Table, places: Integers) -> int:
        """Add the weights of rows to those in the table; return the number of retractions that matched no row."""
        changed = self.table.changed(self.view, rows, places)
        self.table.store(self.view, changed)
        return changed.unknown

    @cached_property
    def _touched(self) -> TouchedKeys:
        keys = self.keyed.keys
        return TouchedKeys([one_chunk(keys[name]) for name in self.table.input.keys], keys.num_rows)


def _length(n: int) -> int:
    return n + max(n, _SPARE)


def _sizes(standing: RankingStep, at: Integers, weights: Integers) -> Integers:
    """Return the number of rows of each key among some distinct rows, in order, as its numbering counts them."""
    index = standing.index[at]
    if standing.numbering is Numbering.DENSE_RANK:
        counted = changes([index, *user_keys(taken(standing.rows, at), standing.order)], np.arange(len(at)))
        weights = counted.astype(np.int64)
    sizes = np.zeros(standing.keys, dtype=np.int64)
    np.add.at(sizes, index, weights)
    return sizes


def _first(rows: RankedRows, standing: RankingStep) -> Integers:
    """Return the distinct rows that fill the list of each key."""
    user = [rows.index, *user_keys(rows.rows, standing.order)]
    order = sorted_by([*user, *total_keys(rows.rows, rows.rows.column_names)])
    shape = Partitions(changes([rows.index], order), changes(user, order))
    return order[shape.numbers(standing.numbering) <= _length(standing.n)]


def _places(rows: RankedRows, standing: RankingStep) -> Integers:
    """Return the rank of each row; rows that must stay together in a list have the same rank."""
    keys = [rows.index, *user_keys(rows.rows, standing.order)]
    if standing.numbering is Numbering.ROW_NUMBER:
        keys += total_keys(rows.rows, rows.rows.column_names)
    order = sorted_by(keys)
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(changes(keys, order))
    return places


def _values_of(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows of an input in the layout of lists: without keys, and with the event time last."""
    *names, _ = schema.names
    columns = [*(one_chunk(rows[name]) for name in names), one_chunk(rows[TIME])]
    return pa.Table.from_arrays(columns, schema=schema)


def _some(rows: RankedRows, at: Integers) -> RankedRows:
    return RankedRows(rows.index[at], taken(rows.rows, at), rows.weights[at])


def _both(first: RankedRows, second: RankedRows) -> RankedRows:
    return RankedRows(
        np.concatenate([first.index, second.index]),
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.weights, second.weights]),
    )
