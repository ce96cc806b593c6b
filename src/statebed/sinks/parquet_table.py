"""An own Parquet table, exactly once: the outbox files of an epoch are the table's files.

    {path}/epoch=000000000007/per_minute-0.{digest}.parquet
    {path}/_statebed/000000000001.json ...                       the manifest: which files the table consists of

Files are plain Parquet; those of a changelog have a last column `_weight`. Read the table with `read_table(path)`, or
hand `table_files(path)` to any engine:

    duckdb.read_parquet(table_files("out"))

The glob `out/epoch=*/*.parquet` sees the same rows, as long as nobody is rolling the table back; an epoch may be seen
there a moment before the manifest shows it.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import CorruptObjectError, InputError
from statebed.format.digest import crc32c
from statebed.operators.operator import WEIGHT
from statebed.sinks.file_table import FileContent, FileTableSink
from statebed.sinks.manifest import Manifest, decode_schema
from statebed.storage import get_storage_provider

SUFFIX = ".parquet"


class ParquetTableSink(FileTableSink):
    """Publishes epochs to a Parquet table of its own."""

    kind: str = "parquet"

    @property
    def described(self) -> str:
        changes = f", changes as rows with {WEIGHT}" if WEIGHT in self._schema.names else ""
        return f"Parquet table {self.url}{changes}"

    def contents(self, publication: Publication, *, first: bool) -> Iterator[FileContent]:  # noqa: ARG002 - all alike
        for file in publication.files:
            yield FileContent(file.path.rpartition("/")[2], publication.read(file), file.rows)


def table_files(path: str) -> list[str]:
    """Full names of the table's visible files, for any engine that reads Parquet."""
    store = get_storage_provider(path)
    return [f"{store.url}/{file.path}" for file in Manifest(store).refresh().files]


def read_table(path: str) -> pa.Table:
    """The table's rows as Arrow, every file checked; epochs in order."""
    store = get_storage_provider(path)
    state = Manifest(store).refresh()
    if not state.number:
        raise InputError(
            "there is no table of statebed's", where=store.url, fix="give the path of write('parquet', path=...)"
        )
    tables = []
    for file in state.files:
        if not file.path.endswith(SUFFIX):
            raise InputError(
                "the table's files are not Parquet", where=store.url, fix="hand table_files(path) to a reader of JSON"
            )
        data = store.get(file.path)
        if len(data) != file.size or crc32c(data) != file.crc32c:
            raise CorruptObjectError(
                "a file of the table is not what its manifest says",
                where=f"{store.url}/{file.path}",
                fix="restore it from a backup, or from the outbox of its epoch while that is retained",
            )
        tables.append(pq.read_table(pa.BufferReader(data)))
    return pa.concat_tables(tables, promote_options="default") if tables else decode_schema(state.schema).empty_table()
