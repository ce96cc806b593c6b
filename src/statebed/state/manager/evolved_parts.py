"""Stored parts of a table as a changed definition needs them: its columns by their ids, in every subtask alike.

All subtasks of an epoch are given the same list of schemas, which ends in the new one, before any of them writes: ids
of schemas mean the same in all of them, also where one has nothing to write. Deletions that still hide stored rows are
put into the new columns; what they hide stays the same.
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
from statebed.state.live.tombstones import Deleted


@dataclass(frozen=True)
class Evolved:
    """What a table is restored with."""

    config: pb.TableConfig
    parts: tuple[StoredPart, ...]
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Shapes:
    """Parts of a table, told apart by the version that defined it."""

    present: Sequence[StoredPart]
    earlier: Sequence[StoredPart] = ()
    config: pb.TableConfig | None = None
    """The earlier definition; None: there is none."""


def by_shape(parts: Iterable[StoredPart], earlier: pb.TableConfig | None) -> Shapes:
    """Which parts of a table are stored as an earlier version defined it."""
    if earlier is None:
        return Shapes(list(parts))
    found: tuple[list[StoredPart], list[StoredPart]] = ([], [])
    for part in parts:
        found[is_earlier(part.config, earlier)].append(part)
    return Shapes(*found, earlier)


def is_earlier(stored: pb.TableConfig, earlier: pb.TableConfig) -> bool:
    """Whether a table is stored as an earlier version defined it: multiset tables were keyed tables with lists."""
    lists = {field.name for field in schema_from_bytes(earlier.keyed.schema)}
    columns = {field.name for field in schema_from_bytes(stored.keyed.schema)}
    return stored.keyed.prefix_columns == earlier.keyed.prefix_columns and lists <= columns


def evolved(wanted: pb.TableConfig, parts: Sequence[StoredPart]) -> Evolved:
    """The program's definition and the parts of all subtasks, made to fit; refused when they cannot."""
    if not parts or wanted.WhichOneof("kind") == "global_keyed":
        return Evolved(wanted, tuple(parts))
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
        return Evolved(evolution.config, tuple(parts))
    current = file_schema(evolution.config)
    defaults = defaults_from_bytes(_kind_of(evolution.config).defaults)
    known = register_schema(schemas, current)[1] if schemas else schemas
    return Evolved(
        evolution.config,
        tuple(replace(one, part=_rewritten(one.part, known, current, defaults, where=where)) for one in parts),
        evolution.differences,
    )


def file_schema(config: pb.TableConfig) -> pa.Schema:
    """The columns of a table's files."""
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
    changed.tombstones.extend(_adapted(one, current, defaults, where=where) for one in part.tombstones)
    return changed


def _adapted(
    tombstone: pb.Tombstone, current: pa.Schema, defaults: Mapping[str, pa.Scalar], *, where: str
) -> pb.Tombstone:
    """The tombstone with the columns that rows have now."""
    kind = tombstones.kind_of(tombstone)
    if kind is None:
        return tombstone
    rows = tombstones.rows_of(tombstone)
    there = {field_id(field) for field in rows.schema}
    gone = [field.name for field in rows.schema if field_id(field) not in {field_id(one) for one in current}]
    if gone:
        raise IncompatibleSchemaError(
            f"the columns {gone} are dropped, and rows that were deleted by their values are still in files",
            where=where,
            fix="let the program that still has them run a Compaction first: it removes these rows for good",
        )
    never = {BIN, KEY_HASH, TIME, SEQUENCE}
    wanted = [
        field for field in current if field_id(field) in there or (kind is Deleted.VALUE and field.name not in never)
    ]
    adapted = adapt(rows, rows.schema, pa.schema(wanted), defaults)
    return tombstones.of_rows(kind, adapted, sequence=tombstone.sequence, owned=tombstone.owned)


def _definition(config: pb.TableConfig) -> bytes:
    """All of a configuration that says how rows are stored."""
    kind = _kind_of(config)
    return bytes(kind.SerializeToString(deterministic=True))


def _kind_of(config: pb.TableConfig) -> pb.TimeKeyedTableConfig | pb.KeyedTableConfig:
    return config.keyed if config.WhichOneof("kind") == "keyed" else config.time_keyed
