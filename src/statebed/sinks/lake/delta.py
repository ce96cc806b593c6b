"""Delta tables, written by delta-rs.

The epoch is an application transaction of the table: `txn` with the sink ("job/sink") as its id and the epoch as its
version, as Spark's writer sets with `txnAppId` and `txnVersion`. A second one holds the run. The owner is a table
property. A commit is attempted once, for the version after the one that was read, so no other commit can be in between.
After a `RESTORE`, which keeps the transactions, the history tells the epoch (`delta_restores`).
"""

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.arrays.columns import from_numpy
from statebed.errors import InputError, MissingDependencyError, SinkError, UnsupportedTypeError
from statebed.operators.changelog import group_equal
from statebed.protocol import SinkPosition
from statebed.sinks.lake.arrow_kinds import check_type, plain_type
from statebed.sinks.lake.delta_restores import commits_of, restored_epoch
from statebed.sinks.lake.lake_files import bounds_of, delta_statistics, footer, partition_values
from statebed.sinks.lake.lake_table import EPOCH, OWNER, RUN, LakeFile, LakeTable, Mark, TableLayout, TableVersion
from statebed.sinks.places import Place, check_local_path, real_place
from statebed.storage import get_storage_provider, probe_put_if_absent, put_verified

_FORBIDDEN = set(" ,;{}()\n\t=\0")
_MAX_FOLDER = 255
"""Longest name of a folder, in bytes, that local disks can have."""
_HARMLESS = {"appendOnly", "invariants", "timestampNtz", "v2Checkpoint"}
"""Writer features that need nothing from a writer that adds files."""
_APPENDABLE = {"changeDataFeed", "deletionVectors"}
"""Writer features that need nothing from a writer that only adds files."""
_FEATURES_SINCE = 7
"""First version of the protocol's writers whose tables list their features."""
_MAPPED_SINCE = 5
"""First version of the protocol's writers with column mapping and, from the next one, identity columns."""


class DeltaLakeTable(LakeTable):
    """A Delta table at a path or URL."""

    product: ClassVar[str] = "Delta"

    def __init__(self, path: str, *, layout: TableLayout, storage_options: Mapping[str, str] | None = None) -> None:
        self.layout = layout
        self._library = _library()
        check_local_path(path, "%\\", library="delta-rs")
        self._store = get_storage_provider(path, storage_options)
        self._options = dict(storage_options or {}) or None

    @property
    def where(self) -> str:
        return self._store.url

    @property
    def target(self) -> str:
        return real_place(self._store.url)

    @property
    def place(self) -> Place | None:
        return Place(self._store.url)

    def check_types(self, columns: pa.Schema) -> None:
        for field in columns:
            check_type(field, self.product)
            if _FORBIDDEN & set(field.name):
                raise InputError(
                    f"Delta does not allow the column name {field.name!r}: it contains one of ' ,;{{}}()=', a tab, a "
                    "line break or NUL",
                    fix="rename the column with select(...)",
                )
        for name in self.layout.partition_by:
            kind = columns.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_string(plain_type(kind))):
                raise UnsupportedTypeError(
                    f"a Delta table is partitioned by integers, dates or text, but {name} is {kind}",
                    fix="add a column of such a type, for example with_columns(day='cast(ts as date)')",
                )

    # ---- versions ----------------------------------------------------------------------------------------------

    def current(self, owner: str) -> TableVersion | None:
        with self._errors():
            table = self._newest()
            if table is None:
                return None
            version = self._version(table, owner)
            restored = restored_epoch(commits_of(table), version.owner or owner) if version.position else None
            if version.position is None or restored is None:
                return version
            return replace(version, position=SinkPosition(run=version.position.run, epoch=restored))

    def _newest(self) -> Any:
        if not self._library.DeltaTable.is_deltatable(self.where, self._options):
            return None
        return self._library.DeltaTable(self.where, storage_options=self._options)

    def _version(self, table: Any, owner: str) -> TableVersion:
        stored = table.metadata().configuration.get(OWNER, "")
        run = table.transaction_version(_run_id(stored or owner))
        epoch = table.transaction_version(stored or owner)
        position = SinkPosition(run=run or 0, epoch=epoch or 0) if run is not None or epoch is not None else None
        columns = pa.schema(table.schema().to_arrow())
        return TableVersion(owner=stored, position=position, columns=columns, handle=table)

    def version(self, number: int) -> TableVersion:
        """Return the version with this number."""
        with self._errors():
            return self._version(
                self._library.DeltaTable(self.where, version=number, storage_options=self._options), owner=""
            )

    def version_of(self, version: TableVersion, owner: str, epoch: int) -> TableVersion | None:
        with self._errors():
            for commit in version.handle.history():
                if commit.get(OWNER) == owner and int(commit.get(EPOCH, epoch + 1)) <= epoch:
                    older = self._library.DeltaTable(
                        self.where, version=commit["version"], storage_options=self._options
                    )
                    return self._version(older, owner)
        return None

    def problems(self, version: TableVersion, columns: pa.Schema, *, rewrites: bool) -> list[str]:
        allowed = _HARMLESS if rewrites else _HARMLESS | _APPENDABLE
        problems = [f"it uses the feature {name}" for name in sorted(_features(version.handle) - allowed)]
        if rewrites and version.handle.metadata().configuration.get("delta.appendOnly") == "true":
            problems.append("it is append-only (delta.appendOnly), and the sink replaces files")
        held = {field.name.lower(): field for field in version.handle.schema().fields}
        problems += [
            f"its column {field.name} may not be null, and is not written"
            for name, field in held.items()
            if not field.nullable and name not in {column.lower() for column in columns.names}
        ]
        problems += [
            f"its column {name} has the invariant {field.metadata['delta.invariants']}"
            for name, field in held.items()
            if "delta.invariants" in (field.metadata or {})
        ]
        stored = {field.name.lower(): field.type for field in version.columns}
        problems += [
            f"{field.name} is {field.type}, but the table's column is {stored[field.name.lower()]}"
            for field in columns
            if field.name.lower() in stored and plain_type(stored[field.name.lower()]) != plain_type(field.type)
        ]
        held_by = self.partition_columns(version)
        if self.layout.partition_by and held_by != self.layout.partition_by:
            problems.append(f"it is partitioned by {list(held_by)}, not by {list(self.layout.partition_by)}")
        return problems

    def probe(self) -> None:
        probe_put_if_absent(self._store)

    def create(self, columns: pa.Schema, owner: str) -> None:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra, needed by this sink alone

        try:
            self._library.DeltaTable.create(
                self.where,
                pa.schema([pa.field(field.name, plain_type(field.type)) for field in columns]),
                partition_by=list(self.layout.partition_by),
                configuration={OWNER: owner},
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            if self._newest() is None:
                raise

    def claim(self, version: TableVersion, mark: Mark) -> bool:
        if version.owner == mark.owner:
            return self.commit(version, mark)
        return self._attempted(
            version,
            lambda: version.handle.alter.set_table_properties(
                {OWNER: mark.owner}, raise_if_not_exists=False, commit_properties=self._commit_properties(mark)
            ),
        )

    def evolve(self, version: TableVersion, columns: pa.Schema) -> bool:
        fields = self._library.Schema.from_arrow(
            pa.schema([pa.field(field.name, plain_type(field.type)) for field in columns])
        ).fields
        once = self._library.CommitProperties(max_commit_retries=0)
        return self._attempted(version, lambda: version.handle.alter.add_columns(fields, commit_properties=once))

    # ---- files -------------------------------------------------------------------------------------------------

    def files(self, version: TableVersion) -> Sequence[LakeFile]:
        with self._errors():
            listed = pa.table(version.handle.get_add_actions(flatten=True))
        partitions = self.partition_columns(version)
        columns = [name for name in version.columns.names if f"min.{name}" in listed.schema.names]
        files = []
        for row in listed.to_pylist():
            bounds = {
                name: (row[f"min.{name}"], _upper(row[f"max.{name}"]))
                for name in columns
                if row[f"min.{name}"] is not None and row[f"max.{name}"] is not None
            }
            partition = {name: row[f"partition.{name}"] for name in partitions}
            bounds |= {name: (value, value) for name, value in partition.items() if value is not None}
            files.append(
                LakeFile(
                    unquote(row["path"]), row["size_bytes"], row["num_records"] or 0, partition, bounds, entry=None
                )
            )
        return files

    def listed_sizes(self, version: TableVersion) -> Mapping[str, int]:
        with self._errors():
            listed = pa.table(version.handle.get_add_actions(flatten=True))
        return {unquote(row["path"]): row["size_bytes"] for row in listed.select(["path", "size_bytes"]).to_pylist()}

    def stored_size(self, version: TableVersion, path: str) -> int | None:  # noqa: ARG002 - the location is fixed
        if "://" in path or path.startswith("/"):  # a file of another table, as in a shallow clone
            folder, _, name = path.rpartition("/")
            info = get_storage_provider(folder, self._options).head(name)
        else:
            info = self._store.head(path)
        return None if info is None else info.size

    def partition_columns(self, version: TableVersion) -> tuple[str, ...]:
        return tuple(version.handle.metadata().partition_columns)

    def parts(self, version: TableVersion, rows: pa.Table) -> Sequence[tuple[Mapping[str, Any], pa.Table]]:
        names = list(self.partition_columns(version))
        if not names:
            return [({}, rows)]
        grouping = group_equal(rows.select(names))
        numbers = grouping.group_of_rows()
        parts = []
        for number, first in enumerate(grouping.first_rows):
            row = rows.select(names).slice(int(first), 1)
            values = partition_values(row, names=names, where=self.where)
            self._check_partition(values)
            part = rows.take(from_numpy((numbers == number).nonzero()[0], pa.int64()))
            parts.append((values, part.drop_columns(names)))
        return sorted(parts, key=lambda part: repr(part[0]))

    def _check_partition(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            folder = _folder({name: value}).removesuffix("/")
            if len(folder) > _MAX_FOLDER:
                raise SinkError(
                    f"a row has a text of {len(str(value))} characters in the partition column {name}, whose folder "
                    f"would have a name of {len(folder)} bytes",
                    where=self.where,
                    fix="partition by a shorter text: with_columns(x='substr(y, 1, 20)')",
                )
            if value == "":
                raise SinkError(
                    f"a row has an empty text in the partition column {name}, which Delta reads as null",
                    where=self.where,
                    fix="replace empty text before the sink: with_columns(x=\"nullif(x, '')\")",
                )

    def write(self, version: TableVersion, name: str, data: bytes, partition: Mapping[str, Any]) -> LakeFile:  # noqa: ARG002 - the location is fixed
        path = f"{_folder(partition)}{name}"
        put_verified(self._store, path, data)
        metadata = footer(data)
        statistics = delta_statistics(metadata)
        return LakeFile(path, len(data), metadata.num_rows, partition, bounds_of(metadata), entry=statistics)

    def read(self, version: TableVersion, file: LakeFile) -> pa.Table:
        rows = pq.ParquetFile(pa.BufferReader(self._store.get(file.path))).read()
        for name, value in file.partition.items():
            kind = plain_type(version.columns.field(name).type)
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, kind), rows.num_rows))
        return rows

    def exists(self, file: LakeFile) -> bool:
        return self._store.head(file.path) is not None

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
        from deltalake.transaction import AddAction, RemoveAction  # noqa: PLC0415 - an extra, needed by this sink alone

        now = time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(
                path=file.path,
                size=file.size,
                partition_values=_texts(file.partition),
                modification_time=now,
                data_change=changes_rows,
                stats=file.entry or f'{{"numRecords": {file.rows}}}',  # a file that is listed again
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                file.path,
                data_change=changes_rows,
                deletion_timestamp=now,
                size=file.size,
                partition_values=_texts(file.partition),
            )
            for file in removed
        ]
        return self._attempted(
            version,
            lambda: version.handle.create_write_transaction(
                actions,
                "append",
                version.handle.schema(),
                list(self.partition_columns(version)),
                commit_properties=self._commit_properties(mark),
            ),
        )

    def _commit_properties(self, mark: Mark) -> Any:
        now = time.time_ns() // 1_000_000
        return self._library.CommitProperties(
            custom_metadata={OWNER: mark.owner, RUN: str(mark.run), EPOCH: str(mark.epoch)},
            max_commit_retries=0,
            app_transactions=[
                self._library.Transaction(mark.owner, mark.epoch, now),
                self._library.Transaction(_run_id(mark.owner), mark.run, now),
            ],
        )

    def _attempted(self, version: TableVersion, attempt: Any) -> bool:
        """Attempt a commit. Return False if somebody has committed since the version was read.

        A commit whose outcome is unknown counts as failed: the caller compares the position again.
        """
        from deltalake.exceptions import CommitFailedError  # noqa: PLC0415 - an extra, needed by this sink alone

        with self._errors():
            try:
                attempt()
            except CommitFailedError:
                newest = self._newest()
                if newest is None or newest.version() == version.handle.version():
                    raise
                return False
        return True

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError  # noqa: PLC0415 - an extra, needed by this sink alone

        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            if isinstance(error, InputError | SinkError):
                raise
            problem = SinkError(
                f"delta-rs reported {type(error).__name__}: {str(error).strip()}",
                where=self.where,
                fix="see the message, then start the job again: a committed epoch is published first",
            )
            problem.is_of_target = isinstance(error, OSError)
            raise problem from error


def _features(table: Any) -> set[str]:
    """Return the writer features of a table; those of older tables follow from their version and properties."""
    protocol, properties = table.protocol(), table.metadata().configuration
    if protocol.min_writer_version >= _FEATURES_SINCE:
        return set(protocol.writer_features or ())
    features = set()
    if properties.get("delta.enableChangeDataFeed") == "true":
        features.add("changeDataFeed")
    if any(name.startswith("delta.constraints.") for name in properties):
        features.add("checkConstraints")
    if any("delta.generationExpression" in (field.metadata or {}) for field in table.schema().fields):
        features.add("generatedColumns")
    if protocol.min_writer_version >= _MAPPED_SINCE:
        features.add("columnMapping")
    return features


def _upper(bound: Any) -> Any:
    """Return an upper bound; other writers cut times to milliseconds."""
    return bound + dt.timedelta(milliseconds=1) if isinstance(bound, dt.datetime) else bound


def _run_id(owner: str) -> str:
    return f"{owner}#run"


def _folder(partition: Mapping[str, Any]) -> str:
    """Return the folder of a partition. Its name means nothing to Delta, but Polars reads the values from it."""
    texts = _texts(partition)
    return "".join(
        f"{quote(name, safe='')}={'__HIVE_DEFAULT_PARTITION__' if text is None else quote(text, safe='')}/"
        for name, text in texts.items()
    )


def _texts(partition: Mapping[str, Any]) -> dict[str, str | None]:
    """Return partition values as Delta's protocol writes them."""
    texts: dict[str, str | None] = {}
    for name, value in partition.items():
        texts[name] = None if value is None else value.isoformat() if isinstance(value, dt.date) else str(value)
    return texts


def _library() -> Any:
    try:
        import deltalake  # noqa: PLC0415 - an extra, needed by this sink alone
    except ImportError as error:
        raise MissingDependencyError("the sink 'delta' needs deltalake", fix="pip install 'statebed[delta]'") from error
    return deltalake
