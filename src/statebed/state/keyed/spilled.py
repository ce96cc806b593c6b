"""Runs of keyed state in mapped files: looked up like runs in memory, never changed.

A frozen run is one Arrow IPC file, laid out so that every column is used where it lies: the bits of fixed-width values
with a byte for each that says whether it is null, other values as they are, and the index's directory. Its rows keep
the marks that they had. A checkpoint saves all changes there are, so one word for the whole run is enough afterwards:
what was alive is stored, what was deleted is not. Small runs of several blocks share a file, one record batch each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import boolean_values, fixed_width_values, from_numpy, validity
from statebed.state.columns import AnyColumn, Column, FixedColumn, Mask, Places, Rows, column_of
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.index import HashIndex, starts_to_store
from statebed.state.keyed.run import DELETED, DIRTY, STORED, Run, merged_columns
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.selection import ALL_ROWS
from statebed.state.tiers.spill_files import MappedFile, write_mapped_pieces
from statebed.state.tiers.spill_folder import SpillFolder

Marks = npt.NDArray[np.uint8]
_HASHES, _STARTS, _MARKS, _TIMES = "hashes", "starts", "marks", "times"
_BITS, _VALID, _VALUES = "bits", "valid", "values"
"""With the number of the column: names of a table's columns may be any."""


class FrozenRun:
    """A run in a mapped file."""

    def __init__(self, run: Run, file: "_SharedFile", *, disk_bytes: int) -> None:
        self.run = run
        self._file = file
        self._saved = run.dirty_rows == 0
        self.disk_bytes = disk_bytes

    @classmethod
    def write(cls, runs: Sequence[Run], table: KeyedTable, folder: SpillFolder) -> "list[FrozenRun]":
        """Write runs of memory as one file; nothing is left behind when the disk fails."""
        layouts = _layouts(runs)
        file = write_mapped_pieces(layouts, layouts[0].schema, folder)
        rows, shared = file.read(ALL_ROWS), _SharedFile(file, len(runs))
        count, batch, frozen = max(rows.num_rows, 1), 0, []
        for run in runs:
            # There is no record batch without rows.
            columns = {
                name: column.chunk(batch) if len(run) else pa.nulls(0, column.type)
                for name, column in zip(rows.column_names, rows.columns, strict=True)
            }
            batch += 1 if len(run) else 0
            mapped = _mapped(columns, table, dirty_rows=run.dirty_rows)
            frozen.append(cls(mapped, shared, disk_bytes=file.size * len(run) // count))
        return frozen

    @property
    def dirty_rows(self) -> int:
        return 0 if self._saved else self.run.dirty_rows

    def mark_written(self) -> None:
        """A checkpoint has its changes."""
        self._saved = True

    def marks_at(self, rows: Rows) -> Marks:
        marks = self.run.marks[rows]
        if not self._saved or not self.run.dirty_rows:
            return marks
        return np.where(marks & DELETED, DELETED, STORED)

    def below(self, newer: Run | None) -> Run:
        """Its rows and newer ones, which replace those with the same keys, as a run in memory."""
        if newer is None:
            return self._selected(np.arange(len(self.run), dtype=np.int64))
        kept = np.ones(len(self.run), dtype=np.bool_)
        at = self.run.find(batch_of(newer, np.arange(len(newer), dtype=np.int64)))
        kept[at[at >= 0]] = False
        rows = np.flatnonzero(kept)
        # Column by column, so that no second copy of all of them is made on the way.
        hashes = self.run.hashes[rows]
        places = Places(np.searchsorted(hashes, newer.hashes), len(rows))
        times = None
        if self.run.times is not None and newer.times is not None:
            times = places.merge(self.run.times[rows], newer.times)
        marks = places.merge(self.marks_at(rows), newer.marks)
        return Run(
            places.merge(hashes, newer.hashes),
            merged_columns((key.select(rows) for key in self.run.keys), newer.keys, places),
            merged_columns((value.select(rows) for value in self.run.values), newer.values, places),
            times,
            marks,
            dirty_rows=int(np.count_nonzero(marks & DIRTY)),
        )

    def _selected(self, rows: Rows) -> Run:
        selected, marks = self.run.select(rows), self.marks_at(rows)
        dirty = int(np.count_nonzero(marks & DIRTY))
        return Run(selected.hashes, selected.keys, selected.values, selected.times, marks, dirty_rows=dirty)

    def remove(self) -> None:
        """Remove the file with the last of its runs; whoever reads it at the moment reads on."""
        self._file.users -= 1
        if not self._file.users:
            self._file.file.path.unlink(missing_ok=True)


@dataclass
class _SharedFile:
    """A file with the runs of several blocks of one view, whose lock guards the count."""

    file: MappedFile
    users: int


def newest(frozen: Sequence[FrozenRun], overlay: Run | None, *, complete: bool) -> Run:
    """Frozen runs, newest first, and what lies over them as one run: of each key the newest row.

    `complete`: nothing lies below them, so that what is deleted and in no file can be forgotten.
    """
    result = overlay
    for one in frozen:
        result = one.below(result)
    assert result is not None
    return result.without_forgotten() if complete else result


def batch_of(run: Run, rows: Rows) -> KeyBatch:
    """The keys of some rows of a run, in its order."""
    keys = tuple(key.select(rows) for key in run.keys)
    return KeyBatch(run.hashes[rows], keys, np.arange(len(rows), dtype=np.int64), None)


class MappedColumn:
    """Values of any type in a mapped file."""

    held_bytes = 0

    def __init__(self, array: pa.Array) -> None:
        self._array = array

    def take(self, rows: Rows) -> pa.Array:
        return self._array.take(from_numpy(rows, pa.int64()))

    def equals(self, rows: Rows, array: pa.Array) -> Mask:
        ours = self.take(rows)
        equal = boolean_values(pc.equal(ours, array))
        if ours.null_count and array.null_count:
            equal |= ~validity(ours) & ~validity(array)
        return equal

    def matches(self, rows: Rows, other: AnyColumn) -> Mask:
        """As `equals`, with a column."""
        return other.equals(np.arange(len(rows), dtype=np.int64), self.take(rows))

    def select(self, rows: Rows) -> Column:
        return column_of(self.take(rows))


def _layouts(runs: Sequence[Run]) -> list[pa.Table]:
    """The columns of each run, with one schema for all."""
    number = len(runs[0].keys) + len(runs[0].values)
    nullable = [any(_may_be_null((*run.keys, *run.values)[one]) for run in runs) for one in range(number)]
    return [_layout(run, nullable) for run in runs]


def _may_be_null(column: Column) -> bool:
    return isinstance(column, FixedColumn) and column.valid is not None


def _layout(run: Run, nullable: Sequence[bool]) -> pa.Table:
    columns = {
        _HASHES: from_numpy(run.hashes, pa.uint64()),
        _STARTS: from_numpy(starts_to_store(run.hashes), pa.int32()),
        _MARKS: from_numpy(run.marks, pa.uint8()),
    }
    if run.times is not None:
        columns[_TIMES] = from_numpy(run.times, pa.int64())
    for number, column in enumerate((*run.keys, *run.values)):
        if isinstance(column, FixedColumn):
            columns[f"{_BITS} {number}"] = from_numpy(column.bits, pa.from_numpy_dtype(column.bits.dtype))
            if nullable[number]:
                columns[f"{_VALID} {number}"] = from_numpy(column.filled_validity().view(np.uint8), pa.uint8())
        else:
            columns[f"{_VALUES} {number}"] = column.take(np.arange(len(run), dtype=np.int64))
    return pa.table(columns)


def _mapped(rows: Mapping[str, pa.Array], table: KeyedTable, *, dirty_rows: int) -> Run:
    def numbers(name: str, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
        return fixed_width_values(rows[name], dtype)

    columns: list[Column] = []
    for number, field in enumerate((*table.key_schema, *table.value_schema)):
        if f"{_BITS} {number}" in rows:
            bits = rows[f"{_BITS} {number}"]
            valid = numbers(f"{_VALID} {number}", np.bool_) if f"{_VALID} {number}" in rows else None
            known = fixed_width_values(bits, bits.type.to_pandas_dtype())
            columns.append(FixedColumn(field.type, known, cast("Mask | None", valid)))
        else:
            columns.append(cast("Column", MappedColumn(rows[f"{_VALUES} {number}"])))
    keys = len(table.key_names)
    run = Run(
        hashes=cast("npt.NDArray[np.uint64]", numbers(_HASHES, np.uint64)),
        keys=tuple(columns[:keys]),
        values=tuple(columns[keys:]),
        times=cast("npt.NDArray[np.int64]", numbers(_TIMES, np.int64)) if _TIMES in rows else None,
        marks=cast("Marks", numbers(_MARKS, np.uint8)),
        dirty_rows=dirty_rows,
    )
    run.index = HashIndex.stored(run.hashes, cast("npt.NDArray[np.int32]", numbers(_STARTS, np.int32)))
    return run
