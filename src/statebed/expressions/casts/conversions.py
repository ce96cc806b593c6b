"""Explicit and implicit casts: which exist, and how they treat values that cannot be converted.

A conversion returns the converted values and a mask of those that could not be converted. A strict cast then fails; a
lenient one (`try_cast`) returns null.
"""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from statebed.expressions import types
from statebed.expressions.casts import from_text, nested_casts, number_casts, time_casts, to_text
from statebed.expressions.mistakes import RowFailure, TextSpan
from statebed.expressions.terms import Constant, Datum, Term, applied, arrays, constant

Conversion = Callable[[pa.Array, pa.DataType], tuple[pa.Array, pa.Array | None]]
"""Returns the converted values, and a mask of values that could not be converted (None if all could)."""


def convert(term: Term, kind: pa.DataType, *, place: TextSpan | None = None, lenient: bool = False) -> Term:
    """Return a term with the same values as `kind`. For an explicit cast, `place` is its position in the text."""
    if term.type == kind:
        return term
    at = place or term.place
    if term.type == types.NULL and term.fallible:  # its only use is its error
        return applied(at, partial(_nulls, kind), kind, term, nullable=True, fallible=True)
    if term.type == types.NULL:
        return constant(at, None, kind)
    conversion = _conversion(term.type, kind)
    if conversion is None:
        raise at.type_mistake(
            f"{types.type_name(term.type)} cannot be cast to {types.type_name(kind)}",
            fix="cast one of its parts, or cast it to string first",
        )
    never = _always_fits(term.type, kind)
    kernel = partial(_run, conversion, kind, lenient)
    nullable = term.nullable or (lenient and not never) or (types.is_float(term.type) and types.is_decimal(kind))
    return applied(at, kernel, kind, term, nullable=nullable, fallible=not lenient and not never)


def as_decimal(term: Term, common: pa.DataType) -> Term:
    """Convert a number to a decimal. An integer literal has as many digits as were written, any other number those of
    its type.
    """
    if term.type == types.NULL:
        return convert(term, common)
    if isinstance(term, Constant) and term.literal and types.is_integer(term.type):
        return convert(term, pa.decimal128(len(str(abs(term.scalar.as_py()))), 0))
    return convert(term, types.decimal_of(term.type))


def in_working_type(term: Term) -> Term:
    """Convert a column of an Arrow type that Spark lacks to the type in which it is computed."""
    kind = types.working_type(term.type)
    if kind == term.type:
        return term
    return applied(term.place, partial(_normalised, kind), kind, term)


def _normalised(kind: pa.DataType, datum: Datum) -> pa.Array:
    (array,) = arrays(datum)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_timestamp(kind) and array.type.unit == "ns":
        array = pc.floor_temporal(array, unit="microsecond")
    if types.is_decimal(kind) and not pa.types.is_decimal(array.type):
        return number_casts.integer_to_decimal(array, kind)[0]
    return pc.cast(array, kind)


def _nulls(kind: pa.DataType, datum: Datum) -> pa.Array:
    return pa.nulls(len(arrays(datum)[0]), kind)


def _run(conversion: Conversion, kind: pa.DataType, lenient: bool, datum: Datum) -> pa.Array:
    (array,) = arrays(datum)
    values, bad = conversion(array, kind)
    if bad is None or lenient or not pc.any(bad).as_py():
        return values
    example = array.slice(pc.index(bad, True).as_py(), 1)
    raise RowFailure(
        f"{_shown(example)} is no {types.type_name(kind)}",
        fix="try_cast gives null for values that cannot be converted",
    )


def _shown(example: pa.Array) -> str:
    if example.type == types.TEXT:
        return repr(example[0].as_py())
    if pa.types.is_nested(example.type):
        return str(example[0].as_py())
    # Convert through Arrow, because Python has no years beyond 9999.
    return str(pc.cast(example, pa.string())[0].as_py())


def _always_fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether every value of `source` can be represented in `target`."""
    if pa.types.is_nested(target):
        parts = [(source.field(index).type, target.field(index).type) for index in range(target.num_fields)]
        return all(kind in (other, types.NULL) or _always_fits(kind, other) for kind, other in parts)
    if target in (types.TEXT, types.BINARY, types.BOOLEAN) or types.is_float(target):
        return bool(source != types.TEXT or target == types.BINARY)
    if types.is_integer(source) and types.is_integer(target):
        return bool(source.bit_width <= target.bit_width)
    if types.is_decimal(target) and (types.is_integer(source) or types.is_decimal(source)):
        digits = number_casts.WHOLE_DIGITS.get(source) or source.precision - source.scale
        # Rounding off fractional digits may need one more digit before the point.
        rounds = types.is_decimal(source) and source.scale > target.scale
        return bool(digits + rounds <= target.precision - target.scale)
    return bool(source == types.BOOLEAN or (types.is_timestamp(source) and types.has_time(target)))


def _conversion(source: pa.DataType, target: pa.DataType) -> Conversion | None:  # noqa: PLR0911 - one for each kind
    if types.is_float(source) and types.is_decimal(target):
        return from_text.float_to_decimal
    if types.is_number(source) and types.is_number(target):
        return number_casts.number_to_number(source, target)
    if source == types.TEXT:
        return from_text.READERS.get("decimal" if types.is_decimal(target) else target)
    if target == types.TEXT:
        return to_text.writer(source)
    if pa.types.is_nested(source) or pa.types.is_nested(target):
        return nested_casts.conversion(source, target, _conversion)
    if types.BOOLEAN in (source, target):
        return number_casts.with_boolean(source, target)
    return time_casts.conversion(source, target)
