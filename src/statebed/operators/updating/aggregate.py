"""Aggregation by key without a window: the result of a key is retracted and emitted again when it changes.

The state is one row of partials per key. Aggregates that need individual values (distinct counts and sums, modes,
percentiles, collected lists and sets, smallest and largest values of a changelog) keep them in separate tables, one row
per value (`entry_tables`). A step folds the rows of the epoch, merges them into the state rows, and emits the changes
as a changelog: the retraction of the old result and the insertion of the new one. If the input is itself a changelog,
retracted rows leave their group, and a group without rows is deleted; retractions of more rows than the group has are
counted and dropped.

No window closes, so no row is late; with a time to live by event time, a row is late if its group would expire
immediately. The event time of a result is the latest of its group's rows.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.aggregates.partials import ROWS, Partials, latest_of_each
from statebed.aggregates.preaggregation import GROUPS_IN, ROW_COUNT, partial_columns
from statebed.aggregates.preaggregation import LATEST as LATEST_OF_GROUP
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.grouping import Flags, Grouping, Integers, group_rows
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes
from statebed.operators.aggregation import Aggregation
from statebed.operators.changelog import UNKNOWN_RETRACTIONS, replaced
from statebed.operators.element_groups import ElementGroups
from statebed.operators.input_rows import AdmittedRows, admit, filtered, gathered, late_rows
from statebed.operators.keyed_rows import EVERYTHING, taken
from statebed.operators.operator import LATE, MAIN, Clock, Definition, Elements, OperatorBase, StepResult, Tables
from statebed.operators.time_to_live import EXPIRED, TimeToLive, by_event_time, described_ttl, keyed_config
from statebed.operators.updating.entry_tables import EntryTable, entry_accumulator
from statebed.operators.updating.replaced_rows import ReplacedRows
from statebed.state import KeyedView, TableConfig

Hashes = npt.NDArray[np.uint64]

GROUPS = "groups"
"""Name of the state table."""
LATEST = "_latest"
"""Column of the state table with the latest event time of a group's rows."""
VALUES_AT_ONCE = 1 << 17
"""Number of collected values that are in memory at once when results are read from the state."""
_ENTRY_BYTES = 32
"""Bytes of an entry with a short value in a chunk, and of what is known of it there."""
PIECE_BYTES = 8 << 20
"""Size of the pieces in which groups are merged into the state, because several copies of a piece are in memory at
once.
"""


@dataclass(frozen=True)
class _AggregateEpoch:
    """Folded rows of an epoch."""

    keys: pa.Table
    """Keys of the groups, in the order of their hashes."""
    folded: pa.Table
    late: pa.Table
    rows_in: int
    rows_late: int


@dataclass(frozen=True)
class _Changed:
    """Changes of the results of some groups."""

    taken: pa.Table
    added: pa.Table
    unknown: int
    """Number of retractions for unknown groups."""


@dataclass(frozen=True, kw_only=True)
class UpdatingAggregate(Aggregation, OperatorBase):
    """Definition of an aggregation without windows."""

    ttl: TimeToLive | None = None
    """Time to live of groups; None to keep them forever."""

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        return (*self.state_keys, *self._state_values)

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {
            GROUPS: self._groups(self._state_values),
            **{name: config for entry_table in self.entries.values() for name, config in entry_table.configs.items()},
        }

    @cached_property
    def entries(self) -> Mapping[int, EntryTable]:
        """Tables of the aggregates with one row per entry, by position of the aggregate."""
        accumulators = {
            position: entry_accumulator(aggregate.accumulator) for position, aggregate in enumerate(self.aggregates)
        }
        expires_with = None if self.ttl is None else GROUPS
        return {
            position: EntryTable(position, accumulator, ElementGroups(self.state_keys), expires_with)
            for position, accumulator in accumulators.items()
            if accumulator is not None
        }

    @cached_property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        """Tables of earlier versions: at first, all entries were lists in the row of their group; then only those of
        results that contain all values, and of sums, were.
        """
        lists = {position: entry_table for position, entry_table in self.entries.items() if entry_table.was_list}
        second = [
            *self._merging.fields,
            *(field for entry_table in lists.values() for field in entry_table.accumulator.partial_fields),
        ]
        second += [
            field
            for position, entry_table in self.entries.items()
            if position not in lists
            for field in entry_table.fields
        ]
        shapes = [[pa.field(LATEST, TIMESTAMP), *second]] if lists and len(lists) < len(self.entries) else []
        return {GROUPS: [self._groups(values) for values in (*shapes, self._folded_values)]} if self.entries else {}

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:  # noqa: ARG002 - one table
        """Move the lists of an earlier version to the tables of entries.

        A time to live by epoch time begins anew, because the time of a row cannot be set.
        """
        view = tables.get_keyed(GROUPS)
        for rows in earlier.scan():
            keys = rows.select([key.name for key in self.state_keys])
            columns = {field.name: rows[field.name] for field in self._state_values if field.name in rows.column_names}
            for entry_table in self.entries.values():
                if (partials := _lists_of(entry_table, rows)) is not None:
                    columns |= entry_table.named(
                        entry_table.put_all(tables.get_keyed(entry_table.name), keys, partials)
                    )
            times = one_chunk(rows[TIME]) if by_event_time(self.ttl) else None
            view.upsert(keys, self._values_of(columns), times=times)

    def _groups(self, values: Sequence[pa.Field]) -> TableConfig:
        return keyed_config(GROUPS, "partial aggregates by key", self.state_keys, list(values), self.ttl)

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(("ttl",), kind="updating_aggregate", ttl=described_ttl(self.ttl), **self.described())

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        epoch = self._epoch(batches, clock)
        unknown = 0
        large = any(entry_table.collects for entry_table in self.entries.values())
        with ReplacedRows(self.outputs[MAIN].schema, tables.get_keyed(GROUPS), large=large) as rows:
            for piece in _pieces(epoch.keys, epoch.folded):
                for changed in self._apply(tables, *piece):
                    rows.add(changed.taken, changed.added)
                    unknown += changed.unknown
            # Retractions of all pieces come first, as they would without pieces.
            output = rows.table()
        return StepResult(
            {MAIN: output, LATE: epoch.late},
            rows_in=epoch.rows_in,
            rows_late=epoch.rows_late,
            counts={UNKNOWN_RETRACTIONS: unknown, GROUPS_IN: epoch.keys.num_rows},
        )

    def _epoch(self, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> "_AggregateEpoch":
        """Fold the rows of an epoch into groups; the rows themselves are released."""
        admitted = self._admitted(gathered(batches[0], self.inputs[0], where=self.where), clock)
        grouping = self.partials.grouping(admitted.rows, np.zeros(admitted.rows.num_rows, dtype=np.int64))
        keys, folded = self._keys_of(admitted.rows, grouping), self._folded(admitted.rows, grouping)
        rows_in, rows_late = admitted.rows_in, admitted.late.num_rows
        if len(batches) > 1:
            hashes = uint64_values(admitted.rows[KEY_HASH])[grouping.first_rows]
            keys, folded, more_in, more_late = self._with_groups(keys, folded, hashes, batches[1], clock)
            rows_in, rows_late = rows_in + more_in, rows_late + more_late
        late = late_rows(admitted.late, self.late_input, clock.late_us, self.operator_id)
        return _AggregateEpoch(keys, folded, late, rows_in, rows_late)

    def _apply(self, tables: Tables, keys: pa.Table, folded: pa.Table) -> "Iterator[_Changed]":
        """Merge some groups into the state; yield the changes of a few groups at a time."""
        stored, is_stored = tables.get_keyed(GROUPS).get(keys)
        for start, count in self._few_entries(tables, stored, folded):
            if count == keys.num_rows:
                # The very same keys: the view has remembered their rows.
                yield self._changed(tables, keys, folded, stored, is_stored)
                return
            groups = keys.slice(start, count), folded.slice(start, count), stored.slice(start, count)
            yield self._changed(tables, *groups, is_stored[start : start + count])

    def _changed(
        self, tables: Tables, keys: pa.Table, folded: pa.Table, stored: pa.Table, is_stored: Flags
    ) -> "_Changed":
        view = tables.get_keyed(GROUPS)
        before = filtered(stored, is_stored)
        after = self._merged(before, is_stored, folded)
        unknown, kept = 0, np.ones(keys.num_rows, dtype=np.bool_)
        if self.changes is Changes.CHANGELOG:
            rows = int64_values(after[ROWS])
            kept, unknown = rows > 0, int(-rows[rows < 0].sum())
            if not kept.all():
                view.delete(filtered(keys, is_stored & ~kept))
        collected = self._collected_before_and_after(tables, keys, folded, kept)
        if self.entries:
            results = self._entry_results(tables, keys, folded, stored, kept)
            after = self._values_of({**dict(zip(after.column_names, after.columns, strict=True)), **results})
        times = one_chunk(filtered(after, kept)[LATEST]) if by_event_time(self.ttl) else None
        view.upsert(filtered(keys, kept), filtered(after, kept), times=times)
        old = self._results(filtered(keys, is_stored), before, _filtered(collected[0], is_stored))
        new = self._results(filtered(keys, kept), filtered(after, kept), _filtered(collected[1], kept))
        places = {"old_keys": np.flatnonzero(is_stored), "new_keys": np.flatnonzero(kept)}
        taken_rows, added_rows = replaced(old, new, **places, normal=collected[0])
        return _Changed(taken_rows, added_rows, unknown)

    def _few_entries(self, tables: Tables, stored: pa.Table, folded: pa.Table) -> Iterator[tuple[int, int]]:
        """Yield the first position and the number of groups whose collected results are built at once.

        Together they have a bounded number of entries, unless one group alone has more.
        """
        collecting = [entry_table for entry_table in self.entries.values() if entry_table.collects]
        if not collecting or not stored.num_rows:
            yield 0, stored.num_rows
            return
        limit = max(tables.get_keyed(GROUPS).chunk_bytes // _ENTRY_BYTES, 1)
        counts = np.sum([entry_table.entry_counts(stored, folded) for entry_table in collecting], axis=0)
        yield from _runs_within(limit, counts)

    @property
    def needs_time(self) -> bool:
        """Whether rows without an event time are always late."""
        return by_event_time(self.ttl)

    def late_until(self, late_us: int | None) -> int | None:
        """Return the event time up to which rows are late; None if no row is."""
        return late_us - self.ttl.span_us if self.ttl and by_event_time(self.ttl) and late_us is not None else None

    def _with_groups(
        self, keys: pa.Table, folded: pa.Table, hashes: Hashes, batches: Iterable[pa.RecordBatch], clock: Clock
    ) -> tuple[pa.Table, pa.Table, int, int]:
        """Merge pre-aggregated rows into the groups; also return how many rows they stand for, and how many of these
        are late.

        A pre-aggregated group is either late as a whole or not at all.
        """
        assert self.preaggregated is not None
        groups = gathered(batches, self.preaggregated, where=self.where)
        admitted = self._admitted(groups, clock)
        columns = [admitted.rows[LATEST_OF_GROUP], *partial_columns(self.partials, admitted.rows)]
        values = pa.concat_tables([folded, pa.Table.from_arrays(columns, schema=folded.schema)])
        both = pa.concat_tables([keys, self._keys_of(admitted.rows, _each(admitted.rows.num_rows))])
        grouping = group_rows(
            None,
            np.concatenate([hashes, uint64_values(admitted.rows[KEY_HASH])]),
            [one_chunk(both[key.name]) for key in self.keys],
        )
        merged = [latest_of_each(values[LATEST], grouping), *self.partials.merge(values, grouping)]
        rows_in, rows_late = (int(int64_values(part[ROW_COUNT]).sum()) for part in (groups, admitted.late))
        return taken(both, grouping.first_rows), pa.Table.from_arrays(merged, schema=folded.schema), rows_in, rows_late

    def _admitted(self, rows: pa.Table, clock: Clock) -> AdmittedRows:
        """Split off late rows. A row is late only if its group would expire immediately."""
        if not by_event_time(self.ttl):
            return AdmittedRows(rows, rows.slice(0, 0))
        return admit(rows, self.late_until(clock.late_us))

    def _keys_of(self, rows: pa.Table, grouping: Grouping) -> pa.Table:
        firsts = taken(rows.select([key.name for key in self.keys]), grouping.first_rows) if self.keys else None
        columns = firsts.columns if firsts is not None else [pa.nulls(grouping.groups, EVERYTHING.type)]
        return pa.Table.from_arrays(list(columns), schema=pa.schema(self.state_keys))

    def _folded(self, rows: pa.Table, grouping: Grouping) -> pa.Table:
        """Return one row of partials for each key of the epoch."""
        columns = [latest_of_each(rows[TIME], grouping), *self.partials.fold(rows, grouping)]
        return pa.Table.from_arrays(columns, schema=pa.schema(self._folded_values))

    def _merged(self, before: pa.Table, is_stored: Flags, new: pa.Table) -> pa.Table:
        """Merge the new partials of each key with the stored ones, if there are any; aggregates with entry tables are
        left out.
        """
        fields = pa.schema([pa.field(LATEST, TIMESTAMP), *self._merging.fields])
        if not before.num_rows:
            return new.select(fields.names)
        both = pa.concat_tables([before.select(fields.names).cast(fields), new.select(fields.names)])
        grouping = _pairs(np.flatnonzero(is_stored), new.num_rows)
        columns = [latest_of_each(both[LATEST], grouping), *self._merging.merge(both, grouping)]
        return pa.Table.from_arrays(columns, schema=fields)

    def _entry_results(
        self, tables: Tables, keys: pa.Table, folded: pa.Table, stored: pa.Table, kept: Flags
    ) -> dict[str, pa.Array]:
        """Add entries to their tables; return the results of the groups that are kept, by column."""
        results: dict[str, pa.Array] = {}
        for entry_table in self.entries.values():
            partials = [one_chunk(folded[field.name]) for field in entry_table.accumulator.partial_fields]
            before = tuple(one_chunk(stored[field.name]) for field in entry_table.fields)
            results |= entry_table.named(entry_table.apply(tables, keys, partials, before, kept))
        return results

    def _collected_before_and_after(
        self, tables: Tables, keys: pa.Table, folded: pa.Table, kept: Flags
    ) -> tuple[dict[str, pa.Array], dict[str, pa.Array]]:
        """Return the results that contain all entries, before and after an epoch, by column; one row per group."""
        before, after = {}, {}
        for entry_table in self.entries.values():
            if entry_table.collects:
                partials = [one_chunk(folded[field.name]) for field in entry_table.accumulator.partial_fields]
                view = tables.get_keyed(entry_table.name)
                before[entry_table.result_name], after[entry_table.result_name] = (
                    entry_table.collected_before_and_after(view, keys, partials, kept)
                )
        return before, after

    def _values_of(self, columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> pa.Table:
        schema = pa.schema(self._state_values)
        return pa.Table.from_arrays([columns[name] for name in schema.names], schema=schema)

    def finished(self, rows: pa.Table, elements: Elements) -> Iterator[pa.Table]:
        """Yield results of rows of the state table, in the columns of the output.

        Rows may have lists of entries, as earlier versions stored them. `elements` reads the tables of entries.
        """
        for piece in self._few_values(rows):
            keys = piece.select([key.name for key in self.state_keys])
            results = {}
            for entry_table in self.entries.values():
                if (partials := _lists_of(entry_table, piece)) is not None:
                    results[entry_table.result_name] = entry_table.accumulator.finish(partials)
                elif entry_table.collects:
                    results[entry_table.result_name] = entry_table.collected_from(
                        elements(entry_table.name, keys), keys
                    )
            yield self._results(piece, piece, results).select(self.outputs[MAIN].columns.names)

    def why_incomplete(self) -> str:
        return "" if self.ttl is None else EXPIRED

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the results of all groups in the state, as insertions of the main output."""
        for rows in tables.get_keyed(GROUPS).scan():
            for piece in self._few_values(rows):
                keys = piece.select([key.name for key in self.state_keys])
                collecting = (entry_table for entry_table in self.entries.values() if entry_table.collects)
                collected = {
                    entry_table.result_name: entry_table.collected(
                        tables.get_keyed(entry_table.name), keys, normal=True
                    )
                    for entry_table in collecting
                }
                results = self._results(piece, piece, collected)
                ones = pa.repeat(pa.scalar(1, pa.int64()), results.num_rows)
                yield results.append_column(pa.field(WEIGHT, pa.int64(), nullable=False), ones).cast(
                    self.outputs[MAIN].schema
                )

    def _few_values(self, rows: pa.Table) -> Iterator[pa.Table]:
        """Yield slices of rows of the state table whose results contain at most VALUES_AT_ONCE values, or one group."""
        names = [entry_table.fields[0].name for entry_table in self.entries.values() if entry_table.collects]
        counts = [int64_values(one_chunk(rows[name]).fill_null(0)) for name in names if name in rows.column_names]
        if not counts or not rows.num_rows:
            yield rows
            return
        for start, count in _runs_within(VALUES_AT_ONCE, np.sum(counts, axis=0)):
            yield rows.slice(start, count)

    def _results(self, keys: pa.Table, values: pa.Table, others: Mapping[str, pa.Array]) -> pa.Table:
        """Return results in the columns of the output; `others` has those that are not in the group's row."""
        finished = self._merging.finish([one_chunk(values[field.name]) for field in self._merging.fields])
        results = {field.name: column for field, column in zip(self._merging.output_fields, finished, strict=True)}
        for entry_table in self.entries.values():
            name = entry_table.result_name
            if name not in others:
                others = {
                    **others,
                    name: entry_table.finish(tuple(one_chunk(values[field.name]) for field in entry_table.fields)),
                }
        results |= others
        aggregates = [results[field.name] for field in self.partials.output_fields]
        columns = [*(keys[key.name] for key in self.keys), *aggregates, values[LATEST]]
        fields = [*self.outputs[MAIN].columns, pa.field(TIME, TIMESTAMP)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    @cached_property
    def _merging(self) -> Partials:
        """Aggregates whose partials are stored in the row of their group."""
        rest = tuple(aggregate for position, aggregate in enumerate(self.aggregates) if position not in self.entries)
        return Partials(self.keys, rest, self.changes)

    @property
    def _folded_values(self) -> tuple[pa.Field, ...]:
        """Columns of the partials of an epoch."""
        return (pa.field(LATEST, TIMESTAMP), *self.partials.fields)

    @cached_property
    def _state_values(self) -> tuple[pa.Field, ...]:
        results = (field for entry_table in self.entries.values() for field in entry_table.fields)
        return (pa.field(LATEST, TIMESTAMP), *self._merging.fields, *results)


def _pieces(keys: pa.Table, folded: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield pieces of groups with adjacent hashes; at least one piece."""
    width = max((keys.nbytes + folded.nbytes) // max(keys.num_rows, 1), 1)
    step = max(PIECE_BYTES // width, 1)
    for start in range(0, max(keys.num_rows, 1), step):
        yield keys.slice(start, step), folded.slice(start, step)


def _each(count: int) -> Grouping:
    """Return a grouping in which each row is a group."""
    return Grouping(order=np.arange(count, dtype=np.int64), starts=np.arange(count, dtype=np.int64))


def _pairs(stored_places: Integers, count: int) -> Grouping:
    """Return groups of one new row each and its stored row, if any, for a table with the stored rows first."""
    stored = len(stored_places)
    sizes = np.ones(count, dtype=np.int64)
    sizes[stored_places] = 2
    ends = np.cumsum(sizes)
    order = np.empty(stored + count, dtype=np.int64)
    order[ends - 1] = np.arange(stored, stored + count, dtype=np.int64)
    order[ends[stored_places] - 2] = np.arange(stored, dtype=np.int64)
    return Grouping(order=order, starts=ends - sizes)


def _lists_of(table: EntryTable, rows: pa.Table) -> list[pa.Array] | None:
    """Return the entries of groups as the lists of an earlier version, or None if they are rows of their own table."""
    names = [field.name for field in table.accumulator.partial_fields]
    return [one_chunk(rows[name]) for name in names] if set(names) <= set(rows.column_names) else None


def _runs_within(limit: int, counts: Integers) -> Iterator[tuple[int, int]]:
    """Yield the first position and the length of runs whose counts add up to at most `limit`, or of one position."""
    ends = np.cumsum(counts)
    start, before = 0, 0
    while start < len(counts):
        end = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        yield start, end - start
        start, before = end, int(ends[end - 1])


def _filtered(columns: Mapping[str, pa.Array], flags: Flags) -> dict[str, pa.Array]:
    """Return the values whose flag is set; without a copy if all or none are."""
    if flags.all():
        return dict(columns)
    at = from_numpy(np.flatnonzero(flags), pa.int64())
    return {name: column.take(at) for name, column in columns.items()}
