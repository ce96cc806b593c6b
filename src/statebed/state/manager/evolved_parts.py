"""Stored parts of a table adapted to a changed definition: columns matched by id, alike in every subtask.

All subtasks of an epoch get the same list of schemas, which ends with the new one, before any of them writes. Schema
ids therefore mean the same in all of them, even in one that has nothing to write. Tombstones that still hide stored
rows are converted to the new columns and hide the same rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from statebed.errors import CorruptObjectError, IncompatibleSchemaError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import (
    BIN,
    KEY_HASH,
    SEQUENCE,
    TIME,
    field_id,
    merge_schema_lists,
    register_schema,
    schema_from_bytes,
)
from statebed.format.segment import segment_schema
from statebed.state.evolution.adaptation import adapt
from statebed.state.evolution.column_defaults import defaults_from_bytes
from statebed.state.evolution.evolve import Difference, evolve
from statebed.state.global_keyed.table import StoredPart
from statebed.state.keyed.table import KeyedTable
from statebed.state.live import tombstones
from statebed.state.live.tombstones import DeletionKind


@dataclass(frozen=True)
class EvolvedTable:
    """Definition and parts that a table is restored with."""

    config: pb.TableConfig
    parts: tuple[StoredPart, ...]
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class PartsByVersion:
    """Parts of a table, separated by the version that defined it."""

    present: Sequence[StoredPart]
    earlier: Sequence[StoredPart] = ()
    config: pb.TableConfig | None = None
    """Earlier definition, or None if there is none."""


def by_shape(parts: Iterable[StoredPart], earlier: Sequence[pb.TableConfig]) -> PartsByVersion:
    """Separate the parts of a table that are stored as one of several earlier versions defined it."""
    all_parts = list(parts)
    config = next(
        (matching for part in all_parts if (matching := earlier_config(part.config, earlier)) is not None), None
    )
    if config is None:
        return PartsByVersion(all_parts)
    old = [part for part in all_parts if _is_earlier(part.config, config)]
    return PartsByVersion([part for part in all_parts if not _is_earlier(part.config, config)], old, config)


def earlier_config(stored: pb.TableConfig, earlier: Sequence[pb.TableConfig]) -> pb.TableConfig | None:
    """Return the earlier definition that a table is stored with, or None if it has the current one."""
    return next((config for config in earlier if _is_earlier(stored, config)), None)


def _is_earlier(stored: pb.TableConfig, earlier: pb.TableConfig) -> bool:
    """Return whether a table has its earlier definition: it had other keys, or other columns."""
    wanted = {field.name for field in schema_from_bytes(earlier.keyed.schema)}
    columns = {field.name for field in schema_from_bytes(stored.keyed.schema)}
    same_keys = stored.keyed.key_columns == earlier.keyed.key_columns
    return same_keys and stored.keyed.prefix_columns == earlier.keyed.prefix_columns and wanted <= columns


def evolved(wanted: pb.TableConfig, parts: Sequence[StoredPart]) -> EvolvedTable:
    """Adapt the program's definition and the parts of all subtasks to each other; raise an error if they are
    incompatible.
    """
    if not parts or wanted.WhichOneof("kind") == "global_keyed":
        return EvolvedTable(wanted, tuple(parts))
    where = f"table {wanted.name!r}"
    stored = parts[0].config
    if any(_definition(part.config) != _definition(stored) for part in parts):
        raise CorruptObjectError(
            "the subtasks of one epoch were stored with different definitions of the table",
            where=where,
            fix="fork to an older epoch in which they agree",
        )
    schemas = merge_schema_lists((part.part.schemas for part in parts), where=where)
    evolution = evolve(wanted, stored=stored, schemas=schemas)
    if _definition(evolution.config) == _definition(stored):
        return EvolvedTable(evolution.config, tuple(parts))
    current = file_schema(evolution.config)
    defaults = defaults_from_bytes(_kind_of(evolution.config).defaults)
    known = register_schema(schemas, current)[1] if schemas else schemas
    return EvolvedTable(
        evolution.config,
        tuple(replace(part, part=_rewritten(part.part, known, current, defaults, where=where)) for part in parts),
        evolution.differences,
    )


def file_schema(config: pb.TableConfig) -> pa.Schema:
    """Return the schema of a table's files."""
    if config.WhichOneof("kind") == "keyed":
        return KeyedTable(config).file_schema
    kind = config.time_keyed
    return segment_schema(schema_from_bytes(kind.schema), sort_order=pb.BIN_FIRST, key_columns=kind.key_columns)


def _rewritten(
    part: pb.TableSubtaskCheckpointMetadata,
    schemas: Sequence[pb.TableSchema],
    current: pa.Schema,
    defaults: Mapping[str, pa.Scalar],
    *,
    where: str,
) -> pb.TableSubtaskCheckpointMetadata:
    changed = pb.TableSubtaskCheckpointMetadata()
    changed.CopyFrom(part)
    del changed.schemas[:]
    changed.schemas.extend(schemas)
    del changed.tombstones[:]
    changed.tombstones.extend(_adapted(tombstone, current, defaults, where=where) for tombstone in part.tombstones)
    return changed


def _adapted(
    tombstone: pb.Tombstone, current: pa.Schema, defaults: Mapping[str, pa.Scalar], *, where: str
) -> pb.Tombstone:
    """Convert a tombstone to the current columns."""
    kind = tombstones.kind_of(tombstone)
    if kind is None:
        return tombstone
    rows = tombstones.rows_of(tombstone)
    there = {field_id(field) for field in rows.schema}
    gone = [field.name for field in rows.schema if field_id(field) not in {field_id(column) for column in current}]
    if gone:
        raise IncompatibleSchemaError(
            f"the columns {gone} are dropped, but rows deleted by their values are still in files",
            where=where,
            fix="first run a Compaction with the program that still has these columns: it removes the rows for good",
        )
    never = {BIN, KEY_HASH, TIME, SEQUENCE}
    wanted = [
        field
        for field in current
        if field_id(field) in there or (kind is DeletionKind.VALUE and field.name not in never)
    ]
    adapted = adapt(rows, rows.schema, pa.schema(wanted), defaults)
    return tombstones.of_rows(kind, adapted, sequence=tombstone.sequence, owned=tombstone.owned)


def _definition(config: pb.TableConfig) -> bytes:
    """Return the serialized part of a configuration that determines how rows are stored."""
    kind = _kind_of(config)
    return bytes(kind.SerializeToString(deterministic=True))


def _kind_of(config: pb.TableConfig) -> pb.TimeKeyedTableConfig | pb.KeyedTableConfig:
    return config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed
