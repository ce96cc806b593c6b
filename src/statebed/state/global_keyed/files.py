"""Rows of global keyed tables as segments: encoded keys and values, a sequence, and a deletion flag.

A file holds at most one row per key. All rows that one epoch writes carry the same sequence, so the bytes do not depend
on the order in which an operator wrote its keys. A compacted file keeps the sequences of its rows.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.canonical_order import sort_indices
from statebed.arrays.columns import boolean_values, from_numpy, uint64_values
from statebed.arrays.key_hash import hash_columns
from statebed.checkpoint.objects import fetch
from statebed.errors import CorruptObjectError
from statebed.format import checkpoint_pb2 as pb
from statebed.format.ranges import in_range
from statebed.format.schema import DELETED, KEY_HASH, SEQUENCE, assign_field_ids, register_schema, same_schema
from statebed.format.schema import find_schema as find
from statebed.format.segment import EncodedSegment, SegmentSpec, decode_segment, encode_segment, segment_schema
from statebed.storage import ObjectStore

KEY = "key"
VALUE = "value"
_COLUMNS = assign_field_ids(pa.schema([pa.field(KEY, pa.binary(), nullable=False), pa.field(VALUE, pa.binary())]))
FILE_SCHEMA = segment_schema(_COLUMNS, sort_order=pb.KEY_ONLY, key_columns=[KEY], deletions=True)
"""Columns `key`, `_seq`, `_deleted`, `_key_hash`, `value`."""
_PLAIN = pa.schema([field.remove_metadata() for field in FILE_SCHEMA])


def rows_of(changes: Mapping[bytes, bytes | None], *, sequence: int) -> pa.Table:
    """Return one row per key, sorted by key; a value of None is a deletion."""
    keys = sorted(changes)
    values = [changes[key] for key in keys]
    key_column = pa.array(keys, pa.binary())
    columns = {
        KEY: key_column,
        SEQUENCE: from_numpy(np.full(len(keys), sequence, dtype=np.uint64), pa.uint64()),
        DELETED: pa.array([value is None for value in values], pa.bool_()),
        KEY_HASH: from_numpy(hash_columns([key_column]), pa.uint64()),
        VALUE: pa.array(values, pa.binary()),
    }
    return pa.table([columns[name] for name in _PLAIN.names], schema=_PLAIN)


def newest(pieces: Iterable[pa.Table]) -> pa.Table:
    """Return the row with the greatest sequence of each key, sorted by key."""
    rows = pa.concat_tables([_PLAIN.empty_table(), *pieces])
    rows = rows.take(sort_indices(rows, (KEY, SEQUENCE))).combine_chunks()
    if rows.num_rows <= 1:
        return rows
    keys = rows[KEY].combine_chunks()
    last = np.append(boolean_values(pc.not_equal(keys[:-1], keys[1:])), True)
    return rows.take(from_numpy(np.flatnonzero(last), pa.int64()))


def without_deleted(rows: pa.Table) -> pa.Table:
    return rows.filter(pc.invert(rows[DELETED]))


def values_of(rows: pa.Table) -> dict[bytes, bytes]:
    """Return the encoded keys and values of rows, none of which is a deletion."""
    return dict(zip(rows[KEY].to_pylist(), rows[VALUE].to_pylist(), strict=True))


def read_file(store: ObjectStore, file: pb.FileEntry) -> pa.Table:
    """Return the rows of a data file that its entry owns."""
    data = fetch(store, file.path, size=file.size, crc=file.crc32c)
    return clip(decode_segment(data, file).select(_PLAIN.names).cast(_PLAIN), file.owned)


def clip(rows: pa.Table, owned: pb.HashRange) -> pa.Table:
    """Return the rows whose hash is in the range."""
    wanted = in_range(uint64_values(rows[KEY_HASH]), owned)
    if wanted.all():
        return rows
    return rows.take(from_numpy(np.flatnonzero(wanted), pa.int64()))


def encode_rows(
    rows: pa.Table, schemas: tuple[pb.TableSchema, ...], config: pb.TableConfig
) -> tuple[EncodedSegment, tuple[pb.TableSchema, ...]]:
    """Encode sorted rows as a segment; return it with the table's schemas, including the segment's."""
    schema_id, schemas = register_schema(schemas, FILE_SCHEMA)
    spec = SegmentSpec(
        table=config.name,
        schema_id=schema_id,
        schema=FILE_SCHEMA,
        sort_order=pb.KEY_ONLY,
        key_columns=(KEY,),
        state_version=config.state_version,
    )
    return encode_segment(rows, spec=spec), schemas


def check_files(part: pb.TableSubtaskCheckpointMetadata, *, where: str) -> None:
    """Raise an error if the part is not valid for a global keyed table, before any of its files is read."""
    known = all(
        same_schema(find(part.schemas, number, where=where), FILE_SCHEMA)
        for number in {file.schema_id for file in part.files}
    )
    if not known or part.tombstones:
        raise CorruptObjectError(
            "the metadata of a global keyed table lists tombstones, or files with other columns",
            where=where,
            fix="fork to an older intact epoch",
        )
