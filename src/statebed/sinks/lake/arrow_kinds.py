"""Arrow types as lakehouse formats see them: without the differences that only concern memory."""

import pyarrow as pa

from statebed.errors import InputError, UnsupportedTypeError

_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.date32())
_TEXTS = {pa.large_string(): pa.string(), pa.string_view(): pa.string()}
_BYTES = {pa.large_binary(): pa.binary(), pa.binary_view(): pa.binary()}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without what only concerns memory: large offsets, views, names and flags of items.

    >>> plain_type(pa.large_list(pa.large_string()))
    ListType(list<item: string>)
    """
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return _TEXTS.get(kind) or _BYTES.get(kind) or kind


def check_type(field: pa.Field, product: str) -> None:
    """Raise UnsupportedTypeError if the format cannot store the values of a column as they are."""
    if not _is_storable(plain_type(field.type)):
        raise UnsupportedTypeError(
            f"{product} has no type for the column {field.name} {field.type}",
            fix="cast the column before it is written: select('cast(x as ...) as x')",
        )


def check_names(columns: pa.Schema, product: str) -> None:
    """Raise InputError for columns whose names differ only in case: readers, and libraries, take them for one."""
    by_lower: dict[str, str] = {}
    for name in columns.names:
        other = by_lower.setdefault(name.lower(), name)
        if other != name:
            raise InputError(
                f"the columns {other!r} and {name!r} are the same column for readers of {product} tables",
                fix="rename one of them with select(...) before they are written",
            )


def _is_storable(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        return _is_storable(kind.value_type)
    if pa.types.is_map(kind):
        return _is_storable(kind.key_type) and _is_storable(kind.item_type)
    if pa.types.is_struct(kind):
        return all(_is_storable(field.type) for field in kind) and kind.num_fields > 0
    if pa.types.is_timestamp(kind):
        return bool(kind.unit == "us" and kind.tz in {None, "UTC"})
    return kind in (*_NUMBERS, pa.string(), pa.binary()) or bool(pa.types.is_decimal128(kind))
