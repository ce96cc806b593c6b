"""Properties shared by the data files of a table: columns, sort order and names."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from statebed.arrays.canonical_order import sort_indices
from statebed.arrays.nested import REMEMBERED_TYPES, storage_of
from statebed.errors import InputError
from statebed.format.checkpoint_pb2 import BIN_FIRST, HASH_FIRST, KEY_ONLY, SortOrder
from statebed.format.schema import BIN, DELETED, KEY_HASH, SEQUENCE, TIME, canonical_schema, reserved_field


def segment_schema(
    columns: pa.Schema,
    *,
    sort_order: "SortOrder.ValueType",
    key_columns: Sequence[str],
    timed: bool = True,
    deletions: bool = False,
) -> pa.Schema:
    """Return the columns of a table's files in their order, from the user's columns with field ids.

    HASH_FIRST: `_key_hash`, keys, `_time`, `_seq`, values. BIN_FIRST: the same after `_bin`. KEY_ONLY: keys, `_seq`,
    `_key_hash`, values. `timed=False` leaves `_time` out; `deletions=True` adds `_deleted` after `_seq`.
    """
    keys = [columns.field(name) for name in key_columns]
    values = [field for field in columns if field.name not in key_columns]
    reserved = {name: reserved_field(name) for name in (BIN, KEY_HASH, TIME, SEQUENCE, DELETED)}
    marks = [reserved[DELETED]] if deletions else []
    if sort_order == KEY_ONLY:
        return canonical_schema(pa.schema([*keys, reserved[SEQUENCE], *marks, reserved[KEY_HASH], *values]))
    bins = [reserved[BIN]] if sort_order == BIN_FIRST else []
    times = [reserved[TIME]] if timed else []
    return canonical_schema(pa.schema([*bins, reserved[KEY_HASH], *keys, *times, reserved[SEQUENCE], *marks, *values]))


def check_storable(field: pa.Field, *, where: str) -> None:
    """Raise InputError for a column whose type cannot be stored in a file, before there are rows to lose."""
    what = f"the column {field.name!r} has the type {field.type}, which cannot be stored"
    if _is_encoded(field.type):
        raise InputError(what, where=where, fix="use the type of its values: equal rows must have equal bytes")
    if (reason := unreadable(field)) is not None:
        raise InputError(f"{what}: {reason}", where=where, fix="use lists of any length, or fields that may be null")
    try:
        _try_type(field.type)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{what}: {error}", where=where, fix="choose another type, for example string for text or struct for parts"
        ) from error


@lru_cache(maxsize=REMEMBERED_TYPES)
def _try_type(kind: pa.DataType) -> None:
    """Process a column of the type as rows are processed. An error is raised and not cached."""
    pa.nulls(1, kind).take(pa.array([0]))  # rows are sorted before they are written
    pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([("column", kind)])).close()


def _is_encoded(kind: pa.DataType) -> bool:
    return bool(pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind))


@dataclass(frozen=True)
class SegmentSpec:
    """Properties shared by the files of a table."""

    table: str
    schema_id: int
    schema: pa.Schema
    """Schema made by `segment_schema`."""
    sort_order: "SortOrder.ValueType"
    key_columns: tuple[str, ...]
    state_version: int = 0

    def __post_init__(self) -> None:
        needed = {KEY_HASH, SEQUENCE, *self.key_columns} | ({BIN} if self.sort_order == BIN_FIRST else set())
        missing = sorted(needed.difference(self.schema.names))
        if missing or self.sort_order not in {HASH_FIRST, BIN_FIRST, KEY_ONLY}:
            raise InputError(
                f"no segment of table {self.table!r} can be sorted {SortOrder.Name(self.sort_order)}: "
                f"missing columns {missing}",
                fix="build the schema with segment_schema",
            )
        for field in self.schema:
            if _is_encoded(field.type):
                raise InputError(
                    f"the column {field.name!r} of table {self.table!r} has the encoded type {field.type}",
                    fix="cast it to its value type: equal rows must have equal bytes",
                )

    @cached_property
    def file_schema(self) -> pa.Schema:
        """The schema without metadata other than field ids, as files have it."""
        return canonical_schema(self.schema)

    @cached_property
    def sort_columns(self) -> tuple[str, ...]:
        times = (TIME,) if TIME in self.schema.names else ()
        if self.sort_order == KEY_ONLY:
            return (*self.key_columns, SEQUENCE)
        bins = (BIN,) if self.sort_order == BIN_FIRST else ()
        return (*bins, KEY_HASH, *self.key_columns, *times, SEQUENCE)

    def conformed(self, rows: pa.Table) -> pa.Table:
        """Return the rows with exactly the columns, types and metadata of the files; raise InputError on a mismatch."""
        where = f"table {self.table!r}"
        if sorted(rows.column_names) != sorted(self.schema.names):
            raise InputError(
                f"a segment has the columns {rows.column_names} instead of {self.schema.names}", where=where
            )
        rows = rows.select(self.schema.names)
        for field, column in zip(self.schema, rows.columns, strict=True):
            if column.type != field.type:
                raise InputError(
                    f"the column {field.name!r} has the type {column.type} instead of {field.type}", where=where
                )
            if column.null_count and not field.nullable:
                raise InputError(f"the column {field.name!r} has nulls, but is not nullable", where=where)
        return pa.Table.from_arrays(rows.columns, schema=self.file_schema)


def sort_segment(table: pa.Table, *, spec: SegmentSpec) -> pa.Table:
    """Sort the rows in the order of the table: nulls after values, NaN after numbers. The sort is stable."""
    return table.take(sort_indices(table, spec.sort_columns))


def unreadable(field: pa.Field) -> str | None:
    """Return why rows with such a column could not be read back unchanged, or None if they could."""
    kind = storage_of(field.type)
    if not pa.types.is_nested(kind):
        return None
    if pa.types.is_fixed_size_list(kind):
        if not kind.list_size:
            return "Parquet's reader reports a list type without items as damage"
        if _is_fixed_list(kind.value_type):
            # Both kernels read from the start of the inner lists if the outer array is a slice.
            return "of lists of a fixed length in one another, Arrow takes and filters the wrong rows"
    parts = [kind.field(index) for index in range(kind.num_fields)]
    if pa.types.is_struct(kind) and any(not part.nullable and _is_fixed_list(part.type) for part in parts):
        return "Parquet's reader wants the items of a list that may not be null even where the struct is null"
    return next((reason for reason in map(unreadable, parts) if reason is not None), None)


def _is_fixed_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(storage_of(kind)))
