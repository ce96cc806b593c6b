"""Checks of the rows that a process returns against its declaration: columns, types, nulls and event times."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Output
from statebed.operators.changelog import consolidated
from statebed.operators.operator import Clock

RAISED_TIMES = "raised_event_times"
"""Name of the counter of rows whose event time was raised because it was before the previous watermark."""


def conformed_rows(
    rows: pa.Table | pa.RecordBatch, schema: pa.Schema, *, what: str, where: str, optional: Sequence[str] = ()
) -> pa.Table:
    """Return the rows with exactly these columns, in this order; numbers may have another width if they fit."""
    names = rows.schema.names
    missing = [name for name in schema.names if name not in names and name not in optional]
    extra = [name for name in names if name not in schema.names]
    if missing or extra or len(set(names)) != len(names):
        raise InputError(
            f"the {what} have the columns {', '.join(names)}, expected {', '.join(_required(schema, optional))}"
            + (f": missing {', '.join(missing)}" if missing else "")
            + (f"; not declared: {', '.join(extra)}" if extra else ""),
            where=where,
            fix="use every declared column once, and no other",
        )
    fields = [field for field in schema if field.name in names]
    columns = [conformed_column(one_chunk(rows.column(field.name)), field, what=what, where=where) for field in fields]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _required(schema: pa.Schema, optional: Sequence[str]) -> list[str]:
    return [name for name in schema.names if name not in optional]


def conformed_column(column: pa.Array, field: pa.Field, *, what: str, where: str) -> pa.Array:
    """Return a column with the type of a field; raise InputError if values do not fit, or may not be null."""
    if column.type != field.type:
        mistake = InputError(
            f"the column {field.name!r} of the {what} has type {column.type}, expected {field.type}",
            where=where,
            fix=f"cast it, or declare the column as {column.type}",
        )
        if not _fits(column.type, field.type):
            raise mistake
        try:
            column = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise mistake from error
    if column.null_count and not field.nullable:
        raise InputError(
            f"the column {field.name!r} of the {what} has nulls but is declared as not null",
            where=where,
            fix="fill them, or declare the column without 'not null'",
        )
    return column


def _fits(returned: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether values may be cast if each of them fits."""
    kinds = (_is_number, _is_text, pa.types.is_nested, pa.types.is_binary)
    if pa.types.is_timestamp(returned) and pa.types.is_timestamp(wanted):
        return (returned.tz is None) == (wanted.tz is None)
    return pa.types.is_null(returned) or any(kind(returned) and kind(wanted) for kind in kinds)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def output_rows(rows: object, output: Output, clock: Clock, *, where: str) -> tuple[pa.Table, int]:
    """Return the returned rows as rows of an output, and the number of event times that were raised.

    Rows without an event time get the watermark. An event time before the watermark of the previous epoch is raised to
    it, so that every row is after the promised output watermark.
    """
    schema = output.schema
    if rows is None:
        return schema.empty_table(), 0
    if not isinstance(rows, pa.Table | pa.RecordBatch):
        raise InputError(
            f"a process must return a table, a batch or None, got {type(rows).__name__}",
            where=where,
            fix="return a pyarrow Table, RecordBatch or None",
        )
    conformed = conformed_rows(rows, schema, what="returned rows", where=where, optional=[TIME])
    times = one_chunk(conformed[TIME]) if TIME in conformed.schema.names else pa.nulls(conformed.num_rows, TIMESTAMP)
    times, raised = _event_times(times, clock)
    columns = [times if name == TIME else conformed[name] for name in schema.names]
    return pa.Table.from_arrays(columns, schema=schema), raised


def _event_times(times: pa.Array, clock: Clock) -> tuple[pa.Array, int]:
    if clock.watermark_us is None:
        return times, 0
    valid, values = validity(times), int64_values(times)
    over = valid & (values < clock.late_us) if clock.late_us is not None else np.zeros(len(times), dtype=np.bool_)
    values = np.where(valid, np.where(over, clock.late_us or 0, values), clock.watermark_us)
    return from_numpy(values, TIMESTAMP), int(np.count_nonzero(over))


def gathered_output(parts: Sequence[pa.Table], output: Output) -> pa.Table:
    """Return all rows that a step emits to one output."""
    rows = pa.concat_tables([output.schema.empty_table(), *parts])
    if output.changes is Changes.APPEND or WEIGHT not in rows.schema.names:
        return rows
    return consolidated(rows).cast(output.schema)
