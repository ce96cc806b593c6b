"""Interface of tables in lakehouse formats: versions, data files, and commits that compare the version.

A format provides a compare-and-swap: `commit` succeeds only if no other commit was made since the version was read. A
version carries the sink's position, which every commit of the sink writes. Everything else about exactly-once delivery
follows from these two, and is the same for all formats.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from statebed.errors import InputError
from statebed.protocol import SinkPosition
from statebed.sinks.places import Place

OWNER = "statebed.owner"
RUN = "statebed.run"
EPOCH = "statebed.epoch"


@dataclass(frozen=True)
class Mark:
    """Entry that a commit stores about the sink: its owner ("job/sink") and its position after the commit."""

    owner: str
    run: int
    epoch: int


@dataclass(frozen=True)
class TableVersion:
    """A version of a table."""

    owner: str
    """Owner stored in the table, empty if it has none."""
    position: SinkPosition | None
    """Position stored in the table, or None if no sink has opened it."""
    columns: pa.Schema
    handle: Any = field(repr=False)
    """The library's own object for this version."""

    def check_owner(self, owner: str, *, where: str) -> None:
        """Raise InputError if the table belongs to another sink."""
        if self.owner and self.owner != owner:
            raise InputError(
                f"the table belongs to {self.owner}, not to {owner}",
                where=where,
                fix="give each job and sink its own table; a renamed sink keeps its table with "
                f"write(..., name={self.owner.rpartition('/')[2]!r})",
            )


@dataclass(frozen=True)
class LakeFile:
    """A data file of a table."""

    path: str
    """Path as the table lists it."""
    size: int
    rows: int
    partition: Mapping[str, Any]
    """Values of the partition columns, which need not be in the file."""
    bounds: Mapping[str, tuple[Any, Any]]
    """Smallest and largest value of the columns for which the table knows them."""
    entry: Any = field(repr=False)
    """The library's own description of the file."""


@dataclass(frozen=True)
class TableLayout:
    """Layout of rows in files."""

    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()


class LakeTable(abc.ABC):
    """A table in a lakehouse format."""

    product: ClassVar[str]
    layout: TableLayout

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """Location of the table, for messages. Never contains a secret."""

    @property
    @abc.abstractmethod
    def target(self) -> str:
        """Normalised location of the table, by which two sinks with the same target are detected."""

    @property
    def place(self) -> Place | None:
        """Folder or file from which other sinks are kept away, or None if it is not known."""
        return None

    @abc.abstractmethod
    def check_types(self, columns: pa.Schema) -> None:
        """Raise UnsupportedTypeError for a column that the format cannot store without changing its values."""

    @abc.abstractmethod
    def current(self, owner: str) -> TableVersion | None:
        """Return the newest version, or None if the table does not exist.

        `owner` is the sink that asks. Its position is also found in a table that stores no owner.
        """

    @abc.abstractmethod
    def problems(self, version: TableVersion, columns: pa.Schema, *, rewrites: bool) -> list[str]:
        """Return the reasons why rows with these columns cannot be written to the table; none if they can.

        `rewrites` tells whether the sink also replaces files, which more features of a table forbid.
        """

    @abc.abstractmethod
    def probe(self) -> None:
        """Raise an error if the table's location is not writable."""

    @abc.abstractmethod
    def create(self, columns: pa.Schema, owner: str) -> None:
        """Create the table; do nothing if somebody else has just created it."""

    @abc.abstractmethod
    def claim(self, version: TableVersion, mark: Mark) -> bool:
        """Store owner and position without changing rows. Return whether `version` was still the newest."""

    @abc.abstractmethod
    def evolve(self, version: TableVersion, columns: pa.Schema) -> bool:
        """Add the columns that the table lacks. Return whether `version` was still the newest."""

    @abc.abstractmethod
    def files(self, version: TableVersion) -> Sequence[LakeFile]:
        """Return the data files of a version; raise SinkError if rows in them are deleted by other means."""

    @abc.abstractmethod
    def partition_columns(self, version: TableVersion) -> tuple[str, ...]:
        """Return the columns or transforms by which a version is partitioned."""

    @abc.abstractmethod
    def parts(self, version: TableVersion, rows: pa.Table) -> Sequence[tuple[Mapping[str, Any], pa.Table]]:
        """Split rows by the partitions of the table; the rows of a part are those to store in its files."""

    @abc.abstractmethod
    def write(self, version: TableVersion, name: str, data: bytes, partition: Mapping[str, Any]) -> LakeFile:
        """Write a data file, which belongs to the table once it is committed."""

    @abc.abstractmethod
    def read(self, version: TableVersion, file: LakeFile) -> pa.Table:
        """Return the rows of a file with all columns of the version."""

    @abc.abstractmethod
    def listed_sizes(self, version: TableVersion) -> Mapping[str, int]:
        """Return the sizes of all files with rows or deletes that a version lists, by their path."""

    @abc.abstractmethod
    def stored_size(self, version: TableVersion, path: str) -> int | None:
        """Return the size of a file that a version lists, or None if it is not stored."""

    @abc.abstractmethod
    def exists(self, file: LakeFile) -> bool:
        """Return whether the file is still stored."""

    @abc.abstractmethod
    def commit(
        self,
        version: TableVersion,
        mark: Mark,
        *,
        added: Sequence[LakeFile] = (),
        removed: Sequence[LakeFile] = (),
        changes_rows: bool = True,
    ) -> bool:
        """Add and remove files and store the mark, all at once. Return whether `version` was still the newest.

        `changes_rows` is False if the files only hold the same rows in another way.
        """

    @abc.abstractmethod
    def version_of(self, version: TableVersion, owner: str, epoch: int) -> TableVersion | None:
        """Return the newest version before `version` in which the sink's epoch was at most `epoch`, or None."""
