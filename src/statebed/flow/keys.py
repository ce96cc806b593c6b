"""Keys, orders and names as users write them."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from statebed.argument_checks import misplaced
from statebed.arrays.sort_order import OrderBy, order_by
from statebed.errors import InputError
from statebed.flow.steps import Expression

_INPUT = re.compile(r"_a\d", re.IGNORECASE)
OrderTerms = str | OrderBy | Sequence[str | OrderBy]


def key_fields(keys: Sequence[Expression]) -> tuple[pa.Field, ...]:
    """Return the key columns of an aggregation; raise InputError for names reserved for its input columns."""
    for key in keys:
        if _INPUT.match(key.name):
            raise InputError(
                f"the key name {key.name!r} is reserved", where=key.where, fix="rename the key: 'column as other_name'"
            )
    return tuple(pa.field(key.name, key.type) for key in keys)


def key_values(keys: Sequence[Expression]) -> list[tuple[str, Expression]]:
    """Return names and expressions of the keys."""
    return [(key.name, key) for key in keys]


def keyed_columns(columns: pa.Schema, keys: Sequence[Expression]) -> pa.Schema:
    """Return the columns, followed by the keys that are not among them."""
    return pa.schema([*columns, *(pa.field(key.name, key.type) for key in keys if key.name not in columns.names)])


def ordered_by(by: OrderTerms) -> tuple[OrderBy, ...]:
    """Parse an order: 'price desc', 'price desc, ts', or several terms."""
    several = [by] if isinstance(by, str | OrderBy) else by
    if (
        not isinstance(several, Iterable)
        or isinstance(several, Mapping)
        or not all(isinstance(term, str | OrderBy) for term in several)
    ):
        raise InputError(
            f"an order is text such as 'price desc', got {by!r}", fix=misplaced(by) or "write 'price desc, ts'"
        )
    return order_by(*(term for order in several for term in (order.split(",") if isinstance(order, str) else [order])))


def known(value: str, kinds: type[enum.Enum], option: str, *, where: str) -> str:
    """Return the value of an option; raise InputError if it is not one of `kinds`."""
    there = [str(kind.value) for kind in kinds]
    if value not in there:
        raise InputError(f"`{option}` must be one of {there}, got {value!r}", where=where, fix=f"use {there[0]!r}")
    return value


def quoted(name: str) -> str:
    """Return a column name quoted for SQL."""
    return f"`{name.replace('`', '``')}`"
