"""Runs of keyed state in mapped files: looked up like runs in memory, never changed.

A frozen run is one file, laid out so that every column is used where it lies: the bits of fixed-width values with a
byte for each that says whether it is null, other values as Arrow has them, and the index's directory. Its rows keep the
marks that they had. A checkpoint saves all changes there are, so one word for the whole run is enough afterwards: what
was alive is stored, what was deleted is not.

Files are written piece by piece, so that the memory it takes to merge runs, or to load one from the store, does not
depend on how large they are.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from statebed.format.columns import boolean_values, from_numpy, validity
from statebed.format.keyhash import Hashes
from statebed.state.columns import AnyColumn, Column, FixedColumn, HeapColumn, Mask, Places, Rows, column_of
from statebed.state.keyed.batch import KeyBatch
from statebed.state.keyed.index import HashIndex, Starts, starts_to_store
from statebed.state.keyed.run import DELETED, DIRTY, STORED, Run, Times, merged_columns
from statebed.state.keyed.table import KeyedTable
from statebed.state.tiers.column_files import ColumnFile, ColumnFileWriter
from statebed.state.tiers.spill_folder import SpillFolder

Marks = npt.NDArray[np.uint8]
_HASHES, _STARTS, _MARKS, _TIMES = "hashes", "starts", "marks", "times"
_BITS, _VALID, _VALUES = "bits", "valid", "values"
"""With the number of the column: names of a table's columns may be any."""


class FrozenRun:
    """A run in a mapped file."""

    def __init__(self, run: Run, file: ColumnFile) -> None:
        self.run = run
        self._file = file
        self._saved = run.dirty_rows == 0
        self.disk_bytes = file.size

    @classmethod
    def write(cls, pieces: Iterable[Run], table: KeyedTable, folder: SpillFolder, *, most_rows: int) -> "FrozenRun":
        """Write rows that come in pieces, at least one, in the order of hashes, as a file; nothing is left behind when
        the disk fails.
        """
        waiting = iter(pieces)
        first = next(waiting)
        with ColumnFileWriter(folder, _kinds(first), most=most_rows) as file:
            dirty = _append(file, first)
            for piece in waiting:
                dirty += _append(file, piece)
            file.append(_STARTS, starts_to_store(cast("Hashes", file.written(_HASHES))))
            written = file.finish()
        return cls(_mapped(written, table, dirty_rows=dirty), written)

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

    def below(self, newer: Run | None, start: int, end: int) -> Run:
        """Some of its rows, and newer ones between them, which replace those with the same keys, as a run in memory."""
        if newer is None:
            return self._selected(np.arange(start, end, dtype=np.int64))
        kept = np.ones(end - start, dtype=np.bool_)
        at = self.run.find(batch_of(newer, np.arange(len(newer), dtype=np.int64)))
        kept[at[at >= 0] - start] = False
        rows = start + np.flatnonzero(kept)
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
        """Remove the file; whoever reads it at the moment reads on."""
        self._file.remove()


def newest(frozen: Sequence[FrozenRun], overlay: Run | None) -> Run:
    """All of some frozen runs, newest first, and what lies over them as one run: of each key the newest row, without
    what is deleted and in no file.
    """
    result = overlay
    for one in frozen:
        result = one.below(result, 0, len(one.run))
    assert result is not None
    return result.without_forgotten()


def merged_parts(
    frozen: Sequence[FrozenRun],
    edges: Hashes,
    table: KeyedTable,
    folder: SpillFolder,
    *,
    complete: bool,
    piece_bytes: int,
) -> list[FrozenRun]:
    """Frozen runs, newest first, as one, or as several that begin at the edges: of each key the newest row.

    `complete`: nothing lies below them, so that what is deleted and in no file can be forgotten.
    """
    parts: list[FrozenRun] = []
    cuts = [[0, *np.searchsorted(one.run.hashes, edges).tolist(), len(one.run)] for one in frozen]
    try:
        for part in range(len(edges) + 1):
            bounds = [(cut[part], cut[part + 1]) for cut in cuts]
            most_rows = sum(end - start for start, end in bounds)
            pieces = _merged_pieces(frozen, bounds, complete=complete, piece_bytes=piece_bytes)
            parts.append(FrozenRun.write(pieces, table, folder, most_rows=most_rows))
    except BaseException:
        for one in parts:
            one.remove()
        raise
    return parts


def _merged_pieces(
    frozen: Sequence[FrozenRun], bounds: Sequence[tuple[int, int]], *, complete: bool, piece_bytes: int
) -> Iterator[Run]:
    """The rows between some bounds of each run, about so many bytes at a time; at least one piece."""
    at = [start for start, _ in bounds]
    for to in _steps(frozen, bounds, piece_bytes=piece_bytes):
        result: Run | None = None
        for one, start, end in zip(frozen, at, to, strict=True):
            result = one.below(result, start, end)
        assert result is not None
        yield result.without_forgotten() if complete else result
        at = to


def _steps(frozen: Sequence[FrozenRun], bounds: Sequence[tuple[int, int]], *, piece_bytes: int) -> Iterator[list[int]]:
    """Where pieces of about so many bytes end, in each run."""
    rows = [end - start for start, end in bounds]
    longest = rows.index(max(rows))
    row_bytes = max(one.disk_bytes / max(len(one.run), 1) for one in frozen)
    step = max(int(piece_bytes / max(row_bytes, 1) * rows[longest] / max(sum(rows), 1)), 1)
    start, end = bounds[longest]
    # A hash stays in one piece.
    for first in np.unique(frozen[longest].run.hashes[start + step : end : step]):
        yield [int(np.searchsorted(one.run.hashes, first)) for one in frozen]
    yield [end for _, end in bounds]


def batch_of(run: Run, rows: Rows) -> KeyBatch:
    """The keys of some rows of a run, in its order."""
    keys = tuple(key.select(rows) for key in run.keys)
    return KeyBatch(run.hashes[rows], keys, np.arange(len(rows), dtype=np.int64), None)


class MappedColumn:
    """Values of any type in a mapped file, in pieces."""

    held_bytes = 0

    def __init__(self, pieces: Sequence[pa.Array]) -> None:
        self._pieces = pieces

    def take(self, rows: Rows) -> pa.Array:
        if len(self._pieces) == 1:
            return self._pieces[0].take(from_numpy(rows, pa.int64()))
        return HeapColumn(self._pieces, rows).take(np.arange(len(rows), dtype=np.int64))

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


def _kinds(run: Run) -> dict[str, npt.DTypeLike]:
    """The columns of fixed width in the file of a run."""
    kinds: dict[str, npt.DTypeLike] = {_HASHES: np.uint64, _STARTS: np.int32, _MARKS: np.uint8}
    if run.times is not None:
        kinds[_TIMES] = np.int64
    for number, column in enumerate((*run.keys, *run.values)):
        if isinstance(column, FixedColumn):
            kinds |= {f"{_BITS} {number}": column.bits.dtype, f"{_VALID} {number}": np.bool_}
    return kinds


def _append(file: ColumnFileWriter, run: Run) -> int:
    """Write a run behind what was written before, and give the number of its rows that changed."""
    before = file.count(_HASHES)
    file.append(_HASHES, run.hashes)
    file.append(_MARKS, run.marks)
    if run.times is not None:
        file.append(_TIMES, run.times)
    others = {}
    for number, column in enumerate((*run.keys, *run.values)):
        if not isinstance(column, FixedColumn):
            others[f"{_VALUES} {number}"] = column.take(np.arange(len(run), dtype=np.int64))
            continue
        file.append(f"{_BITS} {number}", column.bits)
        seen = file.count(f"{_VALID} {number}")
        if column.valid is not None or seen:
            # The first nulls of a column: before them were none.
            file.append(f"{_VALID} {number}", np.ones(before - seen, dtype=np.bool_))
            file.append(f"{_VALID} {number}", column.filled_validity())
    if others:
        file.append_others(pa.table(others))
    return run.dirty_rows


def _mapped(file: ColumnFile, table: KeyedTable, *, dirty_rows: int) -> Run:
    columns: list[Column] = []
    for number, field in enumerate((*table.key_schema, *table.value_schema)):
        if f"{_BITS} {number}" in file.fixed:
            bits, valid = file.fixed[f"{_BITS} {number}"], file.fixed[f"{_VALID} {number}"]
            columns.append(FixedColumn(field.type, bits, cast("Mask", valid) if len(valid) else None))
        else:
            assert file.others is not None
            pieces = [piece for piece in file.others[f"{_VALUES} {number}"].chunks if len(piece)]
            columns.append(cast("Column", MappedColumn(pieces or [pa.nulls(0, field.type)])))
    keys = len(table.key_names)
    run = Run(
        hashes=cast("Hashes", file.fixed[_HASHES]),
        keys=tuple(columns[:keys]),
        values=tuple(columns[keys:]),
        times=cast("Times", file.fixed[_TIMES]) if _TIMES in file.fixed else None,
        marks=cast("Marks", file.fixed[_MARKS]),
        dirty_rows=dirty_rows,
    )
    run.index = HashIndex.stored(run.hashes, cast("Starts", file.fixed[_STARTS]))
    return run
