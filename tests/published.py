"""Epochs on their way to a sink, and tables of sinks as they read afterwards, for tests of sinks."""

import json
from pathlib import Path

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c, digest
from statebed.sinks import table_files
from statebed.storage import MemoryStore
from statebed.subtasks.outbox import encode_outbox

EPOCH_TIME_US = 1_767_225_600_000_000
NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfea\xc3")]
)
"""Texts that are not UTF-8, as Spark makes them of binary columns."""


def publication(run: int, epoch: int, *tables: pa.Table) -> Publication:
    """The epoch with a file for each table, as each subtask writes one."""
    store = MemoryStore()
    files = []
    for number, table in enumerate(tables):
        data = encode_outbox(table)
        path = f"outbox/op-{number}.{digest(data)}.parquet"
        store.put(path, data)
        files.append(pb.OutboxFile(path=path, size=len(data), rows=table.num_rows, crc32c=crc32c(data)))
    record = pb.CheckpointMetadata(epoch=epoch, run=run, epoch_time_us=EPOCH_TIME_US)
    return Publication(run=run, epoch=epoch, record=record, files=tuple(files), commit_data=(), store=store)


def debezium_rows(path: str) -> dict[str, int]:
    """Apply the messages of a Debezium table with the columns `k` and `n`, and return `n` by `k`.

    A message that takes away a row which is not there fails.
    """
    rows: dict[str, int] = {}
    for file in table_files(path):
        for line in Path(file).read_text().splitlines():
            message = json.loads(line)
            if message["before"]:
                assert rows.pop(message["before"]["k"]) == message["before"]["n"]
            if message["after"]:
                rows[message["after"]["k"]] = message["after"]["n"]
    return rows
