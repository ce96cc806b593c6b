"""Functions over the rows of a window, as users write them: `group_by(...).over("price desc", place=row_number())`."""

from typing import Any

from statebed.operators.windows.function_calls import WindowCall, WindowFunction


def row_number() -> WindowCall:
    """Number the rows 1, 2, 3, ... in order; ties are broken by all columns.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.row_number())
    {'r': [3, 1, 2]}
    """
    return WindowCall(WindowFunction.ROW_NUMBER)


def rank() -> WindowCall:
    """Number the rows like row_number, but give peers the number of the first of them and skip numbers after them.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.rank())
    {'r': [3, 1, 1]}
    """
    return WindowCall(WindowFunction.RANK)


def dense_rank() -> WindowCall:
    """Number the rows like rank, without skipping numbers.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.dense_rank())
    {'r': [2, 1, 1]}
    """
    return WindowCall(WindowFunction.DENSE_RANK)


def percent_rank() -> WindowCall:
    """Return (rank - 1) / (rows - 1).

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.percent_rank())
    {'r': [1.0, 0.0, 0.0]}
    """
    return WindowCall(WindowFunction.PERCENT_RANK)


def cume_dist() -> WindowCall:
    """Return the share of rows up to this row and its peers.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.cume_dist())
    {'r': [1.0, 0.6666666666666666, 0.6666666666666666]}
    """
    return WindowCall(WindowFunction.CUME_DIST)


def ntile(buckets: int) -> WindowCall:
    """Distribute the rows over `buckets` buckets of nearly equal size and return the number of the bucket.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.ntile(2))
    {'r': [2, 1, 1]}
    """
    return WindowCall(WindowFunction.NTILE, number=buckets)


def lag(column: str, rows: int = 1, default: Any = None) -> WindowCall:
    """Return `column` of the row `rows` rows before this one, or `default`.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.lag("x"))
    {'r': [9, None, 9]}
    """
    return WindowCall(WindowFunction.LAG, column, rows, default)


def lead(column: str, rows: int = 1, default: Any = None) -> WindowCall:
    """Return `column` of the row `rows` rows after this one, or `default`.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.lead("x", default=0))
    {'r': [0, 9, 5]}
    """
    return WindowCall(WindowFunction.LEAD, column, rows, default)


def first_value(column: str) -> WindowCall:
    """Return `column` of the first row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.first_value("x"))
    {'r': [9, 9, 9]}
    """
    return WindowCall(WindowFunction.FIRST_VALUE, column)


def last_value(column: str) -> WindowCall:
    """Return `column` of the last row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.last_value("x"))
    {'r': [5, 5, 5]}
    """
    return WindowCall(WindowFunction.LAST_VALUE, column)


def running_count(column: str | None = None) -> WindowCall:
    """Count the rows up to this one; with `column`, only rows in which it is not null.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.running_count())
    {'r': [3, 1, 2]}
    """
    return WindowCall(WindowFunction.RUNNING_COUNT, column)


def running_sum(column: str) -> WindowCall:
    """Sum `column` up to this row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.running_sum("x"))
    {'r': [23, 9, 18]}
    """
    return WindowCall(WindowFunction.RUNNING_SUM, column)


def running_min(column: str) -> WindowCall:
    """Return the smallest value of `column` up to this row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.running_min("x"))
    {'r': [5, 9, 9]}
    """
    return WindowCall(WindowFunction.RUNNING_MIN, column)


def running_max(column: str) -> WindowCall:
    """Return the largest value of `column` up to this row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.running_max("x"))
    {'r': [9, 9, 9]}
    """
    return WindowCall(WindowFunction.RUNNING_MAX, column)


def running_mean(column: str) -> WindowCall:
    """Average `column` up to this row.

    >>> sb.testing.evaluate_over([{"x": 5}, {"x": 9}, {"x": 9}], "x desc", r=sb.running_mean("x"))
    {'r': [7.666666666666667, 9.0, 9.0]}
    """
    return WindowCall(WindowFunction.RUNNING_AVG, column)
