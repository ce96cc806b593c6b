"""Rows of one side of an updating join: of each key the distinct rows with their weights, before and after an epoch.

In the state a key has one row with a list of them. A list is brought to the rows that it stands for and back by its
offsets, without looking at any row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.format.columns import from_numpy, int64_values, one_chunk
from statebed.format.keyhash import normalise_key
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.changelog import group_equal
from statebed.operators.keyed_rows import state_keys, taken
from statebed.operators.operator import WEIGHT, Clock, Input
from statebed.operators.rows import weights_of
from statebed.operators.time_to_live import TimeToLive, by_event_time, keyed_config
from statebed.state import KeyedView, TableConfig

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ROWS = "rows"
"""The column with the list."""
_WRITTEN = "_written"
"""In a row of the list: the time of the epoch that added it last."""


@dataclass(frozen=True)
class Touched:
    """The keys that rows of an epoch have, each once; a join without keys has one key of no columns."""

    keys: Sequence[pa.Array]
    count: int

    def all_places(self) -> Integers:
        return np.arange(self.count, dtype=np.int64)


@dataclass(frozen=True)
class Standing:
    """Distinct rows of the keys that an epoch touches, key after key."""

    rows: pa.Table
    """The columns of the input, and `_time`."""
    places: Integers
    """Of each row its key's place among the touched keys; ascending."""
    before: Integers
    """How often each was there before the epoch."""
    after: Integers
    """How often it is there now."""
    written: Integers
    """When each was added last, in time of epochs."""
    unknown: int
    """Retractions that found nothing."""

    @cached_property
    def changed(self) -> Flags:
        return np.asarray(self.before != self.after)

    def starts(self, keys: int) -> Integers:
        """Where the rows of each key begin; one more, where the last ones end."""
        return np.searchsorted(self.places, np.arange(keys + 1, dtype=np.int64))


@dataclass(frozen=True)
class WeightedTable:
    """The table of one side."""

    name: str
    one: Input
    ttl: TimeToLive | None

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of rows: the input's, and `_time`."""
        return pa.schema([*self.one.columns, pa.field(TIME, TIMESTAMP)])

    @cached_property
    def values(self) -> list[str]:
        return [name for name in self.schema.names if name not in self.one.keys]

    @cached_property
    def item(self) -> pa.StructType:
        """A row of the list."""
        more = [pa.field(WEIGHT, pa.int64()), *([pa.field(_WRITTEN, TIMESTAMP)] if self._by_epoch else [])]
        return pa.struct([*(self.schema.field(name) for name in self.values), *more])

    @property
    def _by_epoch(self) -> bool:
        return self.ttl is not None and not by_event_time(self.ttl)

    @cached_property
    def keys(self) -> tuple[pa.Field, ...]:
        """The key columns of the table."""
        return state_keys(self.one)

    @cached_property
    def config(self) -> TableConfig:
        description = f"rows of {self.one.name} by key, with their weights"
        return keyed_config(self.name, description, self.keys, [pa.field(ROWS, pa.list_(self.item))], self.ttl)

    def standing(self, view: KeyedView, touched: Touched, new: pa.Table, places: Integers, clock: Clock) -> Standing:
        """The rows of the touched keys before and after the epoch; its rows are at these places among the keys."""
        old = self._loaded(view, touched, clock)
        rows = pa.concat_tables([old.rows, new.select(self.schema.names).cast(self.schema)]).combine_chunks()
        all_places = np.concatenate([old.places, places])
        grouping = group_equal(rows.select(self.values), all_places)
        weights, olds, news = weights_of(new), len(old.places), new.num_rows
        before = grouping.add(np.concatenate([old.weights, np.zeros(news, dtype=np.int64)]))
        change = grouping.add(np.concatenate([np.zeros(olds, dtype=np.int64), weights]))
        written = np.concatenate([old.written, np.full(news, clock.epoch_time_us, dtype=np.int64)])[grouping.order]
        written = np.maximum.reduceat(written, grouping.starts) if grouping.groups else written
        after = np.maximum(before + change, 0)
        found = np.flatnonzero((before != 0) | (after != 0))
        firsts = grouping.first_rows[found]
        # Equal rows may differ in the bits of a zero or of a NaN, and any of them may be the first.
        plain = [normalise_key(one_chunk(column)) for column in taken(rows, firsts).columns]
        return Standing(
            rows=pa.Table.from_arrays(plain, schema=self.schema),
            places=all_places[firsts],
            before=before[found],
            after=after[found],
            written=written[found],
            unknown=int(np.maximum(-(before + change), 0).sum()),
        )

    def store(self, view: KeyedView, touched: Touched, standing: Standing) -> None:
        """Write the lists of the keys whose rows have changed."""
        count = touched.count
        changed = np.zeros(count, dtype=np.bool_)
        changed[standing.places[standing.changed]] = True
        kept = np.flatnonzero(changed[standing.places] & (standing.after > 0))
        lengths = np.bincount(standing.places[kept], minlength=count).astype(np.int64)
        there, gone = np.flatnonzero(lengths), np.flatnonzero(changed & (lengths == 0))
        if len(there):
            rows = taken(standing.rows, kept)
            arrays = [
                *(one_chunk(rows[name]) for name in self.values),
                from_numpy(standing.after[kept], pa.int64()),
                *([from_numpy(standing.written[kept], TIMESTAMP)] if self._by_epoch else []),
            ]
            items = pa.StructArray.from_arrays(arrays, fields=list(self.item))
            offsets = np.concatenate([[0], np.cumsum(lengths[there])]).astype(np.int32)
            lists = pa.ListArray.from_arrays(from_numpy(offsets, pa.int32()), items).cast(pa.list_(self.item))
            view.upsert(self._keys(touched, there), pa.table({ROWS: lists}), times=self._times(rows, offsets))
        if len(gone):
            view.delete(self._keys(touched, gone))

    def _times(self, rows: pa.Table, offsets: npt.NDArray[np.int32]) -> pa.Array | None:
        """The latest time of each list, by which its key expires."""
        if not by_event_time(self.ttl):
            return None
        latest = np.maximum.reduceat(int64_values(rows[TIME]), offsets[:-1].astype(np.int64))
        return from_numpy(latest, TIMESTAMP)

    def _loaded(self, view: KeyedView, touched: Touched, clock: Clock) -> "_Loaded":
        """The rows of the keys in the state that have not expired."""
        values, found = view.get(self._keys(touched, touched.all_places()))
        lists = one_chunk(values[ROWS]).take(from_numpy(np.flatnonzero(found), pa.int64()))
        lengths = np.diff(int64_values(lists.offsets.cast(pa.int64())))
        places = np.repeat(np.flatnonzero(found), lengths)
        items = lists.flatten()
        parts = dict(zip((field.name for field in self.item), items.flatten(), strict=True))
        alive = np.ones(len(items), dtype=np.bool_)
        until = expired_until(self.ttl, clock)
        if until is not None:
            alive = int64_values(parts[_WRITTEN if self._by_epoch else TIME]) > until
        at = np.flatnonzero(alive)
        indices, places = from_numpy(at, pa.int64()), places[at]
        columns = {name: part.take(indices) for name, part in parts.items()}
        for name, key in zip(self.one.keys, touched.keys, strict=True):
            columns[name] = key.take(from_numpy(places, pa.int64()))
        rows = pa.Table.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)
        written = int64_values(columns[_WRITTEN]) if self._by_epoch else np.zeros(len(at), dtype=np.int64)
        return _Loaded(rows, places, int64_values(columns[WEIGHT]), written)

    def _keys(self, touched: Touched, places: Integers) -> pa.Table:
        indices = from_numpy(places, pa.int64())
        arrays = [key.take(indices) for key in touched.keys]
        arrays = arrays or [pa.nulls(len(places), self.keys[0].type)]
        return pa.Table.from_arrays(arrays, schema=pa.schema(self.keys))


def expired_until(ttl: TimeToLive | None, clock: Clock) -> int | None:
    """Rows up to this time have left; None: none has."""
    if ttl is None:
        return None
    now = clock.late_us if by_event_time(ttl) else clock.epoch_time_us
    return None if now is None else now - ttl.span_us


@dataclass(frozen=True)
class _Loaded:
    """Rows of the state."""

    rows: pa.Table
    places: Integers
    weights: Integers
    written: Integers
