"""Results of windows whose partials list very many values, in memory that does not grow with them.

Rows of partials with long lists are collected in a local file. The entries of their windows are sorted in chunks, equal
ones are added up, and the result of a window is computed from its entries page by page.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from statebed.aggregates.accumulators.multisets import Multisets
from statebed.arrays.columns import from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Integers
from statebed.arrays.sort_order import total_order
from statebed.operators.external_sort import ExternalSort
from statebed.operators.updating.entry_results import Entries
from statebed.operators.updating.entry_tables import EntryTable
from statebed.state import TimeKeyedView
from statebed.state.tiers.spooled_rows import SpooledRows

_COPIES = 5
_PAGE_ROWS = 1 << 16
_OWNER, _COUNT = "owner", "count"


class LongRows:
    """Rows of partials with long lists; more than `part_bytes` of them go to a local file."""

    def __init__(self, view: TimeKeyedView) -> None:
        self._view = view
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._charge = view.reservation()
        self._file: SpooledRows | None = None

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if self._held_bytes > self._view.part_bytes:
            if self._file is None:
                self._file = self._view.spooled(rows.schema)
            for part in self._held:
                # A part is read again as a whole.
                for place in range(part.num_rows):
                    self._file.append(part.slice(place, 1))
            self._held, self._held_bytes = [], 0
        self._charge.resize(self._held_bytes)

    @property
    def fits(self) -> bool:
        """Whether all rows are in memory."""
        return self._file is None

    def parts(self) -> list[pa.Table]:
        """Return all rows, in parts that fit into memory; nothing can be added afterwards."""
        mapped: list[pa.Table] = []
        if self._file is not None:
            mapped = [pa.Table.from_batches([batch]) for batch in self._file.table().to_batches()]
            self._file = None
        return [*mapped, *self._held]

    def close(self) -> None:
        """Release memory, and the file if it was not read."""
        self._charge.release()
        if self._file is not None:
            self._file.close()


def results_of_entries(table: EntryTable, entries: Iterable[Entries], groups: int, view: TimeKeyedView) -> pa.Array:
    """Return the result of each group from its entries, of which equal ones may come several times."""
    rows = _combined_rows(table, entries, view)
    batches = [pa.Table.from_batches([batch]) for batch in rows.to_batches()]
    lasts = np.array([int(int64_values(batch[_OWNER].slice(batch.num_rows - 1))[0]) for batch in batches])
    results = []
    for group in range(groups):

        def pages(group: int = group) -> Iterator[Entries]:
            for batch in batches[int(np.searchsorted(lasts, group)) :]:
                owners = int64_values(batch[_OWNER])
                first, behind = (int(np.searchsorted(owners, group, side=side)) for side in ("left", "right"))
                if first == behind:
                    return
                page = _entries(batch.slice(first, behind - first))
                yield replace(page, owners=np.zeros(behind - first, dtype=np.int64))

        results.append(table.result_of(pages, view))
    return pa.concat_arrays(results)


def _combined_rows(table: EntryTable, entries: Iterable[Entries], view: TimeKeyedView) -> pa.Table:
    """Return the entries of all groups in order, each once, from a local file."""
    names = [str(place) for place in range(len(table.accumulator.columns))]
    kinds = [column.kind for column in table.accumulator.columns]
    numbers = [pa.field(name, pa.int64()) for name in (_COUNT, _OWNER)]
    schema = pa.schema([*map(pa.field, names, kinds), *numbers])

    def order_of(rows: pa.Table) -> Integers:
        return total_order([int64_values(rows[_OWNER])], [one_chunk(rows[name]) for name in names])[0]

    combined = view.spooled(schema)
    try:
        with ExternalSort(schema, order_of, view, copies=_COPIES) as sort:
            for part in entries:
                numbers_of_part = [from_numpy(values, pa.int64()) for values in (part.counts, part.owners)]
                sort.add(pa.Table.from_arrays([*part.columns, *numbers_of_part], schema=schema))
            held = schema.empty_table()
            for page in sort.pages():
                rows = _added_up(pa.concat_tables([held, page]).combine_chunks(), names)
                # The last entry may continue in the next page.
                _append(combined, rows.slice(0, max(rows.num_rows - 1, 0)))
                held = rows.slice(max(rows.num_rows - 1, 0))
            _append(combined, held)
    except BaseException:
        combined.close()
        raise
    return combined.table()


def _append(combined: SpooledRows, rows: pa.Table) -> None:
    for first in range(0, rows.num_rows, _PAGE_ROWS):
        page = rows.slice(first, _PAGE_ROWS)
        present = np.flatnonzero(int64_values(page[_COUNT]) > 0)
        if len(present):
            combined.append(page.take(from_numpy(present, pa.int64())).combine_chunks())


def _added_up(rows: pa.Table, names: list[str]) -> pa.Table:
    """Add up the counts of equal entries in sorted rows."""
    _, begins = total_order([int64_values(rows[_OWNER])], [one_chunk(rows[name]) for name in names])
    starts = np.flatnonzero(begins)
    if len(starts) == rows.num_rows:
        return rows
    counts = np.add.reduceat(int64_values(rows[_COUNT]), starts)
    at = rows.schema.get_field_index(_COUNT)
    firsts = rows.take(from_numpy(starts, pa.int64()))
    return firsts.set_column(at, rows.schema.field(at), from_numpy(counts, pa.int64())).combine_chunks()


def _entries(rows: pa.Table) -> Entries:
    columns = tuple(one_chunk(rows[place]) for place in range(rows.num_columns - 2))
    return Entries(int64_values(rows[_OWNER]), columns, int64_values(rows[_COUNT]))


def listed_entries(table: EntryTable, rows: pa.Table, owners: Integers) -> Entries:
    """Return the entries that rows of partials list; `owners` has the group of each row."""
    partials = [one_chunk(rows[field.name]) for field in table.accumulator.partial_fields]
    sets: Multisets = table.accumulator.entries(partials)
    return Entries(owners[sets.owners], sets.columns, sets.counts)
