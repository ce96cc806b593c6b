"""The tree that a text is parsed to. Operators are calls: `a + b` is Call("+", (a, b))."""

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class Node:
    """A part of the text, from `start` to before `end`."""

    start: int
    end: int


@dataclass(frozen=True)
class Literal(Node):
    """A value that stands in the text."""

    value: object
    type: pa.DataType


@dataclass(frozen=True)
class TimeLiteral(Node):
    """`timestamp '...'`, `date '...'`: a text that is read as a time."""

    content: str
    type: pa.DataType


@dataclass(frozen=True)
class Name(Node):
    """A column, or a field of a column that is a struct."""

    parts: tuple[str, ...]


@dataclass(frozen=True)
class Call(Node):
    """A function or an operator with its operands."""

    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class FieldOf(Node):
    """A field of a struct that is not a plain column."""

    operand: Node
    field: str


@dataclass(frozen=True)
class Cast(Node):
    """A conversion to a named type; a lenient one gives null where a value cannot be converted."""

    operand: Node
    type: pa.DataType
    lenient: bool


@dataclass(frozen=True)
class Case(Node):
    """The value of the first condition that holds."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


@dataclass(frozen=True)
class Parsed:
    """A whole text: an expression and the name that `as` gives it."""

    root: Node
    alias: str | None
