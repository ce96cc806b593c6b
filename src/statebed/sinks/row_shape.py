"""Shapes in which sinks get rows: as they are, or as changes in one of three forms, optionally with the epoch."""

import enum
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values
from statebed.checkpoint import Publication
from statebed.errors import InputError
from statebed.format.stream_schema import WEIGHT, Changes, Output
from statebed.operators.changelog import consolidated
from statebed.sinks.base import outbox_rows
from statebed.sinks.debezium import MESSAGES, Envelope
from statebed.sinks.row_kinds import ROW_KIND, KeyedChanges, row_kind_field


class Form(enum.Enum):
    """Form of changes."""

    ROWS = "rows"
    """Rows as they are; append-only streams only."""
    WEIGHTS = "weights"
    """Rows with `_weight`: positive counts are insertions, negative ones retractions."""
    ADDED = "added"
    """Rows that the epoch inserts, without `_weight` and without retractions; also one that replaces an equal row."""
    ROW_KIND = "row_kind"
    """Rows with `row_kind` (insert, update_before, update_after, delete) by the declared key."""
    DEBEZIUM = "debezium"
    """Messages with a JSON key and a JSON value."""


@dataclass(frozen=True)
class RowShape:
    """Shape in which a sink gets the rows of a stream."""

    output: Output
    form: Form
    envelope: Envelope
    """Envelope of messages; its key is also that of row kinds."""
    epoch_column: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Columns that the sink gets."""
        fields: Sequence[pa.Field] = {
            Form.ROWS: [*self.output.columns],
            Form.ADDED: [*self.output.columns],
            Form.WEIGHTS: [*self.output.columns, pa.field(WEIGHT, pa.int64(), nullable=False)],
            Form.ROW_KIND: [*self.output.columns, row_kind_field()],
            Form.DEBEZIUM: [*MESSAGES],
        }[self.form]
        epoch = [pa.field(self.epoch_column, pa.int64(), nullable=False)] if self.epoch_column else []
        return pa.schema([*fields, *epoch])

    def applied(self, rows: pa.Table, publication: Publication) -> pa.Table:
        """Return the rows of an epoch in this shape."""
        match self.form:
            case Form.ROWS:
                shaped = rows
            case Form.ADDED:
                shaped = _added(rows)
            case Form.WEIGHTS:
                shaped = consolidated(rows)
            case Form.ROW_KIND:
                shaped = KeyedChanges(rows, self.envelope.key).with_kinds()
            case Form.DEBEZIUM:
                shaped = self.envelope.table_of(rows, publication)
        if self.epoch_column:
            numbers = pa.repeat(pa.scalar(publication.epoch, pa.int64()), shaped.num_rows)
            shaped = shaped.append_column(pa.field(self.epoch_column, pa.int64(), nullable=False), numbers)
        return shaped


def _added(rows: pa.Table) -> pa.Table:
    if WEIGHT not in rows.schema.names:
        return rows
    counts = np.maximum(int64_values(rows[WEIGHT]), 0)
    return rows.drop_columns([WEIGHT]).take(from_numpy(np.repeat(np.arange(rows.num_rows), counts), pa.int64()))


def shaped_rows(publication: Publication, shape: RowShape | None) -> pa.Table | None:
    """Return the rows of an epoch in the given shape, or None if there are none."""
    rows = outbox_rows(publication)
    if rows is not None and shape is not None:
        rows = shape.applied(rows, publication)
    return rows if rows is not None and rows.num_rows else None


def make_shape(
    output: Output, *, envelope: Envelope, form: str | None, epoch_column: str | None, default: Form, where: str
) -> RowShape:
    """Return the requested or the default shape; raise InputError if it does not fit the stream."""
    names = [known.value for known in Form if known is not Form.ROWS or output.changes is Changes.APPEND]
    if form is not None and form not in names:
        raise InputError(
            f"`form` must be one of {', '.join(names)}, got {form!r}", where=where, fix="choose one of them"
        )
    if form is not None:
        chosen = Form(form)
    elif output.changes is Changes.APPEND:
        chosen = Form.ROWS
    else:
        chosen = Form.ROW_KIND if envelope.key or envelope.one_row else default
    if chosen in {Form.ROW_KIND, Form.DEBEZIUM} and not (envelope.key or envelope.one_row):
        raise InputError(
            f"form={chosen.value!r} needs a key, because it reports changes by key",
            where=where,
            fix=f"write(..., key={output.columns.names[0]!r}), with the columns that identify a row",
        )
    check_columns_free(output, [ROW_KIND] if chosen is Form.ROW_KIND else [], where=where)
    check_columns_free(output, [epoch_column] if epoch_column else [], where=where)
    return RowShape(output, chosen, envelope, epoch_column)


def check_columns_free(output: Output, names: Sequence[str], *, where: str) -> None:
    """Raise InputError if the sink adds a column that the stream already has."""
    taken = {name.lower() for name in output.columns.names}
    for name in names:
        if name.lower() in taken:
            raise InputError(
                f"the sink adds the column {name!r}, but the stream already has one with that name",
                where=where,
                fix="rename the stream's column with select(...), or choose another name",
            )


def has_one_row(output: Output, key: str | Sequence[str] | None, *, where: str) -> bool:
    """Return whether `key=[]` declares a stream of one row; raise InputError if its rows are only appended."""
    if key is None or isinstance(key, str) or not isinstance(key, Sized) or len(key):
        return False
    if output.changes is Changes.APPEND:
        raise InputError(
            "key=[] declares a stream of one row that is kept up to date, but its rows are only appended",
            where=where,
            fix="leave key= out, or name the columns that identify a row",
        )
    return True


def declared_key(output: Output, key: str | Sequence[str] | None, *, where: str) -> tuple[str, ...]:
    """Return the key columns, none if `key` is None; raise InputError if the stream lacks one."""
    names = (
        () if key is None else (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Iterable) else (key,)
    )
    unknown = [name for name in names if name not in output.columns.names]
    if unknown or len(set(names)) != len(names):
        raise InputError(
            f"key={list(names)} must list columns of the stream, each once; it has {output.columns.names}",
            where=where,
            fix="list the columns that identify a row",
        )
    return names
