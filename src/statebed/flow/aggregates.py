"""Aggregates bound to the columns of a stream: what they read is compiled, their types are found."""

from collections.abc import Mapping

import pyarrow as pa

from statebed.errors import InputError
from statebed.flow.steps import AggregateValue, EventTimeValue, Value
from statebed.operators.aggregates import Aggregate, BoundAggregate, EventTime
from statebed.operators.expressions import BoundExpression, bind
from statebed.operators.operator import Changes, Output
from statebed.operators.partials import input_column

Bound = tuple[tuple[BoundAggregate, ...], tuple[tuple[str, Value], ...]]


def bind_aggregates(aggregates: Mapping[str, Aggregate], stream: Output, *, where: str) -> Bound:
    """The aggregates as subtasks run them, and the values of their input columns."""
    if not aggregates:
        raise InputError("agg() has no aggregate", where=where, fix="write agg(trips=sb.count())")
    bound: list[BoundAggregate] = []
    values: list[tuple[str, Value]] = []
    for position, (name, aggregate) in enumerate(aggregates.items()):
        place = f"{where}, aggregate {name!r}"
        if not isinstance(aggregate, Aggregate):
            raise InputError(
                f"{aggregate!r} is no aggregate of statebed", where=place, fix="use sb.count() or sb.sum('column')"
            )
        inputs = _values(aggregate, stream, place)
        condition = None if aggregate.where is None else _condition(aggregate.where, stream.columns, place)
        one = aggregate.bind(
            name,
            input_types=tuple(value.type for value in inputs),
            text=_text(aggregate),
            changelog=stream.changes is Changes.CHANGELOG,
        )
        bound.append(one)
        values += [
            (input_column(position, part), AggregateValue(aggregate, part, inputs, condition, kind))
            for part, kind in enumerate(one.input_types)
        ]
    return tuple(bound), tuple(values)


def _values(aggregate: Aggregate, stream: Output, where: str) -> tuple[Value, ...]:
    return tuple(
        EventTimeValue() if isinstance(one, EventTime) else bind(one, stream.columns, where=where)
        for one in aggregate.inputs
    )


def _condition(text: str, columns: pa.Schema, where: str) -> BoundExpression:
    condition = bind(text, columns, where=where)
    if condition.type != pa.bool_():
        raise InputError(
            f"where={text!r} is {condition.type}, and no condition",
            where=where,
            fix="compare it: where=\"status = 'ok'\"",
        )
    return condition


def _text(aggregate: Aggregate) -> str:
    inputs = ", ".join(str(one.value if isinstance(one, EventTime) else one) for one in aggregate.inputs)
    return inputs if aggregate.where is None else f"{inputs} where {aggregate.where}"
