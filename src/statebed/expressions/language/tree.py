"""Syntax tree. Operators are calls: `a + b` is Call("+", (a, b))."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Node:
    """A node, which spans the text from `start` up to, but not including, `end`."""

    start: int
    end: int


@dataclass(frozen=True)
class Literal(Node):
    """A literal value."""

    value: object
    type: pa.DataType


@dataclass(frozen=True)
class TimeLiteral(Node):
    """`timestamp '...'` or `date '...'`: text that is parsed as a time."""

    content: str
    type: pa.DataType


@dataclass(frozen=True)
class Name(Node):
    """A column, or a field of a struct column."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Call(Node):
    """A function or an operator with its operands."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Lambda(Node):
    """A lambda function, `x -> x + 1` or `(x, y) -> x + y`; only some functions accept one."""

    parameters: tuple[str, ...]
    body: Node


@dataclass(frozen=True)
class FieldOf(Node):
    """A field of a struct that is not a plain column."""

    operand: Node
    field: str


@dataclass(frozen=True)
class Cast(Node):
    """A conversion to a named type; a lenient one returns null for values that cannot be converted."""

    operand: Node
    type: pa.DataType
    lenient: bool


@dataclass(frozen=True)
class Case(Node):
    """A `case`: the value of the first condition that is true."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


@dataclass(frozen=True)
class Parsed:
    """A parsed text: the expression and the name that `as` gives it."""

    root: Node
    alias: str | None
    names: tuple[str, ...] = ()
    """Names of several columns: `explode(map) as (k, v)`."""
