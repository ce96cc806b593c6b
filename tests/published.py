"""Epochs on their way to a sink, for tests of sinks: outbox files in a store of their own."""

import pyarrow as pa

from statebed.checkpoint import Publication
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c, digest
from statebed.operators.outbox import encode_outbox
from statebed.storage import MemoryStore

EPOCH_TIME_US = 1_767_225_600_000_000


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
