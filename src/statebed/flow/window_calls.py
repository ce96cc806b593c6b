"""Functions over the rows of a window, as users write them: `group_by(...).over("price desc", place=row_number())`."""

from typing import Any

from statebed.operators.windows.function_calls import FunctionCall, WindowCall


def row_number() -> WindowCall:
    """1, 2, 3, ...; rows that the order does not tell apart are numbered in the order of all their columns."""
    return WindowCall(FunctionCall.ROW_NUMBER)


def rank() -> WindowCall:
    """As row_number, but peers share the number of the first of them, and numbers are left out after them."""
    return WindowCall(FunctionCall.RANK)


def dense_rank() -> WindowCall:
    """As rank, and none is left out."""
    return WindowCall(FunctionCall.DENSE_RANK)


def percent_rank() -> WindowCall:
    """(rank - 1) / (rows - 1)."""
    return WindowCall(FunctionCall.PERCENT_RANK)


def cume_dist() -> WindowCall:
    """The share of rows up to this one and its peers."""
    return WindowCall(FunctionCall.CUME_DIST)


def ntile(buckets: int) -> WindowCall:
    """Into which of so many buckets of (nearly) the same size a row falls."""
    return WindowCall(FunctionCall.NTILE, number=buckets)


def lag(column: str, rows: int = 1, default: Any = None) -> WindowCall:
    """The value so many rows before."""
    return WindowCall(FunctionCall.LAG, column, rows, default)


def lead(column: str, rows: int = 1, default: Any = None) -> WindowCall:
    """The value so many rows after."""
    return WindowCall(FunctionCall.LEAD, column, rows, default)


def first_value(column: str) -> WindowCall:
    """That of the first row."""
    return WindowCall(FunctionCall.FIRST_VALUE, column)


def last_value(column: str) -> WindowCall:
    """That of the last row."""
    return WindowCall(FunctionCall.LAST_VALUE, column)


def running_count(column: str | None = None) -> WindowCall:
    """Rows up to this one; of a column those that are not null."""
    return WindowCall(FunctionCall.RUNNING_COUNT, column)


def running_sum(column: str) -> WindowCall:
    """The sum up to this row."""
    return WindowCall(FunctionCall.RUNNING_SUM, column)


def running_min(column: str) -> WindowCall:
    """The least value up to this row."""
    return WindowCall(FunctionCall.RUNNING_MIN, column)


def running_max(column: str) -> WindowCall:
    """The greatest value up to this row."""
    return WindowCall(FunctionCall.RUNNING_MAX, column)


def running_mean(column: str) -> WindowCall:
    """The mean up to this row."""
    return WindowCall(FunctionCall.RUNNING_AVG, column)
