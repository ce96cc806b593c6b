"""Binding of aggregates to the columns of a stream: compiles their inputs and infers their types."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from statebed.aggregates.aggregate import Aggregate, BoundAggregate, EventTime
from statebed.aggregates.partials import input_column
from statebed.errors import InputError
from statebed.flow.steps import AggregateValue, EventTimeValue, Expression, Value
from statebed.format.stream_schema import Changes

Bind = Callable[[Any, str], Expression]
"""Binds an expression of the user, given with its place for errors."""
Bound = tuple[tuple[BoundAggregate, ...], tuple[tuple[str, Value], ...]]


def bind_aggregates(aggregates: Mapping[str, Aggregate], bind: Bind, changes: Changes, *, where: str) -> Bound:
    """Return the aggregates as subtasks run them, and the values of their input columns."""
    if not aggregates:
        raise InputError("agg() has no aggregate", where=where, fix="write agg(trips=sb.count())")
    bound: list[BoundAggregate] = []
    values: list[tuple[str, Value]] = []
    for position, (name, aggregate) in enumerate(aggregates.items()):
        place = f"{where}, aggregate {name!r}"
        if not isinstance(aggregate, Aggregate):
            raise InputError(
                f"{aggregate!r} is not a statebed aggregate", where=place, fix="use sb.count() or sb.sum('column')"
            )
        inputs = tuple(EventTimeValue() if isinstance(one, EventTime) else bind(one, place) for one in aggregate.inputs)
        condition = None if aggregate.where is None else _condition(aggregate.where, bind, place)
        one = aggregate.bind(
            name,
            input_types=tuple(value.type for value in inputs),
            text=_text(aggregate, inputs),
            changelog=changes is Changes.CHANGELOG,
        )
        bound.append(one)
        # After an operator the values are sent with tasks, and a Spark Column cannot be sent.
        sent = replace(
            aggregate,
            inputs=tuple(getattr(value, "text", "") for value in inputs),
            where=None if condition is None else condition.text,
        )
        values += [
            (input_column(position, part), AggregateValue(sent, part, inputs, condition, kind))
            for part, kind in enumerate(one.input_types)
        ]
    return tuple(bound), tuple(values)


def _condition(text: str, bind: Bind, where: str) -> Expression:
    condition = bind(text, where)
    if condition.type != pa.bool_():
        raise InputError(
            f"where={text!r} must be a boolean, but has the type {condition.type}",
            where=where,
            fix="compare it: where=\"status = 'ok'\"",
        )
    return condition


def _text(aggregate: Aggregate, inputs: Sequence[Value]) -> str:
    texts = [one.value if isinstance(one, EventTime) else str(one) for one in aggregate.inputs]
    # A Spark Column has its own text; SQL text is shown as the user wrote it.
    said = [getattr(value, "text", text) for value, text in zip(inputs, texts, strict=True)]
    return ", ".join(said) + ("" if aggregate.where is None else f" where {aggregate.where}")
