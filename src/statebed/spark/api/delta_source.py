"""Delta tables as streams, without Delta's own package for Spark: `job.delta("lake/trips")`.

An offset is a version of the table. What versions have added is read from the table's log.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from statebed.errors import InputError, MissingFileError, ObjectMissingError
from statebed.sinks.lake import DeltaLakeTable, TableLayout, TableVersion
from statebed.spark.api.lake_source import ALL, STARTING, LakeStreamReader, spark_columns
from statebed.storage import get_storage_provider

NAME = "statebed_delta"
STORAGE = "storage."


@dataclass(frozen=True)
class AddedFile:
    """A data file that a version has added."""

    path: str
    partition: Mapping[str, str | None]


class DeltaSource(DataSource):
    """A Delta table, as a stream of appended rows."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_columns(existing_table(*_place(self.options)).columns)

    def streamReader(self, schema: StructType) -> "DeltaVersionReader":  # noqa: N802 - Spark's name
        return DeltaVersionReader(*_place(self.options), schema, starting=self.options.get(STARTING, ALL))


class DeltaVersionReader(LakeStreamReader):
    """Reads the files that versions have added."""

    version_name: ClassVar[str] = "version"

    def __init__(
        self, path: str, storage_options: Mapping[str, str], schema: StructType, *, starting: str = ALL
    ) -> None:
        super().__init__(schema, starting=starting)
        self._path, self._options = path, dict(storage_options)

    def newest(self) -> int:
        return int(existing_table(self._path, self._options).handle.version())

    def appended(self, first: int, last: int) -> list[AddedFile]:
        if first > last:
            raise InputError(
                f"the stream has read version {first}, but the table's newest version is {last}: it was replaced",
                where=self._path,
                fix="restore the table, or let a new job read it",
            )
        return [file for version in range(first + 1, last + 1) for file in self._added(version)]

    def rows(self, file: AddedFile) -> pa.Table:
        data = get_storage_provider(self._path, self._options).get(file.path)
        rows = pq.ParquetFile(pa.BufferReader(data)).read()
        for name, text in file.partition.items():
            value = pa.nulls(rows.num_rows) if text is None else pa.repeat(pa.scalar(text), rows.num_rows)
            rows = rows.append_column(name, value.cast(self._target.field(name).type))
        return rows

    def whole(self, version: int) -> list[AddedFile]:
        """Return all files of a version. They are listed by the log of the newest one, which may have replaced some."""
        table = DeltaLakeTable(self._path, layout=TableLayout(), storage_options=self._options)
        handle = table.version(version)
        self._check_readable(handle)
        files = table.files(handle)
        return [AddedFile(file.path, {name: _text(value) for name, value in file.partition.items()}) for file in files]

    def _added(self, version: int) -> list[AddedFile]:
        """Return the files that a version has added; raise an error if it removes or updates rows."""
        path = f"_delta_log/{version:020d}.json"
        store = get_storage_provider(self._path, self._options)
        try:
            lines = store.get(path).splitlines()
        except ObjectMissingError as error:
            raise MissingFileError(
                f"version {version} of the Delta table is no longer in its log, and the stream has not read it",
                where=f"{store.url}/{path}",
                fix="let a new job read the table from its newest version; to prevent this, keep the log longer "
                "(delta.logRetentionDuration) or run the job more often",
            ) from error
        actions = [json.loads(line) for line in lines if line.strip()]
        if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
            raise InputError(
                f"version {version} of the Delta table updates or deletes rows, and a stream has only appended rows",
                where=store.url,
                fix="read a table that is only appended to; the changes of a table with a key can be read from the "
                "state of the job that writes it: readStream.format('statebed')",
            )
        added = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
        if any(entry.get("deletionVector") for entry in added):
            raise InputError(
                f"version {version} of the Delta table has deletion vectors, which this reader does not support",
                where=store.url,
                fix="switch delta.enableDeletionVectors off for this table",
            )
        return [AddedFile(unquote(entry["path"]), entry.get("partitionValues") or {}) for entry in added]

    def _check_readable(self, version: TableVersion) -> None:
        features = set(version.handle.protocol().reader_features or ()) - {"timestampNtz", "v2Checkpoint"}
        if features:
            raise InputError(
                f"the Delta table uses {', '.join(sorted(features))}, which this reader does not support",
                where=self._path,
                fix="read it with Delta's own package for Spark: job.source(spark.readStream.format('delta')...)",
            )


def existing_table(path: str, storage_options: Mapping[str, str]) -> TableVersion:
    """Return the newest version of a table; raise InputError if there is no table."""
    version = DeltaLakeTable(path, layout=TableLayout(), storage_options=storage_options).current("")
    if version is None:
        raise InputError("there is no Delta table", where=path, fix="pass the path of a Delta table")
    return version


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _place(options: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    storage = {name.removeprefix(STORAGE): value for name, value in options.items() if name.startswith(STORAGE)}
    return options["path"], storage
