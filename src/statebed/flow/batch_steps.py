"""Row-wise steps that a Python function of the user computes: record batch in, record batch out."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.errors import ExpressionError, InputError, StatebedError, error_text, raised_at
from statebed.format.schema import TIME
from statebed.format.stream_schema import WEIGHT


@dataclass(frozen=True)
class BatchStep:
    """Replaces the columns by those that a function returns, row by row."""

    function: Callable[[pa.RecordBatch], Any]
    columns: pa.Schema
    name: str

    @property
    def text(self) -> str:
        return f"transform({self.name})"

    def apply(self, rows: pa.Table) -> pa.Table:
        hidden = [name for name in (TIME, WEIGHT) if name in rows.schema.names]
        visible = rows.drop_columns(hidden)
        batch = pa.RecordBatch.from_arrays([one_chunk(column) for column in visible.columns], schema=visible.schema)
        try:
            result = self.function(batch)
        except StatebedError:
            raise
        except Exception as error:
            raise ExpressionError(
                f"the function {self.name} raised {error_text(error)}",
                where=raised_at(error),
                fix="see the traceback of its cause",
            ) from error
        self._check(result, rows.num_rows)
        columns = [
            one_chunk(column).cast(field.type) for column, field in zip(result.columns, self.columns, strict=True)
        ]
        schema = pa.schema([*self.columns, *(rows.schema.field(name) for name in hidden)])
        return pa.Table.from_arrays([*columns, *(rows[name] for name in hidden)], schema=schema)

    def _check(self, result: Any, rows: int) -> None:
        if not isinstance(result, pa.RecordBatch | pa.Table):
            raise InputError(
                f"the function {self.name} returned a {type(result).__name__}, not a record batch",
                where=self.text,
                fix="return a pa.RecordBatch, or a pa.Table",
            )
        if result.num_rows != rows:
            raise InputError(
                f"the function {self.name} returned a batch of length {result.num_rows} for one of length {rows}",
                where=self.text,
                fix="return one row for each; leave rows out with where(...), and make more with explode(...)",
            )
        if result.schema.names != self.columns.names or result.schema.types != self.columns.types:
            raise InputError(
                f"the function {self.name} returned the columns {_shown(result.schema)}, but schema= declares "
                f"{_shown(self.columns)}",
                where=self.text,
                fix="return the declared columns, in this order",
            )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def batch_step(function: Callable[[pa.RecordBatch], Any], columns: pa.Schema, name: str) -> BatchStep:
    """Build the step of a function, after checking that it can be sent to other processes."""
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the function {name} cannot be sent to other processes: {error}",
            where=f"transform({name})",
            fix="define it at the top level of a module",
        ) from error
    return BatchStep(function, columns, name)
