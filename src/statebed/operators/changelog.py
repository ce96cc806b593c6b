"""Changelogs: rows with a weight, +n to add the row n times, -n to take it away n times.

A row is its columns and its event time: whoever takes a row away says it as it was added. Nulls equal nulls, NaN equals
NaN, -0.0 equals 0.0, and nested values are equal when they are item by item. All functions work on whole columns, and
what they give depends on the set of rows alone, not on their order.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import sortable
from statebed.arrays.columns import from_numpy, one_chunk, validity
from statebed.arrays.grouping import Grouping, group_rows
from statebed.arrays.key_hash import check_key_type, hash_columns, normalise_key
from statebed.arrays.mutable import column_over
from statebed.arrays.sort_order import codes
from statebed.errors import InputError
from statebed.format.stream_schema import WEIGHT, weights_of
from statebed.operators.input_rows import filtered

Integers = npt.NDArray[np.int64]
UNKNOWN_RETRACTIONS = "unknown_retractions"
"""What operators call their count of retractions that found nothing."""
_WEIGHT_FIELD = pa.field(WEIGHT, pa.int64(), nullable=False)


def consolidated(rows: pa.Table) -> pa.Table:
    """Each distinct row once, with its net weight, those with weight 0 left out; retractions come first.

    Rows without a weight count once. Inside retractions and additions the order is that of the rows' hashes.
    """
    weights, columns = weights_of(rows), without_weight(rows)
    grouping = group_equal(columns)
    net = grouping.add(weights)
    kept = np.flatnonzero(net)
    kept = kept[np.argsort(net[kept] > 0, kind="stable")]
    firsts = from_numpy(grouping.first_rows[kept], pa.int64())
    # Equal rows may differ in the bits of a zero or of a NaN, and any of them may be the first.
    found = [normalise_key(one_chunk(column)).take(firsts) for column in columns.columns]
    return weighted(pa.Table.from_arrays(found, schema=columns.schema), net[kept])


def difference(old: pa.Table, new: pa.Table) -> pa.Table:
    """What turns the old rows into the new ones: what is new is added, what is gone is taken away."""
    taken = weighted(without_weight(old), -weights_of(old))
    added = weighted(without_weight(new), weights_of(new))
    return consolidated(pa.concat_tables([taken, added]))


def replaced(old: pa.Table, new: pa.Table, *, old_keys: Integers, new_keys: Integers) -> pa.Table:
    """As `difference`, of rows of which each key has at most one before and one after; keys are ascending numbers.

    Inside retractions and additions the order is that of the keys.
    """
    _, before, after = np.intersect1d(old_keys, new_keys, assume_unique=True, return_indices=True)
    same = np.ones(len(before), dtype=np.bool_)
    # What differs most often stands last: the event time, and aggregates behind keys.
    for name in reversed(old.schema.names):
        if not same.any():
            break
        same &= _equal(_taken(old[name], before), _taken(new[name], after))
    taken, added = np.ones(old.num_rows, dtype=np.bool_), np.ones(new.num_rows, dtype=np.bool_)
    taken[before[same]] = added[after[same]] = False
    rows = pa.concat_tables([filtered(old, taken), filtered(new, added)])
    found = [normalise_key(one_chunk(column)) for column in rows.columns]
    weights = np.repeat(np.array([-1, 1], dtype=np.int64), [np.count_nonzero(taken), np.count_nonzero(added)])
    return weighted(pa.Table.from_arrays(found, schema=rows.schema), weights)


def folded(changes: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """What several changelogs come to, one after the other; `schema` is theirs, without the weight."""
    return consolidated(pa.concat_tables([weighted(schema.empty_table(), np.zeros(0, dtype=np.int64)), *changes]))


def weighted(rows: pa.Table, weights: Integers) -> pa.Table:
    """The rows with these weights."""
    return rows.append_column(_WEIGHT_FIELD, from_numpy(weights, pa.int64()))


def without_weight(rows: pa.Table) -> pa.Table:
    """The rows alone."""
    return rows.drop_columns([WEIGHT]) if WEIGHT in rows.schema.names else rows


def group_equal(rows: pa.Table, places: Integers | None = None) -> Grouping:
    """Groups of rows that are equal in every column, and in their places; ordered by place, then by the rows' hash."""
    columns = [comparable(one_chunk(column)) for column in rows.columns]
    hashes = hash_columns(columns) if columns else np.zeros(rows.num_rows, dtype=np.uint64)
    if places is not None and rows.num_rows:
        # One number for both is sorted several times faster than two.
        bits = np.uint64(max(int(places.max()).bit_length(), 1))
        hashes = (places.view(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
        columns = [from_numpy(places, pa.int64()), *columns]
    return group_rows(np.zeros(rows.num_rows, dtype=np.int64), hashes, columns)


def _taken(column: pa.ChunkedArray, rows: Integers) -> pa.Array:
    array = one_chunk(column)
    return array if len(rows) == len(array) else array.take(from_numpy(rows, pa.int64()))


def _equal(ours: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    both = comparable(pa.concat_arrays([ours, theirs]))
    rows = np.arange(len(ours), dtype=np.int64)
    return column_over(both.slice(0, len(ours))).equals(rows, both.slice(len(ours)))


def comparable(array: pa.Array) -> pa.Array:
    """The column, or bytes or numbers that are equal where its values are, in a type that has a hash and an order."""
    if pa.types.is_nested(array.type):
        array = sortable(array)
    try:
        check_key_type(pa.field("", array.type))
    except InputError:
        return from_numpy(codes(array), pa.int64(), valid=validity(array))
    return normalise_key(array)
