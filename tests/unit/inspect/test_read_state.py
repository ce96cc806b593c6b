"""Tables of the state: which one is found, which rows and columns it shows, and in which forms."""

import datetime as dt
import pickle
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from unit.inspect.table_world import TABLES, TableWorld

import statebed as sb
from statebed.errors import (
    EpochNotRetainedError,
    ExpressionError,
    JobNotFoundError,
    MissingDependencyError,
    SavepointError,
    StateNotFoundError,
)
from statebed.state import DeleteKey

MINUTE = 60_000_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TableWorld]:
    world = TableWorld(tmp_path)
    numbers = list(range(6))
    rows = {"city": ["Ulm" if n % 2 else "Bonn" for n in numbers], "driver": numbers, "trips": numbers}
    world.write("drivers", rows | {"note": [f"note {n}" for n in numbers]})
    world.write(
        "fares", {"driver": numbers, "_time": [n * MINUTE for n in numbers], "cents": [10 * n for n in numbers]}
    )
    world.epoch()
    yield world
    world.end()


def drivers(world: TableWorld, **where: Any) -> sb.StateTable:
    return sb.read_state(world.url, table="drivers", **where)


def sorted_rows(table: sb.StateTable) -> list[dict[str, Any]]:
    return sorted(table.to_arrow().to_pylist(), key=repr)


# ---- which table -----------------------------------------------------------------------------------------------------


def test_what_is_left_out_is_found_where_there_is_one_choice(world: TableWorld) -> None:
    table = drivers(world)
    assert (table.job, table.operator, table.table, table.epoch) == ("rides", "count", "drivers", 2)
    assert (table.kind, table.description) == ("keyed", "trips by driver")


def test_where_there_are_several_the_error_lists_them(world: TableWorld) -> None:
    with pytest.raises(sb.InputError, match="there are 6 tables: drivers, fares, prices, recent, seen, settings"):
        sb.read_state(world.url)


@pytest.mark.parametrize(
    ("where", "error", "text"),
    [
        ({"job": "nobody"}, JobNotFoundError, "no record of the job 'nobody'.*jobs here: rides"),
        ({"operator": "nobody"}, StateNotFoundError, "no operator 'nobody'.*there are: count"),
        ({"table": "nothing"}, StateNotFoundError, "no table 'nothing'.*there are: drivers, fares"),
        ({"table": "drivers", "epoch": 99}, EpochNotRetainedError, "epoch 99"),
        ({"table": "drivers", "savepoint": "monday"}, SavepointError, "no savepoint 'monday'"),
        ({"table": "drivers", "savepoint": "monday", "epoch": 2}, sb.InputError, "pass only one of them"),
    ],
)
def test_what_is_not_there_is_said(world: TableWorld, where: dict[str, Any], error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        sb.read_state(world.url, **where)


def test_an_empty_location_has_no_job(tmp_path: Path) -> None:
    with pytest.raises(JobNotFoundError, match="any job"):
        sb.read_state(tmp_path)


def test_every_retained_epoch_is_there_also_abandoned_ones_and_those_of_savepoints(world: TableWorld) -> None:
    for trips in (10, 11, 12):
        world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [trips], "note": [""]})
        world.epoch()
    world.save("monday", 3)
    world.epoch()
    world.start(sb.Origin(epoch=3))
    world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [99], "note": [""]})
    forked = world.epoch()

    def trips_at(**where: Any) -> int:
        (found,) = drivers(world, **where).keys(("Ulm", 1)).select("trips").to_arrow()["trips"].to_pylist()
        return int(found)

    assert [trips_at(epoch=number) for number in (2, 3, 4, 5)] == [1, 10, 11, 12]
    assert (trips_at(epoch=forked), trips_at(), trips_at(savepoint="monday")) == (99, 99, 10)
    run_start = drivers(world, epoch=forked - 1)
    assert (run_start.epoch, run_start.record, trips_at(epoch=forked - 1)) == (3, forked - 1, 10)
    assert drivers(world, savepoint="monday").savepoint == "monday"


def test_an_epoch_before_the_first_has_no_operators(world: TableWorld) -> None:
    with pytest.raises(StateNotFoundError, match="no operators"):
        drivers(world, epoch=1)


# ---- which rows and columns ------------------------------------------------------------------------------------------


def test_columns_are_keys_then_values_with_the_types_of_the_user(world: TableWorld) -> None:
    table = drivers(world)
    assert table.schema == pa.schema(
        [("city", pa.string()), ("driver", pa.int64()), ("trips", pa.int64()), ("note", pa.string())]
    )
    assert (table.key_columns, table.time_column) == (["city", "driver"], None)
    fares = sb.read_state(world.url, table="fares")
    assert (fares.columns, fares.time_column) == (["driver", "_time", "cents"], "_time")


@pytest.mark.parametrize("keys", [[("Ulm", 3)], [{"driver": 3, "city": "Ulm"}], [("Ulm", "3")]])
def test_a_key_is_a_tuple_or_a_dict_and_a_text_may_stand_for_a_number(world: TableWorld, keys: list[Any]) -> None:
    assert sorted_rows(drivers(world).keys(*keys).select("note")) == [{"note": "note 3"}]


def test_several_keys_are_looked_for_at_once_and_narrowed_further(world: TableWorld) -> None:
    fares = sb.read_state(world.url, table="fares").select("driver")
    assert [row["driver"] for row in sorted_rows(fares.keys(1, 2, 77))] == [1, 2]
    assert [row["driver"] for row in sorted_rows(fares.keys(1, 2).keys(2, 3))] == [2]
    assert fares.keys().count() == 0


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (3, "must have 2 values, for \\['city', 'driver'\\]"),
        ({"driver": 3}, "the columns \\['city', 'driver'\\], got \\['driver'\\]"),
        (("Ulm", "three"), "cannot be a key: the column 'driver' is int64"),
        ((3, 3), "cannot be a key: the column 'city' is string"),
    ],
)
def test_a_key_that_cannot_be_is_refused(world: TableWorld, key: Any, text: str) -> None:
    with pytest.raises(sb.InputError, match=text):
        drivers(world).keys(key)


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (2 * MINUTE, 4 * MINUTE),
        ("1970-01-01 00:02", "1970-01-01T00:04:00Z"),
        (dt.datetime(1970, 1, 1, 0, 2, tzinfo=dt.UTC), dt.datetime(1970, 1, 1, 0, 4)),  # noqa: DTZ001 - UTC is meant
    ],
)
def test_times_are_datetimes_texts_or_microseconds(world: TableWorld, start: Any, end: Any) -> None:
    fares = sb.read_state(world.url, table="fares")
    assert [row["cents"] for row in sorted_rows(fares.between(start, end).select("cents"))] == [20, 30]
    assert fares.between(start).count() == 4
    assert fares.between(end=start).count() == 2
    assert fares.between(start).between(end=end).count() == 2


def test_a_table_without_times_and_a_time_that_is_none_are_refused(world: TableWorld) -> None:
    with pytest.raises(sb.InputError, match="have no time"):
        drivers(world).between(0, 1)
    with pytest.raises(sb.InputError, match="expected a time, got 'noon'"):
        sb.read_state(world.url, table="fares").between("noon")


def test_conditions_are_sql_text_or_expressions_of_pyarrow(world: TableWorld) -> None:
    table = drivers(world).select("driver")
    assert [row["driver"] for row in sorted_rows(table.filter("trips >= 4 or note like '%1'"))] == [1, 4, 5]
    assert [row["driver"] for row in sorted_rows(table.filter(pc.field("trips") > 4))] == [5]
    assert table.filter("city = 'Ulm'").filter("trips > 1").count() == 2


@pytest.mark.parametrize("condition", ["no_such_column > 1", "trips +", "trips", pc.field("nothing") > 1, 7])
def test_a_condition_that_does_not_fit_is_refused_at_once(world: TableWorld, condition: Any) -> None:
    with pytest.raises(sb.InputError):
        drivers(world).filter(condition)


def test_a_row_for_which_a_condition_has_no_answer_is_an_error(world: TableWorld) -> None:
    with pytest.raises(ExpressionError):
        drivers(world).filter("1 / trips > 0").to_arrow()


def test_columns_are_named_once_and_internal_ones_can_be_asked_for(world: TableWorld) -> None:
    with pytest.raises(sb.InputError, match="must be distinct columns"):
        drivers(world).select("trips", "trips")
    with pytest.raises(sb.InputError, match="must be distinct columns"):
        drivers(world).select("nothing")
    assert drivers(world, internal=True).columns == ["city", "driver", "trips", "note", "_key_hash", "_seq"]
    (row,) = drivers(world).select("_key_hash").keys(("Ulm", 3)).to_arrow().to_pylist()
    (other,) = drivers(world, internal=True).filter("driver = 3").to_arrow().to_pylist()
    assert row["_key_hash"] == other["_key_hash"]
    assert other["_seq"] >= 1


def test_head_and_count_agree_with_all_rows(world: TableWorld) -> None:
    table = drivers(world)
    assert (table.count(), table.to_arrow().num_rows) == (6, 6)
    assert table.head(4).to_pylist() == table.to_arrow().slice(0, 4).to_pylist()
    assert (table.head(0).num_rows, table.head(99).num_rows) == (0, 6)
    assert (table.filter("trips > 2").count(), table.filter("trips > 99").head().num_rows) == (3, 0)


def test_p8_deleted_rows_are_gone_and_replaced_ones_are_new(world: TableWorld) -> None:
    world.write("drivers", {"city": ["Bonn"], "driver": [0]}, DeleteKey())
    world.write("drivers", {"city": ["Ulm"], "driver": [1], "trips": [7], "note": [None]})
    world.epoch()
    found = {row["driver"]: row["trips"] for row in drivers(world).to_arrow().to_pylist()}
    assert found == {1: 7, 2: 2, 3: 3, 4: 4, 5: 5}
    world.compact()
    world.epoch()
    assert {row["driver"]: row["trips"] for row in drivers(world).to_arrow().to_pylist()} == found


def test_rows_expire_by_event_time_and_by_epoch_time_as_of_the_epoch_that_is_read(world: TableWorld) -> None:
    hour = 60 * MINUTE
    world.write("seen", {"driver": [1, 2], "_time": [0, 2 * MINUTE], "cents": [1, 2]})
    for manager in world.managers:
        manager.advance(time=5)
    world.write("recent", {"driver": [1, 2], "cents": [1, 2]})
    before = world.epoch(watermark_us=MINUTE, time_us=5)
    for manager in world.managers:
        manager.advance(time=MINUTE)
    world.write("recent", {"driver": [3], "cents": [3]})
    after = world.epoch(watermark_us=hour + MINUTE, time_us=hour + 6)

    def found(table: str, epoch: int) -> list[int]:
        rows = sb.read_state(world.url, table=table, epoch=epoch).to_arrow()
        return sorted(rows["driver"].to_pylist())

    assert (found("seen", before), found("seen", after)) == ([1, 2], [2])
    assert (found("recent", before), found("recent", after)) == ([1, 2], [3])


def test_keys_and_values_of_a_global_table_are_json_and_keys_are_looked_for_as_they_are(world: TableWorld) -> None:
    noon = dt.datetime(2024, 5, 31, 12, tzinfo=dt.UTC)
    values = {
        "a": {"list": [1, 2.5, None, True]},
        1: "text \u202e <b>",
        (1, "x"): (noon, dt.date(2024, 5, 31), dt.timedelta(seconds=1.5)),
        1 << 80: {1: b"ab", 2: Decimal("1.50")},
        2.0: float("nan"),
    }
    for key, value in values.items():
        world.put(key, value)
    world.epoch()
    table = sb.read_state(world.url, table="settings")
    assert {row["key"]: row["value"] for row in table.to_arrow().to_pylist()} == {
        '"a"': '{"list": [1, 2.5, null, true]}',
        "1": '"text \u202e <b>"',
        '[1, "x"]': '["2024-05-31T12:00:00+00:00", "2024-05-31", 1.5]',
        str(1 << 80): '[[1, "YWI="], [2, "1.50"]]',
        "2.0": '"nan"',
    }
    assert [row["value"] for row in table.keys((1, "x"), "b").to_arrow().to_pylist()] == [
        '["2024-05-31T12:00:00+00:00", "2024-05-31", 1.5]'
    ]
    assert (table.count(), table.key_columns, table.filter("key = '1'").count()) == (5, ["key"], 1)


# ---- forms -----------------------------------------------------------------------------------------------------------


def test_rows_go_to_pandas_polars_duckdb_and_any_reader_of_arrow_streams(world: TableWorld) -> None:
    table = drivers(world)
    rows = table.to_arrow()
    assert table.to_pandas().to_dict("records") == rows.to_pylist()
    assert table.to_polars().equals(pl.DataFrame(rows))
    assert table.to_duckdb().aggregate("sum(trips)").fetchall() == [(15,)]
    with duckdb.connect() as connection:
        assert table.to_duckdb(connection).aggregate("count(*)").fetchall() == [(6,)]
        state = table
        assert connection.sql("select max(trips) from state").fetchall() == [(5,)]
        assert state is table
    assert pa.table(table) == rows
    assert table.to_reader().read_all() == rows


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_a_library_that_is_not_installed_is_named(
    world: TableWorld, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingDependencyError, match=f"{library} is not installed"):
        getattr(drivers(world), f"to_{library}")()


def test_a_hostile_value_is_text_in_html_and_long_ones_are_cut(world: TableWorld) -> None:
    hostile = "<script>alert(1)</script>\"'" + "x" * 1000
    world.write("drivers", {"city": [hostile], "driver": [9], "trips": [1], "note": ["\u202eabc"]})
    world.epoch()
    shown = drivers(world)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "x" * 200 not in shown
    assert shown.count("<tr>") == 8
    for number in range(20, 40):
        world.write("drivers", {"city": ["c"], "driver": [number], "trips": [1], "note": [""]})
    world.epoch()
    assert "The first 10 rows" in drivers(world)._repr_html_()
    assert "drivers at epoch 4 (keyed)" in repr(drivers(world))


def test_every_table_of_the_world_reads_empty_before_it_is_written(tmp_path: Path) -> None:
    world = TableWorld(tmp_path)
    world.epoch()
    for name in TABLES:
        table = sb.read_state(world.url, table=name)
        assert (table.count(), table.to_arrow().num_rows, table.scan().files) == (0, 0, ())
        assert table.to_arrow().schema == table.schema
        assert table.slices() == []
    world.end()


def test_a_part_of_an_answer_is_read_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    world = TableWorld(tmp_path, url="state")
    world.write("fares", {"driver": [1], "_time": [0], "cents": [5]})
    world.epoch()
    (part,) = sb.read_state("state", table="fares").slices()
    sent = pickle.dumps(part)
    monkeypatch.chdir("/")
    arrived = pickle.loads(sent)  # noqa: S301 - made above
    assert [row["cents"] for batch in arrived.batches() for row in batch.to_pylist()] == [5]
    world.end()
