"""Changes between two epochs: their kinds, what is read for them, and across rescales, forks and changed columns."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.inspect.table_world import DRIVERS, TABLES, TableWorld

import statebed as sb
from statebed.errors import EpochNotRetainedError
from statebed.state import DeleteKey, DeleteTimeRange, keyed_table_config
from statebed.storage import LocalStore

MINUTE = 60_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(tmp_path)
    yield world
    world.end()


def write(world: TableWorld, trips: dict[int, int]) -> None:
    count = len(trips)
    rows = {"city": ["Ulm"] * count, "driver": list(trips), "trips": list(trips.values()), "note": [None] * count}
    world.write("drivers", rows)


def changes(world: TableWorld, table: str = "drivers", **where: Any) -> Counter[tuple[Any, ...]]:
    rows = sb.diff_state(world.url, table=table, **where).to_arrow().to_pylist()
    names = ("change", "driver", "trips") if table == "drivers" else ("change", "driver", "cents")
    return Counter(tuple(row[name] for name in names) for row in rows)


def test_rows_come_go_and_change(world: TableWorld) -> None:
    write(world, {1: 1, 2: 2, 3: 3})
    first = world.epoch()
    write(world, {2: 20, 3: 3, 4: 4})
    world.write("drivers", {"city": ["Ulm"], "driver": [1]}, DeleteKey())
    second = world.epoch()
    expected = {("delete", 1, 1), ("update_before", 2, 2), ("update_after", 2, 20), ("insert", 4, 4)}
    assert changes(world, since=first) == Counter(expected)
    assert changes(world, since=second, until=first) == Counter(
        {("insert", 1, 1), ("update_before", 2, 20), ("update_after", 2, 2), ("delete", 4, 4)}
    )
    diff = sb.diff_state(world.url, table="drivers", since=first)
    assert (diff.since, diff.until, diff.columns[:3]) == (first, second, ["change", "city", "driver"])
    assert diff.counts() == {"insert": 1, "delete": 1, "update_before": 1, "update_after": 1}
    kinds = diff.to_arrow()["change"].to_pylist()
    assert kinds.index("update_after") == kinds.index("update_before") + 1
    assert diff.keys(("Ulm", 4), ("Ulm", 3)).to_arrow()["change"].to_pylist() == ["insert"]
    assert diff.head(1).num_rows == 1
    assert diff.to_polars().height == len(diff.to_pandas()) == 4
    assert pa.table(diff).num_rows == diff.to_duckdb().to_arrow_table().num_rows == 4
    assert "changes from epoch" in diff._repr_html_()


def test_an_epoch_and_itself_differ_in_nothing(world: TableWorld) -> None:
    write(world, {1: 1})
    number = world.epoch()
    assert not changes(world, since=number, until=number)
    world.epoch()
    assert not changes(world, since=number)


def test_what_a_merge_wrote_again_has_not_changed(world: TableWorld) -> None:
    for table in ("fares", "prices"):
        world.write(table, {"driver": [1, 2], "_time": [0, MINUTE], "cents": [1, 2]})
    write(world, {1: 1, 2: 2})
    first = world.epoch()
    for table in ("fares", "prices"):
        world.write(table, {"driver": [2], "_time": [MINUTE], "cents": [3]})
    write(world, {2: 5})
    world.epoch()
    world.compact()
    world.epoch()
    assert changes(world, since=first) == Counter({("update_before", 2, 2), ("update_after", 2, 5)})
    assert changes(world, "fares", since=first) == Counter({("insert", 2, 3)})
    assert changes(world, "prices", since=first) == Counter({("update_before", 2, 2), ("update_after", 2, 3)})


def test_files_that_both_epochs_share_are_not_read(world: TableWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = list(range(1000))
    world.write("fares", {"driver": numbers, "_time": [MINUTE] * 1000, "cents": numbers})
    world.write("drivers", {"city": ["Ulm"] * 1000, "driver": numbers, "trips": numbers, "note": [None] * 1000})
    first = world.epoch()
    world.write("fares", {"driver": [7], "_time": [2 * MINUTE], "cents": [1]})
    second = world.epoch()
    fetched: Counter[str] = Counter()
    original = LocalStore.get_range

    def get_range(self: LocalStore, path: str, start: int, length: int) -> bytes:
        fetched[path.split("/")[2]] += length
        return original(self, path, start, length)

    monkeypatch.setattr(LocalStore, "get_range", get_range)
    assert changes(world, "fares", since=first) == Counter({("insert", 7, 1)})
    assert set(fetched) == {f"{second:012d}"}
    fetched.clear()
    assert not changes(world, since=first)
    assert not fetched
    world.write("fares", {"driver": [], "_time": [], "cents": []}, DeleteTimeRange(0, 0))
    for manager in world.managers:
        manager.get_time_keyed("fares").delete_times(2 * MINUTE, 3 * MINUTE)
    third = world.epoch()
    assert changes(world, "fares", since=second, until=third) == Counter({("delete", 7, 1)})


def test_epochs_of_other_parallelism_and_of_another_lineage_are_compared_by_what_they_hold(world: TableWorld) -> None:
    write(world, {number: number for number in range(50)})
    first = world.epoch()
    write(world, {1: 100})
    abandoned = world.epoch()
    world.parallelism = 3
    world.start(sb.Origin(epoch=first))
    assert not changes(world, since=first)
    write(world, {2: 200})
    world.epoch()
    assert changes(world, since=first) == Counter({("update_before", 2, 2), ("update_after", 2, 200)})
    assert changes(world, since=abandoned) == Counter(
        {("update_before", 1, 100), ("update_after", 1, 1), ("update_before", 2, 2), ("update_after", 2, 200)}
    )


def test_rows_of_earlier_columns_are_compared_in_the_later_ones(world: TableWorld) -> None:
    write(world, {1: 1, 2: 2})
    first = world.epoch()
    schema = pa.schema([*DRIVERS, ("stars", pa.int8())])
    changed = keyed_table_config("drivers", "", ["city", "driver"], schema, defaults={"stars": 5})
    world.tables = TABLES | {"drivers": changed}
    world.start()
    world.write("drivers", {"city": ["Ulm"], "driver": [2], "trips": [2], "note": [None], "stars": [1]})
    world.epoch()
    rows = sb.diff_state(world.url, table="drivers", since=first).to_arrow().to_pylist()
    assert [(row["change"], row["driver"], row["stars"]) for row in rows] == [
        ("update_before", 2, 5),
        ("update_after", 2, 1),
    ]


def test_values_of_a_global_table_are_compared_and_savepoints_have_names(world: TableWorld) -> None:
    world.put("a", 1)
    world.put("b", [1])
    first = world.epoch()
    world.save("monday", first)
    world.put("b", [1, 2])
    world.epoch()
    rows = sb.diff_state(world.url, table="settings", since="monday").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("update_before", '"b"', "[1]"),
        ("update_after", '"b"', "[1, 2]"),
    ]
    with pytest.raises(EpochNotRetainedError):
        sb.diff_state(world.url, table="settings", since=999)
