"""Tables of an epoch, from the metadata of subtasks: columns, files by level, changes since another epoch. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.inspect.schemas import SchemaSummary, schemas_of
from statebed.inspect.tables.table_shape import BROADCAST
from statebed.present import units
from statebed.ui.points import StateTotals

KEYED = "keyed"
GLOBAL_KEYED = "global keyed"
KEY = "key"
"""Key column of global keyed tables."""


@dataclass(frozen=True)
class Level:
    """Data files of one level."""

    level: int
    files: int
    rows: int
    bytes: int

    @property
    def name(self) -> str:
        return "0, by epochs" if self.level == 0 else f"{self.level}, by compaction"


@dataclass(frozen=True)
class TableView:
    """One table of an operator, over all its subtasks."""

    operator: str
    name: str
    schema: SchemaSummary
    files: tuple[pb.FileEntry, ...]
    """Data files, each listed once even if several subtasks share it after a rescale."""
    owned: tuple[pb.HashRange, ...]
    """Hash range of each subtask."""
    tombstones: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def subtasks(self) -> int:
        return len(self.owned)

    @property
    def levels(self) -> list[Level]:
        grouped: dict[int, list[pb.FileEntry]] = {}
        for file in self.files:
            grouped.setdefault(file.level, []).append(file)
        return [
            Level(level, len(files), sum(file.rows for file in files), sum(file.size for file in files))
            for level, files in sorted(grouped.items())
        ]

    @property
    def keys(self) -> tuple[str, ...]:
        """Key columns."""
        return (KEY,) if self.schema.kind == GLOBAL_KEYED else self.schema.keys

    @property
    def rules(self) -> list[tuple[str, str]]:
        """Retention and storage rules of the table, as pairs of name and value."""
        schema = self.schema
        pairs = []
        if schema.kind == GLOBAL_KEYED:
            pairs.append(("columns", "key and value of any type"))
        elif schema.kind == KEYED:
            lives = f"{units.duration(schema.time_to_live_us)} of {schema.time_to_live_clock}"
            pairs.append(("time to live", lives if schema.time_to_live_us is not None else "for good"))
        elif schema.kind != BROADCAST:
            pairs.append(("retention", units.duration(schema.retention_us) if schema.retention_us else "until closed"))
        if schema.bin_us:
            pairs.append(("bins of", units.duration(schema.bin_us)))
        if schema.state_version:
            pairs.append(("state version", str(schema.state_version)))
        if len(schema.schema_ids) > 1:
            pairs.append(("schemas of its files", ", ".join(map(str, schema.schema_ids))))
        return pairs


def tables_of(entry: pb.OperatorEntry, subtasks: Sequence[pb.OperatorCheckpointMetadata]) -> list[TableView]:
    """Return the tables of an operator, sorted by name."""
    parts: dict[str, list[pb.TableSubtaskCheckpointMetadata]] = {}
    for metadata in subtasks:
        for name, table in metadata.tables.items():
            parts.setdefault(name, []).extend(table.subtasks.values())
    return [_table(entry.operator_id, schema, parts[schema.table]) for schema in schemas_of(entry, subtasks)]


def _table(operator: str, schema: SchemaSummary, parts: Sequence[pb.TableSubtaskCheckpointMetadata]) -> TableView:
    return TableView(
        operator=operator,
        name=schema.table,
        schema=schema,
        files=tuple({file.path: file for part in parts for file in part.files}.values()),
        owned=tuple(part.owned for part in sorted(parts, key=lambda part: part.owned.first)),
        tombstones=sum(len(part.tombstones) for part in parts),
    )


def totals_of(tables: Iterable[TableView]) -> StateTotals:
    """Sum the state of tables from metadata, for records without figures."""
    tables = list(tables)
    return StateTotals(
        rows=sum(table.rows for table in tables),
        store_bytes=sum(table.bytes for table in tables),
        files=sum(len(table.files) for table in tables),
        tombstones=sum(table.tombstones for table in tables),
    )


# ---- two epochs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TableFilesChange:
    """Changes of an epoch to the files of a table."""

    operator: str
    table: str
    added: int
    added_bytes: int
    removed: int
    removed_bytes: int
    rows: int
    """Change in the number of rows in its files."""
    tombstones: int
    """Change in the number of tombstones."""

    @property
    def is_nothing(self) -> bool:
        return not (self.added or self.removed or self.rows or self.tombstones)


Tables = Mapping[tuple[str, str], TableView]
"""Tables by operator and name."""


def changes(before: Tables, after: Tables) -> list[TableFilesChange]:
    """Return the changes of every table, including unchanged ones."""
    return [_change(name, before.get(name), after.get(name)) for name in sorted({*before, *after})]


def _change(name: tuple[str, str], before: TableView | None, after: TableView | None) -> TableFilesChange:
    old = {file.path: file for file in (before.files if before else ())}
    new = {file.path: file for file in (after.files if after else ())}
    added = [file for path, file in new.items() if path not in old]
    removed = [file for path, file in old.items() if path not in new]
    return TableFilesChange(
        operator=name[0],
        table=name[1],
        added=len(added),
        added_bytes=sum(file.size for file in added),
        removed=len(removed),
        removed_bytes=sum(file.size for file in removed),
        rows=(after.rows if after else 0) - (before.rows if before else 0),
        tombstones=(after.tombstones if after else 0) - (before.tombstones if before else 0),
    )
