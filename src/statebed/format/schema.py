"""Schemas of tables: reserved columns, field ids, schema ids, and their encoding.

A column is identified by its field id, which it gets once and keeps through renames and reorderings; ids are never
reused. A table's schemas form a list that only grows: the schema id of a file is the position of its schema in the
list. On disk a schema is an Arrow IPC schema message, and a field's id is its metadata entry `PARQUET:field_id`, as in
Parquet files. Only top-level columns have ids; a nested type is one unit.

Metadata other than the field id (pandas', Spark's) is not part of a schema, because it would make equal states differ.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

import pyarrow as pa

from statebed.errors import CorruptObjectError, FormatError, InputError
from statebed.format.checkpoint_pb2 import TableSchema

KEY_HASH = "_key_hash"
TIME = "_time"
SEQUENCE = "_seq"
BIN = "_bin"
DELETED = "_deleted"

TIMESTAMP = pa.timestamp("us", tz="UTC")
RESERVED_FIELDS: dict[str, pa.Field] = {
    KEY_HASH: pa.field(KEY_HASH, pa.uint64(), nullable=False),
    TIME: pa.field(TIME, TIMESTAMP),
    SEQUENCE: pa.field(SEQUENCE, pa.uint64(), nullable=False),
    BIN: pa.field(BIN, TIMESTAMP, nullable=False),
    DELETED: pa.field(DELETED, pa.bool_(), nullable=False),
}
RESERVED_FIELD_IDS = {KEY_HASH: 1, TIME: 2, SEQUENCE: 3, BIN: 4, DELETED: 5}
FIRST_USER_FIELD_ID = 16
"""First field id of user columns; lower ids are reserved for reserved columns of later versions."""

_FIELD_ID = b"PARQUET:field_id"
_LIST_ITEM = "element"


def check_user_columns(names: Iterable[str], *, where: str = "", reserved: Collection[str] = RESERVED_FIELDS) -> None:
    """Raise InputError for column names that are empty, repeated, or reserved, ignoring case as SQL engines do."""
    seen: set[str] = set()
    for name in names:
        if not name:
            raise InputError("a column has an empty name", where=where, fix="name the column")
        if name.lower() in reserved:
            raise InputError(
                f"the column name {name!r} is reserved",
                where=where,
                fix=f"rename the column; reserved, in any case, are {', '.join(reserved)}",
            )
        if name in seen:
            raise InputError(f"two columns are named {name!r}", where=where, fix="rename one of them")
        seen.add(name)


def reserved_field(name: str) -> pa.Field:
    """Return a reserved column with its type and field id."""
    return with_field_id(RESERVED_FIELDS[name], RESERVED_FIELD_IDS[name])


def with_field_id(field: pa.Field, field_id: int) -> pa.Field:
    """Return `field` with this id, and without any other metadata at any depth."""
    return pa.field(
        field.name,
        _without_metadata(field.type) if field.type.num_fields else field.type,
        nullable=field.nullable,
        metadata={_FIELD_ID: str(field_id)},
    )


def field_id(field: pa.Field) -> int:
    """Return the id of a field; raise FormatError if it has none."""
    text = (field.metadata or {}).get(_FIELD_ID)
    if text is None or not text.isdigit():
        raise FormatError(
            f"the column {field.name!r} has no field id",
            fix="pass the schema through assign_field_ids before it is written",
        )
    return int(text)


def assign_field_ids(schema: pa.Schema, *, history: Sequence[pa.Schema] = (), where: str = "") -> pa.Schema:
    """Return the user's schema with a field id on every column.

    A column that has an id keeps it (so a rename keeps the column). A column with the name of a column of the newest
    schema in `history` gets that column's id. Any other gets an id that no schema in `history` ever used.
    """
    check_user_columns(schema.names, where=where)
    newest = {field.name: field_id(field) for field in history[-1]} if history else {}
    carried = {field.name: int((field.metadata or {}).get(_FIELD_ID, b"0")) for field in schema}
    taken = {number for number in carried.values() if number}
    used = {field_id(field) for old in history for field in old} | taken | {FIRST_USER_FIELD_ID - 1}
    following = max(used) + 1
    fields = []
    for field in schema:
        number = carried[field.name]
        if not number and newest.get(field.name) not in taken:
            number = newest.get(field.name, 0)
        if not number:
            number, following = following, following + 1
        fields.append(with_field_id(field, number))
    result = pa.schema(fields)
    _check_field_ids(result, where=where)
    return result


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with field ids and no other metadata: the form that is compared, hashed and stored."""
    return pa.schema([with_field_id(field, field_id(field)) for field in schema])


def same_schema(schema: pa.Schema, other: pa.Schema) -> bool:
    """Return whether two schemas have the same names, order, types, nullability and field ids."""
    return bool(canonical_schema(schema).equals(canonical_schema(other), check_metadata=True))


def schema_to_bytes(schema: pa.Schema) -> bytes:
    """Return an Arrow IPC schema message; equal schemas have the same bytes."""
    data: bytes = canonical_schema(schema).serialize().to_pybytes()
    return data


def schema_from_bytes(data: bytes, *, where: str = "") -> pa.Schema:
    """Return the schema encoded by `schema_to_bytes`."""
    try:
        return _parsed_schema(data)
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptObjectError(
            f"{len(data)} bytes are not an Arrow IPC schema message: {error}",
            where=where,
            fix="restore the object from a backup, or fork to an older intact epoch",
        ) from error


@lru_cache(maxsize=256)
def _parsed_schema(data: bytes) -> pa.Schema:
    """Return the schema of an IPC message. Every file of a table has the same one, and parsing takes a while."""
    return canonical_schema(pa.ipc.read_schema(pa.py_buffer(data)))


def register_schema(known: Sequence[TableSchema], schema: pa.Schema) -> tuple[int, tuple[TableSchema, ...]]:
    """Return the id of `schema` in a table's list, and the list, with the schema appended if it was missing."""
    data = schema_to_bytes(schema)
    for entry in known:
        if entry.arrow_ipc == data or same_schema(schema_from_bytes(entry.arrow_ipc), schema):
            return entry.schema_id, tuple(known)
    added = TableSchema(schema_id=len(known), arrow_ipc=data)
    return added.schema_id, (*known, added)


def merge_schema_lists(lists: Iterable[Sequence[TableSchema]], *, where: str = "") -> tuple[TableSchema, ...]:
    """Return the longest of lists that must be prefixes of each other, as when rescaling combines subtasks."""
    merged: tuple[TableSchema, ...] = ()
    for schemas in lists:
        for ours, theirs in zip(merged, schemas, strict=False):
            if ours != theirs:
                raise CorruptObjectError(
                    f"two subtasks of one table have different schemas with the id {theirs.schema_id}",
                    where=where,
                    fix="fork to an older epoch in which they agree",
                )
        if len(schemas) > len(merged):
            merged = tuple(schemas)
    return merged


def find_schema(schemas: Iterable[TableSchema], schema_id: int, *, where: str = "") -> pa.Schema:
    """Return the schema with this id."""
    for entry in schemas:
        if entry.schema_id == schema_id:
            return schema_from_bytes(entry.arrow_ipc, where=where)
    raise CorruptObjectError(
        f"the schema {schema_id} is not in the table's list",
        where=where,
        fix="fork to an older intact epoch",
    )


def _check_field_ids(schema: pa.Schema, *, where: str) -> None:
    seen: dict[int, str] = {}
    for field in schema:
        number = field_id(field)
        if number < FIRST_USER_FIELD_ID:
            raise InputError(
                f"the column {field.name!r} has the field id {number}, which is for reserved columns",
                where=where,
                fix=f"use ids from {FIRST_USER_FIELD_ID} on, or leave them out",
            )
        if number in seen:
            raise InputError(
                f"the columns {seen[number]!r} and {field.name!r} have the same field id {number}",
                where=where,
                fix="give every column its own id, or leave the ids out",
            )
        seen[number] = field.name


def _without_metadata(kind: pa.DataType) -> pa.DataType:
    """Return the type without metadata on nested fields; list items have the name that Parquet gives them."""
    if pa.types.is_struct(kind):
        return pa.struct([_bare(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_bare(kind.key_field), _bare(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_bare(kind.value_field).with_name(_LIST_ITEM), kind.list_size)
    if pa.types.is_large_list(kind):
        return pa.large_list(_bare(kind.value_field).with_name(_LIST_ITEM))
    if pa.types.is_list(kind):
        return pa.list_(_bare(kind.value_field).with_name(_LIST_ITEM))
    return kind


def _bare(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _without_metadata(field.type), nullable=field.nullable)
