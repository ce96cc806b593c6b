"""Iceberg tables as streams, without Iceberg's runtime for Spark: `job.iceberg("rides.trips", path="lake")`.

An offset is a snapshot of the branch `main`. Snapshots are read by pyiceberg: the driver follows them back to the one
that was read last and lists the files that they have added, tasks read the files.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from statebed.errors import InputError, MissingFileError
from statebed.sinks.lake.iceberg import REWRITES, IcebergCatalog, loaded_table
from statebed.spark.api.lake_source import ALL, NOTHING, STARTING, LakeStreamReader, spark_columns

NAME = "statebed_iceberg"
_CATALOG = "catalog_secret"
"""Option with the catalog as JSON text. Spark hides the values of options with this name."""
_REPLACE = "replace"


@dataclass(frozen=True)
class SnapshotFile:
    """A data file of a snapshot, with all that a task needs to read it."""

    task: Any
    """pyiceberg's FileScanTask, with the delete files that apply to the file."""
    metadata: Any
    """The table's metadata without its history."""
    io_properties: Mapping[str, str]
    location: str


class IcebergSource(DataSource):
    """An Iceberg table, as a stream of appended rows."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_columns(self._table.load().schema().as_arrow())

    def streamReader(self, schema: StructType) -> "IcebergSnapshotReader":  # noqa: N802 - Spark's name
        return IcebergSnapshotReader(self._table, schema, starting=self.options.get(STARTING, ALL))

    @property
    def _table(self) -> "TableAddress":
        name, properties = json.loads(self.options[_CATALOG])
        return TableAddress(self.options["path"], IcebergCatalog(name, properties))


@dataclass(frozen=True)
class TableAddress:
    """A table by its name and catalog."""

    identifier: str
    catalog: IcebergCatalog

    @property
    def options(self) -> dict[str, str]:
        """Options of the source; `path` is the name of the table."""
        return {_CATALOG: json.dumps([self.catalog.name, dict(self.catalog.properties)])}

    @property
    def where(self) -> str:
        return f"{self.identifier} in {self.catalog.place}"

    def load(self) -> Any:
        """Return the table as pyiceberg loads it; raise InputError if it does not exist."""
        table = loaded_table(self.catalog, self.identifier)
        if table is None:
            raise InputError("there is no Iceberg table", where=self.where, fix="pass namespace.name of a table")
        return table


class IcebergSnapshotReader(LakeStreamReader):
    """Reads the files that snapshots have added."""

    version_name: ClassVar[str] = "snapshot"

    def __init__(self, table: TableAddress, schema: StructType, *, starting: str = ALL) -> None:
        super().__init__(schema, starting=starting)
        self._address = table

    def newest(self) -> int:
        snapshot = self._address.load().current_snapshot()
        return NOTHING if snapshot is None else int(snapshot.snapshot_id)

    def whole(self, version: int) -> list[SnapshotFile]:
        table = self._address.load()
        if table.metadata.snapshot_by_id(version) is None:
            raise self._expired(version)
        return self._files(table, table.scan(snapshot_id=version).plan_files())

    def appended(self, first: int, last: int) -> list[SnapshotFile]:
        table = self._address.load()
        if last == NOTHING:
            raise self._replaced(first)
        snapshots = list(self._since(table, first, last))
        return [file for snapshot in reversed(snapshots) for file in self._added(table, snapshot)]

    def rows(self, file: SnapshotFile) -> pa.Table:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra, needed by this source alone
        from pyiceberg.io import load_file_io  # noqa: PLC0415
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415

        io = load_file_io(dict(file.io_properties), file.location)
        return ArrowScan(file.metadata, io, file.metadata.schema(), AlwaysTrue()).to_table([file.task])

    def _since(self, table: Any, first: int, last: int) -> Iterator[Any]:
        """Yield the snapshots from `last` back to the one after `first`."""
        snapshot_id: int | None = last
        while snapshot_id != first:
            if snapshot_id is None:
                raise self._replaced(first)
            snapshot = table.metadata.snapshot_by_id(snapshot_id)
            if snapshot is None:
                raise self._expired(snapshot_id)
            yield snapshot
            snapshot_id = snapshot.parent_snapshot_id

    def _added(self, table: Any, snapshot: Any) -> list[SnapshotFile]:
        """Return the files that a snapshot has added; raise InputError if it removes or updates rows."""
        from pyiceberg.manifest import ManifestEntryStatus  # noqa: PLC0415 - an extra, needed by this source alone
        from pyiceberg.table import FileScanTask  # noqa: PLC0415

        operation = "append" if snapshot.summary is None else snapshot.summary.operation.value
        properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
        if operation == _REPLACE or REWRITES in properties:
            return []
        if operation != "append":
            raise InputError(
                f"snapshot {snapshot.snapshot_id} of the Iceberg table updates or deletes rows ({operation}), and a "
                "stream has only appended rows",
                where=self._address.where,
                fix="read a table that is only appended to; the changes of a table with a key can be read from the "
                "state of the job that writes it: readStream.format('statebed')",
            )
        own = [file for file in snapshot.manifests(table.io) if file.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for file in own for entry in file.fetch_manifest_entry(table.io)]
        added = [
            FileScanTask(entry.data_file)
            for entry in entries
            if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
        ]
        return self._files(table, added)

    def _files(self, table: Any, tasks: Any) -> list[SnapshotFile]:
        history: dict[str, Any] = {
            "snapshots": [],
            "snapshot_log": [],
            "metadata_log": [],
            "refs": {},
            "current_snapshot_id": None,
        }
        metadata = table.metadata.model_copy(update=history)
        return [SnapshotFile(task, metadata, table.io.properties, table.location()) for task in tasks]

    def _expired(self, snapshot_id: int) -> MissingFileError:
        return MissingFileError(
            f"snapshot {snapshot_id} of the Iceberg table was expired, and the stream has not read it",
            where=self._address.where,
            fix="let a new job read the table from its newest snapshot; to prevent this, keep snapshots longer "
            "(history.expire.max-snapshot-age-ms) or run the job more often",
        )

    def _replaced(self, first: int) -> InputError:
        """Return the error for a newest snapshot that does not lead back to the one that was read.

        Expiry by pyiceberg also cuts the link from a snapshot to an expired one, so the causes cannot be distinguished.
        """
        return InputError(
            f"the stream has read snapshot {first}, and the table's newest one does not lead back to it: the table was "
            "rolled back or replaced, or the snapshots in between were expired",
            where=self._address.where,
            fix="restore the table, or let a new job read it; keep the snapshot that a stream has read last",
        )
