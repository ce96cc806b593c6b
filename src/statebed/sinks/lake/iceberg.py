"""Iceberg tables, written by pyiceberg through any of its catalogs.

Run and epoch are in the summary of the snapshot that adds the rows, and the owner is a table property. A commit
requires that the branch `main` still points to the snapshot that was read, and is attempted once. Files have no field
ids: the table's name mapping assigns them.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy
from statebed.errors import InputError, LostWriteError, MissingDependencyError, SinkError, StatebedError, StorageError
from statebed.operators.changelog import group_equal
from statebed.protocol import SinkPosition
from statebed.sinks.lake.arrow_kinds import check_type, plain_type
from statebed.sinks.lake.lake_files import check_values, footer, partition_values
from statebed.sinks.lake.lake_table import EPOCH, OWNER, RUN, LakeFile, LakeTable, Mark, TableLayout, TableVersion
from statebed.sinks.places import Holding, Place, check_local_path, is_inside, is_there, real_place
from statebed.storage import different_piece

_PARTITION = re.compile(r"(year|month|day|hour)\((.+)\)")
_SMALL = {pa.int8(): pa.int32(), pa.int16(): pa.int32()}
_WIDER = {
    (pa.int32(), pa.int64()),
    (pa.float32(), pa.float64()),
}
"""Types of a job's column that the table's column may be wider than, and the other way round after an evolution."""
_COUNTED = ("int", "long", "date", "string", "timestamp", "timestamptz")
"""Types whose bounds order their values as Arrow does."""
REWRITES = "statebed.rewrites"
"""Entry in the summary of a snapshot whose files hold the same rows as those that it removes."""
_NEW_TABLE = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Properties of new tables: without them, every commit leaves a metadata file behind for ever."""


@dataclass(frozen=True)
class IcebergCatalog:
    """A catalog by its name and properties, which may contain secrets."""

    name: str = "default"
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def file(self) -> str | None:
        """Path of a catalog that is a SQLite file, or None."""
        parts = urlsplit(self.properties.get("uri", ""))
        path = parts.path.removeprefix("/")
        return path if parts.scheme.startswith("sqlite") and path not in {"", ":memory:"} else None

    @property
    def place(self) -> str:
        """Location of the catalog, without secrets."""
        parts = urlsplit(self.properties.get("uri", ""))
        if parts.scheme.startswith("sqlite"):
            return real_place(parts.path.removeprefix("/"))
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
        return f"{parts.scheme}://{host}{parts.path}" if parts.scheme else f"catalog {self.name}"

    def load(self) -> Any:
        library = _library()
        return library.load_catalog(self.name, **self.properties)


def folder_catalog(path: str) -> IcebergCatalog:
    """Return a catalog in a local folder: a SQLite file beside the tables."""
    check_local_path(path, "?#%", library="pyiceberg")
    folder = Path(real_place(path))
    return IcebergCatalog(
        properties={"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder}"}
    )


def catalog_of(path: str | None, catalog: str | Mapping[str, str] | None, *, where: str, fix: str) -> IcebergCatalog:
    """Return the catalog that `path=` or `catalog=` names; raise InputError unless there is exactly one of them."""
    if (catalog is None) == (path is None):
        got = "neither" if path is None else "both"
        raise InputError(f"an Iceberg table needs either path= or catalog=, got {got}", where=where, fix=fix)
    if path is not None:
        return folder_catalog(path)
    if catalog is None or isinstance(catalog, str):
        return IcebergCatalog(catalog or "default")
    properties = dict(catalog)
    return IcebergCatalog(properties.pop("name", "default"), properties)


def check_identifier(table: str, *, where: str) -> None:
    """Raise InputError unless the name of a table has a namespace."""
    if "." not in table:
        raise InputError(f"the table {table!r} has no namespace", where=where, fix=f"write table='rides.{table}'")


def loaded_table(catalog: IcebergCatalog, identifier: str) -> Any:
    """Return a table as pyiceberg loads it, or None if it does not exist."""
    _library()
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415 - an extra

    try:
        return catalog.load().load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except Exception as error:
        raise StorageError(
            f"pyiceberg reported {type(error).__name__}: {str(error).strip()}",
            where=f"{identifier} in {catalog.place}",
            fix="check the catalog's properties, and that it can be reached; then start the job again",
        ) from error


@dataclass(frozen=True)
class TableSnapshot:
    """A table as pyiceberg loaded it, and the snapshot of it that is meant."""

    table: Any
    snapshot_id: int | None


class IcebergLakeTable(LakeTable):
    """A table of an Iceberg catalog."""

    product: ClassVar[str] = "Iceberg"

    def __init__(
        self, identifier: str, *, catalog: IcebergCatalog, layout: TableLayout, folder: str | None = None
    ) -> None:
        _library()
        self.layout = layout
        self._catalog_of = catalog
        self._identifier = identifier
        self._own_folder = folder
        self._loaded: Any = None

    @property
    def where(self) -> str:
        return f"{self._identifier} in {self._catalog_of.place}"

    @property
    def target(self) -> str:
        return f"table {self.where}"

    @property
    def place(self) -> Place | None:
        if self._own_folder is not None:
            return Place(self._own_folder, Holding.CATALOG)
        file = self._catalog_of.file
        return None if file is None else Place(file, Holding.CATALOG)

    @property
    def _catalog(self) -> Any:
        if self._loaded is None:
            if self._own_folder is not None:
                Path(self._own_folder).mkdir(parents=True, exist_ok=True)
            self._loaded = self._catalog_of.load()
        return self._loaded

    @property
    def _is_absent(self) -> bool:
        """Whether the folder of the catalog does not exist, so that nothing must be created to find that out."""
        return self._own_folder is not None and not is_there(Path(self._own_folder, "catalog.db"), where=self.where)

    def check_types(self, columns: pa.Schema) -> None:
        for column in columns:
            check_type(column, self.product)
        for name in self.layout.partition_by:
            self._partition(name, columns)

    def _partition(self, text: str, columns: pa.Schema) -> tuple[str, str]:
        """Return the column and the transform of a partition field; raise InputError if it is not supported."""
        match = _PARTITION.fullmatch(text)
        transform, name = match.groups() if match else ("identity", text)
        kind = columns.field(name).type if name in columns.names else None
        timed = kind is not None and (pa.types.is_timestamp(kind) or (pa.types.is_date(kind) and transform != "hour"))
        if kind is None or pa.types.is_nested(kind) or pa.types.is_floating(kind) or (match and not timed):
            raise InputError(
                f"an Iceberg table cannot be partitioned by {text!r}; the columns are {', '.join(columns.names)}",
                where=self.where,
                fix="name columns that are neither floating-point numbers nor nested, or year, month, day or hour of a "
                "time: partition_by=['day(ts)', 'country']",
            )
        return name, transform

    # ---- versions ----------------------------------------------------------------------------------------------

    def current(self, owner: str) -> TableVersion | None:  # noqa: ARG002 - the owner is a property of the table
        if self._is_absent:
            return None
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError  # noqa: PLC0415 - an extra

        with self._errors():
            try:
                table = self._catalog.load_table(self._identifier)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            except FileNotFoundError as error:
                if self._own_folder is None:
                    raise
                raise self._moved(f"the catalog lists a file that is missing: {error}") from error
            if self._own_folder is not None and not is_inside(table.location(), self._own_folder):
                raise self._moved(f"the files of the table are not in this folder, but in {table.location()}")
            snapshot = table.current_snapshot()
            return self._version(table, None if snapshot is None else snapshot.snapshot_id)

    def _moved(self, problem: str) -> InputError:
        return InputError(
            problem,
            where=self.where,
            fix="an Iceberg table has absolute paths, so a folder that was moved or copied still refers to the old "
            "one: put it back where it was, restore it there from a backup, or write to a new folder; for a table that "
            "is elsewhere on purpose, pass catalog={'type': 'sql', 'uri': 'sqlite:///...'} instead of path=",
        )

    def _version(self, table: Any, snapshot_id: int | None) -> TableVersion:
        stored = table.schema().as_arrow()
        columns = pa.schema([pa.field(field.name, plain_type(field.type)) for field in stored])
        return TableVersion(
            owner=table.properties.get(OWNER, ""),
            position=_position(table, snapshot_id),
            columns=columns,
            handle=TableSnapshot(table, snapshot_id),
        )

    def version_of(self, version: TableVersion, owner: str, epoch: int) -> TableVersion | None:
        table = version.handle.table
        for snapshot in _ancestors(table, version.handle.snapshot_id):
            summary = _summary(snapshot)
            if summary.get(OWNER) == owner and int(summary[EPOCH]) <= epoch:
                return self._version(table, snapshot.snapshot_id)
        return None

    def problems(self, version: TableVersion, columns: pa.Schema, *, rewrites: bool) -> list[str]:  # noqa: ARG002 - deletes are found with the files
        table = version.handle.table
        names = {name.lower() for name in columns.names}
        problems = [
            f"its column {column.name} is required, and is not written"
            for column in table.schema().fields
            if column.required and column.name.lower() not in names
        ]
        stored = {column.name.lower(): column.type for column in version.columns}
        for column in columns:
            kind, held = _stored_type(column.type), stored.get(column.name.lower())
            if held is not None and held != kind and (kind, held) not in _WIDER and (held, kind) not in _WIDER:
                problems.append(f"{column.name} is {column.type}, but the table's column is {held}")
        held_by = self.partition_columns(version)
        if self.layout.partition_by and held_by != self.layout.partition_by:
            problems.append(f"it is partitioned by {list(held_by)}, not by {list(self.layout.partition_by)}")
        odd = [text for text in held_by if "(" in text and not _PARTITION.fullmatch(text)]
        return [*problems, *(f"it is partitioned by {text}, which this sink does not compute" for text in odd)]

    def probe(self) -> None:
        with self._errors():
            self._catalog.list_namespaces()

    def create(self, columns: pa.Schema, owner: str) -> None:
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError  # noqa: PLC0415 - an extra

        with self._errors():
            namespace = self._identifier.rpartition(".")[0]
            self._catalog.create_namespace_if_not_exists(namespace)
            schema = pa.schema([pa.field(field.name, _stored_type(field.type)) for field in columns])
            try:
                with self._catalog.create_table_transaction(
                    self._identifier, schema, properties={**_NEW_TABLE, OWNER: owner, "format-version": "2"}
                ) as transaction:
                    with transaction.update_spec() as spec:
                        for text in self.layout.partition_by:
                            name, transform = self._partition(text, columns)
                            spec.add_field(name, transform, name if transform == "identity" else f"{name}_{transform}")
                    mapping = transaction.table_metadata.schema().name_mapping.model_dump_json()
                    transaction.set_properties({"schema.name-mapping.default": mapping})
            except (TableAlreadyExistsError, CommitFailedException):
                return

    def claim(self, version: TableVersion, mark: Mark) -> bool:
        return self._attempted(version, lambda transaction: self._stage_claim(version, transaction, mark))

    def _stage_claim(self, version: TableVersion, transaction: Any, mark: Mark) -> None:
        table, properties = version.handle.table, {}
        if version.owner != mark.owner:
            properties[OWNER] = mark.owner
        if table.metadata.name_mapping() is None:
            properties["schema.name-mapping.default"] = table.schema().name_mapping.model_dump_json()
        if properties:
            transaction.set_properties(properties)
        with transaction.update_snapshot(snapshot_properties=_marked(mark)).fast_append():
            pass

    def evolve(self, version: TableVersion, columns: pa.Schema) -> bool:
        def stage(transaction: Any) -> None:
            with transaction.update_schema() as update:
                update.union_by_name(pa.schema([pa.field(field.name, _stored_type(field.type)) for field in columns]))

        return self._attempted(version, stage)

    # ---- files -------------------------------------------------------------------------------------------------

    def files(self, version: TableVersion) -> Sequence[LakeFile]:
        if version.handle.snapshot_id is None:
            return []
        table = version.handle.table
        with self._errors():
            tasks = list(table.scan(snapshot_id=version.handle.snapshot_id).plan_files())
        deleted = [task.file.file_path for task in tasks if task.delete_files]
        if deleted:
            raise SinkError(
                f"rows of {len(deleted)} files are deleted by delete files, among them those of {deleted[0]}",
                where=self.where,
                fix="rewrite the table's data files, which applies the deletes; another engine has written them",
            )
        return [self._listed(table, task.file, task) for task in tasks]

    def listed_sizes(self, version: TableVersion) -> Mapping[str, int]:
        if version.handle.snapshot_id is None:
            return {}
        with self._errors():
            tasks = list(version.handle.table.scan(snapshot_id=version.handle.snapshot_id).plan_files())
        files = [file for task in tasks for file in (task.file, *task.delete_files)]
        return {file.file_path: file.file_size_in_bytes for file in files}

    def stored_size(self, version: TableVersion, path: str) -> int | None:
        with self._errors():
            stored = version.handle.table.io.new_input(path)
            return len(stored) if stored.exists() else None

    def _listed(self, table: Any, data_file: Any, entry: Any) -> LakeFile:
        from pyiceberg.conversions import from_bytes  # noqa: PLC0415 - an extra, needed by this sink alone

        bounds = {}
        for stored_field in table.schema().fields:
            low = (data_file.lower_bounds or {}).get(stored_field.field_id)
            high = (data_file.upper_bounds or {}).get(stored_field.field_id)
            if low is not None and high is not None and str(stored_field.field_type) in _COUNTED:
                kind = stored_field.field_type
                bounds[stored_field.name] = (from_bytes(kind, low), from_bytes(kind, high))
        partition = {str(index): data_file.partition[index] for index in range(len(data_file.partition))}
        size, count = data_file.file_size_in_bytes, data_file.record_count
        return LakeFile(data_file.file_path, size, count, partition, bounds, entry=entry)

    def partition_columns(self, version: TableVersion) -> tuple[str, ...]:
        table = version.handle.table
        schema = table.schema()
        texts = []
        for partition in table.spec().fields:
            name, transform = schema.find_column_name(partition.source_id), str(partition.transform)
            texts.append(name if transform == "identity" else f"{transform}({name})")
        return tuple(texts)

    def parts(self, version: TableVersion, rows: pa.Table) -> Sequence[tuple[Mapping[str, Any], pa.Table]]:
        texts = self.partition_columns(version)
        if not texts:
            return [({}, rows)]
        values = pa.table([_cut(rows, text) for text in texts], names=[str(index) for index in range(len(texts))])
        grouping = group_equal(values)
        numbers = grouping.group_of_rows()
        parts = []
        for number, first in enumerate(grouping.first_rows):
            part = rows.take(from_numpy((numbers == number).nonzero()[0], pa.int64()))
            parts.append((partition_values(values.slice(int(first), 1), names=texts, where=self.where), part))
        return sorted(parts, key=lambda part: repr(part[0]))

    def write(self, version: TableVersion, name: str, data: bytes, partition: Mapping[str, Any]) -> LakeFile:  # noqa: ARG002 - statistics tell the partition
        from pyiceberg.io.pyarrow import parquet_file_to_data_file  # noqa: PLC0415 - an extra

        table = version.handle.table
        check_values(footer(data), where=self.where)
        path = table.location_provider().new_data_location(name)
        with self._errors():
            with table.io.new_output(path).create(overwrite=True) as stream:
                stream.write(data)
            self._check_stored(table, path, data)
            data_file = parquet_file_to_data_file(table.io, table.metadata, path)
        return self._listed(table, data_file, data_file)

    def _check_stored(self, table: Any, path: str, data: bytes) -> None:
        stored = table.io.new_input(path)
        size = len(stored)
        problem = f"{size} are stored" if size != len(data) else None
        if problem is None:
            with stored.open() as stream:
                problem = different_piece(data, lambda _, length: stream.read(length))
        if problem is not None:
            raise LostWriteError(
                f"a file of {len(data)} bytes was written, but {problem}",
                where=path,
                fix="check the store; the epoch is committed and is published by the next start",
            )

    def read(self, version: TableVersion, file: LakeFile) -> pa.Table:
        from pyiceberg.expressions import AlwaysTrue  # noqa: PLC0415 - an extra, needed by this sink alone
        from pyiceberg.io.pyarrow import ArrowScan  # noqa: PLC0415 - an extra, needed by this sink alone

        table = version.handle.table
        with self._errors():
            return ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table([file.entry])

    def exists(self, file: LakeFile) -> bool:
        with self._errors():
            return bool(self._catalog.load_table(self._identifier).io.new_input(file.path).exists())

    # ---- commits -----------------------------------------------------------------------------------------------

    def commit(
        self,
        version: TableVersion,
        mark: Mark,
        *,
        added: Sequence[LakeFile] = (),
        removed: Sequence[LakeFile] = (),
        changes_rows: bool = True,
    ) -> bool:
        # pyiceberg writes no snapshots of kind "replace", so the summary says it.
        properties = _marked(mark) | ({} if changes_rows else {REWRITES: "true"})

        def stage(transaction: Any) -> None:
            update = transaction.update_snapshot(snapshot_properties=properties)
            with (
                update.overwrite() if removed else update.merge_append() if added else update.fast_append() as producer
            ):
                for file in added:
                    producer.append_data_file(_data_file(file))
                for file in removed:
                    producer.delete_data_file(_data_file(file))

        return self._attempted(version, stage)

    def _attempted(self, version: TableVersion, stage: Callable[[Any], None]) -> bool:
        """Attempt a commit once. Return False if somebody has committed since the version was read.

        A commit whose outcome is unknown counts as failed: the caller compares the position again.
        """
        from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException  # noqa: PLC0415 - an extra

        table = version.handle.table
        # Only in memory: a retry by the library would commit on top of a version whose position was not compared.
        once = {**table.metadata.properties, "commit.retry.num-retries": "0"}
        table.metadata = table.metadata.model_copy(update={"properties": once})
        with self._errors():
            try:
                transaction = table.transaction()
                stage(transaction)
                transaction.commit_transaction()
            except CommitStateUnknownException:
                return False
            except CommitFailedException:
                newest = self.current("")
                if newest is None or newest.handle.snapshot_id == version.handle.snapshot_id:
                    raise
                return False
        return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except StatebedError:
            raise
        except Exception as error:
            problem = SinkError(
                f"pyiceberg reported {type(error).__name__}: {str(error).strip()}",
                where=self.where,
                fix="see the message, then start the job again: a committed epoch is published first",
            )
            problem.is_of_target = isinstance(error, OSError)
            raise problem from error


def _position(table: Any, snapshot_id: int | None) -> SinkPosition | None:
    """Return the position in the newest snapshot that has one.

    Snapshots of other engines have none. If all that have one were expired, the table's rows are still there, so the
    search ends with an error instead of an empty position.
    """
    last = None
    for snapshot in _ancestors(table, snapshot_id):
        summary, last = _summary(snapshot), snapshot
        if EPOCH in summary:
            return SinkPosition(run=int(summary[RUN]), epoch=int(summary[EPOCH]))
    if last is not None and last.parent_snapshot_id is not None and table.properties.get(OWNER):
        raise SinkError(
            f"no snapshot of the table stores the sink's position; snapshot {last.parent_snapshot_id} was expired",
            where=str(table.location()),
            fix="keep at least one snapshot of the sink when snapshots are expired; restore the table's metadata, or "
            "write to a new table",
        )
    return None


def _ancestors(table: Any, snapshot_id: int | None) -> Iterator[Any]:
    while snapshot_id is not None and (snapshot := table.metadata.snapshot_by_id(snapshot_id)) is not None:
        yield snapshot
        snapshot_id = snapshot.parent_snapshot_id


def _summary(snapshot: Any) -> Mapping[str, str]:
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _marked(mark: Mark) -> dict[str, str]:
    return {OWNER: mark.owner, RUN: str(mark.run), EPOCH: str(mark.epoch)}


def _data_file(file: LakeFile) -> Any:
    return getattr(file.entry, "file", file.entry)


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that Iceberg stores a column in; it has no integers below 32 bits."""
    plain = plain_type(kind)
    if pa.types.is_list(plain):
        return pa.list_(_stored_type(plain.value_type))
    if pa.types.is_map(plain):
        return pa.map_(_stored_type(plain.key_type), _stored_type(plain.item_type))
    if pa.types.is_struct(plain):
        return pa.struct([pa.field(field.name, _stored_type(field.type)) for field in plain])
    return _SMALL.get(plain, plain)


def _cut(rows: pa.Table, text: str) -> pa.ChunkedArray:
    """Return the values of a partition field, as far as they are equal exactly where the partitions are."""
    match = _PARTITION.fullmatch(text)
    if match is None:
        return rows[text]
    transform, name = match.groups()
    return pc.floor_temporal(rows[name].cast(pa.timestamp("us")), unit=transform)


def _library() -> Any:
    try:
        import pyiceberg.catalog  # noqa: PLC0415 - an extra, needed by this sink alone
    except ImportError as error:
        raise MissingDependencyError(
            "the sink 'iceberg' needs pyiceberg", fix="pip install 'statebed[iceberg]'"
        ) from error
    return pyiceberg.catalog
