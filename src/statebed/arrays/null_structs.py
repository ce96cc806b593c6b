"""Null structs with required fields, in a form that Parquet's writer accepts.

Where a struct is null, its fields have no values, and Parquet stores none. Arrow still has slots for them, which are
null after a `take` or in `pa.nulls`, and the writer refuses nulls in a required field. Here such slots are marked as
filled, since they are never read. A null in a struct that is not null stays, and is refused.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import one_chunk, validity
from statebed.arrays.nested import REMEMBERED_TYPES

_Mask = npt.NDArray[np.bool_]


def without_hidden_nulls(rows: pa.Table) -> pa.Table:
    """Return the rows without nulls in required fields that are hidden by a null above them."""
    for index, field in enumerate(rows.schema):
        if has_required_fields(field.type):
            array = one_chunk(rows.column(index))
            rows = rows.set_column(index, field, _filled(array, _nowhere(array), required=False))
    return rows


def with_fields(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows as read from a file, with the fields of the schema.

    Parquet stores some types in another unit, such as seconds as milliseconds, and Arrow cannot cast a fixed-size list
    that hides nulls.
    """
    if any(column.type != field.type for column, field in zip(rows.columns, schema, strict=True)):
        rows = without_hidden_nulls(rows)
    return pa.Table.from_arrays(rows.columns, schema=schema)


@lru_cache(maxsize=REMEMBERED_TYPES)
def has_required_fields(kind: pa.DataType) -> bool:
    """Return whether a nested type has required parts."""
    if not (_has_places_at_nulls(kind) or _has_any_length(kind)):
        return False
    # The entries of a map and its keys are never null.
    children = [kind.item_field] if pa.types.is_map(kind) else [kind.field(index) for index in range(kind.num_fields)]
    return any(not child.nullable or has_required_fields(child.type) for child in children)


def _has_places_at_nulls(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind) or pa.types.is_fixed_size_list(kind))


def _has_any_length(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _filled(array: pa.Array, hidden: _Mask, *, required: bool) -> pa.Array:
    """Return the array with hidden nulls filled; `hidden` are the rows with a null above them."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _filled(array.storage, hidden, required=required))
    valid = validity(array)
    fills = required and bool((hidden | valid).all())
    if _has_places_at_nulls(kind):
        bitmap = None if fills else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(kind, len(array), [bitmap], children=_children(array, hidden | ~valid))
    own = [None if fills else array.buffers()[0], *array.buffers()[1:]]
    if _has_any_length(kind):
        return pa.Array.from_buffers(kind, len(array), own[:2], offset=array.offset, children=[_items(array)])
    if not array.null_count or not fills or pa.types.is_dictionary(kind):
        return array
    return pa.Array.from_buffers(kind, len(array), own, offset=array.offset)


def _children(array: pa.Array, hidden: _Mask) -> list[pa.Array]:
    """Return the children of structs and fixed-size lists."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [
            _filled(array.field(index), hidden, required=not kind.field(index).nullable)
            for index in range(kind.num_fields)
        ]
    items = array.values.slice(array.offset * kind.list_size, len(array) * kind.list_size)
    return [_filled(items, np.repeat(hidden, kind.list_size), required=not kind.value_field.nullable)]


def _items(array: pa.Array) -> pa.Array:
    """Return the items of lists and maps. Null lists have no items, so no null hides them."""
    if not pa.types.is_map(array.type):
        return _filled(array.values, _nowhere(array.values), required=False)
    values = _filled(array.items, _nowhere(array.items), required=False)
    return pa.StructArray.from_arrays([array.keys, values], fields=[array.type.key_field, array.type.item_field])


def _nowhere(array: pa.Array) -> _Mask:
    return np.zeros(len(array), dtype=np.bool_)
