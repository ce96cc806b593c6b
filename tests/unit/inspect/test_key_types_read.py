"""State by keys of every type, read as a table: by key, as text, and what changed between epochs."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effort import every_third
from unit.inspect.table_world import TableWorld
from unit.state.key_types import KEYS, shown

import statebed as sb
from statebed.errors import InputError
from statebed.state import DeleteKey, keyed_table_config, timestamp_table_config

HOUR = dt.timedelta(hours=1)


def world_of(folder: Path, name: str) -> TableWorld:
    schema = pa.schema([("key", KEYS[name][0]), ("n", pa.int64())])
    kept = keyed_table_config("kept", "", ["key"], schema)
    timed = timestamp_table_config("timed", "", HOUR, False, schema, keys=["key"])
    return TableWorld(folder, tables={"kept": kept, "timed": timed})


@pytest.mark.parametrize("name", every_third(KEYS, 1))
def test_rows_are_read_by_such_keys_and_their_changes_are_told(tmp_path: Path, name: str) -> None:
    kind, values = KEYS[name]
    world = world_of(tmp_path, name)
    world.write("kept", {"key": values, "n": list(range(len(values)))})
    world.write("timed", {"key": values, "n": list(range(len(values))), "_time": [5] * len(values)})
    first = world.epoch()
    world.write("kept", {"key": values[:1], "n": [100]})
    world.write("kept", {"key": values[1:2]}, DeleteKey())
    world.write("timed", {"key": values[2:3]}, DeleteKey())
    world.epoch()
    everything = pa.array(values, kind)
    for table, left in (("kept", [100, None, *range(2, len(values))]), ("timed", [0, 1, None, *range(3, len(values))])):
        state = sb.read_state(world.url, table=table)
        rows = state.to_arrow()
        pairs = sorted(zip(shown(rows["key"]), rows["n"].to_pylist(), strict=True))
        want = [(key, n) for key, n in zip(shown(everything), left, strict=True) if n is not None]
        assert pairs == sorted(want)
        for place, n in enumerate(left):
            found = state.keys({"key": values[place]}).to_arrow()
            assert found["n"].to_pylist() == ([] if n is None else [n])
    changes = sb.diff_state(world.url, table="kept", since=first).to_arrow()
    told = sorted(zip(changes["change"].to_pylist(), shown(changes["key"]), changes["n"].to_pylist(), strict=True))
    keys = shown(everything)
    assert told == sorted([("update_before", keys[0], 0), ("update_after", keys[0], 100), ("delete", keys[1], 1)])
    world.end()


TEXTS: list[tuple[str, str, Any]] = [
    ("struct", '{"x": 0.0, "tags": []}', 0),
    ("struct", '{"x": NaN, "tags": ["a", null]}', 2),
    ("list", "[1, null]", 4),
    ("uint64", str((1 << 64) - 1), 3),
    ("time32", "23:59:59", 2),
    ("date64", "1970-01-02", 2),
    ("fixed_binary", "abcd", 1),
    ("decimal256", "-1.25", 1),
    ("timestamp_s", "1970-01-01 00:00:00", 0),
]


@pytest.mark.parametrize(("name", "text", "number"), TEXTS)
def test_a_key_may_be_given_as_text(tmp_path: Path, name: str, text: str, number: int) -> None:
    world = world_of(tmp_path, name)
    values = KEYS[name][1]
    world.write("kept", {"key": values, "n": list(range(len(values)))})
    world.epoch()
    assert sb.read_state(world.url, table="kept").keys(text).to_arrow()["n"].to_pylist() == [number]
    world.end()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("struct", "ann"),
        ("list", "[1"),
        ("list", '{"x": 1}'),
        ("duration_ms", "5"),
        ("fixed_binary", "abc"),
        ("time32", "noon"),
    ],
)
def test_a_text_that_is_no_such_key_is_refused(tmp_path: Path, name: str, text: str) -> None:
    world = world_of(tmp_path, name)
    values = KEYS[name][1]
    world.write("kept", {"key": values, "n": list(range(len(values)))})
    world.epoch()
    with pytest.raises(InputError, match="cannot be a key: the column 'key' is"):
        sb.read_state(world.url, table="kept").keys(text)
    world.end()


def test_a_key_that_another_key_would_be_made_of_is_refused(tmp_path: Path) -> None:
    """1.5 found the row of 1."""
    kept = keyed_table_config("kept", "", ["key"], pa.schema([("key", pa.int64()), ("n", pa.int64())]))
    world = TableWorld(tmp_path, tables={"kept": kept})
    world.write("kept", {"key": [1], "n": [7]})
    world.epoch()
    state = sb.read_state(world.url, table="kept")
    assert state.keys({"key": 1.0}).to_arrow()["n"].to_pylist() == [7]
    with pytest.raises(InputError, match=r"1\.5 cannot be a key"):
        state.keys({"key": 1.5}).to_arrow()
    world.end()
