"""Functions of lists: construction, slices, order, and conversion to text. Positions count from 1, as in Spark."""

from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import fixed_width_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions.comparisons import in_common_type
from statebed.expressions.functions.strings import as_text, concat, reverse
from statebed.expressions.list_parts import (
    MAX_ELEMENTS,
    Integers,
    ListParts,
    check_elements,
    check_together,
    join_lists,
    ranks,
    repeated,
    split_lists,
    taken,
)
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, Site, of, of_many
from statebed.expressions.terms import Datum, Term, arrays, constant
from statebed.expressions.text_limits import check_size, text_bytes

_THREE = 3


def list_operand(site: Site, index: int = 0) -> Term:
    """Return an operand that must be a list."""
    operand = site.operands[index]
    if operand.type == types.NULL:
        return convert(operand, types.list_of(types.NULL))
    if not pa.types.is_list(operand.type):
        raise site.wrong_types("a list", at=operand)
    return operand


def with_element(site: Site, lists: Term, element: Term) -> tuple[Term, Term]:
    """Convert a list and an element to one type."""
    common = types.common_type(lists.type.value_type, element.type)
    if common is None:
        raise site.wrong_types("a list and a value of its elements' type")
    kind = types.list_of(common, nullable=lists.type.value_field.nullable)
    return convert(lists, kind), convert(element, common)


def _array(site: Site) -> Term:
    if not site.operands:
        kind = types.list_of(types.NULL)
        return constant(site.place, pa.array([[]], kind)[0], kind)
    operands = in_common_type(site, *site.operands)
    nullable = any(operand.nullable for operand in operands)
    kind = types.list_of(operands[0].type, nullable=nullable)
    return site.apply(partial(_side_by_side, kind), kind, *operands, nullable=False)


def _side_by_side(kind: pa.DataType, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    rows, width = len(columns[0]), len(columns)
    check_elements(rows * width, rows)
    check_together(columns)
    order = np.arange(rows * width, dtype=np.int64).reshape(width, rows).T.reshape(-1)
    values = taken(pa.concat_arrays(columns), order)
    lengths = np.full(rows, width, dtype=np.int64)
    return join_lists(kind, ListParts(np.ones(rows, dtype=np.bool_), lengths, values))


def _joined_lists(site: Site) -> Term:
    """Build `concat` of lists."""
    lists = in_common_type(site, *site.operands)
    return site.apply(partial(_one_after_another, lists[0].type), lists[0].type, *lists)


def _concat(site: Site) -> Term:
    """Build `concat` or `||` of texts, binaries or lists."""
    return _joined_lists(site) if any(pa.types.is_list(operand.type) for operand in site.operands) else concat(site)


def _reverse(site: Site) -> Term:
    """Build `reverse` of a text or a list."""
    return _reverse_list(site) if pa.types.is_list(site.operands[0].type) else reverse(site)


def _one_after_another(kind: pa.DataType, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    parts = [split_lists(column).with_valid(valid) for column in columns]
    return join_lists(kind, chained(valid, parts))


def chained(valid: np.ndarray[tuple[int], np.dtype[np.bool_]], parts: list[ListParts]) -> ListParts:
    """Append the lists of each row to each other."""
    check_elements(sum(len(part.values) for part in parts), len(valid))
    check_together([part.values for part in parts])
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows, kind="stable")
    lengths = np.sum([part.lengths for part in parts], axis=0).astype(np.int64)
    return ListParts(valid, lengths, taken(pa.concat_arrays([part.values for part in parts]), order))


def _extended(site: Site) -> Term:
    """Build array_append or array_prepend."""
    lists, element = with_element(site, list_operand(site), site.operands[1])
    kind = types.list_of(element.type, nullable=lists.type.value_field.nullable or element.nullable)
    kernel = partial(_with_one_more, kind, site.function == "array_prepend")
    return site.apply(kernel, kind, lists, element, nullable=lists.nullable)


def _with_one_more(kind: pa.DataType, first: bool, lists: Datum, element: Datum) -> pa.Array:
    column, added = arrays(lists, element)
    parts = split_lists(column)
    rows = np.flatnonzero(parts.valid)
    more = ListParts(parts.valid, parts.valid.astype(np.int64), taken(added, rows))
    return join_lists(kind, chained(parts.valid, [more, parts] if first else [parts, more]))


def _insert(site: Site) -> Term:
    lists, element = with_element(site, list_operand(site), site.operands[2])
    position = convert(site.operands[1], types.INT)
    kind = types.list_of(element.type)
    kernel = partial(_inserted, kind)
    nullable = lists.nullable or position.nullable
    return site.apply(kernel, kind, lists, position, element, nullable=nullable, fallible=True)


def _inserted(kind: pa.DataType, lists: Datum, position: Datum, element: Datum) -> pa.Array:
    column, places, added = arrays(lists, position, element)
    valid = validity(column) & validity(places)
    wanted = np.where(valid, fixed_width_values(places, np.int32).astype(np.int64), 1)
    if np.any(wanted == 0):
        raise RowFailure("an element inserted at position 0", fix="positions count from 1, or from -1 at the end")
    parts = split_lists(column).with_valid(valid)
    length = parts.lengths
    # A negative position counts from the end of the result: -1 appends.
    size = np.where(wanted > 0, np.maximum(length + 1, wanted), np.maximum(length + 1, -wanted))
    size = np.where(valid, size, 0)
    check_elements(int(size.sum()), len(size))
    at = np.where(wanted > 0, wanted - 1, size + wanted)
    # Where the position is before the first element, nulls stand between the new element and the old ones.
    shift = np.where((wanted < 0) & (-wanted > length + 1), size - length, 0)
    source = np.full(int(size.sum()), -1, dtype=np.int64)
    starts = np.cumsum(size) - size
    moved = parts.positions + np.where(shift[parts.rows] > 0, shift[parts.rows], parts.positions >= at[parts.rows])
    source[starts[parts.rows] + moved] = np.arange(len(parts.values))
    rows = np.flatnonzero(valid)
    source[starts[rows] + at[rows]] = len(parts.values) + np.arange(len(rows))
    values = pa.concat_arrays([parts.values, taken(added, rows)])
    elements = taken(values, np.maximum(source, 0), valid=source >= 0) if len(source) else values.slice(0, 0)
    return join_lists(kind, ListParts(valid, size, elements))


def _repeat(site: Site) -> Term:
    element, count = site.operands[0], convert(site.operands[1], types.INT)
    kind = types.list_of(element.type, nullable=element.nullable)
    return site.apply(partial(_repeated, kind), kind, element, count, nullable=count.nullable, fallible=True)


def _repeated(kind: pa.DataType, element: Datum, count: Datum) -> pa.Array:
    values, counts = arrays(element, count)
    valid = validity(counts)
    lengths = np.where(valid, np.maximum(fixed_width_values(counts, np.int32).astype(np.int64), 0), 0)
    check_elements(int(lengths.sum()), len(lengths))
    rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    return join_lists(kind, ListParts(valid, lengths, repeated(values, rows)))


def _slice(site: Site) -> Term:
    lists = list_operand(site)
    start, length = (convert(operand, types.INT) for operand in site.operands[1:])
    return site.apply(partial(_sliced, lists.type), lists.type, lists, start, length, fallible=True)


def _sliced(kind: pa.DataType, lists: Datum, start: Datum, length: Datum) -> pa.Array:
    column, starts, lengths = arrays(lists, start, length)
    valid = validity(column) & validity(starts) & validity(lengths)
    parts = split_lists(column).with_valid(valid)
    first = np.where(valid, fixed_width_values(starts, np.int32).astype(np.int64), 1)
    count = np.where(valid, fixed_width_values(lengths, np.int32).astype(np.int64), 0)
    if np.any(first == 0):
        raise RowFailure("a slice that starts at 0", fix="positions count from 1, or from -1 at the end")
    if np.any(count < 0):
        raise RowFailure(f"a slice of {int(count.min())} elements", fix="give a length of at least 0")
    begin = np.where(first > 0, first - 1, parts.lengths + first)
    count = np.where(begin < 0, 0, count)
    inside = (parts.positions >= begin[parts.rows]) & (parts.positions < (begin + count)[parts.rows])
    return join_lists(kind, parts.kept(inside))


def _flatten(site: Site) -> Term:
    lists = list_operand(site)
    if not pa.types.is_list(lists.type.value_type):
        raise site.wrong_types("a list of lists")
    kind = lists.type.value_type
    nullable = lists.nullable or lists.type.value_field.nullable
    return site.apply(partial(_flattened, kind), kind, lists, nullable=nullable)


def _flattened(kind: pa.DataType, column: pa.Array) -> pa.Array:
    """Join the lists of each row; null where one of them is null."""
    outer = split_lists(column)
    inner = split_lists(outer.values)
    valid = outer.valid & (outer.count(~inner.valid) == 0)
    outer = outer.with_valid(valid)
    inner = split_lists(outer.values)
    lengths = np.bincount(outer.rows, weights=inner.lengths, minlength=len(valid)).astype(np.int64)
    return join_lists(kind, ListParts(valid, lengths, inner.values))


def _reverse_list(site: Site) -> Term:
    lists = list_operand(site)
    return site.apply(partial(_reversed, lists.type), lists.type, lists)


def _reversed(kind: pa.DataType, column: pa.Array) -> pa.Array:
    parts = split_lists(column)
    places = parts.starts[parts.rows] + parts.lengths[parts.rows] - 1 - parts.positions
    return join_lists(kind, ListParts(parts.valid, parts.lengths, taken(parts.values, places)))


def sort(site: Site) -> Term:
    """Build sort_array(list, ascending), with nulls as the smallest elements, or array_sort, with nulls last."""
    lists = list_operand(site)
    if not types.has_order(lists.type.value_type):
        raise site.wrong_types("a list of numbers, texts or times", at=lists)
    ascending = True
    if len(site.operands) > 1:
        flag = site.operands[1]
        if flag.constant is None or flag.type != types.BOOLEAN or not flag.constant.is_valid:
            raise flag.place.type_mistake("sort_array needs true or false here", fix="write true for ascending order")
        ascending = bool(flag.constant.as_py())
    kernel = partial(_sorted, lists.type, ascending, site.function == "array_sort")
    return site.apply(kernel, lists.type, lists)


def _sorted(kind: pa.DataType, ascending: bool, nulls_last: bool, column: pa.Array) -> pa.Array:
    parts = split_lists(column)
    (rank,) = ranks(parts.values)
    rank = np.where((rank < 0) & nulls_last, len(rank) + 1, rank)
    order = np.lexsort((rank if ascending else -rank, parts.rows))
    return join_lists(kind, ListParts(parts.valid, parts.lengths, taken(parts.values, order)))


def _extreme(site: Site) -> Term:
    lists = list_operand(site)
    if not types.has_order(lists.type.value_type):
        raise site.wrong_types("a list of numbers, texts or times", at=lists)
    kernel = partial(_outermost, site.function == "array_max")
    return site.apply(kernel, lists.type.value_type, lists, nullable=True)


def _outermost(largest: bool, column: pa.Array) -> pa.Array:
    parts = split_lists(column)
    (rank,) = ranks(parts.values)
    known = np.flatnonzero(rank >= 0)
    # The first of equal elements wins, as in Spark.
    order = known[np.lexsort((known if not largest else -known, rank[known], parts.rows[known]))]
    if not largest:
        order = order[::-1]
    places = np.full(len(parts.lengths), -1, dtype=np.int64)
    places[parts.rows[order]] = order
    return (
        taken(parts.values, np.maximum(places, 0), valid=places >= 0)
        if len(parts.values)
        else pa.nulls(len(places), column.type.value_type)
    )


def _size(site: Site) -> Term:
    (operand,) = site.operands
    if pa.types.is_map(operand.type):
        return site.apply(_entry_count, types.INT)
    if not pa.types.is_list(operand.type):
        raise site.wrong_types("a list or a map")
    return site.apply(pc.list_value_length, types.INT)


def _entry_count(maps: pa.Array) -> pa.Array:
    parts = split_lists(maps)
    return from_numpy(parts.lengths.astype(np.int32), types.INT, valid=parts.valid)


def _array_size(site: Site) -> Term:
    return site.apply(pc.list_value_length, types.INT, list_operand(site))


def _join(site: Site) -> Term:
    """Build array_join(list, separator, null_replacement): without the last, nulls are left out."""
    lists = convert(list_operand(site), types.list_of(types.TEXT))
    separator = as_text(site, site.operands[1])
    replacement = (as_text(site, site.operands[2]),) if len(site.operands) == _THREE else ()
    return site.apply(_joined_text, types.TEXT, lists, separator, *replacement)


def _joined_text(lists: Datum, separator: Datum, replacement: Datum | None = None) -> pa.Array:
    column, separators, *replacements = arrays(lists, separator, *(() if replacement is None else (replacement,)))
    valid = np.logical_and.reduce([validity(column_) for column_ in (column, separators, *replacements)])
    parts = split_lists(column).with_valid(valid)
    if replacements:
        values = pc.if_else(parts.values.is_valid(), parts.values, taken(replacements[0], parts.rows))
        parts = ListParts(parts.valid, parts.lengths, values)
    else:
        parts = parts.kept(validity(parts.values))
    return joined_by_row(parts, separators)


def joined_by_row(parts: ListParts, separators: pa.Array) -> pa.Array:
    """Join the texts of each row with the separator of the row."""
    between = pc.sum(
        pc.multiply(pc.binary_length(separators), from_numpy(np.maximum(parts.lengths - 1, 0), pa.int64()))
    )
    check_size(text_bytes(parts.values) + (between.as_py() or 0), len(separators))
    known = ListParts(np.ones_like(parts.valid), parts.lengths, parts.values)
    texts = pc.binary_join(join_lists(types.list_of(types.TEXT), known), pc.fill_null(separators, ""))
    missing = from_numpy(np.where(parts.valid, 0, 1).astype(np.int8), pa.int8())
    return pc.if_else(pc.equal(missing, 0), texts, pa.scalar(None, pa.string()))


def _concat_ws(site: Site) -> Term:
    """Build concat_ws(separator, ...): texts and lists of texts; nulls are left out."""
    separator, *operands = site.operands
    lists = [
        convert(operand, types.list_of(types.TEXT)) if pa.types.is_list(operand.type) else as_text(site, operand)
        for operand in operands
    ]
    separator = as_text(site, separator)
    return site.apply(_with_separator, types.TEXT, separator, *lists, nullable=separator.nullable)


def _with_separator(separator: Datum, *data: Datum) -> pa.Array:
    separators, *columns = arrays(separator, *data)
    valid = validity(separators)
    check_together(columns)
    parts = []
    for column in columns:
        if pa.types.is_list(column.type):
            part = split_lists(column)
        else:
            part = ListParts(valid, np.ones(len(column), dtype=np.int64), column)
        parts.append(part.kept(validity(part.values)))
    nothing = ListParts(valid, np.zeros(len(valid), dtype=np.int64), pa.nulls(0, pa.string()))
    return joined_by_row(chained(valid, [*parts, nothing]).with_valid(valid), separators)


def _sequence(site: Site) -> Term:
    start, stop, *step = site.operands
    kind = types.common_type(start.type, stop.type)
    if kind is None or not (types.is_integer(kind) or types.has_time(kind)):
        raise site.wrong_types("integers, dates or timestamps")
    limits = convert(start, kind), convert(stop, kind)
    if not types.is_integer(kind) and not (step and step[0].type == types.INTERVAL):
        raise site.wrong_types("an interval of days or less as the third operand")
    if types.is_integer(kind):
        step = [convert(bound, kind) for bound in step]
    result = types.list_of(kind, nullable=False)
    return site.apply(partial(_sequences, result), result, *limits, *step, fallible=True)


def _sequences(kind: pa.DataType, start: Datum, stop: Datum, step: Datum | None = None) -> pa.Array:
    firsts, lasts, *steps = arrays(start, stop, *(() if step is None else (step,)))
    valid = np.logical_and.reduce([validity(column) for column in (firsts, lasts, *steps)])
    unit = 86_400_000_000 if kind.value_type == types.DATE else 1
    first, last = (_wide(column) * unit for column in (firsts, lasts))
    by = _wide(steps[0]) if steps else np.where(first <= last, 1, -1)
    wrong = valid & ((by == 0) & (first != last) | (by > 0) & (first > last) | (by < 0) & (first < last))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise RowFailure(
            f"a sequence from {int(first[row])} to {int(last[row])} by {int(by[row])}",
            fix="the step must lead from the start to the end",
        )
    # The distance of two bigints can need all 64 bits, and the sum of the lengths more.
    distance = np.maximum(first, last).view(np.uint64) - np.minimum(first, last).view(np.uint64)
    steps_to_end = distance // np.abs(np.where(by == 0, 1, by)).view(np.uint64)
    lengths = np.where(valid, np.minimum(steps_to_end, MAX_ELEMENTS).astype(np.int64) + 1, 0)
    check_elements(int(lengths.sum()), len(lengths))
    parts = ListParts(valid, lengths, pa.nulls(int(lengths.sum()), pa.int64()))
    values = (first[parts.rows] + parts.positions * by[parts.rows]) // unit
    width = np.dtype(f"int{kind.value_type.bit_width}")
    return join_lists(kind, ListParts(valid, lengths, from_numpy(values.astype(width), kind.value_type)))


def _wide(column: pa.Array) -> Integers:
    return fixed_width_values(column, np.dtype(f"int{column.type.bit_width}")).astype(np.int64)


def _zip(site: Site) -> Term:
    """Build arrays_zip: a list of structs, whose fields are named after the columns, or else by number from 0."""
    lists = [list_operand(site, index) for index in range(len(site.operands))]
    names = [site.name_of(index) or str(index) for index in range(len(lists))]
    fields = [pa.field(name, list_term.type.value_type) for name, list_term in zip(names, lists, strict=True)]
    kind = types.list_of(pa.struct(fields), nullable=False)
    return site.apply(partial(_zipped, kind), kind, *lists)


def _zipped(kind: pa.DataType, *data: Datum) -> pa.Array:
    columns = arrays(*data)
    valid = np.logical_and.reduce([validity(column) for column in columns])
    parts = [split_lists(column).with_valid(valid) for column in columns]
    lengths, children = in_step(parts)
    structs = pa.StructArray.from_arrays(children, fields=list(kind.value_type))
    return join_lists(kind, ListParts(valid, lengths, structs))


def in_step(parts: list[ListParts]) -> tuple[Integers, list[pa.Array]]:
    """Extend the lists of each row to the longest of them with nulls; return the lengths and all elements."""
    lengths = np.maximum.reduce([part.lengths for part in parts])
    starts = np.cumsum(lengths) - lengths
    extended = []
    for part in parts:
        source = np.full(int(lengths.sum()), -1, dtype=np.int64)
        source[starts[part.rows] + part.positions] = np.arange(len(part.values))
        extended.append(
            taken(part.values, np.maximum(source, 0), valid=source >= 0)
            if len(part.values)
            else pa.nulls(len(source), part.values.type)
        )
    return lengths, extended


BUILDERS: dict[str, Builder] = {
    "array": of_many(_array, 0),
    "concat": of_many(_concat),
    "||": of(_concat, 2),
    "reverse": of(_reverse, 1),
    "array_append": of(_extended, 2),
    "array_prepend": of(_extended, 2),
    "array_insert": of(_insert, 3),
    "array_repeat": of(_repeat, 2),
    "slice": of(_slice, 3),
    "flatten": of(_flatten, 1),
    "sort_array": of(sort, 1, 2),
    "array_max": of(_extreme, 1),
    "array_min": of(_extreme, 1),
    "size": of(_size, 1),
    "cardinality": of(_size, 1),
    "array_size": of(_array_size, 1),
    "array_join": of(_join, 2, 3),
    "concat_ws": of_many(_concat_ws),
    "sequence": of(_sequence, 2, 3),
    "arrays_zip": of_many(_zip),
}
