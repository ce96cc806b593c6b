"""DuckDB's answers over the rows that a stream fed, and the comparison with what came out.

Times are whole microseconds here, so that any year will do. Integers, decimals, texts and times are compared exactly,
floats to 1e-9; -0.0 is 0.0 and NaN is NaN.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import duck
import pyarrow as pa
from conformance.streams import SCHEMA, Played

from statebed.operators.window_definition import Window, WindowShape

COLUMNS = ", ".join(SCHEMA.names)


def select(query: str, **tables: pa.Table) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of columns, and rows."""
    with duck.cursor() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        connection.execute("create temp macro floor_mod(a, b) as ((a % b) + b) % b")
        answer = connection.execute(query)
        names = [column[0] for column in answer.description or ()]
        return names, answer.fetchall()


def plain(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows with times and spans as numbers."""
    columns = [column.cast(pa.int64()) if pa.types.is_temporal(column.type) else column for column in table.columns]
    values = [column.to_pylist() for column in columns]
    return list(zip(*values, strict=True)) if values else []


def assert_same(found: pa.Table, expected: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    """The same columns, and the same rows, each as often."""
    names, rows = expected
    assert found.column_names == names
    ours, theirs = (sorted((tuple(map(_plain, row)) for row in some), key=_place) for some in (plain(found), rows))
    assert len(ours) == len(theirs), (_beyond(ours, theirs), _beyond(theirs, ours))
    different = [(one, other) for one, other in zip(ours, theirs, strict=True) if not _alike(one, other)]
    assert not different, f"found, expected: {different[:5]}"


def windows(window: Window, rows: str, *, lateness_us: int = 0) -> str:
    """SQL: rows once for each window that held them when they came, with window_start and window_end."""
    width, slide, offset = window.width_us, window.slide_us, window.offset_us
    if window.shape is WindowShape.CUMULATIVE:
        start = f"ts - floor_mod(ts - {offset}, {width})"
        edges = f"{start} as window_start, {start} + (i + 1) * {slide} as window_end"
    else:
        start = f"ts - floor_mod(ts - {offset}, {slide}) - i * {slide}"
        edges = f"{start} as window_start, {start} + {width} as window_end"
    return f"""
        (select * from (select *, {edges} from {rows}, range({-(-width // slide)}) as steps(i) where ts is not null)
         where window_end > ts and (seen is null or window_end + {lateness_us} > seen))
        """


def assert_late(
    played: Played, operator: str, late: str, *, source: str = "left", side: str = "late", given: str = "true"
) -> None:
    """Admitted + late = input, and exactly the rows are late that the condition says (in SQL, over all rows)."""
    rows = played.rows(source)
    query = f"""
        select {COLUMNS}, seen - ts as late_by, seen as watermark, '{operator}' as operator
        from fed where ({late}) and {given}"""
    expected = select(query, fed=rows)
    found = played.run.table(operator, side=side)
    assert_same(found.select(expected[0]), expected)
    if side == "late":
        counts = played.run.counts
        assert counts[operator, "rows_late"] == len(expected[1])
        assert [(counts[operator, "rows_in"],)] == select(f"select count(*) from fed where {given}", fed=rows)[1]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _place(row: Sequence[Any]) -> str:
    """Return the sort key of a row: floats come last and rounded, so that small differences do not change the order."""
    exact = [value for value in row if not isinstance(value, float)]
    return repr((exact, [f"{value:.6g}" for value in row if isinstance(value, float)]))


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _beyond(some: list[Any], others: list[Any]) -> list[Any]:
    """Return rows of one list that the other lacks, for messages."""
    return [one for one in some if not any(_alike(one, other) for other in others)][:5]
