"""Column defaults: the values in rows that were stored before a column was added. One row as an Arrow IPC stream."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from statebed.errors import InputError


def default_of(field: pa.Field, value: Any, *, where: str) -> pa.Scalar:
    """Convert a program's default to the type of the column."""
    try:
        scalar = pa.scalar(value, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"the default {value!r} does not fit the column {field.name!r} of type {field.type}: {error}",
            where=where,
            fix="give a value of the column's type",
        ) from error
    if not scalar.is_valid and not field.nullable:
        raise InputError(
            f"the default of the column {field.name!r} is null, but the column is not nullable",
            where=where,
            fix="give a value",
        )
    return scalar


def defaults_to_bytes(defaults: Mapping[str, pa.Scalar], schema: pa.Schema) -> bytes:
    """Return the defaults in the order and with the types of the schema; empty bytes if there are none."""
    names = [name for name in schema.names if name in defaults]
    if not names:
        return b""
    columns = [pa.repeat(defaults[name].cast(schema.field(name).type), 1) for name in names]
    row = pa.record_batch(columns, names=names)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_batch(row)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def same_default(stored: pa.Scalar, wanted: pa.Scalar) -> bool:
    """Return whether the program's default equals the stored one, even if the column was widened since."""
    try:
        narrowed = wanted.cast(stored.type)
    except pa.ArrowException:
        return False
    # Compare bytes, because NaN must equal NaN.
    schema = pa.schema([("default", stored.type)])
    return defaults_to_bytes({"default": stored}, schema) == defaults_to_bytes({"default": narrowed}, schema)


def defaults_from_bytes(data: bytes) -> dict[str, pa.Scalar]:
    """Return the defaults by column."""
    if not data:
        return {}
    row = pa.ipc.open_stream(pa.py_buffer(data)).read_next_batch()
    return {name: row.column(name)[0] for name in row.schema.names}
