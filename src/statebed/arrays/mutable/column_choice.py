"""Which kind of column holds an array's values."""

from typing import TypeAlias

import pyarrow as pa

from statebed.arrays.mutable.fixed_width import FixedColumn, is_fixed
from statebed.arrays.mutable.heap import HeapColumn
from statebed.arrays.mutable.short_text import TextColumn, is_text

Column: TypeAlias = FixedColumn | TextColumn | HeapColumn


def column_of(array: pa.Array) -> Column:
    """A column that holds a copy of the array's values."""
    if is_fixed(array.type):
        return FixedColumn.of(array)
    text = TextColumn.of(array) if is_text(array.type) else None
    return HeapColumn.of(array) if text is None else text


def column_over(array: pa.Array) -> Column:
    """A column over an array's values, where they lie if it can be: not to be written."""
    if is_fixed(array.type):
        return FixedColumn.over(array)
    text = TextColumn.of(array) if is_text(array.type) else None
    return HeapColumn.over(array) if text is None else text
