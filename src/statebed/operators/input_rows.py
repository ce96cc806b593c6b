"""Input rows of an epoch: collected into one table, split into admitted and late rows, and sorted.

Nothing here depends on the order in which rows arrive or on how they are cut into batches: attempts of one task receive
them in different orders and must produce the same result.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.canonical_order import is_sortable, sort_indices, ties
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.mutable import taken
from statebed.arrays.sort_order import sorted_by, total_keys
from statebed.errors import InputError
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input, Output

LATE_BY = "late_by"
WATERMARK = "watermark"
OPERATOR = "operator"
Column = TypeVar("Column", pa.Array, pa.ChunkedArray)

_LATE_FIELDS = (
    pa.field(LATE_BY, pa.duration("us")),
    pa.field(WATERMARK, TIMESTAMP),
    pa.field(OPERATOR, pa.string(), nullable=False),
)


def conformed(batch: pa.RecordBatch | pa.Table, schema: pa.Schema, *, where: str) -> pa.Table:
    """Return the rows with exactly the columns and types of the schema."""
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise InputError(
            f"an input batch lacks the columns {missing}; it has {batch.schema.names}",
            where=where,
            fix="pass every column of the operator's input; its values may be null",
        )
    cast = [exact_cast(batch.column(field.name), field, where=where) for field in schema]
    return pa.Table.from_arrays(cast, schema=schema)


def exact_cast(column: Column, field: pa.Field, *, where: str) -> Column:
    """Cast a column to the type of a field; raise if that would change a value.

    A double fits a float if the shortest decimal text of the float reads back as the same double: 320.1 fits, one third
    does not.
    """
    if column.type.equals(field.type):
        return column
    try:
        cast = column.cast(field.type)
    except pa.ArrowException as error:
        raise _does_not_fit(field, column.type, str(error), where=where) from error
    same = None
    if pa.types.is_float32(field.type) and pa.types.is_float64(column.type):
        written = cast.cast(pa.string()).cast(pa.float64())
        same = pc.or_(pc.equal(written, column), pc.and_(pc.is_nan(written), pc.is_nan(column)))
    elif pa.types.is_date(field.type) and pa.types.is_timestamp(column.type):
        same = pc.equal(cast.cast(column.type), column)  # Arrow drops the time of day silently
    if same is not None and not pc.all(pc.fill_null(same, True)).as_py():
        first = column.filter(pc.invert(pc.fill_null(same, True)))[0].as_py()
        raise _does_not_fit(field, column.type, f"{first!r} would change", where=where)
    return cast


def _does_not_fit(field: pa.Field, kind: pa.DataType, why: str, *, where: str) -> InputError:
    return InputError(
        f"the column {field.name!r} has type {field.type}, but not all values of type {kind} fit: {why}",
        where=where,
        fix="pass values of the column's type, or round or cast them explicitly",
    )


def gathered(batches: Iterable[pa.RecordBatch], input_: Input, *, where: str) -> pa.Table:
    """Collect all rows of an input into one table, with normalised keys."""
    tables = [conformed(batch, input_.schema, where=where) for batch in batches]
    rows = pa.concat_tables([input_.schema.empty_table(), *tables]).combine_chunks()
    for key in input_.keys:
        position = rows.schema.get_field_index(key)
        rows = rows.set_column(position, rows.schema.field(position), normalise_key(one_chunk(rows[key])))
    return rows


@dataclass(frozen=True)
class AdmittedRows:
    """Rows of one input, split by a watermark."""

    rows: pa.Table
    late: pa.Table
    """Late rows, including rows without an event time."""

    @property
    def rows_in(self) -> int:
        return int(self.rows.num_rows + self.late.num_rows)


def admit(rows: pa.Table, late_us: int | None) -> AdmittedRows:
    """Split off late rows: those without an event time, or with one at or before the watermark `late_us`."""
    times, timed = int64_values(rows[TIME]), validity(rows[TIME])
    admitted = timed if late_us is None else timed & (times > late_us)
    if admitted.all():
        return AdmittedRows(rows, rows.slice(0, 0))
    return AdmittedRows(filtered(rows, admitted), filtered(rows, ~admitted))


def late_output(input_: Input) -> Output:
    """Return the output of an input's late rows: its columns, `late_by`, `watermark` and `operator`."""
    taken = [name for name in input_.columns.names if name in {field.name for field in _LATE_FIELDS}]
    if taken:
        raise InputError(
            f"late rows get the columns {[field.name for field in _LATE_FIELDS]}, but the input already has {taken}",
            fix="rename that column of the input",
        )
    return Output(pa.schema([*input_.columns, *_LATE_FIELDS]), input_.changes)


def late_rows(late: pa.Table, input_: Input, watermark_us: int | None, operator_id: str) -> pa.Table:
    """Return late rows in the columns of their output; `late_by` is null for a row without an event time."""
    count = late.num_rows
    times, timed = int64_values(late[TIME]), validity(late[TIME])
    known = timed & (watermark_us is not None)
    mark = np.full(count, watermark_us or 0, dtype=np.int64)
    columns = [
        *(late[name] for name in input_.columns.names),
        from_numpy(mark - np.where(known, times, mark), pa.duration("us"), valid=known),
        from_numpy(mark, TIMESTAMP, valid=np.full(count, watermark_us is not None)),
        pa.repeat(pa.scalar(operator_id), count),
        late[TIME],
        *([late[WEIGHT]] if input_.changes is Changes.CHANGELOG else []),
    ]
    return in_total_order(pa.Table.from_arrays(columns, schema=late_output(input_).schema))


def filtered(rows: pa.Table, kept: npt.NDArray[np.bool_]) -> pa.Table:
    """Return the rows where `kept` is True."""
    if kept.all():
        return rows
    at = np.flatnonzero(kept)
    return pa.Table.from_arrays([taken(one_chunk(column), at) for column in rows.columns], schema=rows.schema)


def in_total_order(rows: pa.Table, *first: str) -> pa.Table:
    """Sort rows by the columns `first`, then by event time, then by all others, so that the order of arrival does not
    matter.

    Rows that still compare equal are identical in every column, byte for byte.
    """
    if rows.num_rows <= 1:
        return rows
    # Sorting by nested values takes twice as long, so they only break ties.
    flat = [field.name for field in rows.schema if is_sortable(field.type) and not pa.types.is_nested(field.type)]
    leading = [*first, *([TIME] if TIME in flat and TIME not in first else [])]
    order = [*leading, *(name for name in flat if name not in leading)]
    return _sort_ties(rows.take(sort_indices(rows, order)), order)


def _sort_ties(rows: pa.Table, order: Sequence[str]) -> pa.Table:
    """Order sorted rows that tie in the columns `order` by the remaining differences: signs of zeros, NaN bits, nested
    values.
    """
    finer = [
        field.name
        for field in rows.schema
        if field.name not in order or pa.types.is_floating(field.type) or pa.types.is_nested(field.type)
    ]
    if not finer:
        return rows
    tied, groups = ties(rows, order)
    if not len(tied):
        return rows
    tied_rows = rows.select(finer).take(from_numpy(tied, pa.int64()))
    places = np.arange(rows.num_rows, dtype=np.int64)
    places[tied] = tied[sorted_by([groups, *total_keys(tied_rows, finer)])]
    return rows.take(from_numpy(places, pa.int64()))


def greatest(values: Iterable[int | None]) -> int | None:
    """Return the greatest value that is not None; None if there is none."""
    return max((value for value in values if value is not None), default=None)


def without_routing(rows: pa.Table) -> pa.Table:
    """Return the rows without their key hash, as state tables accept them."""
    return rows.drop_columns([KEY_HASH])
