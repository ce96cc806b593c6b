"""P8: the tables of a Python program are read with nothing but protobuf, DuckDB and msgpack."""

import ast
import datetime as dt
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import EpochDraft, Run
from statebed.format.ranges import subtask_of
from statebed.state import (
    DeleteKey,
    DeleteTimeRange,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    global_table_config,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import ScopedStore, get_storage_provider

FARES = pa.schema([("driver", pa.int64()), ("fare", pa.int64())])
READER = Path(__file__).with_name("independent_reader.py")
TIMED = ["driver", "_time", "fare"]
CONFIGS = global_table_config("names", "") | {
    "trips": keyed_table_config("trips", "", ["driver"], pa.schema([("driver", pa.int64()), ("trips", pa.int64())])),
    "fares": timestamp_table_config("fares", "", dt.timedelta(days=1), False, FARES, keys=["driver"]),
    "places": timestamp_table_config("places", "", dt.timedelta(days=1), True, FARES, keys=["driver"]),
}


def write_epochs(folder: Path, *, parallelism: int, first: int) -> None:
    """Two epochs that write drivers from `first` on, and delete every fifth of them again."""
    store = ScopedStore(get_storage_provider(str(folder)), "rides")
    run = Run.open(store, "rides")
    tasks = [TaskInfo("rides", "count", index, parallelism) for index in range(parallelism)]
    managers = [TableManager(task, CONFIGS, store, restore_from=run.head) for task in tasks]
    drivers = list(range(first, first + 50))
    for deleting in (False, True):
        chosen = drivers[::5] if deleting else drivers
        rows = pa.record_batch({"driver": pa.array(chosen), "trips": pa.array([10 * driver for driver in chosen])})
        owners = subtask_of(hash_columns([rows.column("driver")]), parallelism)
        for index, manager in enumerate(managers):
            mine = rows.filter(pa.array((owners == index).tolist()))
            manager.send(TableData("trips", RecordBatch(mine, *([DeleteKey()] if deleting else []))))
            times = pa.array(mine.column("driver").to_pylist(), pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            for fare in (1, 2):
                timed = pa.record_batch([mine.column(0), times, pa.array([fare] * len(mine), pa.int64())], TIMED)
                manager.send(TableData("fares", RecordBatch(timed)))
                manager.send(TableData("places", RecordBatch(timed)))
            if deleting:
                empty = timed.slice(0, 0)
                manager.send(TableData("fares", RecordBatch(empty, DeleteTimeRange(first, first + 10))))
            names = manager.get_global_keyed_state("names")
            for driver in filter(names.owns, chosen):
                if deleting:
                    names.remove(driver)
                else:
                    names.insert(driver, f"driver {driver}")
        stored = [manager.checkpoint(run.next_epoch).result(timeout=30) for manager in managers]
        run.commit(EpochDraft(operators=[operator_entry(stored)]))
    for manager in managers:
        manager.close()


def fares_in(table: list[list[str]]) -> list[tuple[int, int]]:
    columns, *rows = table
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    return sorted((int(row["driver"]), int(row["fare"])) for row in found)


def test_p8_tables_are_read_without_us_after_deletions_and_rescaling(tmp_path: Path, compiled_schema: Path) -> None:
    write_epochs(tmp_path, parallelism=1, first=0)
    write_epochs(tmp_path, parallelism=3, first=30)
    answer = subprocess.run(
        [sys.executable, str(READER), str(tmp_path / "rides"), "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={"PYTHONPATH": str(compiled_schema), "PATH": os.environ["PATH"], "TZ": "UTC"},
    )
    assert answer.returncode == 0, answer.stderr
    tables = json.loads(answer.stdout)["tables"]
    drivers = [driver for driver in range(80) if driver % 5]
    columns, *rows = tables["count/trips"]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    assert sorted((int(row["driver"]), int(row["trips"])) for row in found) == [(one, 10 * one) for one in drivers]
    deleted = {*range(10), *range(30, 40)}
    written = [driver for first in (0, 30) for driver in [*range(first, first + 50), *range(first, first + 50, 5)]]
    expected = [(driver, fare) for driver in written for fare in (1, 2) if driver not in deleted]
    assert fares_in(tables["count/fares"]) == sorted(expected)
    assert fares_in(tables["count/places"]) == [(driver, 2) for driver in range(80)]
    columns, *rows = tables["count/names"]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    decoded = sorted(
        tuple(msgspec.msgpack.decode(ast.literal_eval(row[name])) for name in ("key", "value")) for row in found
    )
    assert decoded == [(driver, f"driver {driver}") for driver in drivers]
