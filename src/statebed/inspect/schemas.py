"""Schemas of tables: their columns, keys and retention."""

from collections.abc import Iterable
from dataclasses import dataclass

from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import TIME, field_id, schema_from_bytes
from statebed.inspect.tables.broadcast_rows import BroadcastColumns, broadcast_columns
from statebed.inspect.tables.table_shape import BROADCAST

CLOCKS = {pb.EVENT_TIME: "event time", pb.EPOCH_TIME: "epoch time"}


@dataclass(frozen=True)
class ColumnSummary:
    """One column of a table; its id survives renames."""

    column: str
    type: str
    key: bool
    nullable: bool
    field_id: int | None
    """Id in files; None for a broadcast table, whose values are stored by name."""


@dataclass(frozen=True)
class SchemaSummary:
    """One table of an operator, as its rows are stored now."""

    operator: str
    table: str
    kind: str
    description: str
    keys: tuple[str, ...]
    columns: tuple[ColumnSummary, ...]
    """Columns without the reserved ones; empty for global keyed tables, whose keys and values have any type."""
    schema_ids: tuple[int, ...]
    """Ids of the schemas of its files."""
    bin_us: int | None
    retention_us: int | None
    time_to_live_us: int | None
    time_to_live_clock: str
    state_version: int


def schemas_of(entry: pb.OperatorEntry, subtasks: Iterable[pb.OperatorCheckpointMetadata]) -> list[SchemaSummary]:
    """Return the tables of an operator, sorted by name."""
    configs: dict[str, pb.TableConfig] = {}
    ids: dict[str, set[int]] = {}
    for metadata in subtasks:
        for name, table in metadata.tables.items():
            configs[name] = table.config
            used = {file.schema_id for part in table.subtasks.values() for file in part.files}
            ids.setdefault(name, set()).update(used)
    return [_schema(entry, configs[name], ids[name]) for name in sorted(configs)]


def _schema(entry: pb.OperatorEntry, config: pb.TableConfig, ids: set[int]) -> SchemaSummary:
    kind = config.WhichOneof("kind") or "unknown"
    timed, keyed = config.time_keyed, config.keyed
    expiring = keyed.HasField("time_to_live_us")
    broadcast = broadcast_columns(entry.definition, config.name)
    return SchemaSummary(
        operator=entry.operator_id,
        table=config.name,
        kind=kind.replace("_", " ") if broadcast is None else BROADCAST,
        description=config.description,
        keys=tuple(keyed.key_columns or timed.key_columns) if broadcast is None else broadcast.keys,
        columns=_columns(config) if broadcast is None else _broadcast_columns(broadcast),
        schema_ids=tuple(sorted(ids)),
        bin_us=timed.bin_us if kind == "time_keyed" else None,
        retention_us=timed.retention_us if kind == "time_keyed" else None,
        time_to_live_us=keyed.time_to_live_us if expiring else None,
        time_to_live_clock=CLOCKS.get(keyed.time_to_live_clock, "") if expiring else "",
        state_version=config.state_version,
    )


def _columns(config: pb.TableConfig) -> tuple[ColumnSummary, ...]:
    stored = config.keyed.schema or config.time_keyed.schema
    if not stored:
        return ()
    keys = config.keyed.key_columns or config.time_keyed.key_columns
    schema = schema_from_bytes(stored, where=f"table {config.name!r}")
    return tuple(
        ColumnSummary(field.name, str(field.type), field.name in keys, field.nullable, field_id(field))
        for field in schema
        if field.name != TIME
    )


def _broadcast_columns(broadcast: BroadcastColumns) -> tuple[ColumnSummary, ...]:
    return tuple(
        ColumnSummary(name, kind, key=name in broadcast.keys, nullable=True, field_id=None)
        for name, kind in broadcast.types
    )
