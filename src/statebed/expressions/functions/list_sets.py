"""Lists as sets: membership, distinct elements, union, intersection and difference. Null is equal to null, and NaN to
NaN.
"""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import from_numpy, validity
from statebed.expressions import types
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.functions.lists import chained, list_operand, with_element
from statebed.expressions.list_parts import Flags, Integers, ListParts, join_lists, ranks, split_lists
from statebed.expressions.sites import Builder, Site, of
from statebed.expressions.terms import Datum, Term, arrays


def _found(site: Site) -> tuple[Term, Term]:
    lists, element = with_element(site, list_operand(site), site.operands[1])
    if not types.is_equatable(element.type):
        raise site.wrong_types("elements that can be compared")
    return lists, element


def _matches(lists: Datum, element: Datum) -> tuple[ListParts, Flags, Flags]:
    """Return the lists, whether each element is the wanted one, and the rows in which neither operand is null."""
    column, wanted = arrays(lists, element)
    valid = validity(column) & validity(wanted)
    parts = split_lists(column).with_valid(valid)
    rank, looked_for = ranks(parts.values, wanted)
    return parts, (rank >= 0) & (rank == looked_for[parts.rows]), valid


def _contains(site: Site) -> Term:
    lists, element = _found(site)
    nullable = lists.nullable or element.nullable or lists.type.value_field.nullable
    return site.apply(_contained, types.BOOLEAN, lists, element, nullable=nullable)


def _contained(lists: Datum, element: Datum) -> pa.Array:
    parts, same, valid = _matches(lists, element)
    there = parts.count(same) > 0
    unknown = ~there & (parts.count(~validity(parts.values)) > 0)
    return _booleans(there, valid & ~unknown)


def _booleans(values: Flags, valid: Flags) -> pa.Array:
    bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(
        pa.bool_(), len(values), [bitmap, pa.py_buffer(np.packbits(values, bitorder="little"))]
    )


def _position(site: Site) -> Term:
    return site.apply(_found_at, types.BIGINT, *_found(site))


def _found_at(lists: Datum, element: Datum) -> pa.Array:
    parts, same, valid = _matches(lists, element)
    places = parts.first(same)
    return from_numpy(np.where(places >= 0, places - parts.starts + 1, 0), types.BIGINT, valid=valid)


def _remove(site: Site) -> Term:
    lists, element = _found(site)
    return site.apply(partial(_removed, lists.type), lists.type, lists, element)


def _removed(kind: pa.DataType, lists: Datum, element: Datum) -> pa.Array:
    parts, same, _ = _matches(lists, element)
    return join_lists(kind, parts.kept(~same))


def _compact(site: Site) -> Term:
    lists = list_operand(site)
    kind = types.list_of(lists.type.value_type, nullable=False)
    return site.apply(partial(_compacted, kind), kind, lists)


def _compacted(kind: pa.DataType, column: pa.Array) -> pa.Array:
    parts = split_lists(column)
    return join_lists(kind, parts.kept(validity(parts.values)))


def _distinct(site: Site) -> Term:
    lists = list_operand(site)
    if not types.is_equatable(lists.type.value_type):
        raise site.wrong_types("elements that can be compared")
    return site.apply(partial(_distinct_elements, lists.type), lists.type, lists)


def _distinct_elements(kind: pa.DataType, column: pa.Array) -> pa.Array:
    parts = split_lists(column)
    (rank,) = ranks(parts.values)
    return join_lists(kind, _with_one_zero(parts.kept(_firsts(parts.rows, rank))))


def _with_one_zero(parts: ListParts) -> ListParts:
    """Turn -0.0 into 0.0, as Spark does when it compares elements."""
    if not types.is_float(parts.values.type):
        return parts
    return ListParts(parts.valid, parts.lengths, pc.add(parts.values, pa.scalar(0.0, parts.values.type)))


def _firsts(rows: Integers, rank: Integers) -> Flags:
    """Return whether each element is the first of its kind in its row."""
    flags = np.zeros(len(rows), dtype=np.bool_)
    _, first = np.unique(_pairs(rows, rank), return_index=True)
    flags[first] = True
    return flags


def _pairs(rows: Integers, rank: Integers) -> Integers:
    """Return one number for each row and rank; a null, which has rank -1, is a value of its own."""
    return rows * (int(rank.max(initial=0)) + 2) + rank + 1


def _sets(site: Site) -> tuple[Term, Term]:
    lists = [list_operand(site, index) for index in range(2)]
    left, right = in_common_type(site, *lists)
    if not types.is_equatable(left.type.value_type):
        raise site.wrong_types("elements that can be compared")
    return left, right


def _combine(site: Site) -> Term:
    left, right = _sets(site)
    nullable = [operand.type.value_field.nullable for operand in site.operands if pa.types.is_list(operand.type)]
    contains_null = {"array_except": nullable[:1], "array_union": nullable, "array_intersect": [all(nullable)]}
    kind = types.list_of(left.type.value_type, nullable=any(contains_null[site.function]))
    return site.apply(partial(_combined, site.function, kind), kind, left, right)


def _combined(function: str, kind: pa.DataType, left: Datum, right: Datum) -> pa.Array:
    left_lists, right_lists = arrays(left, right)
    valid = validity(left_lists) & validity(right_lists)
    first, second = (split_lists(column).with_valid(valid) for column in (left_lists, right_lists))
    if function == "array_union":
        together = chained(valid, [first, second])
        (rank,) = ranks(together.values)
        return join_lists(kind, _with_one_zero(together.kept(_firsts(together.rows, rank))))
    ranks_first, ranks_second = ranks(first.values, second.values)
    span = max(int(ranks_first.max(initial=0)), int(ranks_second.max(initial=0))) + 2
    pairs = [part.rows * span + rank + 1 for part, rank in ((first, ranks_first), (second, ranks_second))]
    shared = np.isin(pairs[0], pairs[1])
    wanted = shared if function == "array_intersect" else ~shared
    return join_lists(kind, _with_one_zero(first.kept(wanted & _firsts(first.rows, ranks_first))))


def _overlap(site: Site) -> Term:
    left, right = _sets(site)
    nullable = left.nullable or right.nullable or left.type.value_field.nullable
    return site.apply(_overlapping, types.BOOLEAN, left, right, nullable=nullable)


def _overlapping(left: Datum, right: Datum) -> pa.Array:
    """Return whether two lists share an element; null if they do not but one of two non-empty lists has a null."""
    left_lists, right_lists = arrays(left, right)
    valid = validity(left_lists) & validity(right_lists)
    first, second = (split_lists(column).with_valid(valid) for column in (left_lists, right_lists))
    ranks_first, ranks_second = ranks(first.values, second.values)
    span = max(int(ranks_first.max(initial=0)), int(ranks_second.max(initial=0))) + 2
    pairs = [part.rows * span + rank for part, rank in ((first, ranks_first), (second, ranks_second))]
    shared = first.count(np.isin(pairs[0], pairs[1]) & (ranks_first >= 0)) > 0
    nulls = (first.count(ranks_first < 0) > 0) | (second.count(ranks_second < 0) > 0)
    unknown = ~shared & nulls & (first.lengths > 0) & (second.lengths > 0)
    return _booleans(shared, valid & ~unknown)


BUILDERS: dict[str, Builder] = {
    "array_contains": of(_contains, 2),
    "array_position": of(_position, 2),
    "array_remove": of(_remove, 2),
    "array_compact": of(_compact, 1),
    "array_distinct": of(_distinct, 1),
    "array_except": of(_combine, 2),
    "array_intersect": of(_combine, 2),
    "array_union": of(_combine, 2),
    "arrays_overlap": of(_overlap, 2),
}
