"""Functions of maps. As in Spark, a key must not be null, and must not occur twice in a map."""

import re
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_array, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.distinct_values import by_distinct
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.functions.lists import chained, list_operand
from statebed.expressions.functions.patterns import may_match_nothing, pieces_of, regular
from statebed.expressions.functions.strings import as_text
from statebed.expressions.list_parts import (
    ListParts,
    check_elements,
    check_together,
    join_lists,
    maps_of,
    ranks,
    split_lists,
    taken,
    taken_or_null,
)
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, arrays


def map_operand(site: Site, index: int = 0) -> Term:
    """Return an operand that must be a map."""
    operand = site.operands[index]
    if not pa.types.is_map(operand.type):
        raise site.wrong_types("a map", at=operand)
    return operand


def checked_maps(kind: pa.DataType, parts: ListParts, keys: pa.Array, values: pa.Array) -> pa.Array:
    """Build maps, after checking that no key is null or occurs twice in a map."""
    if keys.null_count:
        raise RowFailure("a map with a null key", fix="leave such entries out, or give the key another value")
    if types.is_float(keys.type):
        keys = pc.add(keys, pa.scalar(0.0, keys.type))  # -0.0 becomes 0.0
    (rank,) = ranks(keys)
    pairs = parts.rows * (int(rank.max(initial=0)) + 1) + rank
    unique, first = np.unique(pairs, return_index=True)
    if len(unique) < len(pairs):
        twice = np.setdiff1d(np.arange(len(pairs)), first)[0]
        raise RowFailure(f"the key {keys[int(twice)].as_py()!r} twice in a map", fix="give every key once")
    return maps_of(kind, parts, keys, values)


def _map(site: Site) -> Term:
    if len(site.operands) % 2:
        raise site.place.mistake("map takes alternating keys and values", fix="write map('a', 1, 'b', 2)")
    if not site.operands:
        raise site.place.mistake("map() has no types of keys and values", fix="give it at least one key and its value")
    keys = in_common_type(site, *site.operands[::2])
    values = in_common_type(site, *site.operands[1::2])
    kind = types.map_of(keys[0].type, values[0].type, nullable=any(value.nullable for value in values))
    return site.apply(partial(_mapped, kind, len(keys)), kind, *keys, *values, nullable=False, fallible=True)


def _mapped(kind: pa.DataType, width: int, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    rows = len(columns[0])
    check_elements(rows * width, rows)
    check_together(columns)
    order = np.arange(rows * width, dtype=np.int64).reshape(width, rows).T.reshape(-1)
    keys, values = (taken(pa.concat_arrays(half), order) for half in (columns[:width], columns[width:]))
    parts = ListParts(np.ones(rows, dtype=np.bool_), np.full(rows, width, dtype=np.int64), keys)
    return checked_maps(kind, parts, keys, values)


def _keys(site: Site) -> Term:
    operand = map_operand(site)
    kind = types.list_of(operand.type.key_type)
    return site.apply(partial(_one_side, kind, 0), kind, operand)


def _values(site: Site) -> Term:
    operand = map_operand(site)
    kind = types.list_of(operand.type.item_type, nullable=operand.type.item_field.nullable)
    return site.apply(partial(_one_side, kind, 1), kind, operand)


def _one_side(kind: pa.DataType, side: int, maps: pa.Array) -> pa.Array:
    parts = split_lists(maps)
    return join_lists(kind, ListParts(parts.valid, parts.lengths, parts.values.field(side)))


def _entries(site: Site) -> Term:
    operand = map_operand(site)
    key, item = operand.type.key_type, operand.type.item_field
    entry = pa.struct([pa.field("key", key, nullable=False), pa.field("value", item.type, nullable=item.nullable)])
    kind = types.list_of(entry, nullable=False)
    return site.apply(partial(_as_entries, kind), kind, operand)


def _as_entries(kind: pa.DataType, maps: pa.Array) -> pa.Array:
    parts = split_lists(maps)
    entries = pa.StructArray.from_arrays([parts.values.field(0), parts.values.field(1)], fields=list(kind.value_type))
    return join_lists(kind, ListParts(parts.valid, parts.lengths, entries))


def _from_entries(site: Site) -> Term:
    lists = list_operand(site)
    entry = lists.type.value_type
    if not pa.types.is_struct(entry) or entry.num_fields != 2:  # noqa: PLR2004 - a key and a value
        raise site.wrong_types("a list of structs of key and value")
    key, value = entry.field(0), entry.field(1)
    kind = types.map_of(key.type, value.type, nullable=value.nullable)
    nullable = lists.nullable or lists.type.value_field.nullable
    return site.apply(partial(_of_entries, kind), kind, lists, nullable=nullable, fallible=True)


def _of_entries(kind: pa.DataType, lists: pa.Array) -> pa.Array:
    """Build maps from lists of entries; null where an entry is null."""
    parts = split_lists(lists)
    parts = parts.with_valid(parts.valid & (parts.count(~validity(parts.values)) == 0))
    return checked_maps(kind, parts, parts.values.field(0), parts.values.field(1))


def _from_arrays(site: Site) -> Term:
    keys, values = (list_operand(site, index) for index in range(2))
    item = values.type.value_field
    kind = types.map_of(keys.type.value_type, item.type, nullable=item.nullable)
    return site.apply(partial(_of_lists, kind), kind, keys, values, fallible=True)


def _of_lists(kind: pa.DataType, keys: Datum, values: Datum) -> pa.Array:
    key_lists, value_lists = arrays(keys, values)
    valid = validity(key_lists) & validity(value_lists)
    first, second = (split_lists(column).with_valid(valid) for column in (key_lists, value_lists))
    unequal = np.flatnonzero(first.lengths != second.lengths)
    if len(unequal):
        row = int(unequal[0])
        raise RowFailure(
            f"a map of {int(first.lengths[row])} keys and {int(second.lengths[row])} values",
            fix="give lists of equal length",
        )
    return checked_maps(kind, first, first.values, second.values)


def _concat(site: Site) -> Term:
    maps = in_common_type(site, *(map_operand(site, index) for index in range(len(site.operands))))
    return site.apply(partial(_joined, maps[0].type), maps[0].type, *maps, fallible=True)


def _joined(kind: pa.DataType, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    parts = chained(valid, [split_lists(column).with_valid(valid) for column in columns])
    return checked_maps(kind, parts, parts.values.field(0), parts.values.field(1))


def map_value(site: Site, operand: Term, key: Term) -> Term:
    """Build the value of a key, which may differ from row to row; null if the map lacks it."""
    wanted = _wanted_key(site, operand, key)
    return site.apply(_looked_up, operand.type.item_type, operand, wanted, nullable=True)


def _wanted_key(site: Site, operand: Term, key: Term) -> Term:
    kind = operand.type.key_type
    if not types.is_equatable(kind) or types.common_type(kind, key.type) != kind:
        raise site.wrong_types(f"a key of the type {types.type_name(kind)}", at=key)
    return convert(key, kind)


def _looked_up(maps: Datum, keys: Datum) -> pa.Array:
    column, wanted = arrays(maps, keys)
    parts = split_lists(column)
    rank, looked_for = ranks(parts.values.field(0), wanted)
    places = parts.first((rank == looked_for[parts.rows]) & (rank >= 0))
    items = parts.values.field(1)
    return taken(items, np.maximum(places, 0), valid=places >= 0) if len(items) else pa.nulls(len(column), items.type)


def _contains_key(site: Site) -> Term:
    operand = map_operand(site)
    return site.apply(_has_key, types.BOOLEAN, operand, _wanted_key(site, operand, site.operands[1]))


def _has_key(maps: Datum, keys: Datum) -> pa.Array:
    column, wanted = arrays(maps, keys)
    parts = split_lists(column)
    rank, looked_for = ranks(parts.values.field(0), wanted)
    there = boolean_array(parts.count(rank == looked_for[parts.rows]) > 0)
    known = boolean_array(parts.valid & validity(wanted))
    return pc.if_else(known, there, pa.scalar(None, pa.bool_()))


def _str_to_map(site: Site) -> Term:
    text = as_text(site, site.operands[0])
    between = regular(site, 1) if len(site.operands) > 1 else ","
    inside = regular(site, 2) if len(site.operands) > 2 else ":"  # noqa: PLR2004 - the third operand
    kind = types.map_of(types.TEXT, types.TEXT)
    if not may_match_nothing(between) and not may_match_nothing(inside):
        return site.apply(partial(_split_at_once, between, inside, kind), kind, text, fallible=True)
    return site.apply(partial(_split, re.compile(between), re.compile(inside), kind), kind, text, fallible=True)


def _split(between: re.Pattern[str], inside: re.Pattern[str], kind: pa.DataType, texts: pa.Array) -> pa.Array:
    entries = by_distinct(partial(_entries_of, between, inside), types.list_of(_ENTRY), texts)
    parts = split_lists(entries)
    return checked_maps(kind, parts, parts.values.field(0), parts.values.field(1))


def _split_at_once(between: str, inside: str, kind: pa.DataType, texts: pa.Array) -> pa.Array:
    """Split texts with RE2, in linear time."""
    entries = split_lists(pieces_of(between, None, texts))
    parts = split_lists(pieces_of(inside, 1, entries.values))
    keys = taken_or_null(parts.values, parts.starts, parts.valid)
    values = taken_or_null(parts.values, np.where(parts.lengths > 1, parts.starts + 1, 0), parts.lengths > 1)
    return checked_maps(kind, entries, keys, values)


_ENTRY = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.string())])


def _entries_of(between: re.Pattern[str], inside: re.Pattern[str], text: str) -> list[tuple[str, str | None]]:
    entries = [inside.split(entry, maxsplit=1) for entry in between.split(text)]
    return [(entry[0], entry[1] if len(entry) > 1 else None) for entry in entries]


BUILDERS: dict[str, Builder] = {
    "map": of_many(_map, 0),
    "map_keys": of(_keys, 1),
    "map_values": of(_values, 1),
    "map_entries": of(_entries, 1),
    "map_from_entries": of(_from_entries, 1),
    "map_from_arrays": of(_from_arrays, 2),
    "map_concat": of_many(_concat),
    "map_contains_key": of(_contains_key, 2),
    "str_to_map": of(_str_to_map, 1, 3),
}
