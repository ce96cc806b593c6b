"""JSON objects of a whole column at once, read by Arrow's parser.

Arrow's parser is stricter than Spark's: where it accepts objects, both give the same values, apart from words such as
NaN. Whatever it does not accept is divided until few documents are left, which are read one by one.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from statebed.arrays.columns import one_chunk, validity
from statebed.expressions import types
from statebed.expressions.casts.from_text import READERS
from statebed.expressions.list_parts import taken_or_null
from statebed.expressions.mistakes import RowFailure

ReadTexts = Callable[[pa.Array], pa.Array]
"""Reads documents one by one."""

_FEW = 64
"""Number of documents that are read one by one if one of them is not accepted."""
_MAX_BRACKETS = 1_000
"""A document with more of them may be nested more deeply than Spark allows."""
_WORDS = (b"NaN", b"Inf")
_WORD_AS_VALUE = r"[:\[,]\s*[-+]?(NaN|Inf)"
_IN_BULK = (types.BIGINT, types.INT, types.SMALLINT, types.TINYINT, types.DOUBLE, types.BOOLEAN, types.TEXT)
_TIMES = (types.TIMESTAMP, types.DATE)


@dataclass
class ReadingTally:
    """Number of documents that were read, and of those that were read one by one."""

    documents: int = 0
    one_by_one: int = 0


_tally: ContextVar[ReadingTally | None] = ContextVar("statebed_json_tally", default=None)


@contextmanager
def counted_reading(tally: ReadingTally) -> Iterator[None]:
    """Add the documents that this thread reads to a tally."""
    token = _tally.set(tally)
    try:
        yield
    finally:
        _tally.reset(token)


def is_read_in_bulk(kind: pa.DataType) -> bool:
    """Return whether objects of this type can be read by Arrow's parser."""
    if not pa.types.is_struct(kind):
        return False
    names = [field.name for field in kind]
    return bool(names) and len(set(names)) == len(names) and all(_is_part(field.type) for field in kind)


def _is_part(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return is_read_in_bulk(kind) and not any(field.type in _TIMES for field in kind)
    if pa.types.is_list(kind):
        return _is_part(kind.value_type) and kind.value_type not in _TIMES
    return kind in _IN_BULK or kind in _TIMES


def read_documents(texts: pa.Array, kind: pa.DataType, one_by_one: ReadTexts, *, corrupt: str | None) -> pa.Array:
    """Return the value of each document: null for null, and what `one_by_one` returns for all that Arrow refuses.

    The field called `corrupt` is not read; it is null in all objects that Arrow reads.
    """
    _check_characters(texts)
    tally = _tally.get() or ReadingTally()
    tally.documents += len(texts)
    fields = [field for field in kind if field.name != corrupt] if pa.types.is_struct(kind) else []
    if not is_read_in_bulk(pa.struct(fields)):
        tally.one_by_one += len(texts)
        return one_by_one(texts)
    known = validity(texts)
    parts = _parts(texts.drop_null(), kind, fields, one_by_one, tally)
    values = one_chunk(pa.chunked_array(parts, kind))
    return values if not texts.null_count else taken_or_null(values, np.cumsum(known) - 1, known)


def _parts(
    texts: pa.Array, kind: pa.DataType, fields: Sequence[pa.Field], one_by_one: ReadTexts, tally: ReadingTally
) -> list[pa.Array]:
    objects = _objects(texts, kind, fields)
    if objects is not None:
        return [objects]
    if len(texts) <= _FEW:
        tally.one_by_one += len(texts)
        return [one_by_one(texts)]
    half = len(texts) // 2
    halves = (texts[:half], texts[half:])
    return [part for texts in halves for part in _parts(texts, kind, fields, one_by_one, tally)]


def _check_characters(texts: pa.Array) -> None:
    try:
        texts.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise RowFailure("a document has bytes that are not UTF-8") from error


def _objects(texts: pa.Array, kind: pa.DataType, fields: Sequence[pa.Field]) -> pa.Array | None:
    """Return one object for each text, or None if one of them needs a closer look."""
    if not len(texts):
        return pa.nulls(0, kind)
    # Lines that begin and end with a brace contain whole objects: no object can continue after the end of such a line.
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py() or _may_be_deep(texts):
        return None
    lines = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), "\n")[0].as_buffer()
    if _has_words(lines.to_pybytes(), texts):
        return None
    has_times = any(field.type == types.TIMESTAMP for field in fields)
    for times in (types.TEXT, types.BIGINT) if has_times else (types.TEXT,):
        rows = _parsed(lines, [_as_written(field, times) for field in fields])
        if rows is not None:
            return _struct_of(rows, kind) if rows.num_rows == len(texts) else None
    return None


def _may_be_deep(texts: pa.Array) -> bool:
    if pc.max(pc.binary_length(texts)).as_py() <= _MAX_BRACKETS:
        return False
    brackets = pc.add(pc.count_substring(texts, "{"), pc.count_substring(texts, "["))
    return bool(pc.max(brackets).as_py() > _MAX_BRACKETS)


def _has_words(lines: bytes, texts: pa.Array) -> bool:
    """Return whether a number may be written as a word, of which Arrow and Spark know different ones."""
    if not any(word in lines for word in _WORDS):
        return False
    return bool(pc.any(pc.match_substring_regex(texts, _WORD_AS_VALUE)).as_py())


def _as_written(field: pa.Field, times: pa.DataType) -> pa.Field:
    """Return the field as it stands in the documents: a time is a text, or a number of seconds."""
    if field.type == types.DATE:
        return field.with_type(types.TEXT)
    return field.with_type(times) if field.type == types.TIMESTAMP else field


def _parsed(lines: pa.Buffer, fields: Sequence[pa.Field]) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(lines),
            read_options=pj.ReadOptions(use_threads=False, block_size=lines.size + 1),
            parse_options=pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid:
        return None


def _struct_of(rows: pa.Table, kind: pa.DataType) -> pa.Array | None:
    """Return the rows as objects, or None if a text is no time."""
    columns = []
    for field in kind:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = one_chunk(rows.column(field.name))
        if field.type == types.TIMESTAMP and column.type == types.BIGINT:
            if _is_far(column):
                return None
            column = pc.multiply(column, 1_000_000).cast(types.TIMESTAMP)
        elif field.type in _TIMES:
            column, bad = READERS[field.type](column, field.type)
            if bad is not None and pc.any(bad).as_py():
                return None
        columns.append(column.cast(field.type))
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _is_far(seconds: pa.Array) -> bool:
    """Return whether a number of seconds exceeds the range of timestamps."""
    bound = (1 << 63) // 1_000_000 - 1
    return bool(pc.any(pc.greater(pc.abs(seconds), bound)).as_py())
