"""Conversion of rows that users return as dicts to a table with the declared columns."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from statebed.arrays.exact_values import exact_array
from statebed.errors import InputError
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT

_MORE = {TIME: TIMESTAMP, WEIGHT: pa.int64()}
"""Columns that rows may have in addition to the declared ones."""


def rows_as_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema, *, what: str, where: str) -> pa.Table:
    """Return the rows as a table; each must have every declared column, and may have an event time and a weight."""
    more = [name for name in _MORE if any(isinstance(row, Mapping) and name in row for row in rows)]
    wanted = pa.schema([*(field.with_nullable(True) for field in schema), *((name, _MORE[name]) for name in more)])
    declared = set(schema.names)
    for row in rows:
        if not isinstance(row, Mapping) or (row.keys() != declared and row.keys() - more != declared):
            shown = sorted(row) if isinstance(row, Mapping) else type(row).__name__
            raise InputError(
                f"one of the {what} has {shown}, expected {schema.names}",
                where=where,
                fix="use dicts with exactly the declared columns",
            )
    try:
        columns = [exact_array([row.get(field.name) for row in rows], field.type) for field in wanted]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError, ValueError) as error:
        raise InputError(
            f"the {what} do not fit the columns {[f'{field.name} {field.type}' for field in schema]}: {error}",
            where=where,
            fix="use values of the declared types",
        ) from error
    return pa.Table.from_arrays(columns, schema=wanted)
