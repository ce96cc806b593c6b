"""Type checking: resolves every node of a syntax tree against a schema and rejects what has no type."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.casts import convert, in_working_type
from statebed.expressions.column_names import index_of_name, near_match
from statebed.expressions.functions import FUNCTIONS
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.functions.conditions import as_condition, choose
from statebed.expressions.functions.nested import field_of
from statebed.expressions.language import Call, Case, Cast, FieldOf, Lambda, Literal, Name, Node, TimeLiteral
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.sites import Builder, LambdaBody, LambdaSite, Site
from statebed.expressions.terms import ColumnTerm, Constant, Term, constant

_aggregate_names: dict[str, str] = {}
"""SQL aggregates, and the name of each in statebed."""
_CHANGING = frozenset(
    ["now", "current_timestamp", "current_date", "current_time", "rand", "random", "randn", "uuid", "shuffle"]
)

GENERATORS = frozenset(
    ["explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "unnest"]
)
"""Functions that make several rows of one."""
_DEEPEST = 100


def name_aggregates(names: Mapping[str, str]) -> None:
    """Set the names of aggregates, and of statebed's functions for them, so that errors can point to those."""
    _aggregate_names.update(names)


class Binder:
    """Binds the syntax trees of one text to one schema."""

    def __init__(self, place: TextSpan, schema: pa.Schema, own: Mapping[str, Builder] | None = None) -> None:
        self.place = place
        self.own = own or {}
        """Functions of the user, which come before those of the language."""
        self.called: set[str] = set()
        """Functions of the user that were called."""
        self.schema = schema
        self.depth = 0
        self.scopes: list[dict[str, ColumnTerm]] = []
        """Parameters of the lambda functions around a node, by lower-case name; the innermost function is last."""

    def bind(self, node: Node) -> Term:
        """Return the term of a node; a column keeps its own type."""
        place = self.place.at(node.start, node.end)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise place.mistake("the expression is nested too deeply", fix="compute parts of it as separate columns")
        term = self._bound(node, place)
        self.depth -= 1
        return term

    def _bound(self, node: Node, place: TextSpan) -> Term:  # noqa: PLR0911 - one for each kind of node
        match node:
            case Literal(value=value, type=kind):
                return constant(place, value, kind, literal=True)
            case TimeLiteral(content=content, type=kind):
                return self._time(place, content, kind)
            case Name(parts=parts):
                return self._name(place, parts)
            case FieldOf(operand=operand, field=field):
                return field_of(place, self.bind(operand), field)
            case Cast(operand=operand, type=kind, lenient=lenient):
                return _computed(convert(self.operand(operand), kind, place=place, lenient=lenient))
            case Case(branches=branches, otherwise=otherwise):
                return self._case(place, branches, otherwise)
            case Call(function=function, arguments=arguments):
                return self._call(place, function, arguments)
            case Lambda():
                raise place.mistake("a lambda function is only possible as an argument of functions such as transform")
        raise TypeError(f"a node of an unknown kind: {node}")

    def operand(self, node: Node) -> Term:
        """Return the term of a node, converted to a type that functions accept."""
        return in_working_type(self.bind(node))

    def _time(self, place: TextSpan, content: str, kind: pa.DataType) -> Term:
        term = convert(constant(place, content, types.TEXT), kind)
        if term.constant is None:
            raise place.mistake(f"{content!r} is not a {types.type_name(kind)}", fix="write it as 2024-05-31 23:59:59")
        return term

    def _name(self, place: TextSpan, parts: tuple[str, ...]) -> Term:
        scope = next((scope for scope in reversed(self.scopes) if parts[0].lower() in scope), None)
        term: Term = self._column(place, parts[0]) if scope is None else replace(scope[parts[0].lower()], place=place)
        for part in parts[1:]:
            term = field_of(place, term, part)
        return term

    def _column(self, place: TextSpan, name: str) -> ColumnTerm:
        index = index_of_name(place, self.schema.names, name, kind="column")
        field = self.schema.field(index)
        if self.schema.names.count(field.name) > 1:
            raise place.mistake(f"the column {field.name!r} is ambiguous: several columns have this name")
        return ColumnTerm(place, field.type, field.nullable, False, frozenset({field.name}), field.name)

    def _lambda(self, node: Lambda) -> LambdaSite:
        place = self.place.at(node.start, node.end)

        def bound(*types_of_parameters: tuple[pa.DataType, bool]) -> LambdaBody:
            # A name that no column has, and that tells nested functions with equal parameters apart.
            columns = tuple(f"\0{len(self.scopes)} {name.lower()}" for name in node.parameters)
            terms = (
                ColumnTerm(place, kind, nullable, False, frozenset({column}), column)
                for column, (kind, nullable) in zip(columns, types_of_parameters, strict=True)
            )
            self.scopes.append(dict(zip((name.lower() for name in node.parameters), terms, strict=True)))
            try:
                return LambdaBody(columns, self.operand(node.body))
            finally:
                self.scopes.pop()

        return LambdaSite(place, len(node.parameters), bound)

    def _case(self, place: TextSpan, branches: tuple[tuple[Node, Node], ...], otherwise: Node | None) -> Term:
        conditions_ = [as_condition(self.operand(condition), "when") for condition, _ in branches]
        last = constant(place, None, types.NULL) if otherwise is None else self.operand(otherwise)
        site = Site(place, "case", (*(self.operand(value) for _, value in branches), last))
        *values, last = in_common_type(site, *site.operands)
        return choose(place, list(zip(conditions_, values, strict=True)), last)

    def _call(self, place: TextSpan, function: str, arguments: tuple[Node, ...]) -> Term:
        builder = self.own.get(function) or FUNCTIONS.get(function)
        self.called |= {function} & self.own.keys()
        if builder is None:
            raise self._unknown(place, function)
        lambdas = tuple(self._lambda(argument) for argument in arguments if isinstance(argument, Lambda))
        operand_count = len(arguments) - len(lambdas)
        misplaced = any(isinstance(argument, Lambda) for argument in arguments[:operand_count])
        if (
            not builder.min_operands <= operand_count <= builder.max_operands
            or len(lambdas) not in builder.lambdas
            or misplaced
        ):
            but = f"{operand_count}, and {len(lambdas)} lambda functions" if lambdas else str(operand_count)
            raise place.mistake(f"{function} takes {builder.takes()}, got {but}")
        operands = tuple(self.operand(argument) for argument in arguments[:operand_count])
        return _computed(builder.build(Site(place, function, operands, lambdas)))

    def _unknown(self, place: TextSpan, function: str) -> Exception:
        if function in _aggregate_names:
            fix = f"use sb.{_aggregate_names[function]} in an aggregation; an expression sees one row at a time"
            return place.mistake(f"{function} is an aggregate, which a row-by-row expression cannot contain", fix=fix)
        if function in _CHANGING:
            fix = "use a column instead, such as the event time"
            return place.mistake(
                f"{function} is not deterministic, but an epoch that is repeated must give the same rows", fix=fix
            )
        if function in GENERATORS:
            fix = f"write it alone in a select, as select('*', '{function}(items)'), or use stream.explode"
            return place.mistake(f"{function} makes several rows and cannot be part of an expression", fix=fix)
        near = near_match((name for name in (*self.own, *FUNCTIONS) if name.isidentifier()), function)
        fix = (f"did you mean {near}? " if near else "") + "a Python function over batches works as well"
        return place.mistake(f"there is no function {function}", fix=fix)


def _computed(term: Term) -> Term:
    """Mark the result of a function as computed: it is not a literal, even if it returns its operand unchanged."""
    return replace(term, literal=False) if isinstance(term, Constant) and term.literal else term
