"""Columns of a union: the same names and types in all streams; nullability may differ, at any depth."""

from collections.abc import Sequence

import pyarrow as pa

from statebed.errors import InputError


def united(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of a union; a column is nullable if it is in one of the streams."""
    first = schemas[0]
    for other in schemas[1:]:
        if other.names != first.names:
            raise _different(
                f"a union of streams with different columns: {', '.join(first.names)} and {', '.join(other.names)}"
            )
        for one, two in zip(first, other, strict=True):
            if _nullable(one) != _nullable(two):
                raise _different(f"a union of streams whose column {one.name!r} is {one.type} and {two.type}")
    return pa.schema(
        [
            _nullable(fields[0]) if any(one != fields[0] for one in fields) else fields[0]
            for fields in zip(*schemas, strict=True)
        ]
    )


def _different(what: str) -> InputError:
    return InputError(what, fix="select the same columns, in the same order and with the same types, from each stream")


def _nullable(field: pa.Field) -> pa.Field:
    """Return the field with itself and all nested fields nullable where possible."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(one) for one in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(_nullable(kind.key_field).with_nullable(False).type, _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(_nullable(kind.value_field))
    return pa.field(field.name, kind)
