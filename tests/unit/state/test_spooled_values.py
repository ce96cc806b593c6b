"""Values written to local files and read back as one array of the same type."""

import datetime as dt
import decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from statebed.state.tiers.spill_folder import SpillFolder
from statebed.state.tiers.spooled_values import SpooledValues

PIECES: dict[pa.DataType, list[list[Any]]] = {
    pa.int64(): [[1, -2], [], [3]],
    pa.int8(): [[1], [2, 3]],
    pa.float32(): [[0.5], [float("inf")]],
    pa.bool_(): [[True], [False, True]],
    pa.date32(): [[dt.date(2026, 1, 2)], [dt.date(1969, 12, 31)]],
    pa.timestamp("us", "UTC"): [[dt.datetime(2026, 1, 2, tzinfo=dt.UTC)]],
    pa.decimal128(30, 2): [[decimal.Decimal("1.25")], [decimal.Decimal(-(10**20))]],
    pa.binary(3): [[b"abc"], [b"\x00\x01\x02"]],
    pa.string(): [["a", ""], [], ["\u00e9", "longer than one word"]],
    pa.binary(): [[b""], [b"\xff"]],
    pa.large_string(): [["a"], ["b", ""]],
}


@pytest.mark.parametrize("kind", PIECES, ids=str)
def test_pieces_become_one_array(kind: pa.DataType, tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    spooled = SpooledValues(folder, kind)
    for piece in PIECES[kind]:
        # Values that are a slice of others are written without their neighbours.
        around = pa.array([*piece[:1], *piece, *piece[:1]], kind)
        spooled.append(around.slice(len(piece[:1]), len(piece)))
    values = spooled.array()
    values.validate(full=True)
    assert values.equals(pa.array([value for piece in PIECES[kind] for value in piece], kind))
    assert not list(folder.path.iterdir())
    folder.close()


def test_nothing_becomes_an_empty_array_and_unread_files_are_removed(tmp_path: Path) -> None:
    folder = SpillFolder(tmp_path)
    for kind in PIECES:
        assert len(SpooledValues(folder, kind).array()) == 0
    unread = SpooledValues(folder, pa.string())
    unread.append(pa.array(["a"]))
    assert list(folder.path.iterdir())
    unread.close()
    assert not list(folder.path.iterdir())
    folder.close()
