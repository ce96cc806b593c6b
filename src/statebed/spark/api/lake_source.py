"""Lakehouse tables as streams of appended rows: what Delta and Iceberg share.

An offset names a version of the table. The first batch has all rows of the newest version, each later batch the files
that the versions in between have added. A batch is determined by its two offsets, so it is the same whenever it is
computed. Versions that only rewrite files (compaction) have no rows for a stream; a version that updates or deletes
rows ends it with an error.
"""

import abc
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from statebed.errors import InputError
from statebed.sinks.lake.arrow_kinds import plain_type
from statebed.sinks.lake.file_packer import fitted
from statebed.spark.arrow_types import arrow_schema

NOTHING = -1
"""Offset before the first version."""
STARTING = "starting"
ALL, LATEST = "all", "latest"

Offset = dict[str, int]


class LakeStreamReader(DataSourceStreamReader):
    """Reads the files that the versions of a table have added."""

    version_name: ClassVar[str]
    """Name of a version in offsets, such as "version" or "snapshot"."""

    def __init__(self, schema: StructType, *, starting: str) -> None:
        self._target = arrow_schema(schema)
        self._starting = starting

    @abc.abstractmethod
    def newest(self) -> int:
        """Return the newest version, or `NOTHING` if the table has none."""

    @abc.abstractmethod
    def whole(self, version: int) -> Sequence[Any]:
        """Return all files of a version."""

    @abc.abstractmethod
    def appended(self, first: int, last: int) -> Sequence[Any]:
        """Return the files that the versions after `first` up to `last` have added.

        Raise an error if one of them updates or deletes rows, or is no longer known.
        """

    @abc.abstractmethod
    def rows(self, file: Any) -> pa.Table:
        """Return the rows of a file."""

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        if self._starting == ALL:
            return {self.version_name: NOTHING}
        return {self.version_name: self.newest() if self._starting == LATEST else int(self._starting)}

    def latestOffset(self, start: object = None, limit: object = None) -> Offset:  # noqa: ARG002, N802 - Spark's signature; 4.1 passes nothing
        return {self.version_name: self.newest()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        first, last = start[self.version_name], end[self.version_name]
        if first == last:
            files: Sequence[Any] = []
        else:
            files = self.whole(last) if first == NOTHING else self.appended(first, last)
        return [InputPartition(file) for file in files] or [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is not None:
            rows = fitted(self.rows(partition.value), self._target).cast(self._target)
            yield from rows.combine_chunks().to_batches()

    def commit(self, end: Offset) -> None:
        """Do nothing: the table's own retention decides about its versions."""


def spark_columns(columns: pa.Schema) -> StructType:
    """Return the columns of a table as Spark's types."""
    plain = pa.schema([pa.field(field.name, plain_type(field.type)) for field in columns])
    return from_arrow_schema(plain, prefer_timestamp_ntz=True)


def starting_option(starting: str | int, *, version: str, where: str) -> str:
    """Return `starting=` as an option of the source; raise InputError unless it is a valid choice."""
    is_version = isinstance(starting, int) and not isinstance(starting, bool) and starting >= 0
    if starting not in {ALL, LATEST} and not is_version:
        raise InputError(
            f"`starting` must be 'all', 'latest' or a {version}, got {starting!r}",
            where=where,
            fix=f"'all' reads the rows of the newest {version} first, 'latest' only rows appended from now on, and a "
            f"{version} those appended after it",
        )
    return str(starting)
