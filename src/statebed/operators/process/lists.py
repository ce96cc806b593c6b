"""Lists and maps of keys, taken apart into items that know the place of their key, and put together again.

Work goes over all items of all keys at once. Entries of a map are kept in the order of their keys, so that the state is
the same whatever order they came in.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import from_numpy, int64_values, one_chunk, validity
from statebed.format.keyhash import hash_columns, normalise_key
from statebed.operators.grouping import Grouping, group_rows
from statebed.operators.keyed_rows import taken
from statebed.operators.ordering import Flags, Integers, sorted_by, total_keys
from statebed.operators.process.states import KEY


@dataclass(frozen=True)
class Items:
    """Items of lists; `index` has for each the place of its list."""

    index: Integers
    rows: pa.Table

    @classmethod
    def of(cls, lists: pa.Array) -> "Items":
        lengths = np.where(validity(lists), int64_values(pc.list_value_length(lists).cast(pa.int64())), 0)
        items = lists.flatten()
        names = [field.name for field in lists.type.value_type]
        index = np.repeat(np.arange(len(lists), dtype=np.int64), lengths)
        return cls(index, pa.Table.from_arrays(items.flatten(), names=names))

    def extended(self, index: Integers, rows: pa.Table) -> "Items":
        """With more items behind those of the same list."""
        order = np.argsort(np.concatenate([self.index, index]), kind="stable")
        both = pa.concat_tables([self.rows, rows.cast(self.rows.schema)])
        return Items(np.concatenate([self.index, index])[order], taken(both, order))

    def where(self, kept: Flags) -> "Items":
        rows = np.flatnonzero(kept)
        return Items(self.index[rows], taken(self.rows, rows))

    def lists(self, count: int, kind: pa.DataType) -> pa.Array:
        """So many lists; items stand list after list."""
        lengths = np.bincount(self.index, minlength=count)
        offsets = from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32), pa.int32())
        columns = [
            one_chunk(column).cast(field.type) for column, field in zip(self.rows.columns, kind.value_type, strict=True)
        ]
        items = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(offsets, items, type=kind)

    # ---- entries of maps -------------------------------------------------------------------------------------

    def newest_entries(self) -> "Items":
        """Of entries with one key the last, in the order of keys."""
        last = np.flatnonzero(self._is_last())
        order = sorted_by([self.index[last], *total_keys(taken(self.rows, last), [KEY])])
        return Items(self.index[last[order]], taken(self.rows, last[order]))

    def find(self, index: Integers, keys: pa.Array) -> Integers:
        """Where the entry with each key is; -1: nowhere. Each key has one entry."""
        count = len(self.index)
        grouping = _by_key(np.concatenate([self.index, index]), pa.concat_arrays([one_chunk(self.rows[KEY]), keys]))
        if not grouping.groups:
            return np.zeros(0, dtype=np.int64)
        first = np.minimum.reduceat(grouping.order, grouping.starts)
        place = first[grouping.group_of_rows()[count:]]
        return np.where(place < count, place, -1)

    def _is_last(self) -> Flags:
        last = np.zeros(len(self.index), dtype=np.bool_)
        grouping = _by_key(self.index, one_chunk(self.rows[KEY]))
        if grouping.groups:
            last[np.maximum.reduceat(grouping.order, grouping.starts)] = True
        return last


def _by_key(index: Integers, keys: pa.Array) -> Grouping:
    keys = normalise_key(keys)
    return group_rows(index, hash_columns([keys]), [keys])
