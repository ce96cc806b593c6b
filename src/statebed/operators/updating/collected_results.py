"""Results that contain all entries of a group (`collect_list`, `collect_set`, `string_agg`), before and after an epoch.

The entries of a group are stored by hash, and the result lists them in order. Entries are read page by page and sorted
chunk by chunk. One chunk is sorted and turned into results in memory. More of them are sorted runs in a local file,
which are merged page by page: the values of each page are appended to mapped files of the old and of the new result. So
results of any size take the memory of a chunk, and the bytes of a result do not depend on how its entries were cut into
chunks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.aggregates.accumulators import EntryAccumulator, Joined
from statebed.aggregates.accumulators.multisets import Multisets, list_array
from statebed.arrays.columns import boolean_array, from_numpy, int64_values, one_chunk
from statebed.arrays.grouping import Flags, Integers
from statebed.arrays.key_hash import normalise_key
from statebed.arrays.sort_order import total_order
from statebed.operators.external_sort import ExternalSort
from statebed.operators.keyed_rows import taken
from statebed.operators.updating.entry_results import Entries
from statebed.state import KeyedView, Reservation
from statebed.state.tiers.spooled_values import SpooledValues

_COPIES = 5
_OWNER, _COUNT = "owner", "count"
"""Columns besides those of the entry: the group, if there are several, and the count, doubled, plus 1 for a change."""


@dataclass(frozen=True)
class CountedEntries:
    """Entries in the order of groups and columns, each once, with their counts before and after an epoch."""

    owners: Integers
    values: pa.Array
    """Last column of the entries, which holds the values of the aggregate."""
    before: Integers
    after: Integers

    @property
    def changed(self) -> bool:
        """Whether a count differs, or may differ, before and after."""
        return self.after is not self.before

    def present(self, counts: Integers, there: Flags) -> Multisets:
        """Return the entries with a positive count of the groups that are `there`."""
        flags = counts > 0
        if not there.all():
            flags &= there[self.owners]
        owners, values = self.owners, self.values
        if not flags.all():
            at = np.flatnonzero(flags)
            owners, values, counts = owners[at], values.take(from_numpy(at, pa.int64())), counts[at]
        return Multisets((values,), counts, np.bincount(owners, minlength=len(there)).astype(np.int64))


class SortedEntries:
    """Collects the entries of some groups in any order, and returns them sorted."""

    def __init__(self, kinds: Sequence[pa.DataType], groups: int, view: KeyedView) -> None:
        columns = [pa.field(str(place), kind) for place, kind in enumerate(kinds)]
        self._names = [column.name for column in columns]
        numbers = [_COUNT] if groups == 1 else [_COUNT, _OWNER]
        self._schema = pa.schema([*columns, *(pa.field(name, pa.int64()) for name in numbers)])
        self._sort = ExternalSort(self._schema, self._order, view, copies=_COPIES)

    def __enter__(self) -> Self:
        self._sort.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._sort.__exit__(kind, error, at)

    def add(self, entries: Entries, *, change: bool) -> None:
        """Add stored entries, or changes to their counts."""
        numbers = {_COUNT: 2 * entries.counts + int(change), _OWNER: entries.owners}
        columns = [from_numpy(numbers[name], pa.int64()) for name in self._schema.names if name in numbers]
        self._sort.add(pa.Table.from_arrays([*entries.columns, *columns], schema=self._schema))

    @property
    def fits(self) -> bool:
        """Whether all entries are in memory."""
        return self._sort.fits

    def pages(self) -> Iterator[CountedEntries]:
        """Yield all entries in order; in one page if they are in memory."""
        held: pa.Table | None = None
        for page in self._sort.pages():
            rows = page
            if held is not None and (_is_change(held, -1) or _is_change(page, 0)):
                # The first row may be equal to the last one before it.
                cut = self._last_entry(held)
                rows, held = pa.concat_tables([held.slice(cut), page]), held.slice(0, cut)
            if held is not None and held.num_rows:
                yield self._counted(held)
            held = rows
        if held is not None:
            yield self._counted(held)

    def whole(self) -> CountedEntries:
        """Return all entries, which are in memory."""
        (rows,) = self._sort.pages()
        return self._counted(rows)

    def _order(self, rows: pa.Table) -> Integers:
        return total_order(self._owners(rows), [one_chunk(rows[name]) for name in self._names])[0]

    def _owners(self, rows: pa.Table) -> list[Integers]:
        return [int64_values(rows[_OWNER])] if _OWNER in self._schema.names else []

    def _counted(self, rows: pa.Table) -> CountedEntries:
        """Add up the counts of equal entries in sorted rows."""
        owners = next(iter(self._owners(rows)), np.zeros(rows.num_rows, dtype=np.int64))
        values, numbers = one_chunk(rows[self._names[-1]]), int64_values(rows[_COUNT])
        counts, is_change = numbers >> 1, (numbers & 1).astype(np.bool_)
        if not is_change.any():
            return CountedEntries(owners, values, counts, counts)
        begins = self._begins(rows, np.flatnonzero(is_change))
        before, after = (np.add.reduceat(each, begins) for each in (np.where(is_change, 0, counts), counts))
        return CountedEntries(owners[begins], values.take(from_numpy(begins, pa.int64())), before, after)

    def _begins(self, rows: pa.Table, changed: Integers) -> Integers:
        """Return where entries begin in sorted rows. Of two equal rows, one is a change."""
        begins = np.ones(rows.num_rows, dtype=np.bool_)
        near = np.unique(np.concatenate([changed - 1, changed, changed + 1]).clip(0, rows.num_rows - 1))
        begins[near] = self._differ(taken(rows, near))
        return np.flatnonzero(begins)

    def _last_entry(self, rows: pa.Table) -> int:
        """Return where the last entry of sorted rows begins. An entry has one or two rows."""
        first: int = max(rows.num_rows - 3, 0)
        return first + int(np.flatnonzero(self._differ(rows.slice(first))).max())

    def _differ(self, rows: pa.Table) -> Flags:
        """Return whether each of a few sorted rows is another entry than the one before it."""
        return total_order(self._owners(rows), [one_chunk(rows[name]) for name in self._names])[1]


def _is_change(rows: pa.Table, place: int) -> bool:
    return bool(rows[_COUNT][place].as_py() & 1)


class ResultSpace(Protocol):
    """Memory and local files for results; the views of tables have them."""

    def reservation(self) -> Reservation: ...

    def spooled_values(self, kind: pa.DataType) -> SpooledValues: ...


class ResultFile:
    """Results of groups, written page by page.

    A changelog compares results, so its values are `normal`: -0.0 is 0.0.
    """

    def __init__(self, accumulator: EntryAccumulator, groups: int, view: ResultSpace, *, normal: bool = True) -> None:
        self._accumulator = accumulator
        self._inner = accumulator.inner if isinstance(accumulator, Joined) else accumulator
        kind = accumulator.output_field.type
        self._values: SpooledValues = view.spooled_values(kind if pa.types.is_string(kind) else kind.value_type)
        self._normal = normal
        self._counts = np.zeros(groups, dtype=np.int64)
        self._lengths = np.zeros(groups, dtype=np.int64)

    def add(self, sets: Multisets) -> None:
        """Add the next entries of the groups."""
        lists = self._inner.result(sets)
        counts = int64_values(pc.list_value_length(lists).cast(pa.int64()))
        present = np.flatnonzero(counts)
        if isinstance(self._accumulator, Joined) and len(present):
            self._add_texts(lists, present)
        elif len(present):
            values = lists.flatten()
            self._values.append(normalise_key(values) if self._normal else values)
        self._counts += counts

    def result(self) -> pa.Array:
        """Return the result of each group. Nothing can be added afterwards."""
        kind = self._accumulator.output_field.type
        if not isinstance(self._accumulator, Joined):
            return list_array(kind, np.concatenate(([0], np.cumsum(self._counts))), self._values.array())
        ends = np.concatenate(([0], np.cumsum(self._lengths))).astype(np.int32)
        has_values = self._counts > 0
        bitmap = None if has_values.all() else boolean_array(has_values).buffers()[1]
        return pa.Array.from_buffers(kind, len(ends) - 1, [bitmap, pa.py_buffer(ends), self._values.buffer()])

    def close(self) -> None:
        self._values.close()

    def _add_texts(self, lists: pa.Array, present: Integers) -> None:
        assert isinstance(self._accumulator, Joined)
        joined = pc.binary_join(lists.take(from_numpy(present, pa.int64())), self._accumulator.delimiter)
        if self._counts[present[0]]:
            delimiter = self._accumulator.delimiter.encode()
            self._values.append_bytes(delimiter)
            self._lengths[present[0]] += len(delimiter)
        self._values.append_bytes(_text_bytes(joined))
        self._lengths[present] += int64_values(pc.binary_length(joined).cast(pa.int64()))


def _text_bytes(texts: pa.Array) -> pa.Buffer | bytes:
    """Return the bytes of all texts, one behind the other."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32)[texts.offset : texts.offset + len(texts) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    return texts.buffers()[2][first:last] if last > first else b""


def results_before_and_after(
    accumulator: EntryAccumulator, entries: SortedEntries, view: KeyedView, *, kept: Flags
) -> tuple[pa.Array, pa.Array]:
    """Return the result of each group before and after an epoch; groups that are not kept have no entries after it."""
    always = np.ones_like(kept)
    if entries.fits:
        page = entries.whole()
        old = normalise_key(accumulator.result(page.present(page.before, always)))
        changed = page.changed or not kept.all()
        return old, old if not changed else normalise_key(accumulator.result(page.present(page.after, kept)))
    old_file, new_file = (ResultFile(accumulator, len(kept), view) for _ in range(2))
    try:
        for page in entries.pages():
            present = page.present(page.before, always)
            old_file.add(present)
            new_file.add(page.present(page.after, kept) if page.changed or not kept.all() else present)
        return old_file.result(), new_file.result()
    finally:
        old_file.close()
        new_file.close()


def results_so_far(
    accumulator: EntryAccumulator, entries: SortedEntries, view: KeyedView, *, groups: int, normal: bool
) -> pa.Array:
    """Return the result of each group from its stored entries."""
    always = np.ones(groups, dtype=np.bool_)
    if entries.fits:
        page = entries.whole()
        result = accumulator.result(page.present(page.before, always))
        return normalise_key(result) if normal else result
    file = ResultFile(accumulator, groups, view, normal=normal)
    try:
        for page in entries.pages():
            file.add(page.present(page.before, always))
        return file.result()
    finally:
        file.close()
