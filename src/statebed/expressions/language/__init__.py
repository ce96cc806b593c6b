"""Parser of the expression language: from text to a syntax tree. It does not know columns or their types."""

from statebed.expressions.language.parser import parse
from statebed.expressions.language.tree import (
    Call,
    Case,
    Cast,
    FieldOf,
    Lambda,
    Literal,
    Name,
    Node,
    Parsed,
    TimeLiteral,
)

__all__ = ["Call", "Case", "Cast", "FieldOf", "Lambda", "Literal", "Name", "Node", "Parsed", "TimeLiteral", "parse"]
