"""Aggregation by key over windows, as a pure step.

The state is one partial row per pane, key and batch that touched it; a pane is the longest span of which all windows
are made, so a row is kept once, however many windows overlap. A step folds the batch into partials, merges the panes of
the windows that the watermark closes, and puts out one row per key and closed window. Every partial is exact
(`accumulators`), so nothing depends on the order of rows.

Late is judged by the previous epoch's watermark, closing by the current one, as Spark does: a row is late when no
window that holds it ends after `late_us`; otherwise it counts in those that do. A row without event time belongs to no
window and is counted as late.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.errors import InputError
from statebed.format import names
from statebed.format.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.format.keyhash import normalise_key
from statebed.format.schema import BIN, KEY_HASH, TIME, TIMESTAMP, check_user_columns
from statebed.operators.aggregates import BoundAggregate
from statebed.operators.grouping import Grouping, group_rows
from statebed.operators.windows import Times, Window
from statebed.state.time_keyed.table import TimeKeyedTable

WINDOW_START = "window_start"
WINDOW_END = "window_end"
PARTIALS = "partials"
"""Name of the state table."""
FOLD_ROWS = 1 << 17
"""Rows of a batch that are folded at a time."""


def input_column(position: int, part: int = 0) -> str:
    """The column that carries an input of the aggregate at this position; most have one."""
    return f"_a{position}_{part}" if part else f"_a{position}"


@dataclass(frozen=True)
class StepCounts:
    """What became of the rows: admitted + late = input."""

    rows_in: int
    rows_late: int
    max_event_time_us: int | None


@dataclass(frozen=True)
class StepResult:
    """What a step changes: rows to append to the state, what to delete from it, and what to put out."""

    partials: pa.Table
    """Rows of panes that open windows hold; the state's columns without `_seq`."""
    delete_before_us: int | None
    """All panes before this are in closed windows alone, and leave the state."""
    output: pa.Table
    counts: StepCounts


@dataclass(frozen=True)
class WindowAggregate:
    """The definition of the operator; picklable, shipped with every task."""

    operator_id: str
    keys: tuple[pa.Field, ...]
    window: Window
    aggregates: tuple[BoundAggregate, ...]

    def __post_init__(self) -> None:
        names.operator_metadata(1, self.operator_id, 0, "")  # refuses an id that cannot be part of an object name
        where = f"operator {self.operator_id!r}"
        for key in self.keys:
            _check_key_type(key, where=where)
        inputs = [name for name in self.input_schema.names if name not in {KEY_HASH, TIME}]
        check_user_columns(inputs, where=where)
        check_user_columns(self.output_schema.names, where=where)
        check_user_columns([field.name for field in (*self.keys, *self.partial_fields)], where=where)

    @cached_property
    def input_schema(self) -> pa.Schema:
        """Columns of input batches; inputs of aggregates are `_a0`, `_a1`, ... by the aggregate's position."""
        inputs = [
            pa.field(input_column(position, part), kind)
            for position, aggregate in enumerate(self.aggregates)
            for part, kind in enumerate(aggregate.input_types)
        ]
        return pa.schema([pa.field(KEY_HASH, pa.int64()), pa.field(TIME, TIMESTAMP), *self.keys, *inputs])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """Columns of the result: keys, window_start, window_end, aggregates."""
        return pa.schema(
            [
                *self.keys,
                pa.field(WINDOW_START, TIMESTAMP, nullable=False),
                pa.field(WINDOW_END, TIMESTAMP, nullable=False),
                *(aggregate.output_field for aggregate in self.aggregates),
            ]
        )

    @cached_property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return tuple(field for aggregate in self.aggregates for field in aggregate.accumulator.partial_fields)

    @cached_property
    def table(self) -> TimeKeyedTable:
        """The state table of the partials."""
        return TimeKeyedTable(
            name=PARTIALS,
            description="partial aggregates by pane and key",
            keys=self.keys,
            values=self.partial_fields,
            bin_us=self.window.pane_us,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells one configuration from another; the operator's name is not part of it."""
        described = {
            "kind": "window_aggregate",
            "keys": [[key.name, str(key.type)] for key in self.keys],
            "window": [self.window.shape.value, self.window.width_us, self.window.slide_us, self.window.offset_us],
            "aggregates": [
                [one.name, one.function.value, *map(str, one.input_types), one.text, *one.options]
                for one in self.aggregates
            ],
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]

    def step(
        self,
        state: pa.Table,
        batches: Iterable[pa.RecordBatch],
        *,
        late_us: int | None,
        watermark_us: int | None,
    ) -> StepResult:
        """Apply a batch, cut into any pieces.

        `state` holds the visible rows of all panes before `closing_until(watermark_us)`; no others are needed.
        """
        folder = _Folder(self, None if late_us is None else self.window.first_open(late_us))
        for batch in batches:
            folder.add(batch)
        partials = folder.finish()
        if watermark_us is None:
            return StepResult(partials, None, self.output_schema.empty_table(), folder.counts())
        # Partials are sorted by pane first.
        panes = int64_values(partials[BIN])
        first_open = self.window.first_open(watermark_us)
        until = int(np.searchsorted(panes, self.closing_until(watermark_us)))
        closing = pa.concat_tables([state, partials.slice(0, until)])
        return StepResult(
            partials=partials.slice(int(np.searchsorted(panes, first_open))),
            delete_before_us=first_open,
            output=self._closed(closing, late_us=late_us, watermark_us=watermark_us),
            counts=folder.counts(),
        )

    def closing_until(self, watermark_us: int) -> int:
        """The end of the last window that the watermark closes: panes from there on are in open windows alone."""
        return self.window.last_closed_end(watermark_us)

    def _closed(self, panes: pa.Table, *, late_us: int | None, watermark_us: int) -> pa.Table:
        """The results of the windows that this watermark closes, and the one before did not."""
        merged = self.merge(panes)
        found = self.window.windows_of(int64_values(merged[BIN]))
        closing = found.ends <= watermark_us
        if late_us is not None:
            closing &= found.ends > late_us
        starts, ends = found.starts[closing], found.ends[closing]
        rows = merged.take(from_numpy(found.rows[closing], pa.int64()))
        # No two windows have the same end.
        grouping = self._grouping(rows, ends)
        firsts = grouping.first_rows
        results = [
            aggregate.accumulator.finish(aggregate.accumulator.merge(columns, grouping))
            for aggregate, columns in self._partials_by_aggregate(rows)
        ]
        keys = [one_chunk(rows[key.name]).take(from_numpy(firsts, pa.int64())) for key in self.keys]
        edges = [from_numpy(times[firsts], TIMESTAMP) for times in (starts, ends)]
        return pa.Table.from_arrays([*keys, *edges, *results], schema=self.output_schema)

    def _grouping(self, rows: pa.Table, bins: Times) -> Grouping:
        return group_rows(bins, uint64_values(rows[KEY_HASH]), [one_chunk(rows[key.name]) for key in self.keys])

    def merge(self, partials: pa.Table) -> pa.Table:
        """One partial row per pane and key, sorted as the state's files are."""
        keys = [one_chunk(partials[key.name]) for key in self.keys]
        grouping = self._grouping(partials, int64_values(partials[BIN]))
        merged = [
            column
            for aggregate, columns in self._partials_by_aggregate(partials)
            for column in aggregate.accumulator.merge(columns, grouping)
        ]
        return _partial_rows(self, grouping, bins=partials[BIN], hashes=partials[KEY_HASH], keys=keys, partials=merged)

    def _partials_by_aggregate(self, rows: pa.Table) -> Iterable[tuple[BoundAggregate, list[pa.Array]]]:
        for aggregate in self.aggregates:
            columns = [field.name for field in aggregate.accumulator.partial_fields]
            yield aggregate, [one_chunk(rows[name]) for name in columns]


class _Folder:
    """Folds the pieces of a batch into partials, holding little more than one piece in memory."""

    def __init__(self, operator: WindowAggregate, first_admitted: int | None) -> None:
        self._operator = operator
        self._first_admitted = first_admitted
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._folded: list[pa.Table] = []
        self._rows_in = 0
        self._rows_late = 0
        self._max_event_time_us: int | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(_conform(batch, self._operator))
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= FOLD_ROWS:
            self._fold()

    def finish(self) -> pa.Table:
        """One partial row per pane and key of all admitted rows, sorted."""
        self._fold()
        if len(self._folded) == 1:
            return self._folded[0]
        return self._operator.merge(pa.concat_tables([self._operator.table.row_schema.empty_table(), *self._folded]))

    def counts(self) -> StepCounts:
        return StepCounts(rows_in=self._rows_in, rows_late=self._rows_late, max_event_time_us=self._max_event_time_us)

    def _fold(self) -> None:
        if not self._waiting_rows:
            return
        rows = pa.Table.from_batches(self._waiting)
        self._waiting, self._waiting_rows = [], 0
        admitted, bins = self._admit(rows)
        if admitted.num_rows:
            self._folded.append(_fold(self._operator, admitted, bins))

    def _admit(self, rows: pa.Table) -> tuple[pa.Table, Times]:
        """The rows that are not late, with their panes."""
        timed = validity(rows[TIME])
        times = int64_values(rows[TIME])
        if timed.any():
            latest = int(times[timed].max())
            seen = self._max_event_time_us
            self._max_event_time_us = latest if seen is None else max(seen, latest)
        bins = self._operator.window.panes_of(np.where(timed, times, np.int64(0)))
        admitted = timed if self._first_admitted is None else timed & (bins >= self._first_admitted)
        kept = int(np.count_nonzero(admitted))
        self._rows_in += rows.num_rows
        self._rows_late += rows.num_rows - kept
        if kept == rows.num_rows:
            return rows, bins
        return rows.take(from_numpy(np.flatnonzero(admitted), pa.int64())), bins[admitted]


def _fold(operator: WindowAggregate, rows: pa.Table, bins: Times) -> pa.Table:
    """One partial row per pane and key."""
    keys = [normalise_key(one_chunk(rows[key.name])) for key in operator.keys]
    hashes = uint64_values(rows[KEY_HASH])
    grouping = group_rows(bins, hashes, keys)
    partials = [
        column
        for position, aggregate in enumerate(operator.aggregates)
        for column in aggregate.accumulator.fold(
            [one_chunk(rows[input_column(position, part)]) for part in range(len(aggregate.input_types))], grouping
        )
    ]
    return _partial_rows(
        operator,
        grouping,
        bins=from_numpy(bins, TIMESTAMP),
        hashes=from_numpy(hashes, pa.uint64()),
        keys=keys,
        partials=partials,
    )


def _partial_rows(
    operator: WindowAggregate,
    grouping: Grouping,
    *,
    bins: pa.Array,
    hashes: pa.Array,
    keys: Sequence[pa.Array],
    partials: Sequence[pa.Array],
) -> pa.Table:
    """Rows of the state, from one row of each group and its partials."""
    firsts = from_numpy(grouping.first_rows, pa.int64())
    window = one_chunk(bins).take(firsts)
    leading = [window, one_chunk(hashes).take(firsts), *(key.take(firsts) for key in keys), window]
    return pa.Table.from_arrays([*leading, *partials], schema=operator.table.row_schema)


def _conform(batch: pa.RecordBatch, operator: WindowAggregate) -> pa.RecordBatch:
    """The batch with exactly the columns and types of the input schema."""
    schema = operator.input_schema
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise InputError(
            f"an input batch lacks the columns {missing}; it has {batch.schema.names}",
            where=f"operator {operator.operator_id!r}",
        )
    columns = [batch.column(name) for name in schema.names]
    cast = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _check_key_type(key: pa.Field, *, where: str) -> None:
    kind = key.type
    known = (
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )
    if not known:
        raise InputError(
            f"the key {key.name!r} has the type {kind}, by which rows cannot be grouped",
            where=where,
            fix="group by numbers, strings, binaries, booleans, dates or timestamps; take a struct or list apart first",
        )
