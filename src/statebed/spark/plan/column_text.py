"""Conversion of a Spark Column to SQL text of statebed's expressions, for streams after an operator.

The text is built from the tree of a Column (`ColumnNode`, the same in Spark 4.1, 4.2 and 4.3), not from Spark's own
rendering, which writes operators as functions and literals without their types. Where that rendering is valid, the text
is the same, because definitions of operators store it.
"""

import datetime as dt
import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from py4j.protocol import Py4JError

from statebed.errors import InputError
from statebed.expressions import FUNCTIONS
from statebed.flow.keys import quoted

_INFIX = frozenset({"+", "-", "*", "/", "%", "=", "<", "<=", ">", ">=", "<=>", "and", "or", "||", "div"}) | {
    "&",
    "|",
    "^",
}
_CHAINED = frozenset({"+", "-", "*", "/", "%", "and", "or", "||"})
"""Left-associative operators, a chain of which needs no parentheses."""
_RENAMED = {"==": "=", "!": "not", "u-": "negative"}
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNIX_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_FIX = "write it as SQL text with functions of docs/reference/expressions.md, or compute it before the first operator"


def column_text(column: Any, *, where: str) -> str:
    """Return the SQL text of a Column. Raise InputError for what statebed's expressions do not support."""
    node = column._jc.node()  # noqa: SLF001 - there is no public way to a Column's tree
    return _Writer(where).whole(node)


class _Writer:
    """Writes the text of one Column."""

    def __init__(self, where: str) -> None:
        self._where = where

    def whole(self, node: Any) -> str:
        if _kind(node) == "SqlExpression":
            return str(node.expression())
        if _kind(node) == "Alias":
            return f"{self.text(node.child())} AS {_name(self._alias(node))}"
        return self.text(node)

    def text(self, node: Any) -> str:
        """Return the text of a part, in parentheses where it needs them."""
        text, operator = self._part(node)
        return text if operator is None else f"({text})"

    def _part(self, node: Any) -> tuple[str, str | None]:  # noqa: PLR0911, C901 - one for each kind of node
        """Return the text of a part, and its top-level operator if that may need parentheses."""
        match _kind(node):
            case "UnresolvedFunction":
                return self._function(str(node.functionName()), list(_elements(node.arguments())))
            case "UnresolvedAttribute":
                return ".".join(_name(str(part)) for part in _elements(node.nameParts())), None
            case "Literal":
                return self._literal(node), None
            case "Alias":
                return self._part(node.child())
            case "SqlExpression":
                return f"({node.expression()})", None
            case "UnresolvedExtractValue":
                return f"{self.text(node.child())}[{self.text(node.extraction())}]", None
            case "Cast":
                return self._cast(node), None
            case "CaseWhenOtherwise":
                return self._case(node), None
            case "LambdaFunction":
                return self._lambda(node), None
            case "UnresolvedNamedLambdaVariable":
                return _name(str(node.name())), None
            case other:
                raise self._refused(_DESCRIBED.get(other, other))

    def _function(self, written: str, arguments: list[Any]) -> tuple[str, str | None]:
        name = _RENAMED.get(written, written.lower())
        if name in _INFIX and len(arguments) == 2:  # noqa: PLR2004 - a binary operator
            left, operator = self._part(arguments[0])
            is_chain = operator == name and name in _CHAINED
            first = left if operator is None or is_chain else f"({left})"
            return f"{first} {name} {self.text(arguments[1])}", name
        if name == "struct":
            fields = [self._field(argument) for argument in arguments]
            return f"struct({', '.join(fields)})", None
        if name not in FUNCTIONS:
            raise self._refused(f"the function {written}")
        if name == "~":
            return f"~{self.text(arguments[0])}", name
        shown = name if written in _RENAMED else written
        return f"{shown}({', '.join(self.text(argument) for argument in arguments)})", None

    def _lambda(self, node: Any) -> str:
        parameters = ", ".join(_name(str(variable.name())) for variable in _elements(node.arguments()))
        return f"({parameters}) -> {self.text(node.function())}"

    def _field(self, node: Any) -> str:
        if _kind(node) == "Alias":
            return f"{self.text(node.child())} AS {_name(self._alias(node))}"
        return self.text(node)

    def _alias(self, node: Any) -> str:
        names = [str(name) for name in _elements(node.name())]
        if len(names) != 1:
            raise self._refused(f"an alias of {len(names)} names")
        return names[0]

    def _cast(self, node: Any) -> str:
        mode = node.evalMode()
        lenient = mode.isDefined() and "Try" in str(mode.get().toString())
        return f"{'TRY_CAST' if lenient else 'CAST'}({self.text(node.child())} AS {node.dataType().sql()})"

    def _case(self, node: Any) -> str:
        branches = [
            f"WHEN {self.text(branch._1())} THEN {self.text(branch._2())}"  # noqa: SLF001 - a Scala tuple
            for branch in _elements(node.branches())
        ]
        last = node.otherwise()
        otherwise = [f"ELSE {self.text(last.get())}"] if last.isDefined() else []
        return " ".join(["CASE", *branches, *otherwise, "END"])

    def _literal(self, node: Any) -> str:
        text = self._value(node.value(), str(node.sql()))
        kind = node.dataType()
        return f"CAST({text} AS {kind.get().sql()})" if kind.isDefined() else text

    def _value(self, value: Any, shown: str) -> str:  # noqa: PLR0911 - one for each type
        match value:
            case None:
                return "null"
            case bool():
                return "true" if value else "false"
            case int():
                return shown  # with the suffix of its type, which Python does not have
            case float():
                return f"{value!r}D" if math.isfinite(value) else f"cast('{value}' as double)"
            case Decimal():
                return f"{value:f}BD"
            case str():
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                return f"'{escaped}'"
            case bytes() | bytearray():
                return f"X'{bytes(value).hex().upper()}'"
        return self._object(value)

    def _object(self, value: Any) -> str:
        """Return the text of a literal that has no counterpart in Python: a time or an interval."""
        try:
            name = str(value.getClass().getName())
        except (AttributeError, TypeError, Py4JError):
            raise self._refused(f"a literal of the type {type(value).__name__}") from None
        match name:
            case "java.math.BigDecimal" | "java.math.BigInteger":
                return f"{value.toPlainString()}BD"
            case "java.sql.Date" | "java.time.LocalDate":
                return f"date '{value.toString()}'"
            case "java.sql.Timestamp":
                seconds, nanos = int(value.getTime()) // 1000, int(value.getNanos())
                return _timestamp(seconds * 1_000_000 + nanos // 1000)
            case "java.time.Instant":
                return _timestamp(int(value.getEpochSecond()) * 1_000_000 + int(value.getNano()) // 1000)
            case "java.time.LocalDateTime":
                return f"timestamp_ntz '{value.toString()}'"
            case "java.time.Duration":
                return f"interval {int(value.toNanos()) // 1000} microseconds"
        raise self._refused(f"a literal of the type {name}")

    def _refused(self, what: str) -> InputError:
        return InputError(f"{what} cannot be used in a Column after an operator", where=self._where, fix=_FIX)


_DESCRIBED = {
    "UnresolvedStar": "'*'",
    "UnresolvedRegex": "a pattern of column names",
    "UnresolvedDataFrameStar": "'*'",
    "Window": "a window function (over)",
    "SortOrder": "a sort order (asc, desc)",
    "UpdateFields": "the method withField or dropFields",
    "ExpressionColumnNode": "a Python UDF or an expression of Spark's internals",
    "InvokeInlineUserDefinedFunction": "a user-defined function",
    "LazyExpression": "a lazy expression",
    "SubqueryExpression": "a subquery",
}


def _name(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else quoted(name)


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _elements(sequence: Any) -> Iterator[Any]:
    """Yield the elements of a Scala sequence."""
    for place in range(sequence.size()):
        yield sequence.apply(place)


def _timestamp(time_us: int) -> str:
    return (
        f"timestamp '{(_UNIX_EPOCH + dt.timedelta(microseconds=time_us)).isoformat(sep=' ', timespec='microseconds')}'"
    )
