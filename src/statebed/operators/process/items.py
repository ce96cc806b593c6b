"""Lists of keys, flattened into items with the position of their key, and back.

Functions work on all items of all keys at once.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.sort_order import Integers


@dataclass(frozen=True)
class Items:
    """Items of lists; `index` has the position of the list of each item."""

    index: Integers
    rows: pa.Table

    @classmethod
    def of(cls, lists: pa.Array) -> "Items":
        lengths = np.where(validity(lists), int64_values(pc.list_value_length(lists).cast(pa.int64())), 0)
        items = lists.flatten()
        names = [field.name for field in lists.type.value_type]
        index = np.repeat(np.arange(len(lists), dtype=np.int64), lengths)
        return cls(index, pa.Table.from_arrays(items.flatten(), names=names))

    def lists(self, count: int, kind: pa.DataType) -> pa.Array:
        """Return the items as `count` lists; items must be grouped by list, in the order of the lists."""
        lengths = np.bincount(self.index, minlength=count)
        offsets = from_numpy(np.append(0, np.cumsum(lengths)).astype(np.int32), pa.int32())
        columns = [
            one_chunk(column).cast(field.type) for column, field in zip(self.rows.columns, kind.value_type, strict=True)
        ]
        items = pa.StructArray.from_arrays(columns, fields=list(kind.value_type))
        return pa.ListArray.from_arrays(offsets, items, type=kind)
