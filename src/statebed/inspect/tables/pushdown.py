"""Pushdown of conditions on keys and times, to read less. The condition itself is also applied to every row.

Supported are conjuncts of a text: equality of a key column with a constant or a list, if the constants have the type of
the column, and comparisons of `_time` with a timestamp.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.language import Call, Literal, Name, Node, TimeLiteral, parse
from statebed.expressions.mistakes import TextSpan
from statebed.format.schema import TIME
from statebed.inspect.tables.request import Request, instant_us
from statebed.inspect.tables.table_shape import GLOBAL_KEYED

MAX_KEYS = 10_000
"""Maximum number of keys that are looked up individually."""
_TURNED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def narrowed(request: Request, condition: str) -> Request:
    """Return the request restricted to the keys and times of a text condition."""
    equal: dict[str, list[Any]] = {}
    for conjunct in _conjuncts(parse(TextSpan(condition, "", 0, len(condition))).root):
        equality = _equality(conjunct, request)
        if equality is not None:
            equal.setdefault(*equality)
        for sign, at in _comparisons(conjunct):
            start, end = span_of(sign, at)
            request = request.between(start, end) if request.shape.timed else request
    return by_keys(request, equal) or request


def by_keys(request: Request, equal: Mapping[str, Sequence[Any]]) -> Request | None:
    """Restrict to the keys with one of these values in each column. Return None if they do not determine keys."""
    shape = request.shape
    if shape.kind == GLOBAL_KEYED or not shape.keys or not all(name in equal for name in shape.keys):
        return None
    if math.prod(len(equal[name]) for name in shape.keys) > MAX_KEYS:
        return None
    try:
        return request.of_keys(itertools.product(*(equal[name] for name in shape.keys)))
    except InputError:
        return None  # another type: the comparison itself decides what it means


def span_of(sign: str, at_us: int) -> tuple[int | None, int | None]:
    """Return the times for which a comparison holds, as start (inclusive) and end (exclusive)."""
    return {
        "=": (at_us, at_us + 1),
        ">": (at_us + 1, None),
        ">=": (at_us, None),
        "<": (None, at_us),
        "<=": (None, at_us + 1),
    }[sign]


def _conjuncts(node: Node) -> Iterator[Node]:
    if isinstance(node, Call) and node.function == "and":
        for part in node.arguments:
            yield from _conjuncts(part)
    else:
        yield node


def _equality(node: Node, request: Request) -> tuple[str, list[Any]] | None:
    """Return a key column and its possible values, or None if the node is no such condition."""
    if not isinstance(node, Call) or node.function not in {"=", "in"}:
        return None
    left, *others = node.arguments
    if node.function == "=" and not isinstance(left, Name):
        left, others = others[0], [left]
    if not isinstance(left, Name) or len(left.parts) != 1 or left.parts[0] not in request.shape.keys:
        return None
    kind = request.shape.schema.field(left.parts[0]).type
    values = [literal.value for literal in others if isinstance(literal, Literal) and _is_of(literal.value, kind)]
    return (left.parts[0], values) if len(values) == len(others) else None


def _is_of(value: Any, kind: pa.DataType) -> bool:
    if isinstance(value, bool):
        return bool(pa.types.is_boolean(kind))
    if isinstance(value, int):
        return bool(pa.types.is_integer(kind))
    return isinstance(value, str) and bool(pa.types.is_string(kind))


def _comparisons(node: Node) -> Iterator[tuple[str, int]]:
    """Yield comparisons of the rows' time with a constant."""
    if not isinstance(node, Call) or not all(isinstance(argument, Name | TimeLiteral) for argument in node.arguments):
        return
    if node.function == "between":
        time, low, high = node.arguments
        pairs = [(">=", time, low), ("<=", time, high)]
    elif node.function in _TURNED:
        left, right = node.arguments
        turned = isinstance(left, TimeLiteral)
        pairs = [(_TURNED[node.function], right, left) if turned else (node.function, left, right)]
    else:
        return
    for sign, name, constant in pairs:
        if isinstance(name, Name) and name.parts == (TIME,) and isinstance(constant, TimeLiteral):
            try:
                yield sign, instant_us(constant.content)
            except InputError:
                continue  # a time format that only the condition itself understands
