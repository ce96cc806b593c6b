"""Keys that a call of the context applies to: those of the batch, some of them, or others."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.columns import boolean_values, int64_values, one_chunk
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.sort_order import Integers
from statebed.errors import InputError
from statebed.operators.keyed_rows import taken

Keys: TypeAlias = pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray | npt.NDArray[Any] | None
"""Selection of keys: all keys of the batch (None), some by position or mask, or any keys as rows of the key columns."""


@dataclass(frozen=True)
class ChosenKeys:
    """Selected keys, and their positions in the batch."""

    keys: pa.Table
    places: Integers | None
    """Positions in the batch; None if the keys are not from the batch."""


def chosen(keys: Keys, batch: pa.Table, *, where: str) -> ChosenKeys:
    """Resolve the user's selection of keys."""
    if keys is None:
        return ChosenKeys(batch, np.arange(batch.num_rows, dtype=np.int64))
    if isinstance(keys, pa.Table | pa.RecordBatch):
        return ChosenKeys(_conformed(keys, batch.schema, where=where), None)
    places = _places(keys, batch.num_rows, where=where)
    return ChosenKeys(taken(batch, places), places)


def positions(index: Keys, rows: Integers, count: int, limit: int, *, where: str) -> Integers:
    """Return the position of the key of each of `count` items; without an `index`, those of the batch's rows."""
    if index is None:
        places = rows
    elif isinstance(index, pa.Table | pa.RecordBatch):
        raise InputError(
            "`index` must have positions in ctx.keys, got a table of keys",
            where=where,
            fix="pass positions in ctx.keys",
        )
    else:
        places = _places(index, limit, where=where)
    if len(places) != count:
        raise InputError(
            f"got {count} items but {len(places)} positions of keys",
            where=where,
            fix="pass one item per row of the batch, or index= with the position in ctx.keys for each item",
        )
    return places


def _places(chosen: pa.Array | pa.ChunkedArray | npt.NDArray[Any], count: int, *, where: str) -> Integers:
    fix = "pass a mask over ctx.keys, or positions in it"
    if isinstance(chosen, pa.Array | pa.ChunkedArray):
        array = one_chunk(chosen)
        if pa.types.is_boolean(array.type):
            chosen = boolean_values(array)
        elif pa.types.is_integer(array.type) and not array.null_count:
            chosen = int64_values(array.cast(pa.int64()))
        else:
            raise InputError(
                f"keys must be selected by a boolean mask or by integers without nulls, got {array.type}",
                where=where,
                fix=fix,
            )
    values = np.asarray(chosen)
    if values.dtype == np.bool_:
        if len(values) != count:
            raise InputError(
                f"a mask must have one value for each of {count} keys, got {len(values)}", where=where, fix=fix
            )
        return np.flatnonzero(values)
    places = values.astype(np.int64)
    if values.dtype.kind not in "iu" or (len(places) and not 0 <= int(places.min()) <= int(places.max()) < count):
        raise InputError(
            f"positions of keys must be integers of at least 0 and below {count}, the number of keys",
            where=where,
            fix=fix,
        )
    return places


def _conformed(keys: pa.Table | pa.RecordBatch, schema: pa.Schema, *, where: str) -> pa.Table:
    missing = [name for name in schema.names if name not in keys.schema.names]
    if missing:
        raise InputError(f"keys lack the columns {missing}", where=where, fix=f"pass the columns {schema.names}")
    columns = [normalise_key(one_chunk(keys.column(field.name)).cast(field.type)) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
