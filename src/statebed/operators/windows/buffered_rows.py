"""Rows that are buffered until the windows that contain them close.

Each row is stored once, under the pane that contains its event time, however many windows overlap. When the watermark
closes windows, their rows are returned by window and key, in the order that the operator requests; ties are broken by
all columns. Rows of a changelog are stored with their weight: at close, a row counts as often as its net weight says.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from statebed.arrays.canonical_order import in_order, is_sortable
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.arrays.grouping import Grouping, group_rows
from statebed.arrays.row_numbers import Numbering, Partitions
from statebed.arrays.sort_order import Integers, OrderBy, changes, user_keys
from statebed.errors import InputError
from statebed.format.schema import BIN, KEY_HASH, SEQUENCE, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.operators.changelog import group_equal
from statebed.operators.input_rows import AdmittedRows, filtered, gathered
from statebed.operators.keyed_rows import ordered_inside, taken
from statebed.operators.operator import Clock
from statebed.operators.window_definition import Window
from statebed.state import TableConfig, TimeKeyedView, timestamp_table_config
from statebed.state.live.files import BEGINNING

KEPT = "kept"
"""Name of the state table."""
EDGES = (pa.field(WINDOW_START, TIMESTAMP, nullable=False), pa.field(WINDOW_END, TIMESTAMP, nullable=False))


@dataclass(frozen=True)
class ClosedRows:
    """Rows of closed windows, sorted by window, key and order."""

    rows: pa.Table
    shape: Partitions
    """Partitions of the rows; a partition is the rows of one window and key."""
    dropped: int = 0
    """Number of retractions of a changelog that matched no row."""


@dataclass(frozen=True)
class WindowRows:
    """Stores the rows of an input for the windows of one definition."""

    input: Input
    window: Window
    order: tuple[OrderBy, ...]

    @cached_property
    def leading(self) -> list[pa.Field]:
        """First columns of results: keys, `window_start`, `window_end`, and the other columns of the input."""
        keys = [self.input.columns.field(name) for name in self.input.keys]
        return [*keys, *EDGES, *(field for field in self.input.columns if field.name not in self.input.keys)]

    @cached_property
    def table(self) -> TableConfig:
        keys = [self.input.columns.field(name) for name in self.input.keys]
        values = [field for field in self.input.columns if field.name not in self.input.keys]
        weight = [pa.field(WEIGHT, pa.int64(), nullable=False)] if self._weighted else []
        return timestamp_table_config(
            KEPT,
            "rows by pane and key",
            dt.timedelta(microseconds=self.window.width_us + self.window.period_us),
            False,
            pa.schema([*keys, *values, *weight]),
            keys=self.input.keys,
            bin_width=dt.timedelta(microseconds=self.window.pane_us),
        )

    def admit(self, batches: Iterable[pa.RecordBatch], late_us: int | None, *, where: str) -> AdmittedRows:
        """Split off late rows, whose windows are all closed, and assign the others to panes.

        Admitted rows have the start of their pane as their time.
        """
        rows = gathered(batches, self.input, where=where)
        rows = rows.set_column(0, KEY_HASH, from_numpy(uint64_values(rows[KEY_HASH]), pa.uint64()))
        times, timed = int64_values(rows[TIME]), validity(rows[TIME])
        panes = self.window.panes_of(np.where(timed, times, np.int64(0)))
        admitted = timed if late_us is None else timed & (panes >= self.window.first_open(late_us))
        placed = rows.set_column(1, TIME, from_numpy(panes, TIMESTAMP))
        return AdmittedRows(filtered(placed, admitted), filtered(rows, ~admitted))

    def prefetch(self, view: TimeKeyedView, clock: Clock) -> None:
        """Prefetch rows of windows that the clock closes in the background, while the rows of the epoch arrive."""
        closed = self._closed_panes(clock)
        if closed is not None:
            view.prefetch(*closed, spare=True)

    def _closed_panes(self, clock: Clock) -> tuple[int | None, int] | None:
        """Return the range of panes in windows that the clock closes; None if it closes none."""
        if clock.watermark_us is None or not self.window.closes_between(clock.late_us, clock.watermark_us):
            return None
        start = None if clock.late_us is None else self.window.first_open(clock.late_us)
        return start, self.window.last_closed_end(clock.watermark_us)

    def close(self, view: TimeKeyedView, rows: pa.Table, clock: Clock) -> ClosedRows:
        """Store admitted rows, and return the rows of the windows that the clock closes."""
        rows = rows.select([KEY_HASH, *view.row_schema.names])
        closed = self._closed_panes(clock)
        if closed is None or clock.watermark_us is None:
            view.append(rows.drop_columns([KEY_HASH]))
            return self.sorted(self._by_window(rows.slice(0, 0), after_us=None, until_us=0))
        panes = int64_values(rows[TIME])
        start, until = closed
        old = view.read(start, until, hashed=True)
        closing = pa.concat_tables([old, filtered(rows, panes < until).cast(old.schema)])
        kept_from = self.window.first_open(clock.watermark_us)
        view.append(filtered(rows, panes >= kept_from).drop_columns([KEY_HASH]))
        view.delete_times(BEGINNING, kept_from)
        return self.sorted(self._by_window(closing, after_us=clock.late_us, until_us=clock.watermark_us))

    def sorted(self, rows: pa.Table) -> ClosedRows:
        """Sort rows by window (or by pane if they have none), key and order."""
        bins = WINDOW_END if WINDOW_END in rows.column_names else TIME
        rows, dropped = self._settled(rows) if self._weighted else (rows, 0)
        grouping = self._grouping(rows, int64_values(rows[bins]))
        ordered = taken(rows, ordered_inside(rows, grouping, self.order, self.input.columns.names))
        begins = np.zeros(rows.num_rows, dtype=np.bool_)
        begins[grouping.starts] = True
        every = np.arange(rows.num_rows, dtype=np.int64)
        return ClosedRows(ordered, Partitions(begins, begins | changes(user_keys(ordered, self.order), every)), dropped)

    def combined(self, rows: pa.Table) -> pa.Table:
        """Add up the weights of equal rows of a changelog's state, and drop rows of weight 0."""
        rows = _replaced(rows, SEQUENCE, from_numpy(self._newest(rows), pa.uint64()))
        grouping = group_equal(rows.select([TIME, *self.input.columns.names]))
        net = grouping.add(int64_values(rows[WEIGHT]))
        kept = np.flatnonzero(net)
        merged = taken(rows, grouping.first_rows[kept])
        return self._as_stored(_replaced(merged, WEIGHT, from_numpy(net[kept], pa.int64())))

    def combined_first(self, rows: pa.Table, n: int, numbering: Numbering) -> pa.Table:
        """Return the first n rows of each key and pane from rows of the state."""
        rows = _replaced(rows, SEQUENCE, from_numpy(self._newest(rows), pa.uint64()))
        ordered = self.sorted(rows)
        return self._as_stored(taken(ordered.rows, np.flatnonzero(ordered.shape.numbers(numbering) <= n)))

    def _newest(self, rows: pa.Table) -> npt.NDArray[np.uint64]:
        """Return, for each row of the state, the greatest sequence of its key and pane."""
        panes = self._grouping(rows, int64_values(rows[TIME]))
        return panes.greatest(uint64_values(rows[SEQUENCE]))[panes.group_of_rows()]

    def _as_stored(self, rows: pa.Table) -> pa.Table:
        """Sort rows in the order of files, which covers all sortable columns."""
        first = [BIN, KEY_HASH, *self.input.keys, TIME, SEQUENCE]
        rest = [field.name for field in rows.schema if is_sortable(field.type) and field.name not in first]
        return in_order(rows, first, rest)

    @property
    def _weighted(self) -> bool:
        return self.input.changes is Changes.CHANGELOG

    def _grouping(self, rows: pa.Table, bins: Integers) -> Grouping:
        hashes = uint64_values(rows[KEY_HASH]) if self.input.keys else np.zeros(rows.num_rows, dtype=np.uint64)
        return group_rows(bins, hashes, [one_chunk(rows[name]) for name in self.input.keys])

    def _by_window(self, rows: pa.Table, *, after_us: int | None, until_us: int) -> pa.Table:
        """Return rows once per window that contains them and ends after `after_us` and not after `until_us`."""
        windows = self.window.windows_of(int64_values(rows[TIME]))
        chosen = windows.ends <= until_us
        if after_us is not None:
            chosen &= windows.ends > after_us
        spread = taken(rows.drop_columns([TIME]), windows.rows[chosen])
        for field, edges in zip(EDGES, (windows.starts, windows.ends), strict=True):
            spread = spread.append_column(field, from_numpy(edges[chosen], TIMESTAMP))
        return spread

    def _settled(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """Repeat each row by its net weight; also return the number of retractions that matched no row."""
        columns = rows.drop_columns([WEIGHT])
        grouping = group_equal(columns.drop_columns([KEY_HASH]))
        net = grouping.add(int64_values(rows[WEIGHT]))
        copies = np.repeat(grouping.first_rows, np.maximum(net, 0))
        return taken(columns, copies), int(-np.minimum(net, 0).sum())


def _replaced(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), column)


def check_windows(rows: WindowRows, taken_names: Sequence[str], *, where: str) -> None:
    """Raise InputError if columns have the names of window edges or of each other."""
    names = [field.name for field in rows.leading] + list(taken_names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"the columns {twice} would appear twice in the result",
            where=where,
            fix="rename them: results have the input's columns, window_start, window_end, and the added columns",
        )
