"""Spark's analysed plan as Python values.

The plan is read once, as the JSON that Spark writes for it. Shapes are recognised in Python, without calls of the JVM.
A node or an expression has a handle of the JVM's object, which is looked up when it is first needed: to put an
expression into a plan of Spark's, or to ask for what the JSON leaves out.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from pyspark.sql import DataFrame

from statebed.spark.plan.source_plan import analysed_handle

Handle: TypeAlias = Any
"""An object of the JVM."""
Json: TypeAlias = Any
_ID = re.compile(r"#\d+L?(-T\d+ms)?")
_WHOLE = frozenset({"Literal", "NamedLambdaVariable"})
"""Expressions that the JSON describes, although it has a null for them."""
_MODES = frozenset({"evalContext", "evalMode"})
_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions"


@dataclass(eq=False)
class Expr:
    """An expression of an analysed plan."""

    kind: str
    """Name of its class, without the package."""
    package: str
    fields: dict[str, Json]
    children: list["Expr"]
    find: Callable[[], Handle] = field(repr=False)

    @cached_property
    def handle(self) -> Handle:
        return self.find()

    @property
    def child(self) -> "Expr":
        return self.children[0]

    @property
    def is_catalyst(self) -> bool:
        """Whether the class is one of Spark's own expressions."""
        return self.package.startswith(_EXPRESSIONS)

    @property
    def is_attribute(self) -> bool:
        return self.kind == "AttributeReference"

    @property
    def id(self) -> int:
        """Id of an attribute or an alias."""
        return int(self.fields["exprId"]["id"])

    @property
    def name(self) -> str:
        """Name of an attribute or an alias."""
        return str(self.fields["name"])

    @property
    def is_named(self) -> bool:
        return self.kind in {"AttributeReference", "Alias"}

    @property
    def value(self) -> "Expr":
        """The expression without the names around it."""
        return self.child.value if self.kind == "Alias" else self

    def part(self, name: str) -> "Expr":
        """Return an expression that is an argument, whether it is a child or not."""
        argument = self.fields[name]
        if isinstance(argument, int):
            return self.children[argument]
        return _tree(argument, lambda: _field(self.handle, name))

    def parts(self, name: str) -> list["Expr"]:
        """Return the expressions of an argument that is a sequence."""
        arguments = _sequence(self, name)
        if arguments and isinstance(arguments[0], int):
            return [self.children[place] for place in arguments]
        return [
            _tree(argument, _item(lambda: _field(self.handle, name), place)) for place, argument in enumerate(arguments)
        ]

    def walk(self) -> Iterator["Expr"]:
        """Yield the expression and everything in it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @cached_property
    def references(self) -> frozenset[int]:
        """Ids of the attributes that it reads."""
        return frozenset(node.id for node in self.walk() if node.is_attribute)

    @cached_property
    def mode(self) -> str:
        """Treatment of overflows and bad values: ANSI, LEGACY or TRY, which the JSON leaves out."""
        holder = self.handle.evalContext() if "evalContext" in self.fields else self.handle
        return str(holder.evalMode().toString())

    @property
    def sql(self) -> str:
        """The expression as Spark prints it, for errors."""
        return str(self.handle.sql())

    @cached_property
    def type_json(self) -> Json:
        """The type in Spark's JSON."""
        if "dataType" in self.fields:
            return self.fields["dataType"]
        return json.loads(self.handle.dataType().json())

    @cached_property
    def key(self) -> tuple[Any, ...]:
        """A value that is equal for expressions that compute the same."""
        if self.is_attribute:
            return ("attribute", self.id)
        if self.kind == "Alias":
            return self.child.key
        own = {
            name: value
            for name, value in self.fields.items()
            if name not in {"num-children", "class", "resultId", "exprId"} and not _is_tree(value)
        }
        modal = self.mode if _MODES & self.fields.keys() else ""
        # Spark writes null for functions, options and characters, and the plan of a sub-query is no child.
        left_out = {name for name, value in self.fields.items() if value is None} - _MODES
        is_whole = self.kind in _WHOLE or not (left_out or "plan" in self.fields)
        hashed = 0 if is_whole else int(self.handle.semanticHash())
        return (self.kind, json.dumps(own, sort_keys=True), modal, hashed, *(child.key for child in self.children))


@dataclass(eq=False)
class PlanNode:
    """A node of an analysed plan."""

    kind: str
    fields: dict[str, Json]
    children: list["PlanNode"]
    find: Callable[[], Handle] = field(repr=False)

    @cached_property
    def handle(self) -> Handle:
        return self.find()

    @property
    def child(self) -> "PlanNode":
        return self.children[0]

    def walk(self) -> Iterator["PlanNode"]:
        """Yield the node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def expression(self, name: str) -> Expr:
        """Return the expression of a field."""
        return _tree(self.fields[name], lambda: _field(self.handle, name))

    def optional(self, name: str) -> Expr | None:
        """Return the expression of a field that may be missing."""
        content = self.fields.get(name)
        return _tree(content, lambda: _field(self.handle, name).get()) if content else None

    def expressions(self, name: str) -> list[Expr]:
        """Return the expressions of a field that is a sequence."""
        if name not in self._sequences:
            self._sequences[name] = [
                _tree(content, _item(lambda: _field(self.handle, name), place))
                for place, content in enumerate(_sequence(self, name))
            ]
        return self._sequences[name]

    def nested_expression(self, name: str, *places: int) -> Expr | None:
        """Return one expression of a field that is a sequence of sequences; None if it is empty."""
        content = self.fields[name]
        for place in places:
            if content is None:
                break
            if place >= len(content):
                return None
            content = content[place]

        def find() -> Handle:
            handle = _field(self.handle, name)
            for place in places:
                handle = handle.apply(place)
            return handle

        # Spark writes null for sequences that are not lists, such as those over a union.
        return _tree(json.loads(find().toJSON()) if content is None else content, find)

    @cached_property
    def _sequences(self) -> dict[str, list[Expr]]:
        return {}

    @cached_property
    def is_streaming(self) -> bool:
        if not self.children:
            return bool(self.handle.isStreaming())
        return any(child.is_streaming for child in self.children)

    @cached_property
    def schema_json(self) -> Json:
        """The schema of its rows, in Spark's JSON."""
        return json.loads(self.handle.schema().json())

    def described(self) -> str:
        """The node as Spark prints it, on one line, without the ids of attributes."""
        return _ID.sub("", str(self.handle.simpleString(25)).splitlines()[0].lstrip("~"))[:200]


def conjuncts(e: Expr) -> Iterator[Expr]:
    """Yield the conditions that must all hold."""
    if e.kind == "And":
        for child in e.children:
            yield from conjuncts(child)
    else:
        yield e


def analysed_plan(df: DataFrame) -> PlanNode:
    """Read the analysed plan of a DataFrame."""
    return plan_of(analysed_handle(df))


def plan_of(handle: Handle) -> PlanNode:
    """Read a plan of the JVM's."""
    items = iter(json.loads(handle.toJSON()))
    return _plan(items, lambda: handle)


def _plan(items: Iterator[Json], find: Callable[[], Handle]) -> PlanNode:
    item = next(items)
    node = PlanNode(item["class"].rpartition(".")[2].rstrip("$"), item, [], find)
    for place in range(item["num-children"]):
        node.children.append(_plan(items, _child(node, place)))
    return node


def _tree(items: Sequence[Json], find: Callable[[], Handle]) -> Expr:
    return _expression(iter(items), find)


def _expression(items: Iterator[Json], find: Callable[[], Handle]) -> Expr:
    item = next(items)
    package, _, kind = item["class"].rpartition(".")
    expression = Expr(kind.rstrip("$"), package, item, [], find)
    for place in range(item["num-children"]):
        expression.children.append(_expression(items, _child(expression, place)))
    return expression


def _sequence(owner: "Expr | PlanNode", name: str) -> list[Json]:
    """Return the trees of a sequence of expressions, for which Spark writes null if it is not a list."""
    contents: list[Json] | None = owner.fields[name]
    if contents is not None:
        return contents
    sequence = _field(owner.handle, name)
    return [json.loads(sequence.apply(place).toJSON()) for place in range(sequence.size())]


def _field(handle: Handle, name: str) -> Handle:
    return getattr(handle, name)()


def _child(parent: "Expr | PlanNode", place: int) -> Callable[[], Handle]:
    return lambda: parent.handle.children().apply(place)


def _item(sequence: Callable[[], Handle], place: int) -> Callable[[], Handle]:
    return lambda: sequence().apply(place)


def _is_tree(value: Json) -> bool:
    """Return whether a field holds expressions, or their positions among the children."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict | list) and "class" in str(value)[:12]
