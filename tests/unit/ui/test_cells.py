"""Cells of rows in the dashboard and in notebooks: values as the CLI's JSON has them, of every type."""

import pyarrow as pa

from statebed.inspect.tables.frames import html
from statebed.ui.row_views import _rows

ROWS = pa.table(
    {
        "float": pa.array([320.1], pa.float32()),
        "nanoseconds": pa.array([1_767_225_600_123_456_789], pa.timestamp("ns", "UTC")),
        "moment": pa.array([1_767_225_600_000_000], pa.timestamp("us")),
        "nested": pa.array(
            [[{"f": 0.1, "b": b"\xff"}]], pa.list_(pa.struct([("f", pa.float32()), ("b", pa.binary())]))
        ),
        "bytes": pa.array([b"\xff"], pa.binary()),
        "nothing": pa.nulls(1, pa.int64()),
    }
)


def test_cells_of_the_dashboard() -> None:
    [row] = _rows(ROWS, 10, None).rows
    assert row == (
        "320.1",
        "2026-01-01T00:00:00.123456789Z",
        "2026-01-01T00:00:00",
        '[{"f": 0.1, "b": "/w=="}]',
        "0xff",
        "null",
    )


def test_cells_of_notebooks() -> None:
    shown = html("rows", ROWS)
    assert ">320.1<" in shown
    assert ">2026-01-01T00:00:00.123456789Z<" in shown
