"""Order of rows in a segment: ascending column by column, NaN after numbers, nulls after all.

Text and binary are ordered by their bytes, extension types as their storage, nested values part by part
(`nested_order`). All functions are vectorised and consistent with each other.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import boolean_values, fixed_width_values, from_numpy, one_chunk, validity
from statebed.arrays.nested import storage_of
from statebed.arrays.nested_order import encoded, is_encodable
from statebed.errors import InputError

Flags = npt.NDArray[np.bool_]

_WHOLE = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
"""Integer types of the same width as floats."""


def sort_indices(table: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return the indices that sort the rows; the sort is stable."""
    for name in columns:
        _check_sortable(table.schema.field(name))
    table = pa.table({name: sortable(table[name]) for name in columns})
    # Nulls at the end is the default; passing it explicitly warns in some versions of pyarrow.
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in columns])


def in_order(table: pa.Table, columns: Sequence[str], rest: Sequence[str]) -> pa.Table:
    """Sort the rows by `columns`, then by the bits of `rest`, so that the input order does not matter."""
    return sort_ties(table.take(sort_indices(table, columns)).combine_chunks(), columns, rest)


def sort_ties(table: pa.Table, columns: Sequence[str], rest: Sequence[str]) -> pa.Table:
    """Sort rows that are already sorted by `columns` as `in_order` does.

    The other columns, which may be long or nested, are read only where rows are equal.
    """
    if not rest:
        return table
    tied, groups = ties(table, columns)
    if not len(tied):
        return table
    tied_rows = table.select(list(rest))
    if len(tied) < table.num_rows:
        tied_rows = tied_rows.take(from_numpy(tied, pa.int64()))
    keys = [from_numpy(groups, pa.int64()), *map(exact, tied_rows.columns)]
    names = [str(number) for number in range(len(keys))]
    order = sort_indices(pa.Table.from_arrays(keys, names=names), names)
    places = np.arange(table.num_rows, dtype=np.int64)
    places[tied] = tied[fixed_width_values(order, np.uint64).astype(np.int64)]
    return table.take(from_numpy(places, pa.int64())).combine_chunks()


def first_disorder(table: pa.Table, columns: Sequence[str]) -> int | None:
    """Return the first row that belongs before its predecessor, or None if all are in order."""
    worst: int | None = None
    for rows, below, equal in _neighbours(table, columns):
        wrong = rows[~below & ~equal]
        if len(wrong) and (worst is None or wrong[0] < worst):
            worst = int(wrong[0])
    return worst


def repeats(table: pa.Table, columns: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the rows of a sorted table that equal their predecessors in these columns."""
    equal_rows = np.arange(1, table.num_rows, dtype=np.int64)
    for rows, _, equal in _neighbours(table, columns):
        equal_rows = rows[equal]
    return equal_rows


def ties(table: pa.Table, columns: Sequence[str]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows of a sorted table that have equals in these columns, and a group number for each."""
    begins = np.ones(table.num_rows, dtype=np.bool_)
    begins[repeats(table, columns)] = False
    tied = np.flatnonzero(~begins | ~np.append(begins[1:], True))
    return tied, np.cumsum(begins, dtype=np.int64)[tied]


def _neighbours(table: pa.Table, columns: Sequence[str]) -> Iterator[tuple[npt.NDArray[np.int64], Flags, Flags]]:
    """Yield, for each column, the rows equal to their predecessors so far, and whether these are less, or equal."""
    rows = np.arange(1, table.num_rows, dtype=np.int64)
    for name in columns:
        _check_sortable(table.schema.field(name))
        if not len(rows):
            break
        column = one_chunk(table[name])
        if len(rows) == table.num_rows - 1:
            column = sortable(column)
            before, after = column[:-1], column[1:]
        else:
            neighbour_values = (column.take(from_numpy(neighbours, pa.int64())) for neighbours in (rows - 1, rows))
            before, after = map(sortable, neighbour_values)
        below, equal = _compare(before, after)
        yield rows, below, equal
        rows = rows[equal]


def _compare(before: pa.Array, after: pa.Array) -> tuple[Flags, Flags]:
    """Return, row by row, whether before < after and whether they are equal."""
    if pa.types.is_null(before.type):
        return np.zeros(len(before), dtype=np.bool_), np.ones(len(before), dtype=np.bool_)
    below = boolean_values(pc.less(before, after))
    equal = boolean_values(pc.equal(before, after))
    has_nulls = before.null_count or after.null_count
    if not (has_nulls or pa.types.is_floating(before.type)):
        return below, equal
    if pa.types.is_floating(before.type):
        before_nan, after_nan = boolean_values(pc.is_nan(before)), boolean_values(pc.is_nan(after))
        before_null, after_null = boolean_values(before.is_null()), boolean_values(after.is_null())
        below |= ~before_nan & ~before_null & after_nan
        equal |= before_nan & after_nan
    else:
        before_null, after_null = boolean_values(before.is_null()), boolean_values(after.is_null())
    below |= ~before_null & after_null
    equal |= before_null & after_null
    return below, equal


def is_sortable(kind: pa.DataType) -> bool:
    """Return whether a column of the type can be sorted by."""
    kind = storage_of(kind)
    return not pa.types.is_nested(kind) or is_encodable(kind)


def sortable(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the column in a type that Arrow can sort and compare.

    Extension types become their storage, half floats floats, short decimals wider ones, nested values bytes.
    """
    kind = storage_of(column.type)
    wanted = kind
    if pa.types.is_nested(kind):
        return encoded(column if kind == column.type else column.cast(kind)) if is_encodable(kind) else column
    if pa.types.is_float16(kind):
        wanted = pa.float32()
    elif pa.types.is_decimal32(kind) or pa.types.is_decimal64(kind):
        wanted = pa.decimal128(kind.precision, kind.scale)
    return column if wanted == column.type else column.cast(kind).cast(wanted)


def exact(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return the column like `sortable`, but with values distinct if their bits are, such as zeros and NaN."""
    kind = storage_of(column.type)
    if pa.types.is_nested(kind) and is_encodable(kind):
        return encoded(column if kind == column.type else column.cast(kind), exact=True)
    if not pa.types.is_floating(kind):
        return sortable(column)
    array = one_chunk(column if kind == column.type else column.cast(kind))
    width = kind.bit_width
    bits: npt.NDArray[np.signedinteger] = fixed_width_values(array, np.dtype(f"i{width // 8}")).view(f"i{width // 8}")
    ascending = bits ^ ((bits >> (width - 1)) & ((1 << (width - 1)) - 1))
    return from_numpy(ascending, _WHOLE[width], valid=validity(array))


def _check_sortable(field: pa.Field) -> None:
    if not is_sortable(field.type):
        raise InputError(
            f"the column {field.name!r} of the type {field.type} has no order",
            fix="use columns of other types, for example the parts of a value one by one",
        )
