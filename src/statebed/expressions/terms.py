"""Bound expressions as a tree of terms: each has a type and computes its values for the rows of a batch.

A constant stays a scalar until a kernel uses it, and operations on constants are computed once, during binding. Kernels
get at least one array. Operands that can fail for a row (a division, a cast) are evaluated only for the rows whose
result is needed: `case`, `if`, `coalesce`, `and` and `or` evaluate them on a part of the batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.errors import InputError
from statebed.expressions.list_parts import check_repeated
from statebed.expressions.mistakes import RowFailure, TextSpan
from statebed.expressions.types import nullable_field

Datum: TypeAlias = pa.Array | pa.Scalar
Kernel = Callable[..., pa.Array]


class BatchColumns:
    """Rows of a batch, by column."""

    def __init__(self, batch: pa.Table | pa.RecordBatch) -> None:
        self._batch = batch
        self._columns: dict[str, pa.Array] = {}
        self.num_rows: int = batch.num_rows

    def column(self, name: str) -> pa.Array:
        """Return a column as one array."""
        if name not in self._columns:
            self._columns[name] = one_chunk(self._batch.column(name))
        return self._columns[name]

    def kind(self, name: str) -> pa.DataType | None:
        """Return the type of a column, or None if there is no such column, or more than one."""
        index = self._batch.schema.get_field_index(name)
        return None if index < 0 else self._batch.schema.field(index).type

    def part(self, rows: npt.NDArray[np.int64]) -> "BatchColumns":
        """Return a subset of the rows."""
        return self if len(rows) == self.num_rows else _TermPart(self, rows)


class _TermPart(BatchColumns):
    def __init__(self, whole: BatchColumns, rows: npt.NDArray[np.int64]) -> None:
        self._whole = whole
        self._rows = from_numpy(rows, pa.int64())
        self._columns = {}
        self.num_rows = len(rows)

    def column(self, name: str) -> pa.Array:
        if name not in self._columns:
            self._columns[name] = self._whole.column(name).take(self._rows)
        return self._columns[name]

    def kind(self, name: str) -> pa.DataType | None:
        return self._whole.kind(name)


@dataclass(frozen=True, eq=False)
class Term(ABC):
    """A part of an expression with a known type."""

    place: TextSpan
    type: pa.DataType
    nullable: bool
    fallible: bool
    """Whether evaluation can fail for a row."""
    columns: frozenset[str]

    @abstractmethod
    def value(self, frame: BatchColumns) -> Datum:
        """Return one value for each row; a scalar if all rows have the same."""

    def array(self, frame: BatchColumns) -> pa.Array:
        """Return the values as an array."""
        try:
            return spread(self.value(frame), frame.num_rows)
        except RowFailure as failed:
            raise self.place.failure(failed) from None

    @property
    def constant(self) -> pa.Scalar | None:
        """Return the value if it is known and the same for all rows."""
        return None


@dataclass(frozen=True, eq=False)
class ColumnTerm(Term):
    """A column of the batch."""

    name: str

    def value(self, frame: BatchColumns) -> pa.Array:
        kind = frame.kind(self.name)
        if kind is not None and kind != self.type and _nullable(kind) == _nullable(self.type):
            return frame.column(self.name).cast(self.type)  # one of the streams of a union, without nulls in it
        if kind != self.type:
            what = f"has no column {self.name!r}" if kind is None else f"has {self.name!r} as {kind}"
            raise InputError(
                f"a batch {what}, but {self.place.text!r} was bound to {self.type}",
                where=self.place.where,
                fix="pass batches with the schema that the expression was bound to",
            )
        return frame.column(self.name)


def _nullable(kind: pa.DataType) -> pa.DataType:
    return nullable_field(pa.field("value", kind)).type


@dataclass(frozen=True, eq=False)
class Constant(Term):
    """A value that is the same for all rows."""

    scalar: pa.Scalar
    literal: bool = False
    """Whether it is a literal of the text. Among decimals, an integer literal is a decimal with its own digits."""

    def value(self, frame: BatchColumns) -> pa.Scalar:  # noqa: ARG002 - the same for every frame
        return self.scalar

    @property
    def constant(self) -> pa.Scalar:
        return self.scalar


@dataclass(frozen=True, eq=False)
class Applied(Term):
    """A kernel applied to operands."""

    kernel: Kernel
    operands: tuple[Term, ...] = field(default=())

    def value(self, frame: BatchColumns) -> pa.Array:
        data = [operand.value(frame) for operand in self.operands]
        try:
            if not any(isinstance(datum, pa.Array) for datum in data):
                data[0] = spread(data[0], frame.num_rows)
            return one_chunk(self.kernel(*data))
        except RowFailure as failed:
            raise self.place.failure(failed) from None
        except pa.ArrowInvalid as error:
            raise self.place.failure(RowFailure(str(error))) from error


def constant(place: TextSpan, value: object, kind: pa.DataType, *, literal: bool = False) -> Constant:
    """Build a term with one value."""
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
    return Constant(place, kind, not scalar.is_valid, False, frozenset(), scalar, literal)


def applied(
    place: TextSpan,
    kernel: Kernel,
    kind: pa.DataType,
    *operands: Term,
    nullable: bool | None = None,
    fallible: bool = False,
) -> Term:
    """Apply a kernel to operands and fold constants. The result is null where an operand is null, unless `nullable` is
    given.
    """
    term = Applied(
        place,
        kind,
        any(operand.nullable for operand in operands) if nullable is None else nullable,
        fallible or any(operand.fallible for operand in operands),
        frozenset().union(*(operand.columns for operand in operands)),
        kernel,
        operands,
    )
    if any(operand.constant is None for operand in operands):
        return term
    try:
        folded = one_chunk(kernel(*(spread(operand.constant, 1) for operand in operands)))
    except (RowFailure, pa.ArrowInvalid):
        return term  # harmless in a branch that no row takes
    return constant(place, folded[0], kind)


def spread(datum: Datum, rows: int) -> pa.Array:
    """Expand a datum to an array of `rows` rows."""
    if isinstance(datum, pa.Array):
        return datum
    if not datum.is_valid or not rows:  # Arrow cannot repeat a struct or a list zero times
        return pa.nulls(rows, datum.type)
    value = pa.repeat(datum, 1)
    check_repeated(value, np.zeros(rows, dtype=np.int64))
    return pa.repeat(datum, rows) if rows > 1 else value


def arrays(*data: Datum) -> list[pa.Array]:
    """Expand all data to arrays of one length; at least one of them must be an array."""
    rows = next(len(datum) for datum in data if isinstance(datum, pa.Array))
    return [spread(datum, rows) for datum in data]


def scattered(values: pa.Array, rows: npt.NDArray[np.int64], length: int) -> pa.Array:
    """Build an array of `length` values with `values` at `rows` and nulls elsewhere."""
    if len(rows) == length:
        return values
    positions = np.full(length, -1, dtype=np.int64)
    positions[rows] = np.arange(len(rows), dtype=np.int64)
    return values.take(from_numpy(positions, pa.int64(), valid=positions >= 0))
