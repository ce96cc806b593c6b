"""Types of the expression language: Spark's types as Arrow types, their names, and common types.

Columns may have other Arrow types (unsigned integers, large strings, dictionaries, other time units): `working_type` is
the type in which they are computed.
"""

import re
from collections.abc import Callable
from decimal import Decimal
from functools import reduce

import pyarrow as pa

BOOLEAN, TEXT, BINARY, DATE, NULL = pa.bool_(), pa.string(), pa.binary(), pa.date32(), pa.null()
TINYINT, SMALLINT, INT, BIGINT = pa.int8(), pa.int16(), pa.int32(), pa.int64()
FLOAT, DOUBLE = pa.float32(), pa.float64()
TIMESTAMP, NAIVE_TIMESTAMP, INTERVAL = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us")

MAX_DIGITS = 38
"""Maximum precision of a decimal."""
_MIN_FRACTION = 6
"""Fractional digits that a decimal result keeps when it would need too many digits, as in Spark."""

INTEGER_DIGITS = {TINYINT: 3, SMALLINT: 5, INT: 10, BIGINT: 20}
_PRECEDENCE = [TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE]
_NAMES = {
    BOOLEAN: ("boolean",),
    TINYINT: ("tinyint", "byte"),
    SMALLINT: ("smallint", "short"),
    INT: ("int", "integer"),
    BIGINT: ("bigint", "long"),
    FLOAT: ("float", "real"),
    DOUBLE: ("double",),
    TEXT: ("string",),
    BINARY: ("binary",),
    DATE: ("date",),
    TIMESTAMP: ("timestamp", "timestamp_ltz"),
    NAIVE_TIMESTAMP: ("timestamp_ntz",),
    INTERVAL: ("interval",),
    NULL: ("void",),
}
NAMED = {name: kind for kind, names in _NAMES.items() for name in names if kind not in {INTERVAL, NULL}}
"""Types by the names that `cast` accepts, except decimals."""
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name of a type: bigint, decimal(10,2)."""
    if is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"array<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{type_name(kind.key_type)},{type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{type_name(field.type)}' for field in kind)}>"
    return _NAMES[kind][0] if kind in _NAMES else str(kind)


def type_named(name: str) -> pa.DataType | None:
    """Return the type with a name that `cast` accepts, or None if it is unknown."""
    match = _DECIMAL.fullmatch(name)
    if match is None:
        return NAMED.get(name)
    precision, scale = int(match[1] or 10), int(match[2] or 0)
    return pa.decimal128(precision, scale) if 1 <= precision <= MAX_DIGITS and scale <= precision else None


def list_of(kind: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of lists whose elements have a type."""
    return pa.list_(pa.field("element", kind, nullable=nullable))


def map_of(key: pa.DataType, value: pa.DataType, *, nullable: bool = True) -> pa.DataType:
    """Return the type of maps; keys are never null."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value, nullable=nullable))


def is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(kind))


def is_integer(kind: pa.DataType) -> bool:
    return kind in INTEGER_DIGITS


def is_float(kind: pa.DataType) -> bool:
    return kind in (DOUBLE, FLOAT)


def is_number(kind: pa.DataType) -> bool:
    return is_integer(kind) or is_float(kind) or is_decimal(kind)


def is_timestamp(kind: pa.DataType) -> bool:
    return kind in (TIMESTAMP, NAIVE_TIMESTAMP)


def zero(kind: pa.DataType) -> pa.Scalar:
    """Return the zero of a numeric type."""
    return pa.scalar(Decimal(0) if is_decimal(kind) else 0, kind)


def has_time(kind: pa.DataType) -> bool:
    return is_timestamp(kind) or bool(kind == DATE)


def has_order(kind: pa.DataType) -> bool:
    """Return whether values of a type can be compared."""
    return kind in _NAMES or is_decimal(kind)


def is_equatable(kind: pa.DataType) -> bool:
    """Return whether values of a type can be tested for equality: all except maps and what contains them."""
    if pa.types.is_list(kind):
        return is_equatable(kind.value_type)
    if pa.types.is_struct(kind):
        return all(is_equatable(field.type) for field in kind)
    return has_order(kind)


def working_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a column of `kind` is computed; the same type for most."""
    if pa.types.is_dictionary(kind):
        return working_type(kind.value_type)
    return next((working(kind) for is_such, working in _WORKING if is_such(kind)), kind)


def _is_other_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) and not is_decimal(kind) and kind.precision <= MAX_DIGITS)


_WORKING: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]]] = [
    (pa.types.is_uint8, lambda _: SMALLINT),
    (pa.types.is_uint16, lambda _: INT),
    (pa.types.is_uint32, lambda _: BIGINT),
    (pa.types.is_uint64, lambda _: pa.decimal128(20, 0)),
    (pa.types.is_float16, lambda _: FLOAT),
    (_is_other_decimal, lambda kind: pa.decimal128(kind.precision, kind.scale)),
    (pa.types.is_large_string, lambda _: TEXT),
    (pa.types.is_string_view, lambda _: TEXT),
    (pa.types.is_large_binary, lambda _: BINARY),
    (pa.types.is_binary_view, lambda _: BINARY),
    (lambda kind: pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind), lambda _: BINARY),
    (pa.types.is_date64, lambda _: DATE),
    (pa.types.is_timestamp, lambda kind: NAIVE_TIMESTAMP if kind.tz is None else TIMESTAMP),
    (pa.types.is_duration, lambda _: INTERVAL),
    (pa.types.is_large_list, lambda kind: pa.list_(kind.value_field)),
    (pa.types.is_fixed_size_list, lambda kind: pa.list_(kind.value_field)),
]


def decimal_of(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds every value of a decimal or integer type."""
    return kind if is_decimal(kind) else pa.decimal128(INTEGER_DIGITS[kind], 0)


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Return the type of a result that would need `precision` digits; excess digits are taken from the fraction."""
    if precision <= MAX_DIGITS:
        return pa.decimal128(precision, scale)
    whole = precision - scale
    return pa.decimal128(MAX_DIGITS, max(MAX_DIGITS - whole, min(scale, _MIN_FRACTION)))


def common_type(*kinds: pa.DataType) -> pa.DataType | None:
    """Return the type to which values of all `kinds` are converted before they are compared or combined, or None."""
    return reduce(lambda common, other: None if common is None else _common(common, other), kinds)


def _common(left_type: pa.DataType, right_type: pa.DataType) -> pa.DataType | None:
    if right_type in (left_type, NULL):
        return left_type
    if left_type == NULL:
        return right_type
    if is_number(left_type) and is_number(right_type):
        return _common_number(left_type, right_type)
    if TEXT in (left_type, right_type):
        return _common_with_text(right_type if left_type == TEXT else left_type)
    if has_time(left_type) and has_time(right_type):
        return TIMESTAMP if TIMESTAMP in (left_type, right_type) else NAIVE_TIMESTAMP
    return _common_nested(left_type, right_type)


def _common_nested(left_type: pa.DataType, right_type: pa.DataType) -> pa.DataType | None:
    if pa.types.is_list(left_type) and pa.types.is_list(right_type):
        element = _common(left_type.value_type, right_type.value_type)
        nullable = left_type.value_field.nullable or right_type.value_field.nullable
        return None if element is None else list_of(element, nullable=nullable)
    if pa.types.is_map(left_type) and pa.types.is_map(right_type):
        key, value = (
            _common(left_type.key_type, right_type.key_type),
            _common(left_type.item_type, right_type.item_type),
        )
        nullable = left_type.item_field.nullable or right_type.item_field.nullable
        return None if key is None or value is None else map_of(key, value, nullable=nullable)
    if (
        not (pa.types.is_struct(left_type) and pa.types.is_struct(right_type))
        or left_type.num_fields != right_type.num_fields
    ):
        return None
    fields = []
    for left, right in zip(left_type, right_type, strict=True):
        kind = _common(left.type, right.type)
        if kind is None or left.name.lower() != right.name.lower():
            return None
        fields.append(pa.field(left.name, kind, nullable=left.nullable or right.nullable))
    return pa.struct(fields)


def _common_number(left_type: pa.DataType, right_type: pa.DataType) -> pa.DataType:
    if is_decimal(left_type) or is_decimal(right_type):
        if is_float(left_type) or is_float(right_type):
            return DOUBLE
        left, right = decimal_of(left_type), decimal_of(right_type)
        whole = max(left.precision - left.scale, right.precision - right.scale)
        scale = max(left.scale, right.scale)
        return pa.decimal128(min(whole + scale, MAX_DIGITS), min(scale, MAX_DIGITS - whole))
    wider = max(left_type, right_type, key=_PRECEDENCE.index)
    # An integer may have more digits than a float can hold.
    return DOUBLE if wider == FLOAT else wider


def _common_with_text(kind: pa.DataType) -> pa.DataType | None:
    """Return the type as which text is parsed, as in Spark with ANSI rules."""
    if is_integer(kind):
        return BIGINT
    if is_number(kind):
        return DOUBLE
    return kind if kind in (BOOLEAN, DATE, TIMESTAMP, NAIVE_TIMESTAMP, BINARY) else None


def nullable_field(field: pa.Field) -> pa.Field:
    """Return the field with itself and all nested fields nullable where possible."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([nullable_field(inner) for inner in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(nullable_field(kind.key_field).with_nullable(False).type, nullable_field(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(nullable_field(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(nullable_field(kind.value_field))
    return pa.field(field.name, kind)
