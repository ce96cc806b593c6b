"""The language: from text to a tree. It knows nothing of columns and types of columns."""

from statebed.expressions.language.parser import parse
from statebed.expressions.language.tree import Call, Case, Cast, FieldOf, Literal, Name, Node, Parsed, TimeLiteral

__all__ = ["Call", "Case", "Cast", "FieldOf", "Literal", "Name", "Node", "Parsed", "TimeLiteral", "parse"]
