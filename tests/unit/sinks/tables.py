"""Parquet tables of one column, for tests of the table and its manifest."""

import itertools

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.format import checkpoint_pb2 as pb
from statebed.format.digest import crc32c
from statebed.sinks import ParquetTableSink, read_table
from statebed.storage import MemoryStore

SCHEMA = pa.schema([("n", pa.int64())])
_numbers = itertools.count()


def new_path() -> str:
    """Return a place without a table."""
    return f"memory://table{next(_numbers)}"


def sink(path: str, *, job_id: str = "rides") -> ParquetTableSink:
    return ParquetTableSink(sink_id="out", path=path, job_id=job_id, schema=SCHEMA)


def publication(run: int, epoch: int, *values: int, operator: str = "op") -> Publication:
    store, path = MemoryStore(), f"a/{operator}-0.d1.parquet"
    files = []
    if values:
        buffer = pa.BufferOutputStream()
        pq.write_table(pa.table({"n": list(values)}, schema=SCHEMA), buffer)
        data = buffer.getvalue().to_pybytes()
        store.put(path, data)
        files.append(pb.OutboxFile(path=path, size=len(data), rows=len(values), crc32c=crc32c(data)))
    return Publication(
        run=run, epoch=epoch, record=pb.CheckpointMetadata(), files=tuple(files), commit_data=(), store=store
    )


def rows(path: str) -> list[int]:
    found: list[int] = read_table(path)["n"].to_pylist()
    return found


def sealed(data: bytes) -> bytes:
    """Return sealed JSON with another content, and the checksum that belongs to it."""
    body = data[: -len(b',"crc32c":"00000000"}')]
    return body + f',"crc32c":"{crc32c(body):08x}"}}'.encode()
