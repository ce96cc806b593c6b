"""Layout of a run in a column file, in which every column is used without copying it.

Fixed-width values are stored as their bits, with one validity byte each (none if there are no nulls). Nothing is stored
of a column without values. Other values are stored as Arrow arrays. The index's directory is a fixed-width column too.
Spilled runs and copies of data files share this layout.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import DType, boolean_values, from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.key_hash import Hashes
from statebed.arrays.mutable import AnyColumn, Column, FixedColumn, HeapColumn, Mask, Rows, column_of, equal_where
from statebed.arrays.mutable.column import equal_values
from statebed.arrays.mutable.fixed_width import is_fixed
from statebed.format.schema import DELETED as DELETED_COLUMN
from statebed.format.schema import KEY_HASH, TIME
from statebed.state.keyed.sorted_run import DELETED, STORED, Marks, SortedRun, Times
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter
from statebed.state.tiers.hash_index import HashIndex, Starts, starts_to_store

_HASHES, _STARTS, _MARKS, _TIMES = "hashes", "starts", "marks", "times"
_BITS, _VALID, _VALUES = "bits", "valid", "values"
"""Prefixes of column names, followed by the number of the column, since columns of a table can have any name."""


class MappedColumn:
    """Values of any type in a mapped file, in pieces."""

    held_bytes = 0

    def __init__(self, pieces: Sequence[pa.Array]) -> None:
        self._pieces = pieces

    def take(self, rows: Rows) -> pa.Array:
        """Return the values of some rows."""
        if len(self._pieces) == 1:
            return self._pieces[0].take(from_numpy(rows, pa.int64()))
        return HeapColumn(self._pieces, rows).array()

    def array(self) -> pa.Array:
        """Return all values as one array."""
        return one_chunk(pa.chunked_array(self._pieces))

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        return equal_values(self.take(rows), array)

    def matches(self, rows: Rows, other: AnyColumn, others: Rows, maybe: Mask) -> Mask:
        """Return whether each of `rows` equals the row of another column at `others`. Only rows in `maybe` are
        compared.
        """
        return equal_where(maybe, rows, others, lambda ours, theirs: other.equals(theirs, self.take(ours)))

    def select(self, rows: Rows) -> Column:
        return column_of(self.take(rows))

    def slice(self, start: int, end: int) -> "MappedColumn":
        """Return neighbouring rows without copying them."""
        return MappedColumn(pa.chunked_array(self._pieces).slice(start, end - start).chunks or [self._pieces[0][:0]])


def kinds_of(table: KeyedTable) -> dict[str, DType]:
    """Return the fixed-width columns in the file of a run."""
    kinds: dict[str, DType] = {_HASHES: np.uint64, _STARTS: np.int32, _MARKS: np.uint8}
    if table.expires:
        kinds[_TIMES] = np.int64
    for number, field in enumerate((*table.key_schema, *table.value_schema)):
        if is_fixed(field.type):
            bits = FixedColumn.over(pa.nulls(0, field.type)).bits
            kinds |= {f"{_BITS} {number}": bits.dtype, f"{_VALID} {number}": np.bool_}
    return kinds


def append_run(file: ColumnFileWriter, run: SortedRun) -> None:
    """Append a run to a file."""
    before = file.count(_HASHES)
    file.append(_HASHES, run.hashes)
    file.append(_MARKS, run.marks)
    if run.times is not None:
        file.append(_TIMES, run.times)
    others = {}
    for number, column in enumerate((*run.keys, *run.values)):
        if isinstance(column, FixedColumn):
            _append_fixed(file, number, column, before=before)
        else:
            others[f"{_VALUES} {number}"] = column.array()
    if others:
        file.append_others(pa.table(others))


def append_file_rows(file: ColumnFileWriter, table: KeyedTable, rows: pa.Table) -> None:
    """Append rows of a data file. Live rows are marked as stored, and deleted ones are not."""
    before = file.count(_HASHES)
    file.append(_HASHES, uint64_values(rows[KEY_HASH]))
    deleted = boolean_values(rows[DELETED_COLUMN])
    file.append(_MARKS, np.where(deleted, DELETED, STORED))
    if table.expires:
        file.append(_TIMES, np.where(deleted, np.int64(0), int64_values(rows[TIME])))
    others = {}
    for number, field in enumerate((*table.key_schema, *table.value_schema)):
        array = one_chunk(rows[field.name])
        if is_fixed(field.type):
            _append_fixed(file, number, FixedColumn.over(array), before=before)
        else:
            others[f"{_VALUES} {number}"] = array
    if others:
        file.append_others(pa.table(others))


def append_index(file: ColumnFileWriter) -> None:
    """Append the index of all rows in the file, once all of them are written."""
    file.append(_STARTS, starts_to_store(cast("Hashes", file.written(_HASHES))))


def run_over(file: ColumnFile, table: KeyedTable, *, dirty_rows: int = 0) -> SortedRun:
    """Return the run in a file, without copying it."""
    columns: list[Column] = []
    for number, field in enumerate((*table.key_schema, *table.value_schema)):
        if f"{_BITS} {number}" in file.fixed:
            bits, valid = file.fixed[f"{_BITS} {number}"], file.fixed[f"{_VALID} {number}"]
            if len(bits) < len(file.fixed[_HASHES]):
                columns.append(FixedColumn.nulls(field.type, len(file.fixed[_HASHES])))
            else:
                columns.append(FixedColumn(field.type, bits, cast("Mask", valid) if len(valid) else None))
        else:
            pieces = [] if file.others is None else file.others[f"{_VALUES} {number}"].chunks
            columns.append(
                cast("Column", MappedColumn([piece for piece in pieces if len(piece)] or [pa.nulls(0, field.type)]))
            )
    keys = len(table.key_names)
    run = SortedRun(
        hashes=cast("Hashes", file.fixed[_HASHES]),
        keys=tuple(columns[:keys]),
        values=tuple(columns[keys:]),
        times=cast("Times", file.fixed[_TIMES]) if _TIMES in file.fixed else None,
        marks=cast("Marks", file.fixed[_MARKS]),
        dirty_rows=dirty_rows,
    )
    run.index = HashIndex.stored(run.hashes, cast("Starts", file.fixed[_STARTS]))
    return run


def _append_fixed(file: ColumnFileWriter, number: int, column: FixedColumn, *, before: int) -> None:
    bits, valid = f"{_BITS} {number}", f"{_VALID} {number}"
    if file.count(bits) < before or not before:
        if column.all_null:
            return
        # These are the first values of the column: all rows before are null.
        file.append(bits, np.zeros(before, dtype=column.bits.dtype))
        file.append(valid, np.zeros(before, dtype=np.bool_))
    file.append(bits, column.bits)
    seen = file.count(valid)
    if column.valid is not None or seen:
        # These are the first nulls of the column: all values before are valid.
        file.append(valid, np.ones(before - seen, dtype=np.bool_))
        file.append(valid, column.filled_validity())
