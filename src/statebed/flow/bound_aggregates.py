"""Aggregates bound to the columns of a stream: what they read is compiled, their types are found."""

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
"""From what a user wrote, and where, to a value."""
Bound = tuple[tuple[BoundAggregate, ...], tuple[tuple[str, Value], ...]]


def bind_aggregates(aggregates: Mapping[str, Aggregate], bind: Bind, changes: Changes, *, where: str) -> Bound:
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
        inputs = tuple(EventTimeValue() if isinstance(one, EventTime) else bind(one, place) for one in aggregate.inputs)
        condition = None if aggregate.where is None else _condition(aggregate.where, bind, place)
        one = aggregate.bind(
            name,
            input_types=tuple(value.type for value in inputs),
            text=_text(aggregate, inputs),
            changelog=changes is Changes.CHANGELOG,
        )
        bound.append(one)
        # Behind an operator the values travel with tasks, and a Column of Spark's cannot.
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
            f"where={text!r} is {condition.type}, and no condition",
            where=where,
            fix="compare it: where=\"status = 'ok'\"",
        )
    return condition


def _text(aggregate: Aggregate, inputs: Sequence[Value]) -> str:
    texts = [one.value if isinstance(one, EventTime) else str(one) for one in aggregate.inputs]
    # A Column of Spark's says itself what it is; text is as the user wrote it.
    said = [getattr(value, "text", text) for value, text in zip(inputs, texts, strict=True)]
    return ", ".join(said) + ("" if aggregate.where is None else f" where {aggregate.where}")
