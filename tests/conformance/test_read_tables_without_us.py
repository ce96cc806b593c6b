"""P8: the tables of a Python program are read with nothing but protobuf, DuckDB and msgpack."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa

from statebed.checkpoint import EpochDraft, Run
from statebed.format.keyhash import hash_columns
from statebed.format.ranges import subtask_of
from statebed.state import (
    DeleteKey,
    RecordBatch,
    TableData,
    TableManager,
    TaskInfo,
    global_table_config,
    keyed_table_config,
    operator_entry,
)
from statebed.storage import ScopedStore, get_storage_provider

READER = Path(__file__).with_name("independent_reader.py")
CONFIGS = global_table_config("names", "") | {
    "trips": keyed_table_config("trips", "", ["driver"], pa.schema([("driver", pa.int64()), ("trips", pa.int64())]))
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
    columns, *rows = tables["count/names"]
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    decoded = sorted(
        tuple(msgspec.msgpack.decode(ast.literal_eval(row[name])) for name in ("key", "value")) for row in found
    )
    assert decoded == [(driver, f"driver {driver}") for driver in drivers]
