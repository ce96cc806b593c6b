"""Columns of keyed state in memory: read, written in place and grown by row number.

A `FixedColumn` holds numbers, times and booleans, a `TextColumn` short text, a `HeapColumn` everything else: long text,
decimals, nested types. A column of text may be of either kind, and become the other when it is written.
"""

from statebed.arrays.mutable.column import AnyColumn, Mask, Places, Rows, cuts_at, equal_where, plain, taken
from statebed.arrays.mutable.column_choice import Column, column_of, column_over
from statebed.arrays.mutable.fixed_width import FixedColumn, with_values
from statebed.arrays.mutable.heap import HeapColumn
from statebed.arrays.mutable.short_text import TextColumn

__all__ = [
    "AnyColumn",
    "Column",
    "FixedColumn",
    "HeapColumn",
    "Mask",
    "Places",
    "Rows",
    "TextColumn",
    "column_of",
    "column_over",
    "cuts_at",
    "equal_where",
    "plain",
    "taken",
    "with_values",
]
