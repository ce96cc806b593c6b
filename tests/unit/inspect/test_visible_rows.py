"""Rows of files that a table shows: tombstones of every kind, versions, owned ranges, edges of bins and ranges."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.inspect.table_world import TableWorld

import statebed as sb
from statebed.state import DeleteKey, DeleteTimeKey, DeleteValue, keyed_table_config
from statebed.state.live.files import BEGINNING, END

MINUTE = 60_000_000
SECOND = 1_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(tmp_path)
    yield world
    world.end()


def write(world: TableWorld, table: str, *rows: tuple[int, int, int]) -> None:
    """Driver, time and cents."""
    drivers, times, cents = zip(*rows, strict=True)
    world.write(table, {"driver": drivers, "_time": times, "cents": cents})


def rows(world: TableWorld, table: str, **where: Any) -> Counter[tuple[int, int, int]]:
    return rows_of(sb.read_state(world.url, table=table, **where))


def rows_of(table: sb.StateTable) -> Counter[tuple[int, int, int]]:
    found = table.to_arrow()
    columns = (found["driver"], found["_time"].cast("int64"), found["cents"])
    return Counter(zip(*(column.to_pylist() for column in columns), strict=True))


@pytest.mark.parametrize("table", ["fares", "prices"])
def test_p8_deletions_of_every_kind_hide_what_was_there_and_nothing_that_came_later(
    world: TableWorld, table: str
) -> None:
    written = [(driver, minute * MINUTE, 10 * driver + minute) for driver in range(6) for minute in range(6)]
    write(world, table, *written)
    world.epoch()
    world.write(table, {"driver": [0]}, DeleteKey())
    world.write(table, {"driver": [1, 1], "_time": [0, 3 * MINUTE]}, DeleteTimeKey())
    world.write(table, {"driver": [2, 2], "cents": [21, 999]}, DeleteValue())
    for manager in world.managers:
        manager.get_time_keyed(table).delete_times(4 * MINUTE, 5 * MINUTE)
    deleted = world.epoch()
    left = Counter(
        (driver, time, cents)
        for driver, time, cents in written
        if driver != 0 and (driver, time) not in {(1, 0), (1, 3 * MINUTE)} and cents != 21 and time != 4 * MINUTE
    )
    assert rows(world, table) == left
    assert sb.read_state(world.url, table=table).count() == left.total()
    asked = sb.read_state(world.url, table=table).keys(0, 1, 2).select("driver", "_time", "cents")
    assert rows_of(asked) == Counter({row: 1 for row in left if row[0] in {1, 2}})
    write(world, table, (0, 0, 5), (1, 0, 6), (3, 4 * MINUTE, 7))
    world.epoch()
    assert rows(world, table) == left + Counter([(0, 0, 5), (1, 0, 6), (3, 4 * MINUTE, 7)])
    assert rows(world, table, epoch=deleted) == left
    world.compact()
    world.epoch()
    assert rows(world, table) == left + Counter([(0, 0, 5), (1, 0, 6), (3, 4 * MINUTE, 7)])


def test_a_row_at_the_edge_of_what_is_deleted_stays(world: TableWorld) -> None:
    write(world, "fares", (1, MINUTE - 1, 1), (1, MINUTE, 2))
    world.epoch()
    for manager in world.managers:
        manager.get_time_keyed("fares").delete_times(BEGINNING, MINUTE)
    world.epoch()
    assert rows(world, "fares") == Counter([(1, MINUTE, 2)])


def test_a_row_at_the_last_time_is_shown(world: TableWorld) -> None:
    write(world, "fares", (1, END, 1), (2, END, 2))
    world.epoch()
    assert rows(world, "fares") == Counter([(1, END, 1), (2, END, 2)])


def test_a_range_that_begins_inside_a_bin_finds_the_rest_of_the_bin(world: TableWorld) -> None:
    write(world, "fares", (1, 45 * SECOND, 1), (2, 50 * SECOND, 2))
    world.epoch()
    table = sb.read_state(world.url, table="fares")
    assert rows_of(table.between(40 * SECOND)) == Counter([(1, 45 * SECOND, 1), (2, 50 * SECOND, 2)])
    assert rows_of(table.between(46 * SECOND, 50 * SECOND)) == Counter()
    assert rows_of(table.between(45 * SECOND, 50 * SECOND)) == Counter([(1, 45 * SECOND, 1)])


def test_an_older_version_does_not_appear_because_the_newer_one_has_another_time(world: TableWorld) -> None:
    write(world, "seen", (1, MINUTE, 1), (2, MINUTE, 2))
    world.epoch()
    write(world, "seen", (1, 5 * MINUTE, 10))
    world.epoch()
    table = sb.read_state(world.url, table="seen")
    assert rows_of(table.between(0, 2 * MINUTE)) == Counter([(2, MINUTE, 2)])
    assert rows_of(table.between(2 * MINUTE)) == Counter([(1, 5 * MINUTE, 10)])


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_after_a_rescale_every_row_is_there_once(world: TableWorld, parallelism: int) -> None:
    written = [(driver, driver * SECOND, driver) for driver in range(300)]
    for table in ("fares", "prices", "seen"):
        write(world, table, *written)
    for key in range(50):
        world.put(key, key)
    world.epoch()
    world.parallelism = parallelism
    world.start()
    world.epoch()
    for table in ("fares", "prices", "seen"):
        assert rows(world, table) == Counter(written)
        assert sb.read_state(world.url, table=table).count() == 300
        assert rows_of(sb.read_state(world.url, table=table).keys(7, 8, 9)) == Counter(written[7:10])
    assert sb.read_state(world.url, table="settings").count() == 50
    write(world, "seen", (7, 7 * SECOND, 70))
    world.write("seen", {"driver": [8]}, DeleteKey())
    world.write("fares", {"driver": [8]}, DeleteKey())
    world.epoch()
    assert rows(world, "seen") == Counter(written) - Counter(written[7:9]) + Counter([(7, 7 * SECOND, 70)])
    assert rows(world, "fares") == Counter(written) - Counter(written[8:9])


def changes(world: TableWorld, table: str, since: int) -> Counter[tuple[str, int, int]]:
    found = sb.diff_state(world.url, table=table, since=since).to_arrow().to_pylist()
    return Counter((row["change"], row["driver"], row["cents"]) for row in found)


@pytest.mark.parametrize("table", ["fares", "prices"])
def test_what_is_deleted_from_a_file_that_both_epochs_share_is_a_change(world: TableWorld, table: str) -> None:
    write(world, table, (1, 0, 1), (1, 2 * MINUTE, 2), (1, 4 * MINUTE, 3))
    first = world.epoch()
    for manager in world.managers:
        manager.get_time_keyed(table).delete_times(2 * MINUTE, 3 * MINUTE)
    world.epoch()
    assert changes(world, table, first) == Counter([("delete", 1, 2)])


def test_a_generation_of_a_shared_file_that_is_replaced_is_an_update(world: TableWorld) -> None:
    write(world, "prices", (1, 0, 1), (2, MINUTE, 2))
    first = world.epoch()
    write(world, "prices", (1, 0, 10))
    world.epoch()
    assert changes(world, "prices", first) == Counter([("update_before", 1, 1), ("update_after", 1, 10)])


def test_a_row_that_was_added_again_after_its_deletion_is_no_change(world: TableWorld) -> None:
    for table in ("fares", "seen"):
        write(world, table, (1, 0, 1), (2, 0, 2))
    first = world.epoch()
    for table in ("fares", "seen"):
        world.write(table, {"driver": [1]}, DeleteKey())
        write(world, table, (1, 0, 1))
    world.epoch()
    assert not changes(world, "fares", first)
    assert not changes(world, "seen", first)


def test_keys_that_share_a_hash_are_told_apart(tmp_path: Path) -> None:
    """A null leaves a hash unchanged, so ('x', null) and (null, 'x') have the same."""
    schema = pa.schema([("a", pa.string()), ("b", pa.string()), ("cents", pa.int64())])
    pairs = {"pairs": keyed_table_config("pairs", "", ["a", "b"], schema)}
    world = TableWorld(tmp_path, tables=pairs)
    world.write("pairs", {"a": ["x", None, "x"], "b": [None, "x", "x"], "cents": [1, 2, 3]})
    first = world.epoch()
    world.write("pairs", {"a": ["x"], "b": [None], "cents": [10]})
    world.write("pairs", {"a": [None], "b": ["x"]}, DeleteKey())
    world.epoch()
    table = sb.read_state(world.url, epoch=first)
    assert len({row["_key_hash"] for row in table.select("_key_hash").to_arrow().to_pylist()}) == 2
    assert table.keys(("x", None)).to_arrow()["cents"].to_pylist() == [1]
    assert table.keys((None, "x")).to_arrow()["cents"].to_pylist() == [2]
    assert table.filter("a is null").count() == 1
    newest = sb.read_state(world.url)
    assert sorted(newest.to_arrow()["cents"].to_pylist()) == [3, 10]
    assert newest.keys((None, "x")).count() == 0
    found = sb.diff_state(world.url, since=first).to_arrow().to_pylist()
    assert Counter((row["change"], row["cents"]) for row in found) == Counter(
        [("update_before", 1), ("update_after", 10), ("delete", 2)]
    )
    assert sb.diff_state(world.url, since=first).keys((None, "x")).counts()["delete"] == 1
    world.end()
