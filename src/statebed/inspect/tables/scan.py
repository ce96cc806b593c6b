"""The files, row groups and bytes that reading a table involves: the result of `StateTable.scan`."""

from dataclasses import dataclass

from statebed.present import units


@dataclass(frozen=True)
class FileScan:
    """One data file."""

    path: str
    subtask: int
    level: int
    bytes: int
    """Size of the whole file."""
    bytes_read: int
    """Bytes of its footer and of the needed columns in the row groups that are read."""
    row_groups: int
    row_groups_read: tuple[int, ...]
    why: str
    """Reason why less than the whole file is read: 'key', 'time', 'columns', 'deleted'; empty if all of it is."""


@dataclass(frozen=True)
class Scan:
    """All files of the table."""

    files: tuple[FileScan, ...]

    def __str__(self) -> str:
        files, groups = len(self.files), self.row_groups_read + self.row_groups_skipped
        read, whole = map(units.size, (self.bytes_read, self.bytes_read + self.bytes_skipped))
        parts = (f"{self.files_read} of {files} files", f"{self.row_groups_read} of {groups} row groups")
        return f"reads {', '.join(parts)}, {read} of {whole}"

    @property
    def files_read(self) -> int:
        return sum(bool(file.row_groups_read) for file in self.files)

    @property
    def files_skipped(self) -> int:
        return len(self.files) - self.files_read

    @property
    def row_groups_read(self) -> int:
        return sum(len(file.row_groups_read) for file in self.files)

    @property
    def row_groups_skipped(self) -> int:
        return sum(file.row_groups - len(file.row_groups_read) for file in self.files)

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes_read for file in self.files)

    @property
    def bytes_skipped(self) -> int:
        return sum(file.bytes - file.bytes_read for file in self.files)
