"""Structs, lists and maps: construction of structs, access to fields and elements."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, int64_values, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.column_names import index_of_name
from statebed.expressions.functions.maps import map_value
from statebed.expressions.mistakes import RowFailure, TextSpan
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, applied, arrays

_STRICT = {"[]", "element_at"}
"""Functions that fail for a position outside the list."""


def field_of(place: TextSpan, operand: Term, name: str) -> Term:
    """Return a field of a struct by its case-insensitive name."""
    if not pa.types.is_struct(operand.type):
        raise place.type_mistake(
            f"there is no field {name!r}: the value has the type {types.type_name(operand.type)}",
            fix="write a column name that contains a dot in `backticks`",
        )
    fields = [operand.type.field(index) for index in range(operand.type.num_fields)]
    index = index_of_name(place, [field.name for field in fields], name, kind="field")
    field = fields[index]
    nullable = operand.nullable or field.nullable
    return applied(place, partial(_field, index), field.type, operand, nullable=nullable)


def _field(index: int, structs: pa.Array) -> pa.Array:
    return pc.struct_field(structs, index)


def _named_struct(site: Site) -> Term:
    if len(site.operands) % 2:
        raise site.place.mistake("named_struct needs a value after each name", fix="write named_struct('a', x, 'b', y)")
    names = [site.text_of(index) for index in range(0, len(site.operands), 2)]
    values = site.operands[1::2]
    fields = [pa.field(name, term.type, nullable=term.nullable) for name, term in zip(names, values, strict=True)]
    kind = pa.struct(fields)
    return site.apply(partial(_assembled, kind), kind, *values, nullable=False)


def _assembled(kind: pa.DataType, *data: Datum) -> pa.Array:
    return pa.StructArray.from_arrays(arrays(*data), fields=list(kind))


def _element(site: Site) -> Term:
    """Build `x[i]`: a list element counted from 0, an error beyond the end; a map value, null for a missing key; a
    struct field.
    """
    operand, index = site.operands
    if pa.types.is_map(operand.type):
        return map_value(site, operand, index)
    if pa.types.is_struct(operand.type) and index.type == types.TEXT:
        return field_of(site.place, operand, site.text_of(1))
    return _list_element(site, from_one=site.function.endswith("element_at"), strict=site.function in _STRICT)


def _list_element(site: Site, *, from_one: bool, strict: bool) -> Term:
    operand, index = site.operands
    if not pa.types.is_list(operand.type) or not types.is_integer(index.type):
        raise site.wrong_types("a list and an integer")
    field = operand.type.value_field
    nullable = operand.nullable or index.nullable or field.nullable or not strict
    kernel = partial(_taken, from_one, strict)
    operands = operand, convert(index, types.BIGINT)
    return site.apply(kernel, field.type, *operands, nullable=nullable, fallible=strict or from_one)


def _taken(from_one: bool, strict: bool, lists: Datum, indexes: Datum) -> pa.Array:
    rows, wanted = arrays(lists, indexes)
    offsets = fixed_width_values(rows.offsets, np.int32).astype(np.int64)
    starts, lengths = offsets[:-1], np.diff(offsets)
    position, valid = np.array(int64_values(wanted)), validity(rows) & validity(wanted)
    if from_one:
        if np.any(valid & (position == 0)):
            raise RowFailure("element_at counts from 1, got 0", fix="the first element is at 1")
        position = np.where(position > 0, position - 1, position + lengths)
    outside = valid & ((position < 0) | (position >= lengths))
    if strict and np.any(outside):
        row = int(np.flatnonzero(outside)[0])
        raise RowFailure(
            f"there is no element {int(int64_values(wanted)[row])}: the list has {int(lengths[row])}",
            fix="get(list, index) gives null where there is no such element",
        )
    there = valid & ~outside
    return rows.values.take(from_numpy(np.where(there, starts + position, 0), pa.int64(), valid=there))


BUILDERS: dict[str, Builder] = {
    "named_struct": of_many(_named_struct, 2),
    "[]": of(_element, 2),
    "element_at": of(_element, 2),
    "get": of(_element, 2),
    "try_element_at": of(_element, 2),
}
