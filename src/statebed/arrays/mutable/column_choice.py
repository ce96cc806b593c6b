"""Choice of the kind of column for an array."""

from typing import TypeAlias

import pyarrow as pa

from statebed.arrays.mutable.fixed_width import FixedColumn, is_fixed
from statebed.arrays.mutable.heap import HeapColumn
from statebed.arrays.mutable.short_text import TextColumn, is_text

Column: TypeAlias = FixedColumn | TextColumn | HeapColumn


def column_of(array: pa.Array) -> Column:
    """Return a column with a copy of the array's values."""
    if is_fixed(array.type):
        return FixedColumn.of(array)
    text = TextColumn.of(array) if is_text(array.type) else None
    return HeapColumn.of(array) if text is None else text


def column_over(array: pa.Array) -> Column:
    """Return a read-only column over an array's values, without a copy if possible."""
    if is_fixed(array.type):
        return FixedColumn.over(array)
    text = TextColumn.of(array) if is_text(array.type) else None
    return HeapColumn.over(array) if text is None else text
