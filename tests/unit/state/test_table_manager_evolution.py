"""Tables whose definition changes while their state stays, under a manager: rows of every age are read right."""

import datetime as dt
import itertools
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.state.table_cluster import JOB, OPERATOR, Cluster

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import Origin
from statebed.errors import IncompatibleSchemaError
from statebed.format.ranges import WHOLE_SPACE, subtask_of
from statebed.state import (
    Compaction,
    CompactionMode,
    DataOperation,
    DeleteKey,
    DeleteTimeKey,
    DeleteValue,
    Insert,
    KeyedView,
    ManagerOptions,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    TaskInfo,
    TimeKeyedView,
    keyed_table_config,
    timestamp_table_config,
)
from statebed.storage import MemoryStore

HOUR = dt.timedelta(hours=1)
IN_LINE = ManagerOptions(compaction=CompactionMode.IN_LINE)
TIMESTAMP = pa.timestamp("us", "UTC")


def keyed(schema: pa.Schema, **more: Any) -> TableConfig:
    return keyed_table_config("riders", "", ["rider"], schema, **more)


def timed(schema: pa.Schema, **more: Any) -> TableConfig:
    return timestamp_table_config("trips", "", HOUR, False, schema, keys=["rider"], **more)


def write(cluster: Cluster, table: str, rows: dict[str, list[Any]], operation: DataOperation | None = None) -> None:
    """Send each row to its owner, with the types of the table's present definition."""
    (config,) = [one for name, one in cluster.configs.items() if name == table]
    kinds = {column.name: column.type for column in schema_of(config)} | {"_time": TIMESTAMP}
    batch = pa.record_batch({name: pa.array(values, kinds[name]) for name, values in rows.items()})
    owners = subtask_of(hash_columns([batch.column("rider")]), len(cluster.managers))
    for index, manager in enumerate(cluster.managers):
        mine = batch.filter(pa.array((owners == index).tolist(), pa.bool_()))
        manager.send(TableData(table, RecordBatch(mine, operation or Insert())))


def schema_of(config: TableConfig) -> pa.Schema:
    kind = config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed
    return pa.ipc.read_schema(pa.py_buffer(kind.schema))


def riders(cluster: Cluster) -> list[dict[str, Any]]:
    tables = [table for manager in cluster.managers for table in manager.get_keyed("riders").scan()]
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["rider"])


def trips(cluster: Cluster) -> list[dict[str, Any]]:
    rows = [row for manager in cluster.managers for row in manager.get_time_keyed("trips").read().to_pylist()]
    return sorted(({**row, "_time": row["_time"].microsecond} for row in rows), key=repr)


V1 = pa.schema([("rider", pa.int64()), ("trips", pa.int32()), ("city", pa.string())])
V2 = pa.schema(
    [("rider", pa.int64()), ("town", pa.string()), ("trips", pa.int64()), pa.field("stars", pa.int8(), False)]
)
V2_CHANGES = {"renames": {"town": "city"}, "defaults": {"stars": 5}}


def test_keyed_rows_of_every_age_are_read_in_the_present_columns() -> None:
    cluster = Cluster(2, {"riders": keyed(V1)})
    write(cluster, "riders", {"rider": [1, 2, 3], "trips": [10, 20, None], "city": ["Ulm", "Bonn", "Köln"]})
    cluster.commit()
    cluster.restart(3, {"riders": keyed(V2, **V2_CHANGES)})
    assert {one.what for one in cluster.managers[0].evolutions["riders"]} == {"town", "trips", "stars"}
    write(cluster, "riders", {"rider": [2, 4], "town": ["Bern", "Graz"], "trips": [1 << 40, 4], "stars": [1, 4]})
    expected = [
        {"rider": 1, "town": "Ulm", "trips": 10, "stars": 5},
        {"rider": 2, "town": "Bern", "trips": 1 << 40, "stars": 1},
        {"rider": 3, "town": "Köln", "trips": None, "stars": 5},
        {"rider": 4, "town": "Graz", "trips": 4, "stars": 4},
    ]
    assert riders(cluster) == expected
    cluster.commit()
    cluster.restart(1)
    assert not cluster.managers[0].evolutions
    assert riders(cluster) == expected
    cluster.close()


def test_time_keyed_rows_of_every_age_are_read_in_the_present_columns_and_merged_with_each_other() -> None:
    cluster = Cluster(2, {"trips": timed(V1)}, options=IN_LINE)
    write(cluster, "trips", {"rider": [1, 2], "_time": [1, 2], "trips": [10, 20], "city": ["Ulm", "Bonn"]})
    cluster.commit()
    cluster.restart(2, {"trips": timed(V2, **V2_CHANGES)})
    write(cluster, "trips", {"rider": [1], "_time": [3], "town": ["Graz"], "trips": [1 << 40], "stars": [1]})
    expected = [
        {"rider": 1, "_time": 1, "town": "Ulm", "trips": 10, "stars": 5},
        {"rider": 1, "_time": 3, "town": "Graz", "trips": 1 << 40, "stars": 1},
        {"rider": 2, "_time": 2, "town": "Bonn", "trips": 20, "stars": 5},
    ]
    assert trips(cluster) == expected
    cluster.commit()
    for manager in cluster.managers:
        manager.send(Compaction())
    cluster.commit()
    cluster.restart(3)
    assert trips(cluster) == expected
    cluster.close()


def test_an_older_epoch_is_restored_by_a_newer_program_and_a_newer_one_by_an_older() -> None:
    cluster = Cluster(1, {"riders": keyed(V1)})
    write(cluster, "riders", {"rider": [1], "trips": [10], "city": ["Ulm"]})
    old = cluster.commit().epoch
    cluster.restart(1, {"riders": keyed(V2, **V2_CHANGES)})
    write(cluster, "riders", {"rider": [2], "town": ["Graz"], "trips": [7], "stars": [1]})
    cluster.commit()
    # The program of old: `trips` would be narrower.
    with pytest.raises(IncompatibleSchemaError, match="not every int64 is a int32"):
        cluster.restart(1, {"riders": keyed(V1, renames={"city": "town"})})
    wide = pa.schema([("rider", pa.int64()), ("trips", pa.int64()), ("city", pa.string())])
    cluster.restart(1, {"riders": keyed(wide, renames={"city": "town"})})
    assert riders(cluster) == [
        {"rider": 1, "trips": 10, "city": "Ulm"},
        {"rider": 2, "trips": 7, "city": "Graz"},
    ]
    cluster.restart(1, {"riders": keyed(V2, **V2_CHANGES)}, origin=Origin(epoch=old))
    assert riders(cluster) == [{"rider": 1, "town": "Ulm", "trips": 10, "stars": 5}]
    cluster.close()


def test_what_is_refused_is_refused_before_anything_is_read_or_written() -> None:
    cluster = Cluster(1, {"riders": keyed(V1)})
    write(cluster, "riders", {"rider": [1], "trips": [10], "city": ["Ulm"]})
    record = cluster.commit()
    before = [info.path for info in cluster.store.list("")]
    narrow = pa.schema([("rider", pa.int64()), ("trips", pa.int16())])
    with pytest.raises(IncompatibleSchemaError) as caught:
        TableManager(TaskInfo(JOB, OPERATOR), {"riders": keyed(narrow)}, cluster.store, restore_from=record)
    assert "trips  int32" in str(caught.value)
    assert [info.path for info in cluster.store.list("")] == before
    cluster.close()


def test_a_subtask_without_rows_knows_the_schemas_that_the_others_used() -> None:
    """Schema ids mean the same in all subtasks, or they could not be merged."""
    cluster = Cluster(4, {"riders": keyed(V1)})
    write(cluster, "riders", {"rider": [1], "trips": [10], "city": ["Ulm"]})
    cluster.commit()
    for number, name in enumerate(("a", "b", "c")):
        schema = pa.schema([("rider", pa.int64()), (name, pa.string())])
        cluster.restart(4, {"riders": keyed(schema)})
        write(cluster, "riders", {"rider": [number], name: [name]})
        cluster.commit()
    cluster.restart(1)
    assert riders(cluster) == [{"rider": 0, "c": None}, {"rider": 1, "c": None}, {"rider": 2, "c": "c"}]
    cluster.close()


def test_deletions_hide_the_same_rows_after_their_columns_changed() -> None:
    cluster = Cluster(1, {"trips": timed(V1)}, options=ManagerOptions(compaction=CompactionMode.OFF))
    rows: dict[str, list[Any]] = {
        "rider": [1, 2, 3, 3],
        "_time": [1, 2, 3, 4],
        "trips": [10, 20, 30, 31],
        "city": ["a", "b", "c", "c"],
    }
    write(cluster, "trips", rows)
    cluster.commit()
    write(cluster, "trips", {"rider": [1]}, DeleteKey())
    write(cluster, "trips", {"rider": [2], "_time": [2]}, DeleteTimeKey())
    write(cluster, "trips", {"rider": [3], "trips": [30], "city": ["c"]}, DeleteValue())
    cluster.commit()
    schema = pa.schema([("passenger", pa.int64()), *[one for one in V2 if one.name != "rider"]])
    renames = {"passenger": "rider", "town": "city"}
    config = timestamp_table_config(
        "trips", "", HOUR, False, schema, keys=["passenger"], renames=renames, defaults={"stars": 5}
    )
    cluster.restart(1, {"trips": config})
    assert cluster.managers[0].get_time_keyed("trips").metadata().tombstones
    assert trips(cluster) == [{"passenger": 3, "_time": 4, "town": "c", "trips": 31, "stars": 5}]
    # Deletions of the new definition stand beside those of the old one.
    view = cluster.managers[0].get_time_keyed("trips")
    values = pa.table({"town": ["c"], "trips": [31], "stars": pa.array([4], pa.int8())}, schema=V2.remove(0))
    view.delete_values(pa.table({"passenger": [3]}), values)
    assert len(trips(cluster)) == 1
    view.delete_values(pa.table({"passenger": [3]}), values.set_column(2, V2.field("stars"), pa.array([5], pa.int8())))
    assert trips(cluster) == []
    cluster.commit()
    cluster.restart(2)
    assert trips(cluster) == []
    cluster.close()


def test_a_column_by_whose_values_rows_were_deleted_is_dropped_after_a_compaction() -> None:
    cluster = Cluster(1, {"trips": timed(V1)}, options=ManagerOptions(compaction=CompactionMode.OFF))
    rows: dict[str, list[Any]] = {"rider": [3, 3], "_time": [3, 4], "trips": [30, 31], "city": ["c", "c"]}
    write(cluster, "trips", rows)
    cluster.commit()
    write(cluster, "trips", {"rider": [3], "trips": [30], "city": ["c"]}, DeleteValue())
    cluster.commit()
    without_trips = {"trips": timed(pa.schema([("rider", pa.int64()), ("city", pa.string())]))}
    with pytest.raises(IncompatibleSchemaError, match="first run a Compaction"):
        cluster.restart(1, without_trips)
    cluster.restart(1, {"trips": timed(V1)})
    cluster.managers[0].send(Compaction()).result(timeout=30)
    cluster.commit()
    cluster.restart(1, without_trips)
    assert trips(cluster) == [{"rider": 3, "_time": 4, "city": "c"}]
    cluster.close()


# ---- chains of changes against a model ------------------------------------------------------------------------

LADDER = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]


@dataclass
class Column:
    """A column of the model, known by itself."""

    name: str
    kind: int = 0
    default: int | None = None


@dataclass
class Model:
    """The present columns, and rows as they were written: values by column."""

    columns: list[Column]
    rows: dict[Any, dict[int, int | None]] = field(default_factory=dict)
    kept: list[Column] = field(default_factory=list)
    """All there ever were, so that none is taken for another."""

    def schema(self) -> pa.Schema:
        return pa.schema([("rider", pa.int64()), *((one.name, LADDER[one.kind]) for one in self.columns)])

    def change(self, kind: str, choice: int, names: "itertools.count[int]") -> dict[str, Any]:
        """A change of the columns, and what the program says of it."""
        some = self.columns[choice % len(self.columns)] if self.columns else None
        if kind == "add" or some is None:
            # The names of dropped columns are used again.
            free = sorted({one.name for one in self.kept} - {one.name for one in self.columns})
            name = free[choice % len(free)] if free and choice % 2 else f"c{next(names)}"
            default = None if choice % 3 else choice % 100
            self.columns.insert(choice % (len(self.columns) + 1), Column(name, 0, default))
            self.kept += [one for one in self.columns if one not in self.kept]
            return {} if default is None else {"defaults": {name: default}}
        if kind == "drop":
            self.columns.remove(some)
        elif kind == "rename":
            old, some.name = some.name, f"c{next(names)}"
            return {"renames": {some.name: old}}
        elif kind == "widen":
            some.kind = min(some.kind + 1, len(LADDER) - 1)
        else:
            self.columns.reverse()
        return {}

    def seen(self) -> dict[Any, dict[str, int | None]]:
        return {
            key: {one.name: row.get(id(one), one.default) for one in self.columns} for key, row in self.rows.items()
        }


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "drop", "rename", "widen", "reorder"]),
        st.integers(0, 60),
        st.lists(st.integers(0, 5), max_size=3),
        st.integers(1, 3),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("kind", ["keyed", "timed"])
@settings(max_examples=examples(10), deadline=None)
@given(steps=STEPS)
def test_chains_of_changes_read_as_the_model(kind: str, steps: list[Any]) -> None:
    """Each column of the model is an object, so one that is dropped and added again is another."""
    model, names = Model([Column("c0")]), itertools.count(1)
    model.kept = list(model.columns)
    make, table = (keyed, "riders") if kind == "keyed" else (timed, "trips")
    cluster = Cluster(1, {table: make(model.schema())}, store=MemoryStore(), options=IN_LINE)
    try:
        for number, (change, choice, keys, parallelism, compacts) in enumerate(steps):
            more = model.change(change, choice, names)
            cluster.restart(parallelism, {table: make(model.schema(), **more)})
            assert contents(cluster, table) == model.seen()
            written = [(number * 7 + key) % 11 for key in dict.fromkeys(keys)]
            rows: dict[str, list[Any]] = {"rider": written}
            rows |= {one.name: [(key * 5 + choice) % 120 for key in written] for one in model.columns}
            if table == "trips":
                rows["_time"] = [number + 1 for _ in written]
            for place, key in enumerate(written):
                values = {id(one): rows[one.name][place] for one in model.columns}
                model.rows[key if table == "riders" else (key, number + 1)] = values
            write(cluster, table, rows)
            assert contents(cluster, table) == model.seen()
            cluster.commit()
            if compacts:
                for manager in cluster.managers:
                    manager.send(Compaction())
                cluster.commit()
        cluster.restart(2)
        assert contents(cluster, table) == model.seen()
    finally:
        cluster.close()


def contents(cluster: Cluster, table: str) -> dict[Any, dict[str, Any]]:
    if table == "riders":
        return {row.pop("rider"): row for row in riders(cluster)}
    return {(row.pop("rider"), row.pop("_time")): row for row in trips(cluster)}


SECONDS = [pa.timestamp("s"), pa.time32("s"), pa.list_(pa.timestamp("s", "UTC")), pa.struct([("at", pa.time32("s"))])]


@pytest.mark.parametrize("kind", SECONDS, ids=str)
def test_a_column_that_parquet_has_in_another_unit_is_read_after_another_one_came(kind: pa.DataType) -> None:
    value = [{"at": 1}, {"at": 2}] if pa.types.is_struct(kind) else [[1], [2]] if pa.types.is_list(kind) else [1, 2]
    values = pa.array(value, kind)
    before = pa.schema([("rider", pa.int64()), ("seen", kind)])
    cluster = Cluster(1, {"riders": keyed(before)})
    cluster.managers[0].get_keyed("riders").upsert(pa.table({"rider": [1, 2]}), pa.table({"seen": values}))
    cluster.commit()
    cluster.restart(1, {"riders": keyed(pa.schema([*before, ("trips", pa.int64())]))})
    expected = [{"rider": n, "seen": one, "trips": None} for n, one in zip([1, 2], values.to_pylist(), strict=True)]
    assert riders(cluster) == expected
    for manager in cluster.managers:
        manager.send(Compaction())
    cluster.commit()
    cluster.restart(2)
    assert riders(cluster) == expected
    cluster.close()


def test_the_time_to_live_of_a_table_may_change_and_end_and_its_key_be_renamed() -> None:
    day = dt.timedelta(days=1)
    cluster = Cluster(1, {"riders": keyed(V1, ttl=day)})
    write(cluster, "riders", {"rider": [1, 2], "_time": [1, 2], "trips": [1, 2], "city": ["a", "b"]})
    cluster.commit()
    cluster.restart(1, {"riders": keyed(V1, ttl=dt.timedelta(microseconds=10))})
    (manager,) = cluster.managers
    manager.get_keyed("riders").advance(11)
    assert [row["rider"] for row in riders(cluster)] == [2]
    cluster.commit()
    schema = pa.schema([("passenger", pa.int64()), ("trips", pa.int32()), ("city", pa.string())])
    lasting = keyed_table_config("riders", "", ["passenger"], schema, renames={"passenger": "rider"})
    cluster.restart(2, {"riders": lasting})
    rows = [row for one in cluster.managers for table in one.get_keyed("riders").scan() for row in table.to_pylist()]
    assert rows == [{"passenger": 2, "trips": 2, "city": "b"}]
    cluster.commit()
    with pytest.raises(IncompatibleSchemaError, match="no time by which"):
        cluster.restart(
            1, {"riders": keyed_table_config("riders", "", ["passenger"], schema, day, renames={"passenger": "rider"})}
        )
    cluster.close()


def test_a_view_without_a_manager_refuses_a_definition_that_nobody_compared() -> None:
    """Field ids of a definition that was just made mean nothing: columns would be taken for each other."""
    cluster = Cluster(1, {"riders": keyed(V1), "trips": timed(V1)})
    write(cluster, "riders", {"rider": [1], "trips": [10], "city": ["Ulm"]})
    write(cluster, "trips", {"rider": [1], "_time": [1], "trips": [10], "city": ["Ulm"]})
    cluster.commit()
    (manager,) = cluster.managers
    other = pa.schema([("rider", pa.int64()), ("fares", pa.int32()), ("city", pa.string())])
    for name, make, view in (("riders", keyed, KeyedView), ("trips", timed, TimeKeyedView)):
        table = manager.get_keyed(name) if name == "riders" else manager.get_time_keyed(name)
        with pytest.raises(IncompatibleSchemaError, match="the program defines"):
            view(make(other), owned=WHOLE_SPACE, store=cluster.store, parts=[table.metadata()])
    cluster.close()
