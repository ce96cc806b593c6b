"""Generators: explode, posexplode, inline and unnest, as a method of streams or as a column of a select."""

from dataclasses import dataclass

import pyarrow as pa

from statebed.errors import InputError
from statebed.expressions.binder import GENERATORS
from statebed.expressions.column_like import ColumnLike
from statebed.expressions.language import Call, parse
from statebed.expressions.mistakes import TextSpan
from statebed.flow.steps import Explode, Expression


@dataclass(frozen=True)
class Generator:
    """A generator that a user wrote as a column: `posexplode(items) as (n, item)`."""

    operand: str
    names: tuple[str, ...]
    outer: bool
    position: bool
    inline: bool


def generator_of(text: ColumnLike, *, where: str) -> Generator | None:
    """Return the generator in the text of a column, or None if it is an expression."""
    if not isinstance(text, str) or not any(name in text.lower() for name in GENERATORS):
        return None
    try:
        parsed = parse(TextSpan(text, where, 0, len(text)))
    except InputError:
        return None  # the error is reported where the expression is bound
    root = parsed.root
    if not isinstance(root, Call) or root.function not in GENERATORS or len(root.arguments) != 1:
        return None
    (argument,) = root.arguments
    names = parsed.names or (() if parsed.alias is None else (parsed.alias,))
    function = root.function
    return Generator(
        text[argument.start : argument.end],
        names,
        function.endswith("_outer"),
        function.startswith("pos"),
        function.startswith("inline"),
    )


def explode_step(value: Expression, before: pa.Schema, generator: Generator) -> Explode:
    """Build the step of a generator whose operand is bound, after checking its type and its names."""
    kind = value.type
    if not (pa.types.is_list(kind) or (pa.types.is_map(kind) and not generator.inline)):
        wanted = "a list of structs" if generator.inline else "a list or a map"
        raise InputError(
            f"{'inline' if generator.inline else 'explode'} needs {wanted}, but {value.text!r} has the type {kind}",
            where=value.where,
            fix="name another column, or make a list first: split(...), from_json(...)",
        )
    if generator.inline and not pa.types.is_struct(kind.value_type):
        raise InputError(
            f"inline needs a list of structs, but {value.text!r} has the type {kind}",
            where=value.where,
            fix="use explode: only the fields of structs can become columns",
        )
    if generator.inline and generator.position:
        raise InputError(
            "inline= and position= cannot be combined", where=value.where, fix="explode first, then select the fields"
        )
    default = ("key", "value") if pa.types.is_map(kind) else ("col",)
    if generator.inline:
        default = tuple(field.name for field in kind.value_type)
    if generator.position:
        default = ("pos", *default)
    names = generator.names or default
    if len(names) != len(default) or len(set(names)) != len(names):
        raise InputError(
            f"exploding {value.text!r} gives the columns {', '.join(default)}, but the names are {', '.join(names)}",
            where=value.where,
            fix="give one name to each of these columns, and every name once",
        )
    return Explode(value, names, before, generator.outer, generator.position, generator.inline)
