"""Changelogs: rows with a weight, where +n inserts a row n times and -n retracts it n times.

The identity of a row is all its columns and its event time, so a retraction must repeat the row exactly as it was
inserted. Nulls are equal to nulls, NaN to NaN and -0.0 to 0.0; nested values are equal if their items are. All
functions work on whole columns, and their results depend only on the set of rows, not on its order.
"""

from collections.abc import Collection, Iterator, Sequence

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
"""Name of the counter of retractions that matched no row."""
_WIDE_BYTES = 1 << 16
"""Values of at least this size on average are compared one by one."""
_WEIGHT_FIELD = pa.field(WEIGHT, pa.int64(), nullable=False)


def consolidated(rows: pa.Table) -> pa.Table:
    """Return each distinct row once with its net weight, without rows of net weight 0; retractions come first.

    Rows without a weight count once. Retractions and insertions are each ordered by the hash of the row.
    """
    weights, columns = weights_of(rows), without_weight(rows)
    grouping = group_equal(columns)
    net = grouping.add(weights)
    kept = np.flatnonzero(net)
    kept = kept[np.argsort(net[kept] > 0, kind="stable")]
    firsts = from_numpy(grouping.first_rows[kept], pa.int64())
    # Equal rows may differ in the bits of a zero or a NaN, and any of them may be the first, so the values are
    # normalised.
    arrays = [normalise_key(one_chunk(column)).take(firsts) for column in columns.columns]
    return weighted(pa.Table.from_arrays(arrays, schema=columns.schema), net[kept])


def difference(old: pa.Table, new: pa.Table) -> pa.Table:
    """Return the changelog that turns the old rows into the new ones."""
    taken = weighted(without_weight(old), -weights_of(old))
    added = weighted(without_weight(new), weights_of(new))
    return consolidated(pa.concat_tables([taken, added]))


def replaced(
    old: pa.Table, new: pa.Table, *, old_keys: Integers, new_keys: Integers, normal: Collection[str] = ()
) -> tuple[pa.Table, pa.Table]:
    """Return the retractions and the insertions of `difference` for rows with at most one old and one new row per key;
    keys are ascending numbers.

    Each are ordered by key. The columns `normal` are normalised already.
    """
    before, after = _common(old_keys, new_keys)
    same = np.ones(len(before), dtype=np.bool_)
    # The columns that differ most often are last: the event time, and aggregates after keys.
    for name in reversed(old.schema.names):
        if not same.any():
            break
        same &= _equal(_taken(old[name], before), _taken(new[name], after))
    taken, added = np.ones(old.num_rows, dtype=np.bool_), np.ones(new.num_rows, dtype=np.bool_)
    taken[before[same]] = added[after[same]] = False
    parts = []
    for rows, flags, weight in ((old, taken, -1), (new, added, 1)):
        changed = filtered(rows, flags)
        columns = {
            field: changed[field.name] if field.name in normal else normalise_key(one_chunk(changed[field.name]))
            for field in changed.schema
        }
        table = pa.Table.from_arrays(list(columns.values()), schema=changed.schema)
        parts.append(weighted(table, np.full(changed.num_rows, weight, dtype=np.int64)))
    return parts[0], parts[1]


def _common(ours: Integers, theirs: Integers) -> tuple[Integers, Integers]:
    """Return the positions of the numbers that both have; each are ascending."""
    count = max(int(numbers[-1]) + 1 if len(numbers) else 0 for numbers in (ours, theirs))
    positions = []
    for numbers, others in ((ours, theirs), (theirs, ours)):
        is_other = np.zeros(count, dtype=np.bool_)
        is_other[others] = True
        positions.append(np.flatnonzero(is_other[numbers]))
    return positions[0], positions[1]


def folded(changes: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """Combine several changelogs into one; `schema` is their schema without the weight."""
    return consolidated(pa.concat_tables([weighted(schema.empty_table(), np.zeros(0, dtype=np.int64)), *changes]))


def weighted(rows: pa.Table, weights: Integers) -> pa.Table:
    """Return the rows with a weight column."""
    return rows.append_column(_WEIGHT_FIELD, from_numpy(weights, pa.int64()))


def without_weight(rows: pa.Table) -> pa.Table:
    """Return the rows without the weight column."""
    return rows.drop_columns([WEIGHT]) if WEIGHT in rows.schema.names else rows


def group_equal(rows: pa.Table, places: Integers | None = None) -> Grouping:
    """Group rows that are equal in every column and in their place; groups are ordered by place, then by the hash of
    the row.
    """
    columns = [comparable(one_chunk(column)) for column in rows.columns]
    hashes = hash_columns(columns) if columns else np.zeros(rows.num_rows, dtype=np.uint64)
    if places is not None and rows.num_rows:
        # One number for place and hash sorts several times faster than two.
        bits = np.uint64(max(int(places.max()).bit_length(), 1))
        hashes = (places.view(np.uint64) << (np.uint64(64) - bits)) | (hashes >> bits)
        columns = [from_numpy(places, pa.int64()), *columns]
    return group_rows(None, hashes, columns)


def _taken(column: pa.ChunkedArray, rows: Integers) -> pa.Array:
    array = one_chunk(column)
    return array if len(rows) == len(array) else array.take(from_numpy(rows, pa.int64()))


def _equal(ours: pa.Array, theirs: pa.Array) -> npt.NDArray[np.bool_]:
    if ours.nbytes + theirs.nbytes > _WIDE_BYTES * max(len(ours), 1):
        # Encoding wide values takes several copies of them.
        pairs = zip(_slices(ours), _slices(theirs), strict=True)
        return np.fromiter((_same_bits(*pair) for pair in pairs), np.bool_, count=len(ours))
    both = comparable(pa.concat_arrays([ours, theirs]))
    rows = np.arange(len(ours), dtype=np.int64)
    return column_over(both.slice(0, len(ours))).equals(rows, both.slice(len(ours)))


def _slices(array: pa.Array) -> Iterator[pa.Array]:
    return (array.slice(place, 1) for place in range(len(array)))


def _same_bits(ours: pa.Array, theirs: pa.Array) -> bool:
    """Return whether normalised values are equal; NaN equals NaN."""
    if pa.types.is_list(ours.type) and not (ours.null_count or theirs.null_count):
        return _same_bits(ours.flatten(), theirs.flatten())
    if pa.types.is_floating(ours.type):
        bits = pa.int64() if pa.types.is_float64(ours.type) else pa.int32()
        ours, theirs = ours.view(bits), theirs.view(bits)
    return bool(ours.equals(theirs))


def comparable(array: pa.Array) -> pa.Array:
    """Return the column, or bytes or numbers that are equal exactly where its values are, in a type that can be hashed
    and sorted.
    """
    if pa.types.is_nested(array.type):
        array = sortable(array)
    try:
        check_key_type(pa.field("", array.type))
    except InputError:
        return from_numpy(codes(array), pa.int64(), valid=validity(array))
    return normalise_key(array)
