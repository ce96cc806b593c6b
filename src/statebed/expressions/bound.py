"""Public interface of the package: `bind` an SQL text or a function to a schema, then `evaluate` batches."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

import pyarrow as pa

from statebed.argument_checks import misplaced
from statebed.arrays.columns import one_chunk
from statebed.errors import ExpressionError, InputError, StatebedError, UnsupportedTypeError, error_text, raised_at
from statebed.expressions.binder import Binder
from statebed.expressions.column_like import ColumnLike, SparkColumn
from statebed.expressions.language import FieldOf, Name, Node, parse
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.terms import BatchColumns, ColumnTerm, Term
from statebed.expressions.user_functions import UserFunction, builder_of

Expression = str | Callable[[pa.RecordBatch], pa.Array]
"""SQL text, or a function that returns one value for each row of a batch."""
NO_FUNCTIONS: Mapping[str, UserFunction] = MappingProxyType({})
B = TypeVar("B", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, eq=False)
class BoundExpression:
    """An expression over the columns of a schema. It is pickled as its source and bound again when it is loaded."""

    source: Expression
    schema: pa.Schema
    where: str
    text: str
    name: str
    """Name of the output column: the alias, the name of the column or field, or else the text."""
    type: pa.DataType
    nullable: bool
    columns: frozenset[str]
    """Columns that the expression reads; all columns for a function."""
    _term: Term | None
    functions: Mapping[str, UserFunction] = field(default_factory=dict)
    """Functions of the user that the expression calls."""

    @property
    def plain_column(self) -> str | None:
        """Return the column that the expression passes through unchanged, or None if it computes something."""
        return self._term.name if isinstance(self._term, ColumnTerm) else None

    def evaluate(self, batch: pa.Table | pa.RecordBatch) -> pa.Array:
        """Return one value for each row. Raise ExpressionError if a row has no result."""
        if self._term is None:
            return _called(self.source, batch, self.type, self.where)
        return self._term.array(BatchColumns(batch))

    def __reduce__(self) -> tuple[object, ...]:
        return (_bind_again, (self.source, self.schema, self.where, dict(self.functions)))


def bind(
    expression: ColumnLike,
    schema: pa.Schema,
    *,
    where: str = "",
    functions: Mapping[str, UserFunction] = NO_FUNCTIONS,
) -> BoundExpression:
    """Resolve the columns, types and functions of an expression. A mistake raises InputError, which shows where it is.

    `functions` are functions of the user, by name in lower case.

    >>> import pyarrow as pa
    >>> double = bind("fare * 2 as double_fare", pa.schema({"fare": pa.int64()}))
    >>> double.name, double.type
    ('double_fare', DataType(int64))
    """
    if not isinstance(expression, str):
        return _bind_function(expression, schema, where)
    place = TextSpan(expression, where, 0, len(expression))
    parsed = parse(place)
    binder = Binder(place, schema, {name: builder_of(function) for name, function in functions.items()})
    term = binder.bind(parsed.root)
    called = {name: functions[name] for name in sorted(binder.called)}
    name = parsed.alias or _own_name(term, parsed.root) or expression.strip()
    return BoundExpression(
        expression, schema, where, expression, name, term.type, term.nullable, term.columns, term, called
    )


class Condition(Protocol):
    """Anything that evaluates to a boolean for each row."""

    @property
    def type(self) -> pa.DataType: ...

    @property
    def text(self) -> str: ...

    @property
    def where(self) -> str: ...

    def evaluate(self, batch: pa.Table) -> pa.Array: ...


def filter_rows(condition: Condition, batch: B) -> B:
    """Return the rows for which the condition is true; null counts as false."""
    if condition.type != pa.bool_() and condition.type != pa.null():
        raise UnsupportedTypeError(
            f"a condition must be a boolean, but {condition.text!r} has the type {condition.type}",
            where=condition.where,
            fix=f"compare it: {condition.text} > 0",
        )
    holds = condition.evaluate(batch)
    if condition.type == pa.null():
        return batch.slice(0, 0)
    if holds.true_count == len(holds):  # most conditions of queries are that a time is not null
        return batch
    return batch.filter(holds, null_selection_behavior="drop")


def _own_name(term: Term, root: Node) -> str | None:
    """Return a column name as the schema spells it, or a field name as the text does."""
    if isinstance(term, ColumnTerm):
        return term.name
    if isinstance(root, Name):
        return root.parts[-1]
    return root.field if isinstance(root, FieldOf) else None


def _bind_again(
    source: Expression, schema: pa.Schema, where: str, functions: Mapping[str, UserFunction]
) -> BoundExpression:
    return bind(source, schema, where=where, functions=functions)


def _bind_function(
    value: SparkColumn | Callable[[pa.RecordBatch], pa.Array], schema: pa.Schema, where: str
) -> BoundExpression:
    if not callable(value):
        raise InputError(
            f"an expression must be SQL text or a function, got {value!r}",
            where=where,
            fix=misplaced(value) or "pass SQL text, or a function of a record batch",
        )
    function: Callable[[pa.RecordBatch], pa.Array] = value
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        pickle.dumps(function)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"the function {name} cannot be sent to other processes: {error}",
            where=where,
            fix="define it at module level, without references to open files or locks",
        ) from error
    empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
    kind = _called(function, empty, None, where).type
    return BoundExpression(function, schema, where, name, name, kind, True, frozenset(schema.names), None)


def _called(function: Expression, batch: pa.Table | pa.RecordBatch, kind: pa.DataType | None, where: str) -> pa.Array:
    """Call a user's function on a batch and check the type and length of its result."""
    assert not isinstance(function, str)
    if isinstance(batch, pa.Table):
        columns = [one_chunk(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        result = function(batch)
    except StatebedError:
        raise
    except Exception as error:
        raise ExpressionError(
            f"the function {name} raised {error_text(error)}",
            where=f"{where}; {raised_at(error)}" if where else raised_at(error),
            fix="see the traceback of its cause",
        ) from error
    if not isinstance(result, pa.Array | pa.ChunkedArray):
        raise InputError(
            f"the function {name} must return an Arrow array, got {type(result).__name__}",
            where=where,
            fix="return a pa.Array",
        )
    if len(result) != batch.num_rows:
        raise InputError(
            f"the function {name} returned {len(result)} values for {batch.num_rows} rows",
            where=where,
            fix="return one value for each row",
        )
    if kind is not None and result.type != kind:
        raise InputError(
            f"the function {name} returned {result.type}, but {kind} for an empty batch",
            where=where,
            fix="return the same type for every batch: pa.array(values, type=...)",
        )
    return one_chunk(result)
