"""Values that no file can hold, though their type can be stored: refused before they are taken.

Parquet has neither timestamps in seconds, which become milliseconds, nor dates in milliseconds, which become days.
"""

from functools import lru_cache

import numpy as np
import pyarrow as pa

from statebed.errors import InputError
from statebed.format.columns import int64_values, one_chunk, validity
from statebed.format.nested import fields_of, is_list, items_of

DAY_MS = 86_400_000
_LAST_SECOND = ((1 << 63) - 1) // 1000
_LAST_DAY = (1 << 31) - 1
_KINDS = 256
"""So many types are remembered."""


def check_values(column: pa.Array | pa.ChunkedArray, name: str, *, where: str) -> None:
    """Refuse a column with values that files cannot hold."""
    if _has_limits(column.type) and not _fit(one_chunk(column)):
        raise InputError(
            f"the column {name!r} of the type {column.type} has a value that a file cannot hold",
            where=where,
            fix="leave such rows out, or choose another type: a timestamp in seconds has to fit milliseconds, and a "
            "date64 has to be a whole day that 32 bits hold",
        )


@lru_cache(maxsize=_KINDS)
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
    values = int64_values(array)
    if array.null_count:
        values = values[validity(array)]
    if pa.types.is_date64(kind):
        values, rest = np.divmod(values, DAY_MS)
        return not rest.any() and bool(((values >= -_LAST_DAY - 1) & (values <= _LAST_DAY)).all())
    return bool(((values >= -_LAST_SECOND) & (values <= _LAST_SECOND)).all())
