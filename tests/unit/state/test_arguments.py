"""Mistakes of programs: every error says what, where and what to do, and nothing has changed."""

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from unit.state.table_cluster import JOB, OPERATOR

from statebed.errors import InputError
from statebed.state import (
    DeleteTimeRange,
    ManagerOptions,
    MemoryController,
    RecordBatch,
    TableManager,
    TaskInfo,
    Tiers,
    global_table_config,
    global_table_config_with_version,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import MemoryStore, ScopedStore

DAY = dt.timedelta(days=1)
SCHEMA = pa.schema([("rider", pa.int64()), ("fare", pa.int64())])
TABLES = {
    "riders": keyed_table_config("riders", "", ["rider"], SCHEMA, DAY),
    "totals": keyed_table_config("totals", "", ["rider"], SCHEMA),
    "trips": timestamp_table_config("trips", "", DAY, False, SCHEMA, keys=["rider"]),
}
TASK = TaskInfo(JOB, OPERATOR)
KEYS, VALUES = pa.table({"rider": [1, 2]}), pa.table({"fare": [5, 6]})
TIMES = pa.array([1, 2], pa.timestamp("us", "UTC"))
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.UTC)
NO_ROWS: list[Any] = [{"rider": [1, 2]}, [1, 2], None, pa.array([1, 2])]
NO_TIMES: list[Any] = [[1, 2], NOON]
NO_BOUNDS: list[Any] = [NOON, "2024", 1.5, True, 1 << 63, -(1 << 70)]


def store() -> ScopedStore:
    return ScopedStore(MemoryStore(), JOB)


@pytest.fixture
def manager() -> Iterator[TableManager]:
    """Return a manager with two rows in every table."""
    with TableManager(TASK, TABLES, store()) as made:
        made.get_keyed("riders").upsert(KEYS, VALUES, times=TIMES)
        made.get_keyed("totals").upsert(KEYS, VALUES)
        made.get_time_keyed("trips").append(KEYS.append_column("_time", TIMES).append_column("fare", VALUES["fare"]))
        yield made


def contents(manager: TableManager) -> list[Any]:
    keyed = [
        row for name in ("riders", "totals") for rows in manager.get_keyed(name).scan() for row in rows.to_pylist()
    ]
    return [*keyed, *manager.get_time_keyed("trips").read().to_pylist()]


def refused(call: Callable[[], Any], what: str, *, where: str, fix: str) -> None:
    with pytest.raises(InputError) as error:
        call()
    assert what in error.value.what
    assert where in error.value.where
    assert fix in error.value.fix
    assert error.value.where
    assert error.value.fix


@pytest.mark.parametrize("rows", NO_ROWS, ids=lambda rows: type(rows).__name__)
def test_rows_that_are_neither_a_table_nor_a_batch_are_refused(manager: TableManager, rows: Any) -> None:
    totals, riders, trips = manager.get_keyed("totals"), manager.get_keyed("riders"), manager.get_time_keyed("trips")
    before = contents(manager)
    calls: list[Callable[[], Any]] = [
        lambda: totals.get(rows),
        lambda: totals.prefetch(rows),
        lambda: totals.upsert(rows, VALUES),
        lambda: totals.upsert(KEYS, rows),
        lambda: totals.merge(KEYS, rows, lambda _, new: new),
        lambda: totals.delete(rows),
        lambda: totals.delete_values(KEYS, rows),
        lambda: riders.delete_at(rows, TIMES),
        lambda: trips.append(rows),
        lambda: trips.delete(rows),
        lambda: trips.delete_at(rows, TIMES),
        lambda: trips.delete_values(KEYS, rows),
        lambda: RecordBatch(rows),
    ]
    for call in calls:
        refused(call, f"got {type(rows).__name__}", where="", fix="pyarrow Table or RecordBatch")
    assert contents(manager) == before


def test_a_difference_in_columns_names_the_table_and_the_way_out(manager: TableManager) -> None:
    totals = manager.get_keyed("totals")
    where = "table 'totals'"
    refused(lambda: totals.get(pa.table({"id": [1]})), "instead of ['rider']", where=where, fix="columns")
    refused(lambda: totals.get(pa.table({"rider": ["a"]})), "type string", where=where, fix="cast the column to int64")
    refused(lambda: totals.upsert(KEYS, VALUES.slice(1)), "2 keys and 1 rows", where=where, fix="for each key")
    refused(lambda: totals.upsert(KEYS, VALUES, times=TIMES), "has times", where=where, fix="leave times= out")


@pytest.mark.parametrize("times", NO_TIMES, ids=lambda times: type(times).__name__)
def test_times_that_are_no_column_are_refused(manager: TableManager, times: Any) -> None:
    riders, trips = manager.get_keyed("riders"), manager.get_time_keyed("trips")
    calls: list[Callable[[], Any]] = [
        lambda: riders.upsert(KEYS, VALUES, times=times),
        lambda: riders.delete_at(KEYS, times),
        lambda: trips.delete_at(KEYS, times),
    ]
    for call in calls:
        refused(call, f"got {type(times).__name__}", where="table", fix="pyarrow array")


@pytest.mark.parametrize("function", [None, 5, "sum"])
def test_what_cannot_be_called_is_no_merge_function(manager: TableManager, function: Any) -> None:
    totals, before = manager.get_keyed("totals"), contents(manager)
    refused(lambda: totals.merge(KEYS, VALUES, function), "merge function", where="'totals'", fix="merge_columns")
    assert contents(manager) == before


@pytest.mark.parametrize("made", [None, {"fare": [1, 2]}, pa.table({"total": [1, 2]}), pa.table({"fare": ["a", "b"]})])
def test_a_merge_function_has_to_give_rows_like_the_values(manager: TableManager, made: Any) -> None:
    totals, before = manager.get_keyed("totals"), contents(manager)
    refused(
        lambda: totals.merge(KEYS, VALUES, lambda _old, _new: made),
        "rows of the merge function",
        where="merge function",
        fix="",
    )
    assert contents(manager) == before


@pytest.mark.parametrize("bound", NO_BOUNDS, ids=str)
def test_a_bound_of_time_is_microseconds_that_can_be_stored(manager: TableManager, bound: Any) -> None:
    riders, trips = manager.get_keyed("riders"), manager.get_time_keyed("trips")
    before = contents(manager)
    calls: list[Callable[[], Any]] = [
        lambda: trips.read(bound),
        lambda: trips.read(None, bound),
        lambda: trips.scan(bound),
        lambda: trips.prefetch(bound),
        lambda: trips.delete_times(bound, 9),
        lambda: trips.delete_times(0, bound),
        lambda: riders.delete_times(bound, 9),
        lambda: riders.delete_times(0, bound),
        lambda: DeleteTimeRange(0, bound),
    ]
    for call in calls:
        refused(call, "the ", where="", fix="microseconds since 1970")
    assert contents(manager) == before


def test_a_range_ends_after_it_starts(manager: TableManager) -> None:
    riders, trips = manager.get_keyed("riders"), manager.get_time_keyed("trips")
    refused(lambda: riders.delete_times(9, 1), "cannot end (1)", where="'riders'", fix="first time")
    refused(lambda: trips.delete_times(9, 1), "cannot end (1)", where="'trips'", fix="first time")


def test_a_message_and_a_record_are_what_they_are_called(manager: TableManager) -> None:
    wrong: Any = None
    refused(lambda: manager.send(wrong), "message", where=OPERATOR, fix="TableData")
    refused(lambda: manager.refresh(wrong), "record", where=OPERATOR, fix="run.head")
    refused(lambda: TableManager(TASK, TABLES, store(), restore_from=cast("Any", 5)), "record", where=OPERATOR, fix="")
    waiting: Any = manager.checkpoint(1)
    refused(lambda: operator_entry([waiting]), "result of a subtask", where="operator_entry", fix="result()")
    waiting.result(30)


MANAGERS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a list of tables": (lambda: TableManager(TASK, cast("Any", list(TABLES.values())), store()), "list", "dictionary"),
    "one table": (lambda: TableManager(TASK, cast("Any", TABLES["trips"]), store()), "TableConfig", "dictionary"),
    "no table": (lambda: TableManager(TASK, cast("Any", {"trips": SCHEMA}), store()), "Schema", "keyed_table_config"),
    "a path": (
        lambda: TableManager(TASK, TABLES, cast("Any", "state")),
        "ObjectStore, got str",
        "get_storage_provider",
    ),
    "rows of no table": (
        lambda: TableManager(TASK, TABLES, store(), combines={"tripz": lambda rows: rows}),
        "['tripz']",
        "time-keyed",
    ),
    "rows of a keyed table": (
        lambda: TableManager(TASK, TABLES, store(), combines={"riders": lambda rows: rows}),
        "['riders']",
        "time-keyed",
    ),
    "memory as text": (lambda: MemoryController(cast("Any", "64m")), "'64m'", "bytes"),
    "memory as a number": (lambda: Tiers(cast("Any", 64 << 20)), "int", "MemoryController"),
    "a mode as text": (lambda: ManagerOptions(compaction=cast("Any", "off")), "str", "CompactionMode"),
    "half a checkpoint": (lambda: ManagerOptions(max_pending=cast("Any", 1.5)), "1.5", "numbers"),
    "columns as a dictionary": (
        lambda: keyed_table_config("riders", "", ["rider"], cast("Any", {"rider": pa.int64()})),
        "dict",
        "pa.schema",
    ),
    "a time to live for ever": (
        lambda: keyed_table_config("riders", "", ["rider"], SCHEMA, dt.timedelta.max),
        "too long",
        "for ever",
    ),
    "a retention for ever": (lambda: timestamp_table_config("trips", "", dt.timedelta.max, False, SCHEMA), "long", ""),
    "a clock as text": (
        lambda: keyed_table_config("riders", "", ["rider"], SCHEMA, DAY, ttl_clock=cast("Any", "epoch")),
        "str",
        "TimeToLiveClock",
    ),
    "a version as text": (lambda: global_table_config_with_version("counters", "", cast("Any", "1")), "'1'", "choose"),
    "phases as a truth": (
        lambda: global_table_config("counters", "", phases=cast("Any", True)),
        "bool",
        "CommitPhases",
    ),
}


@pytest.mark.parametrize("case", MANAGERS)
def test_what_no_manager_can_be_made_of_is_refused(case: str) -> None:
    make, what, fix = MANAGERS[case]
    refused(make, what, where="", fix=fix)
