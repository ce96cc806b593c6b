"""A small job with tables of all kinds, written by the engine into a folder, for those who read them."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint import EpochDraft, Origin, Retention, RollbackPolicy, Run, RunOptions
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import subtask_of
from statebed.state import (
    CompactionMode,
    DataOperation,
    Insert,
    ManagerOptions,
    RecordBatch,
    TableConfig,
    TableData,
    TableManager,
    TaskInfo,
    TimeToLiveClock,
    global_table_config,
    keyed_table_config,
    operator_entry,
    timestamp_table_config,
)
from statebed.storage import ScopedStore, get_storage_provider

JOB, OPERATOR = "rides", "count"
TIMESTAMP = pa.timestamp("us", tz="UTC")
HOUR = dt.timedelta(hours=1)
DRIVERS = pa.schema([("city", pa.string()), ("driver", pa.int64()), ("trips", pa.int64()), ("note", pa.string())])
FARES = pa.schema([("driver", pa.int64()), ("cents", pa.int64())])
TABLES: dict[str, TableConfig] = {
    "drivers": keyed_table_config("drivers", "trips by driver", ["city", "driver"], DRIVERS),
    "seen": keyed_table_config("seen", "", ["driver"], FARES, HOUR, ttl_clock=TimeToLiveClock.EVENT_TIME),
    "recent": keyed_table_config("recent", "", ["driver"], FARES, HOUR, ttl_clock=TimeToLiveClock.EPOCH_TIME),
    "fares": timestamp_table_config(
        "fares", "", HOUR, False, FARES, keys=["driver"], bin_width=dt.timedelta(minutes=1)
    ),
    "prices": timestamp_table_config(
        "prices", "", HOUR, True, FARES, keys=["driver"], bin_width=dt.timedelta(minutes=1)
    ),
    **global_table_config("settings", ""),
}


@dataclass
class TableWorld:
    """The job. Each `epoch` commits what was written."""

    folder: Path
    parallelism: int = 2
    retained: int = 50
    url: str = ""
    storage_options: Mapping[str, str] | None = None
    tables: Mapping[str, TableConfig] = field(default_factory=lambda: TABLES)

    def __post_init__(self) -> None:
        self.url = self.url or str(self.folder)
        self.store = ScopedStore(get_storage_provider(self.url, self.storage_options), JOB)
        self.managers: list[TableManager] = []
        self.start()

    def start(self, origin: Origin | None = None) -> None:
        """A new run."""
        self.end()
        retention = Retention(epochs=self.retained, reader_grace="0 s")
        options = RunOptions(origin=origin or Origin(), retention=retention, rollback=RollbackPolicy.ALLOW)
        self.run = Run.open(self.store, JOB, options=options)
        self.managers = [
            TableManager(
                TaskInfo(JOB, OPERATOR, index, self.parallelism),
                self.tables,
                self.store,
                restore_from=self.run.head if self.run.head.operators else None,
                options=ManagerOptions(compaction=CompactionMode.OFF),
            )
            for index in range(self.parallelism)
        ]

    def end(self) -> None:
        for manager in self.managers:
            manager.close()

    def write(self, table: str, rows: Mapping[str, Any], operation: DataOperation | None = None) -> None:
        """Rows by column, each to the subtask that owns it."""
        config = self.tables[table]
        kind = config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed
        schema = pa.ipc.read_schema(pa.py_buffer(kind.schema))
        columns = {
            name: pa.array(values, TIMESTAMP if name == "_time" else schema.field(name).type)
            for name, values in rows.items()
        }
        batch = pa.record_batch(columns)
        owners = subtask_of(hash_columns([batch.column(name) for name in kind.key_columns]), self.parallelism)
        for index, manager in enumerate(self.managers):
            mine = batch.take(pa.array(np.flatnonzero(owners == index)))
            if mine.num_rows:
                manager.send(TableData(table, RecordBatch(mine, operation or Insert())))

    def put(self, key: Any, value: Any) -> None:
        """Into the global keyed table."""
        for manager in self.managers:
            view = manager.get_global_keyed_state("settings")
            if view.owns(key):
                view.insert(key, value)

    def epoch(self, *, watermark_us: int | None = None, time_us: int | None = None) -> int:
        """Commit; gives the number."""
        answers = [one.checkpoint(self.run.next_epoch, 0, watermark_us, time=time_us) for one in self.managers]
        entry = operator_entry([one.result(timeout=60) for one in answers])
        record: pb.CheckpointMetadata = self.run.commit(EpochDraft(operators=[entry]))
        return record.epoch

    def compact(self) -> None:
        """Merge all files; the next epoch takes the result."""
        for manager in self.managers:
            manager.compact().result(timeout=60)

    def save(self, name: str, epoch: int) -> None:
        """A savepoint, which the next epoch brings."""
        self.run.add_request(pb.Request(savepoint=pb.SavepointRequest(name=name, epoch=epoch)))
