"""Reader of the rows that match a request: reads files in pieces, keeps the newest row of each key, and drops deleted
ones.

Everything read is checked against the checksums in the metadata (P7), and about one row group per open file is held in
memory. Pieces of keyed tables are ordered by the hashes of their keys, those of other tables are unordered. A part of a
global keyed table is held as a whole, because such tables are small.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import int64_values, uint64_values
from statebed.format.ranges import in_range
from statebed.format.schema import DELETED, KEY_HASH, SEQUENCE, TIME
from statebed.inspect.tables.hash_merge import HashSource, merge_by_hash
from statebed.inspect.tables.json_text import json_text
from statebed.inspect.tables.read_plan import FilePlan, PartPlan
from statebed.inspect.tables.request import Request
from statebed.inspect.tables.table_shape import GLOBAL_KEYED, KEYED, TableShape
from statebed.state.codec import Codec
from statebed.state.evolution.adaptation import adapt, in_stored_types
from statebed.state.global_keyed.files import KEY, VALUE
from statebed.state.global_keyed.files import newest as newest_of_keys
from statebed.state.keyed.batch import take_rows
from statebed.state.keyed.files import newest_rows
from statebed.state.keyed.run_rows import without_deleted
from statebed.state.live.files import END
from statebed.state.tiers.selection import among
from statebed.state.time_keyed.row_merge import SortedSource, merged, newest
from statebed.state.time_keyed.snapshot import filtered


def rows_of_part(plan: PartPlan) -> Iterator[pa.Table]:
    """Yield the matching rows of one subtask with the columns of `Request.shown`, and possibly more."""
    request, shape = plan.request, plan.request.shape
    if request.keys:
        plan.open_files()
    if shape.kind == KEYED:
        pieces = _keyed(plan)
    elif shape.kind == GLOBAL_KEYED:
        pieces = _global(plan)
    else:
        pieces = generations(plan) if shape.generational else appended(plan)
    for rows in pieces:
        kept = request.answered(_in_time(rows, request) if plan.replaces else rows)
        if kept.num_rows:
            yield kept


def answer(rows: pa.Table, request: Request) -> pa.Table:
    """Return the rows with only the requested columns."""
    schema = request.schema
    return pa.Table.from_arrays([rows[name] for name in schema.names], schema=schema)


def appended(plan: PartPlan) -> Iterator[pa.Table]:
    """Yield the rows of a table whose rows do not replace others, file by file."""
    return (rows for file in plan.files for rows in rows_of_file(file, plan))


def _keyed(plan: PartPlan) -> Iterator[pa.Table]:
    sources = [HashSource(int(file.owned.first), rows_of_file(file, plan)) for file in plan.files]
    for pieces in merge_by_hash(sources):
        yield newest_of_each([rows for _, rows in pieces], plan.request.shape)


def newest_of_each(pieces: list[pa.Table], shape: TableShape) -> pa.Table:
    """Return the newest row of each key of a keyed table unless it is a deletion, sorted by hash; pieces may be in any
    order.
    """
    rows = pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
    sequences = uint64_values(rows[SEQUENCE])
    if (sequences[1:] < sequences[:-1]).any():
        rows = take_rows(rows, np.argsort(sequences, kind="stable"))
    return without_deleted(newest_rows(shape.keyed, rows))


def generations(plan: PartPlan) -> Iterator[pa.Table]:
    """Yield the newest row of each key and time of a generational table, in the order of files."""
    return newest(in_time_order(plan), plan.request.shape.keys)


def in_time_order(plan: PartPlan) -> Iterator[pa.Table]:
    """Yield the rows of a time-keyed table by time bin; rows with the same key and time are adjacent."""
    sources = [SortedSource(plan.first_bin(file.entry), rows_of_file(file, plan)) for file in plan.files]
    return merged(sources, plan.spec) if sources else iter(())


def _global(plan: PartPlan) -> Iterator[pa.Table]:
    rows = newest_of_keys([piece for file in plan.files for piece in rows_of_file(file, plan)])
    rows = filtered(rows, ~np.asarray(rows[DELETED].to_pylist(), dtype=np.bool_))
    codec, shape = Codec[Any](), plan.request.shape
    keys, values = ([codec.decode(data) for data in rows[name].to_pylist()] for name in (KEY, VALUE))
    if shape.broadcast is None:
        columns = [pa.array(map(json_text, part), pa.string()) for part in (keys, values)]
    else:
        columns = shape.broadcast.arrays(zip(keys, values, strict=True))
    columns += [rows[KEY_HASH], rows[SEQUENCE]]
    yield pa.Table.from_arrays(columns, schema=shape.full_schema)


def rows_of_file(plan: FilePlan, part: PartPlan) -> Iterator[pa.Table]:
    """Yield the candidate rows of a file in its order, one row group at a time, with the columns of the plan."""
    return (rows for group in plan.groups if (rows := rows_of_group(plan, part, group)).num_rows)


def rows_of_group(plan: FilePlan, part: PartPlan, group: int) -> pa.Table:
    """Return the candidate rows of one row group."""
    request = plan.request
    stored = in_stored_types(plan.reader.read(row_groups=[group], columns=plan.names), plan.stored)
    rows = adapt(stored, plan.stored, plan.current, request.shape.defaults)
    rows = pa.Table.from_arrays(rows.columns, schema=pa.schema([field.remove_metadata() for field in plan.current]))
    if KEY_HASH in plan.columns:
        hashes = uint64_values(rows[KEY_HASH])
        wanted = in_range(hashes, plan.owned)
        if request.hashes is not None:
            wanted &= among(hashes, request.hashes)
        rows = filtered(rows, wanted)
    for keys in request.keys:
        rows = filtered(rows, keys.row_set.contains(rows))
    if plan.hidden:
        rows = filtered(rows, part.deletions.visible(rows))
    return rows if part.replaces else _in_time(rows, request)


def _in_time(rows: pa.Table, request: Request) -> pa.Table:
    if not request.by_time:
        return rows
    times = int64_values(rows[TIME])
    wanted = (times >= request.start_us) & ((times < request.end_us) | (request.end_us == END))
    return filtered(rows, wanted)
