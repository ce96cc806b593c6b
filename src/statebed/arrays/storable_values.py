"""Values that no file can hold although their type can be stored: refused before they are accepted.

Parquet has no timestamps in seconds, which become milliseconds, and no dates in milliseconds, which become days. Its
writer also refuses nulls in required parts of nested values, which Arrow does not.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import int64_values, one_chunk, validity
from statebed.arrays.nested import REMEMBERED_TYPES, fields_of, is_list, is_list_view, items_of
from statebed.arrays.null_structs import has_required_fields
from statebed.errors import InputError

DAY_MS = 86_400_000
_LAST_SECOND = ((1 << 63) - 1) // 1000
_LAST_DAY = (1 << 31) - 1


def check_values(column: pa.Array | pa.ChunkedArray, name: str, *, where: str) -> None:
    """Raise InputError for a column with values that files cannot hold."""
    if _has_limits(column.type) and not _fit(one_chunk(column)):
        raise InputError(
            f"the column {name!r} of the type {column.type} has a value that a file cannot hold",
            where=where,
            fix="leave such rows out, or choose another type: a timestamp in seconds has to fit milliseconds, and a "
            "date64 has to be a whole day that 32 bits hold",
        )
    if has_required_fields(column.type) and not _complete(one_chunk(column), np.ones(len(column), dtype=np.bool_)):
        raise InputError(
            f"the column {name!r} of the type {column.type} has nulls in a part that may not be null",
            where=where,
            fix="leave such rows out, fill the nulls, or choose a type whose parts may be null",
        )


@lru_cache(maxsize=REMEMBERED_TYPES)
def _has_limits(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_limits(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pa.types.is_date64(kind) or (pa.types.is_timestamp(kind) and kind.unit == "s"))


def _fit(array: pa.Array) -> bool:
    kind = array.type
    if not len(array) or not _has_limits(kind):
        return True
    if pa.types.is_struct(kind):
        return all(map(_fit, fields_of(array)))
    if is_list(kind) or pa.types.is_map(kind):
        return _fit(items_of(array)[1])
    if is_list_view(kind):
        return _fit(array.flatten())
    values = int64_values(array)
    if array.null_count:
        values = values[validity(array)]
    if pa.types.is_date64(kind):
        values, rest = np.divmod(values, DAY_MS)
        return not rest.any() and bool(((values >= -_LAST_DAY - 1) & (values <= _LAST_DAY)).all())
    return bool(((values >= -_LAST_SECOND) & (values <= _LAST_SECOND)).all())


def _complete(array: pa.Array, seen: npt.NDArray[np.bool_]) -> bool:
    """Return whether required parts have no nulls in the rows `seen`, except below null values."""
    kind = array.type
    if not has_required_fields(kind):
        return True
    there = seen & validity(array)
    if pa.types.is_struct(kind):
        places = [there] * kind.num_fields
        parts = fields_of(array)
        required = [not kind.field(index).nullable for index in range(kind.num_fields)]
    else:
        offsets, items = items_of(array)
        places, parts, required = [np.repeat(there, np.diff(offsets))], [items], [_items_are_required(kind)]
    return all(
        (not needed or bool(validity(part)[place].all())) and _complete(part, place)
        for part, place, needed in zip(parts, places, required, strict=True)
    )


def _items_are_required(kind: pa.DataType) -> bool:
    return not pa.types.is_map(kind) and not kind.value_field.nullable
