"""Functions that take lambda functions: transform, filter, exists, aggregate and others.

The body of a lambda function is evaluated once for the elements of all lists of a batch: the columns that it reads are
repeated for each element, and its parameters are columns of elements. `aggregate` evaluates its body once per position,
for all lists that are that long.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, validity
from statebed.expressions import types
from statebed.expressions.casts import convert
from statebed.expressions.functions.lists import in_step, list_operand, sort
from statebed.expressions.functions.maps import checked_maps, map_operand
from statebed.expressions.list_parts import (
    Flags,
    Integers,
    ListParts,
    content_bytes,
    join_lists,
    maps_of,
    ranks,
    repeated,
    split_lists,
    taken,
)
from statebed.expressions.mistakes import RowFailure
from statebed.expressions.sites import Builder, LambdaBody, LambdaSite, Site, of
from statebed.expressions.terms import BatchColumns, Term
from statebed.expressions.text_limits import check_size

Parameter = tuple[pa.DataType, bool]
"""Type of a parameter, and whether it can be null."""
_INDEX: Parameter = (types.INT, False)


class ElementColumns(BatchColumns):
    """Rows of a batch, repeated for the elements of their lists, and parameters of a lambda function."""

    def __init__(self, whole: BatchColumns, rows: Integers, parameters: dict[str, pa.Array]) -> None:
        self._whole = whole
        self._rows = rows
        self._columns = dict(parameters)
        self._kinds = {name: array.type for name, array in parameters.items()}
        self.num_rows = len(rows)

    def column(self, name: str) -> pa.Array:
        if name not in self._columns:
            self._columns[name] = repeated(self._whole.column(name), self._rows)
        return self._columns[name]

    def kind(self, name: str) -> pa.DataType | None:
        return self._kinds.get(name) or self._whole.kind(name)


Compute = Callable[[BatchColumns, list[pa.Array], list[LambdaBody]], pa.Array]


@dataclass(frozen=True, eq=False)
class HigherOrder(Term):
    """A function of columns and lambda functions."""

    compute: Compute
    operands: tuple[Term, ...]
    bodies: tuple[LambdaBody, ...]

    def value(self, frame: BatchColumns) -> pa.Array:
        data = [operand.array(frame) for operand in self.operands]
        try:
            return self.compute(frame, data, list(self.bodies))
        except RowFailure as failed:
            raise self.place.failure(failed) from None


def _term(
    site: Site,
    compute: Compute,
    kind: pa.DataType,
    operands: tuple[Term, ...],
    bodies: tuple[LambdaBody, ...],
    *,
    nullable: bool,
    fallible: bool = False,
) -> Term:
    own = {name for body in bodies for name in body.parameters}
    columns = frozenset().union(*(operand.columns for operand in operands), *(body.term.columns for body in bodies))
    fallible = fallible or any(term.fallible for term in (*operands, *(body.term for body in bodies)))
    return HigherOrder(site.place, kind, nullable, fallible, columns - own, compute, operands, bodies)


def evaluated(frame: BatchColumns, rows: Integers, body: LambdaBody, *arguments: pa.Array) -> pa.Array:
    """Evaluate the body of a lambda function for elements of rows."""
    return body.term.array(ElementColumns(frame, rows, dict(zip(body.parameters, arguments, strict=True))))


def _bound(site: Site, function: LambdaSite, *parameters: Parameter, optional: int = 0) -> LambdaBody:
    """Bind a lambda function; it may leave out the last `optional` parameters."""
    if not len(parameters) - optional <= function.arity <= len(parameters):
        wanted = " or ".join(map(str, range(len(parameters) - optional, len(parameters) + 1)))
        raise function.place.mistake(
            f"{site.function} needs a lambda function of {wanted} parameters, got {function.arity}"
        )
    return function.bind(*parameters[: function.arity])


def _element_of(lists: Term) -> Parameter:
    return lists.type.value_type, lists.type.value_field.nullable


def _as_condition(site: Site, body: LambdaBody, place: LambdaSite) -> LambdaBody:
    if body.term.type == types.NULL:
        return LambdaBody(body.parameters, convert(body.term, types.BOOLEAN))
    if body.term.type != types.BOOLEAN:
        raise place.place.type_mistake(
            f"{site.function} needs a condition here, got {types.type_name(body.term.type)}", fix="compare: x -> x > 0"
        )
    return body


# ---- lists -----------------------------------------------------------------------------------------------------


def _on_elements(frame: BatchColumns, parts: ListParts, body: LambdaBody) -> pa.Array:
    """Evaluate a lambda function of an element and perhaps its index, from 0."""
    arguments = [parts.values, from_numpy(parts.positions.astype(np.int32), types.INT)]
    return evaluated(frame, parts.rows, body, *arguments[: len(body.parameters)])


def _transform(site: Site) -> Term:
    lists = list_operand(site)
    body = _bound(site, site.lambdas[0], _element_of(lists), _INDEX, optional=1)
    kind = types.list_of(body.term.type, nullable=body.term.nullable)

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        return join_lists(kind, ListParts(parts.valid, parts.lengths, _on_elements(frame, parts, bodies[0])))

    return _term(site, compute, kind, (lists,), (body,), nullable=lists.nullable)


def _filter(site: Site) -> Term:
    lists = list_operand(site)
    body = _bound(site, site.lambdas[0], _element_of(lists), _INDEX, optional=1)
    body = _as_condition(site, body, site.lambdas[0])

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        return join_lists(lists.type, parts.kept(boolean_values(_on_elements(frame, parts, bodies[0]))))

    return _term(site, compute, lists.type, (lists,), (body,), nullable=lists.nullable)


def _quantified(site: Site) -> Term:
    """Build exists or forall, in three-valued logic: an unknown element matters only if no other one decides."""
    lists = list_operand(site)
    body = _as_condition(site, _bound(site, site.lambdas[0], _element_of(lists)), site.lambdas[0])
    decisive = site.function == "exists"

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        held = _on_elements(frame, parts, bodies[0])
        known = validity(held)
        decided = parts.count(known & (boolean_values(held) == decisive)) > 0
        valid = parts.valid & (decided | (parts.count(~known) == 0))
        values = pa.py_buffer(np.packbits(decided == decisive, bitorder="little"))
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(pa.bool_(), len(valid), [bitmap, values])

    return _term(site, compute, types.BOOLEAN, (lists,), (body,), nullable=lists.nullable or body.term.nullable)


def _aggregate(site: Site) -> Term:
    lists, start = list_operand(site), site.operands[1]
    merge = _bound(site, site.lambdas[0], (start.type, True), _element_of(lists))
    if merge.term.type != start.type:
        raise site.lambdas[0].place.type_mistake(
            f"the lambda function of {site.function} returns {types.type_name(merge.term.type)}, but the start value "
            f"is {types.type_name(start.type)}",
            fix="cast the start value or the result",
        )
    finish = _bound(site, site.lambdas[1], (start.type, True)) if len(site.lambdas) > 1 else None
    kind = start.type if finish is None else finish.term.type
    bodies = (merge,) if finish is None else (merge, finish)

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        result = _folded(frame, parts, data[1], bodies[0])
        if len(bodies) > 1:
            result = evaluated(frame, np.arange(len(result), dtype=np.int64), bodies[1], result)
        return taken(result, np.arange(len(result), dtype=np.int64), valid=parts.valid)

    return _term(site, compute, kind, (lists, start), bodies, nullable=True)


def _folded(frame: BatchColumns, parts: ListParts, start: pa.Array, merge: LambdaBody) -> pa.Array:
    """Merge the elements of each list into its start value, at one position of all lists at a time.

    Rows are in the descending order of their lengths, so that those with an element left are always the first ones.
    """
    order = np.argsort(-parts.lengths, kind="stable")
    rows_left = len(order) - np.cumsum(np.bincount(parts.lengths))[:-1]
    finished: list[pa.Array] = []
    finished_bytes = 0
    state = start if np.array_equal(order, np.arange(len(order))) else taken(start, order)
    for position, count in enumerate(rows_left.tolist()):
        if count < len(state):
            finished.append(taken(state, np.arange(count, len(state))))
            finished_bytes += content_bytes(finished[-1])
            state = state.slice(0, count)
        rows = order[:count]
        state = evaluated(frame, rows, merge, state, taken(parts.values, parts.starts[rows] + position))
        check_size(finished_bytes + content_bytes(state), len(order))
    ordered = pa.concat_arrays([state, *reversed(finished)]) if finished else state
    return ordered if np.array_equal(order, np.arange(len(order))) else taken(ordered, np.argsort(order))


def _zip_with(site: Site) -> Term:
    left, right = (list_operand(site, index) for index in range(2))
    body = _bound(site, site.lambdas[0], (left.type.value_type, True), (right.type.value_type, True))
    kind = types.list_of(body.term.type, nullable=body.term.nullable)

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        valid = validity(data[0]) & validity(data[1])
        lengths, elements = in_step([split_lists(column).with_valid(valid) for column in data])
        rows = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        return join_lists(kind, ListParts(valid, lengths, evaluated(frame, rows, bodies[0], *elements)))

    return _term(site, compute, kind, (left, right), (body,), nullable=left.nullable or right.nullable)


def _array_sort(site: Site) -> Term:
    if not site.lambdas:
        return sort(site)
    lists = list_operand(site)
    element = _element_of(lists)
    body = _bound(site, site.lambdas[0], element, element)
    if not types.is_integer(body.term.type):
        raise site.lambdas[0].place.type_mistake(
            f"the lambda function of array_sort returns {types.type_name(body.term.type)}",
            fix="return a negative int, 0 or a positive int",
        )

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])

        def is_greater(left: Integers, right: Integers, rows: Integers) -> Flags:
            compared = evaluated(frame, rows, bodies[0], taken(parts.values, left), taken(parts.values, right))
            if compared.null_count:
                raise RowFailure("a comparison that returns null", fix="return an int for nulls, too")
            return _signs(compared) > 0

        order = merge_sorted(parts, is_greater)
        return join_lists(lists.type, ListParts(parts.valid, parts.lengths, taken(parts.values, order)))

    return _term(site, compute, lists.type, (lists,), (body,), nullable=lists.nullable, fallible=True)


def merge_sorted(parts: ListParts, is_greater: Callable[[Integers, Integers, Integers], Flags]) -> Integers:
    """Return the elements of all lists in the order of a comparison; elements that compare as equal keep theirs.

    This is a merge sort: runs of `width` elements are sorted, and every two of them are merged. All elements find their
    places in the other run at once, by binary search, so a list of n elements takes log(n)^2 comparisons of columns.
    """
    total = len(parts.values)
    order = np.arange(total, dtype=np.int64)
    positions, starts = parts.positions, parts.starts[parts.rows]
    lengths = parts.lengths[parts.rows]
    width = 1
    while width < int(parts.lengths.max(initial=0)):
        pair = positions // (2 * width) * (2 * width)
        is_left = positions - pair < width
        # The other run of the pair, between these positions; the last run of a list may have none.
        low = starts + np.minimum(np.where(is_left, pair + width, pair), lengths)
        high = starts + np.minimum(np.where(is_left, pair + 2 * width, pair + width), lengths)
        first = low.copy()
        while len(open_ := np.flatnonzero(low < high)):
            middle = (low[open_] + high[open_]) // 2
            own, other, of_left = order[open_], order[middle], is_left[open_]
            greater = is_greater(np.where(of_left, own, other), np.where(of_left, other, own), parts.rows[open_])
            # An element of the left run stands after the smaller ones of the right run, and before its equals.
            after = greater == of_left
            low[open_[after]] = middle[after] + 1
            high[open_[~after]] = middle[~after]
        places = starts + pair + (positions - pair) % width + low - first
        merged = np.full(total, -1, dtype=np.int64)
        merged[places] = order
        if np.any(merged < 0):
            raise RowFailure(
                "a comparison that contradicts itself",
                fix="return an int that is negative, 0 or positive by one rule for all pairs",
            )
        order = merged
        width *= 2
    return order


def _signs(compared: pa.Array) -> Integers:
    return fixed_width_values(compared, np.dtype(f"int{compared.type.bit_width}")).astype(np.int64)


# ---- maps ------------------------------------------------------------------------------------------------------


def _entry_of(maps: Term) -> tuple[Parameter, Parameter]:
    return (maps.type.key_type, False), (maps.type.item_type, maps.type.item_field.nullable)


def _map_filter(site: Site) -> Term:
    maps = map_operand(site)
    body = _as_condition(site, _bound(site, site.lambdas[0], *_entry_of(maps)), site.lambdas[0])

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        held = evaluated(frame, parts.rows, bodies[0], parts.values.field(0), parts.values.field(1))
        kept = parts.kept(boolean_values(held))
        return maps_of(maps.type, kept, kept.values.field(0), kept.values.field(1))

    return _term(site, compute, maps.type, (maps,), (body,), nullable=maps.nullable)


def _transform_entries(site: Site) -> Term:
    maps = map_operand(site)
    body = _bound(site, site.lambdas[0], *_entry_of(maps))
    of_keys = site.function == "transform_keys"
    if of_keys:
        item = maps.type.item_field
        kind = types.map_of(body.term.type, item.type, nullable=item.nullable)
    else:
        kind = types.map_of(maps.type.key_type, body.term.type, nullable=body.term.nullable)

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        parts = split_lists(data[0])
        keys, values = parts.values.field(0), parts.values.field(1)
        results = evaluated(frame, parts.rows, bodies[0], keys, values)
        return checked_maps(kind, parts, results, values) if of_keys else maps_of(kind, parts, keys, results)

    return _term(site, compute, kind, (maps,), (body,), nullable=maps.nullable, fallible=of_keys)


def _map_zip_with(site: Site) -> Term:
    left, right = (map_operand(site, index) for index in range(2))
    key = types.common_type(left.type.key_type, right.type.key_type)
    if key is None:
        raise site.wrong_types("maps with keys of one type")
    left, right = (
        convert(map_term, types.map_of(key, map_term.type.item_type, nullable=map_term.type.item_field.nullable))
        for map_term in (left, right)
    )
    body = _bound(site, site.lambdas[0], (key, False), (left.type.item_type, True), (right.type.item_type, True))
    kind = types.map_of(key, body.term.type, nullable=body.term.nullable)

    def compute(frame: BatchColumns, data: list[pa.Array], bodies: list[LambdaBody]) -> pa.Array:
        valid = validity(data[0]) & validity(data[1])
        first_maps, second_maps = (split_lists(column).with_valid(valid) for column in data)
        rows, keys, values = _all_keys(first_maps, second_maps)
        results = evaluated(frame, rows, bodies[0], keys, *values)
        lengths = np.bincount(rows, minlength=len(valid)).astype(np.int64)
        return maps_of(kind, ListParts(valid, lengths, keys), keys, results)

    return _term(site, compute, kind, (left, right), (body,), nullable=left.nullable or right.nullable)


def _all_keys(first_maps: ListParts, second_maps: ListParts) -> tuple[Integers, pa.Array, list[pa.Array]]:
    """Return the row of each key of two maps, the keys (those of the first map first), and the values in both maps."""
    keys = pa.concat_arrays([first_maps.values.field(0), second_maps.values.field(0)])
    rows = np.concatenate([first_maps.rows, second_maps.rows])
    (rank,) = ranks(keys)
    pairs = rows * (int(rank.max(initial=0)) + 1) + rank
    unique, first, inverse = np.unique(pairs, return_index=True, return_inverse=True)
    order = np.lexsort((first, rows[first]))
    place = np.empty(len(unique), dtype=np.int64)
    place[order] = np.arange(len(unique))
    values = []
    for part, numbers in (
        (first_maps, inverse[: len(first_maps.rows)]),
        (second_maps, inverse[len(first_maps.rows) :]),
    ):
        source: Integers = np.full(len(unique), -1, dtype=np.int64)
        source[place[numbers]] = np.arange(len(numbers))
        known: Flags = source >= 0
        items = part.values.field(1)
        values.append(
            taken(items, np.maximum(source, 0), valid=known) if len(items) else pa.nulls(len(source), items.type)
        )
    return rows[first[order]], taken(keys, first[order]), values


BUILDERS: dict[str, Builder] = {
    "transform": of(_transform, 1, lambdas=range(1, 2)),
    "filter": of(_filter, 1, lambdas=range(1, 2)),
    "exists": of(_quantified, 1, lambdas=range(1, 2)),
    "forall": of(_quantified, 1, lambdas=range(1, 2)),
    "aggregate": of(_aggregate, 2, lambdas=range(1, 3)),
    "reduce": of(_aggregate, 2, lambdas=range(1, 3)),
    "zip_with": of(_zip_with, 2, lambdas=range(1, 2)),
    "array_sort": of(_array_sort, 1, lambdas=range(2)),
    "map_filter": of(_map_filter, 1, lambdas=range(1, 2)),
    "transform_keys": of(_transform_entries, 1, lambdas=range(1, 2)),
    "transform_values": of(_transform_entries, 1, lambdas=range(1, 2)),
    "map_zip_with": of(_map_zip_with, 2, lambdas=range(1, 2)),
}
