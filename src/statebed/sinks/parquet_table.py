"""Parquet tables, exactly once: the outbox files of an epoch are the table's files.

    {path}/epoch=000000000007/per_minute-0.{digest}.parquet
    {path}/_statebed/                                            the manifest: which files the table consists of

Files are plain Parquet; those of a changelog have `_weight` as last column. Read the table with `read_table(path)`, or
pass `table_files(path)` to any engine:

    duckdb.read_parquet(table_files("out"))

The glob `out/epoch=*/*.parquet` sees the same rows, unless the table is being rolled back; it may see an epoch a moment
before the manifest shows it.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.checkpoint import Publication
from statebed.errors import CorruptObjectError, InputError
from statebed.format.stream_schema import WEIGHT
from statebed.sinks.file_table import FileContent, FileTableSink
from statebed.sinks.manifest import RESTORE, TableFile, TableState, decode_schema, read_consistently, read_file
from statebed.storage import ObjectStore, get_storage_provider

SUFFIX = ".parquet"


class ParquetTableSink(FileTableSink):
    """Publishes epochs to its own Parquet table."""

    kind: str = "parquet"

    @property
    def described(self) -> str:
        changes = f", changes as rows with {WEIGHT}" if WEIGHT in self._schema.names else ""
        return f"Parquet table {self.url}{changes}"

    def _checked(self, run: int | None = None) -> TableState:
        """See `FileTableSink._checked`; also raise InputError if the rows of the table have other types."""
        state = super()._checked(run)
        if run is not None or not (stored := self._stored_schema(state)):
            return state
        if (WEIGHT in stored.names) != (WEIGHT in self._schema.names):
            held, now = "rows that were only added", f"changes with {WEIGHT}"
            if WEIGHT in stored.names:
                held, now = now, held
            raise InputError(
                f"the table holds {held}, but the stream now has {now}: readers could not add them up",
                where=self.url,
                fix="give the table another path; or remove the folder, and the next start lists the choices",
            )
        for field in self._schema:
            place = stored.get_field_index(field.name)
            kinds = {field.type, field.type if place < 0 else stored.field(place).type} - {pa.null()}
            if len(kinds) > 1:
                kind = stored.field(place).type
                raise InputError(
                    f"the column {field.name!r} is {field.type}, but the table has it as {kind}",
                    where=self.url,
                    fix=f"cast it to {kind}, give it another name, or the table another path",
                )
        return state

    def schema_from(self, state: TableState) -> pa.Schema:
        """Return the columns of this run and those that only older rows have, which keep their types."""
        stored = self._stored_schema(state)
        return pa.unify_schemas([self._schema, stored]) if stored else self._schema

    def _stored_schema(self, state: TableState) -> pa.Schema | None:
        """Return the columns of the table's rows, or None if it has none."""
        has_rows = state.schema and (state.pages or state.tail)
        return decode_schema(state.schema, where=self.url) if has_rows else None

    def contents(self, publication: Publication, *, first: bool) -> Iterator[FileContent]:  # noqa: ARG002 - all alike
        for file in publication.files:
            yield FileContent(file.path.rpartition("/")[2], publication.read(file), file.rows)


def table_files(path: str) -> list[str]:
    """Return the full names of the table's visible files, for any engine that reads Parquet.

    For a table that a job has written with `write("parquet", path="out")`:

    >>> all(name.endswith(".parquet") for name in sb.table_files("out"))
    True
    """
    store = get_storage_provider(path)
    return read_consistently(store, lambda _, files: [f"{store.url}/{file.path}" for file in files])


def read_table(path: str) -> pa.Table:
    """Return the table's rows as Arrow, in the order of epochs. Size and checksum of every file are checked.

    For a table that a job has written with `write("parquet", path="out")`:

    >>> sb.read_table("out").num_rows
    2
    """
    store = get_storage_provider(path)
    return read_consistently(store, lambda state, files: _rows(store, state, files))


def _rows(store: ObjectStore, state: TableState, files: Iterator[TableFile]) -> pa.Table:
    if not state.number:
        raise InputError(
            "there is no statebed table here", where=store.url, fix="pass the path of write('parquet', path=...)"
        )
    tables = []
    for file in files:
        if not file.path.endswith(SUFFIX):
            raise InputError(
                "the table's files are not Parquet", where=store.url, fix="pass table_files(path) to a JSON reader"
            )
        tables.append(_parsed(read_file(store, file), file, where=f"{store.url}/{file.path}"))
    if tables:
        return pa.concat_tables(tables, promote_options="default")
    return decode_schema(state.schema, where=store.url).empty_table()


def _parsed(data: bytes, file: TableFile, *, where: str) -> pa.Table:
    try:
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
    except (pa.ArrowException, OSError) as error:
        raise CorruptObjectError(f"a file of the table is not Parquet: {error}", where=where, fix=RESTORE) from error
    if rows.num_rows != file.rows:
        raise CorruptObjectError(
            f"a file of the table has {rows.num_rows} rows, but its manifest says {file.rows}", where=where, fix=RESTORE
        )
    return rows
