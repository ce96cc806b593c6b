"""Casts of lists, maps and structs, element by element and field by field."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import boolean_values, validity
from statebed.arrays.nested import fields_of
from statebed.expressions.casts.number_casts import Conversion, Converted, booleans
from statebed.expressions.list_parts import Flags, join_lists, maps_of, split_lists

Finder = Callable[[pa.DataType, pa.DataType], Conversion | None]
"""Returns the conversion between two types that are not nested, or None if there is none."""


def conversion(source: pa.DataType, target: pa.DataType, inner: Finder) -> Conversion | None:
    """Return the cast between two nested types of the same shape, or None if there is none."""
    if pa.types.is_list(source) and pa.types.is_list(target):
        parts = [_part(source.value_type, target.value_type, inner)]
        kernel: Callable[..., Converted] = _lists
    elif pa.types.is_map(source) and pa.types.is_map(target):
        parts = [_part(source.key_type, target.key_type, inner), _part(source.item_type, target.item_type, inner)]
        kernel = _maps
    elif pa.types.is_struct(source) and pa.types.is_struct(target) and source.num_fields == target.num_fields:
        parts = [_part(field.type, other.type, inner) for field, other in zip(source, target, strict=True)]
        kernel = _structs
    else:
        return None
    return None if None in parts else partial(kernel, parts)


def _part(source: pa.DataType, target: pa.DataType, inner: Finder) -> Conversion | None:
    if source == target:
        return _unchanged
    if pa.types.is_null(source):
        return _nulls
    return inner(source, target)


def _unchanged(array: pa.Array, kind: pa.DataType) -> Converted:  # noqa: ARG001 - the shape of a conversion
    return array, None


def _nulls(array: pa.Array, kind: pa.DataType) -> Converted:
    return pa.nulls(len(array), kind), None


def _lists(parts: list[Conversion], array: pa.Array, kind: pa.DataType) -> Converted:
    lists = split_lists(array)
    values, bad = parts[0](lists.values, kind.value_type)
    cast_lists = join_lists(kind, type(lists)(lists.valid, lists.lengths, values))
    return cast_lists, None if bad is None else booleans(lists.count(boolean_values(bad)) > 0)


def _maps(parts: list[Conversion], array: pa.Array, kind: pa.DataType) -> Converted:
    entries = split_lists(array)
    key, value = (entries.values.field(index) for index in range(2))
    keys, bad_keys = parts[0](key, kind.key_type)
    values, bad_values = parts[1](value, kind.item_type)
    bad = [entries.count(boolean_values(mask)) > 0 for mask in (bad_keys, bad_values) if mask is not None]
    return maps_of(kind, entries, keys, values), _any(bad)


def _structs(parts: list[Conversion], array: pa.Array, kind: pa.DataType) -> Converted:
    converted = [part(child, field.type) for part, child, field in zip(parts, fields_of(array), kind, strict=True)]
    valid = validity(array)
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    structs = pa.Array.from_buffers(kind, len(array), [bitmap], children=[values for values, _ in converted])
    return structs, _any([boolean_values(bad) & valid for _, bad in converted if bad is not None])


def _any(masks: list[Flags]) -> pa.Array | None:
    return booleans(np.logical_or.reduce(masks)) if masks else None
