"""Type checking: resolves every node of a syntax tree against a schema and rejects what has no type."""

from dataclasses import replace

import pyarrow as pa

from statebed.expressions import types
from statebed.expressions.casts import convert, in_working_type
from statebed.expressions.column_names import found_in, near_match
from statebed.expressions.functions import FUNCTIONS
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.functions.conditions import as_condition, choose
from statebed.expressions.functions.nested import field_of
from statebed.expressions.language import Call, Case, Cast, FieldOf, Literal, Name, Node, TimeLiteral
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.sites import Site
from statebed.expressions.terms import ColumnTerm, Constant, Term, constant

_AGGREGATES = {
    **{name: name for name in ("count", "sum", "mean", "min", "max", "first", "last", "median", "min_by", "max_by")},
    "avg": "mean",
    "stddev": "stddev_samp",
    "std": "stddev_samp",
    "variance": "var_samp",
    "every": "bool_and",
    **{name: name for name in ("mode", "corr", "collect_list", "collect_set", "count_if", "any_value", "percentile")},
    **{name: name for name in ("approx_count_distinct", "string_agg", "bool_and", "bool_or", "stddev_pop", "var_pop")},
}
"""SQL aggregates, and the name of each in statebed."""
_CHANGING = frozenset(
    ["now", "current_timestamp", "current_date", "current_time", "rand", "random", "randn", "uuid", "shuffle"]
)

_DEEPEST = 100


class Binder:
    """Binds the syntax trees of one text to one schema."""

    def __init__(self, place: TextSpan, schema: pa.Schema) -> None:
        self.place = place
        self.schema = schema
        self.depth = 0

    def bind(self, node: Node) -> Term:
        """Return the term of a node; a column keeps its own type."""
        place = self.place.at(node.start, node.end)
        self.depth += 1
        if self.depth > _DEEPEST:
            raise place.mistake("operations within operations, too deep", fix="take it apart into several columns")
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
        raise TypeError(f"a node of an unknown kind: {node}")

    def operand(self, node: Node) -> Term:
        """Return the term of a node, converted to a type that functions accept."""
        return in_working_type(self.bind(node))

    def _time(self, place: TextSpan, content: str, kind: pa.DataType) -> Term:
        term = convert(constant(place, content, types.TEXT), kind)
        if term.constant is None:
            raise place.mistake(f"{content!r} is no {types.type_name(kind)}", fix="write it as 2024-05-31 23:59:59")
        return term

    def _name(self, place: TextSpan, parts: tuple[str, ...]) -> Term:
        index = found_in(place, self.schema.names, parts[0], kind="column")
        field = self.schema.field(index)
        if self.schema.names.count(field.name) > 1:
            raise place.mistake(f"column {field.name!r} is ambiguous: there are several of this name")
        term: Term = ColumnTerm(place, field.type, field.nullable, False, frozenset({field.name}), field.name)
        for part in parts[1:]:
            term = field_of(place, term, part)
        return term

    def _case(self, place: TextSpan, branches: tuple[tuple[Node, Node], ...], otherwise: Node | None) -> Term:
        conditions_ = [as_condition(self.operand(condition), "when") for condition, _ in branches]
        last = constant(place, None, types.NULL) if otherwise is None else self.operand(otherwise)
        site = Site(place, "case", (*(self.operand(value) for _, value in branches), last))
        *values, last = in_common_type(site, *site.operands)
        return choose(place, list(zip(conditions_, values, strict=True)), last)

    def _call(self, place: TextSpan, function: str, arguments: tuple[Node, ...]) -> Term:
        builder = FUNCTIONS.get(function)
        if builder is None:
            raise self._unknown(place, function)
        if not builder.least <= len(arguments) <= builder.most:
            given = len(arguments)
            raise place.mistake(f"{function} takes {builder.takes()} operands, and has {given} here")
        operands = tuple(self.operand(argument) for argument in arguments)
        return _computed(builder.build(Site(place, function, operands)))

    def _unknown(self, place: TextSpan, function: str) -> Exception:
        if function in _AGGREGATES:
            fix = f"use sb.{_AGGREGATES[function]} in an aggregation; an expression sees one row at a time"
            return place.mistake(f"{function} is an aggregate", fix=fix)
        if function in _CHANGING:
            fix = "take the time from a column; a retried epoch must give the same rows"
            return place.mistake(f"{function} gives another answer each time", fix=fix)
        near = near_match((name for name in FUNCTIONS if name.isidentifier()), function)
        fix = (f"did you mean {near}? " if near else "") + "a Python function over batches works as well"
        return place.mistake(f"there is no function {function}", fix=fix)


def _computed(term: Term) -> Term:
    """Mark the result of a function as computed: it is not a literal, even if it returns its operand unchanged."""
    return replace(term, literal=False) if isinstance(term, Constant) and term.literal else term
