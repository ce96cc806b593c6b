"""Changes of a whole job between two epochs, from metadata alone: no data file is opened."""

from dataclasses import dataclass, field

from statebed.checkpoint.log import CheckpointLog
from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.contents import metadata_of
from statebed.inspect.files import FileSummary, files_of
from statebed.inspect.operator_names import OperatorNames
from statebed.inspect.records import input_watermark

ADDED = "added"
REMOVED = "removed"
CHANGED = "changed"
SAME = "same"


@dataclass(frozen=True)
class TableChange:
    """One table before and after; rows are stored rows, some of which may hide others."""

    operator: str
    table: str
    change: str
    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    files_added: int
    files_removed: int
    tombstones_before: int
    tombstones_after: int


@dataclass(frozen=True)
class OperatorChange:
    """One operator before and after."""

    operator: str
    change: str
    parallelism_before: int | None
    parallelism_after: int | None
    before_watermark_us: int | None
    after_watermark_us: int | None


@dataclass(frozen=True)
class JobDiff:
    """Two epochs of a job side by side."""

    job: str
    since: int
    until: int
    before_finish_time_us: int
    after_finish_time_us: int
    operators: tuple[OperatorChange, ...]
    tables: tuple[TableChange, ...]
    operator_names: dict[str, str] = field(default_factory=dict)
    """Display names of operators by id."""


def diff_job(log: CheckpointLog, before: pb.CheckpointMetadata, after: pb.CheckpointMetadata) -> JobDiff:
    """Return the differences between two epochs, by operator and table."""
    entries = [{entry.operator_id: entry for entry in record.operators} for record in (before, after)]
    names = list(dict.fromkeys([*entries[1], *entries[0]]))
    sides = [_tables(log, record) for record in (before, after)]
    tables = sorted({*sides[0], *sides[1]}, key=lambda key: (names.index(key[0]), key[1]))
    return JobDiff(
        job=after.job_id,
        since=before.epoch,
        until=after.epoch,
        before_finish_time_us=before.finish_time_us,
        after_finish_time_us=after.finish_time_us,
        operators=tuple(_operator(name, entries[0].get(name), entries[1].get(name)) for name in names),
        operator_names=dict(OperatorNames.of(before, after).by_id),
        tables=tuple(_table(key, sides[0].get(key), sides[1].get(key)) for key in tables),
    )


@dataclass(frozen=True)
class _Side:
    files: dict[str, FileSummary]
    tombstones: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


_NOTHING = _Side({}, 0)


def _tables(log: CheckpointLog, record: pb.CheckpointMetadata) -> dict[tuple[str, str], _Side]:
    sides: dict[tuple[str, str], _Side] = {}
    for operator, subtasks in metadata_of(log, record).items():
        files = files_of(operator, subtasks)
        for name in {name for metadata in subtasks for name in metadata.tables}:
            parts = [part for metadata in subtasks for part in metadata.tables[name].subtasks.values()]
            sides[operator, name] = _Side(
                {file.path: file for file in files if file.table == name}, sum(len(part.tombstones) for part in parts)
            )
    return sides


def _table(key: tuple[str, str], before: _Side | None, after: _Side | None) -> TableChange:
    old, new = before or _NOTHING, after or _NOTHING
    added, removed = len(new.files.keys() - old.files.keys()), len(old.files.keys() - new.files.keys())
    differs = bool(added or removed or old.tombstones != new.tombstones)
    return TableChange(
        operator=key[0],
        table=key[1],
        change=ADDED if before is None else REMOVED if after is None else CHANGED if differs else SAME,
        rows_before=old.rows,
        rows_after=new.rows,
        bytes_before=old.bytes,
        bytes_after=new.bytes,
        files_added=added,
        files_removed=removed,
        tombstones_before=old.tombstones,
        tombstones_after=new.tombstones,
    )


def _operator(name: str, before: pb.OperatorEntry | None, after: pb.OperatorEntry | None) -> OperatorChange:
    differs = before is not None and after is not None and list(before.subtasks) != list(after.subtasks)
    return OperatorChange(
        operator=name,
        change=ADDED if before is None else REMOVED if after is None else CHANGED if differs else SAME,
        parallelism_before=before.parallelism if before else None,
        parallelism_after=after.parallelism if after else None,
        before_watermark_us=input_watermark(before) if before else None,
        after_watermark_us=input_watermark(after) if after else None,
    )
