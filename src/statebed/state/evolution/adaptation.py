"""Adaptation of rows from older files to the current schema: matched by field id, whole columns at a time.

A file was written with one of the table's schemas. Missing columns are filled with their default (or null), dropped
columns are not read, narrower columns are cast. Rows that mark a deleted key have no values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import boolean_values, from_numpy
from statebed.arrays.null_structs import with_fields
from statebed.errors import IncompatibleSchemaError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import DELETED, field_id, find_schema, same_schema
from statebed.format.segment_reader import SegmentReader
from statebed.state.evolution.widening import widens
from statebed.state.memory.pages import count_processed


@dataclass(frozen=True)
class SchemaHistory:
    """Schemas of a table's files, and the current schema of its rows."""

    schemas: tuple[pb.TableSchema, ...]
    current: pa.Schema
    """Current schema of files, with reserved columns and field ids."""
    defaults: Mapping[str, pa.Scalar]
    where: str

    def check(self) -> None:
        """Raise an error if the current schema is not one of the table's, since then no field ids match its columns."""
        if self.schemas and all(schema is not None for schema in self._stored.values()):
            stored = find_schema(self.schemas, self.schemas[-1].schema_id, where=self.where)
            raise IncompatibleSchemaError(
                f"the state has the columns {_described(stored)}; the program defines {_described(self.current)}",
                where=self.where,
                fix="restore it with a TableManager, which compares the definitions, or put the definition back",
            )

    def read(self, reader: SegmentReader, *, row_groups: Sequence[int] | None = None) -> pa.Table:
        """Return rows of a file in the current schema."""
        stored = self._stored.get(reader.entry.schema_id)
        if stored is None:
            rows = reader.read(row_groups=row_groups, columns=self.current.names)
            count_processed(rows.nbytes)
            return with_fields(rows, self.current)
        present = {field_id(field) for field in self.current}
        needed = [field for field in stored if field_id(field) in present]
        rows = reader.read(row_groups=row_groups, columns=[field.name for field in needed])
        count_processed(rows.nbytes)
        return adapt(in_stored_types(rows, stored), stored, self.current, self.defaults)

    @cached_property
    def _stored(self) -> dict[int, pa.Schema | None]:
        """Stored schema by schema id, or None where it equals the current schema."""
        schemas = {}
        for entry in self.schemas:
            schema = find_schema([entry], entry.schema_id, where=self.where)
            schemas[entry.schema_id] = None if same_schema(schema, self.current) else schema
        return schemas


def in_stored_types(rows: pa.Table, stored: pa.Schema) -> pa.Table:
    """Cast rows read from a file to its schema's types. Parquet stores some types in another unit, such as seconds in
    milliseconds.
    """
    return with_fields(rows, pa.schema([stored.field(name) for name in rows.column_names]))


def adapt(rows: pa.Table, stored: pa.Schema, current: pa.Schema, defaults: Mapping[str, pa.Scalar]) -> pa.Table:
    """Convert rows of one schema to another, whose columns match by field id or are newer."""
    there = {field_id(field): field.name for field in stored}
    columns = []
    for field in current:
        name = there.get(field_id(field))
        if name is None:
            columns.append(_filled(field, rows, defaults.get(field.name)))
        elif rows[name].type == field.type:
            columns.append(rows[name])
        elif widens(rows[name].type, field.type):
            columns.append(rows[name].cast(field.type))
        else:
            raise IncompatibleSchemaError(
                f"the column {field.name!r} is stored as {rows[name].type}, which cannot be read as {field.type}",
                fix="restore the column's previous type",
            )
    return pa.Table.from_arrays(columns, schema=current)


def _filled(field: pa.Field, rows: pa.Table, default: pa.Scalar | None) -> pa.Array:
    if default is None or not default.is_valid:
        return pa.nulls(rows.num_rows, field.type)
    filled = pa.repeat(default, rows.num_rows)
    if DELETED not in rows.column_names:
        return filled
    alive = ~boolean_values(rows[DELETED])
    return filled.take(from_numpy(np.zeros(rows.num_rows, dtype=np.int64), pa.int64(), valid=alive))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
