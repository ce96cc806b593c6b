"""Context of one call of a process: the keys of the batch, their state, timers and side outputs.

`ctx.keys` has each key of the batch once, and values that are read for keys are aligned with it: row i of
`ctx.get(state)` belongs to key i. `ctx.key_index` is the position of the key of each row, so
`values.take(ctx.key_index)` is aligned with the rows, and `np.add.reduceat(column, ctx.key_starts)` aggregates rows by
key. Reads see earlier writes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk, validity
from statebed.arrays.grouping import group_rows
from statebed.arrays.key_hash import hash_columns
from statebed.arrays.sort_order import Flags, Integers
from statebed.errors import InputError
from statebed.format.schema import TIMESTAMP
from statebed.operators.keyed_rows import taken
from statebed.operators.operator import Clock, Tables
from statebed.operators.process.collections import ListTables, MapTables, collection
from statebed.operators.process.items import Items
from statebed.operators.process.key_choice import ChosenKeys, Keys, chosen, positions
from statebed.operators.process.returned_rows import conformed_column, conformed_rows
from statebed.operators.process.states import KEY, VALUE, ListState, MapState, State
from statebed.operators.process.timers import TimerKind, cancel_timers, set_timers, timer_times
from statebed.operators.time_to_live import by_event_time
from statebed.state import KeyedView

Times: TypeAlias = pa.Array | pa.ChunkedArray | pa.Scalar | int
"""Timestamps, or microseconds since 1970; one for all keys, or one per key."""
S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class BatchKeys:
    """Keys of a call, and the key of each row."""

    keys: pa.Table
    key_index: Integers
    times: pa.Array
    """Event time of each key, from which a time to live counts; null if unknown."""


class Context:
    """Access to state, timers, side outputs and the clock during a call of a process.

    >>> class New(sb.Process):
    ...     seen = sb.ValueState("n bigint")
    ...     output = "driver string"
    ...     def on_batch(self, rows, ctx):
    ...         new = ctx.keys.filter(~ctx.has(self.seen))
    ...         ctx.put(self.seen, pa.table({"n": ctx.key_sizes}))
    ...         return new
    >>> import pyarrow as pa
    >>> flow = sb.Flow()
    >>> rides = flow.source("driver string, ts timestamp", name="rides", watermark=("ts", "0s"))
    >>> new = rides.key_by("driver", name="new").process(New())
    >>> with sb.testing.run(flow) as test:
    ...     for driver in ("ann", "bob", "ann"):
    ...         test.feed("rides", [{"driver": driver, "ts": "2026-01-01T12:00:00Z"}])
    ...     [row["driver"] for row in test.output("new")]
    ['ann', 'bob']
    """

    def __init__(
        self,
        tables: Tables,
        clock: Clock,
        batch: BatchKeys,
        *,
        states: dict[str, State],
        sides: Sequence[str],
        late: pa.Table,
        broadcasts: Mapping[str, pa.Table],
        where: str,
        timer_kind: TimerKind | None = None,
        fires: bool,
    ) -> None:
        self._tables = tables
        self._clock = clock
        self._batch = batch
        self._states = states
        self._side_names = sides
        self._broadcasts = broadcasts
        self._fires = fires
        self.where = where
        """Label of the operator in errors."""
        self.sides: list[tuple[str, pa.Table | pa.RecordBatch]] = []
        """Rows emitted to side outputs."""
        self.late = late
        """Late rows of this epoch, which are not passed to `on_batch`."""
        self.timer_kind = timer_kind
        """Kind of the timers that fire; None in `on_batch`."""

    # ---- keys and clock --------------------------------------------------------------------------------------

    @property
    def keys(self) -> pa.Table:
        """Distinct keys of the batch."""
        return self._batch.keys

    @property
    def key_index(self) -> Integers:
        """Position in `keys` of the key of each row."""
        return self._batch.key_index

    @property
    def key_starts(self) -> Integers:
        """Position of the first row of each key, in `on_batch`."""
        return np.searchsorted(self.key_index, np.arange(self.keys.num_rows, dtype=np.int64)).astype(np.int64)

    @property
    def key_sizes(self) -> Integers:
        """Number of rows of each key."""
        return np.bincount(self.key_index, minlength=self.keys.num_rows).astype(np.int64)

    @property
    def watermark(self) -> pa.Scalar | None:
        """Watermark of this epoch as a timestamp; None if it is not known."""
        return None if self._clock.watermark_us is None else pa.scalar(self._clock.watermark_us, TIMESTAMP)

    @property
    def epoch_time(self) -> pa.Scalar:
        """Processing time of the epoch, equal for all subtasks and attempts."""
        return pa.scalar(self._clock.epoch_time_us, TIMESTAMP)

    def table(self, name: str) -> pa.Table:
        """Return all rows of a broadcast table, as of this epoch, sorted by key."""
        if name not in self._broadcasts:
            raise InputError(
                f"there is no broadcast table {name!r}",
                where=self.where,
                fix="pass it: process(..., tables=[...])"
                + (f"; there are {', '.join(sorted(self._broadcasts))}" if self._broadcasts else ""),
            )
        return self._broadcasts[name]

    # ---- states ----------------------------------------------------------------------------------------------

    def get(self, state: State, keys: Keys = None) -> pa.Table | pa.Array:
        """Return the state of keys: the columns of a ValueState, null for keys without a value; or a list per key."""
        selected = self._chosen(keys)
        if not isinstance(state, ListState | MapState):
            return self._view(state).get(selected.keys)[0]
        distinct, index = self._distinct(selected)
        lists = self._collection(state).read(distinct.keys).lists(distinct.keys.num_rows, state.list_type)
        return lists.take(from_numpy(index, pa.int64()))

    def last(self, state: ListState, count: int, keys: Keys = None) -> pa.Array:
        """Return the last `count` items of each list, without reading the others; expired items are left out."""
        lists = self._lists_of(state)
        if count < 1:
            raise InputError(
                f"`count` must be at least 1, got {count}", where=self._at(state), fix="pass a positive number of items"
            )
        distinct, index = self._distinct(self._chosen(keys))
        items = lists.last(distinct.keys, count).lists(distinct.keys.num_rows, state.list_type)
        return items.take(from_numpy(index, pa.int64()))

    def has(self, state: State, keys: Keys = None) -> Flags:
        """Return which keys have state."""
        selected = self._chosen(keys)
        if not isinstance(state, ListState | MapState):
            return self._view(state).get(selected.keys)[1]
        distinct, index = self._distinct(selected)
        return self._collection(state).has(distinct.keys)[index]

    def put(
        self,
        state: State,
        values: pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray,
        keys: Keys = None,
        *,
        times: Times | None = None,
    ) -> None:
        """Set the state of keys: one row per key, or one list per key for a ListState or MapState.

        A time to live by event time counts from `times`. The default is the latest event time of the key's rows, the
        time of its timer, or the watermark.
        """
        selected, view = self._chosen(keys), self._view(state)
        moments = self._moments(state, selected, times)
        if isinstance(state, ListState | MapState):
            lists = self._lists(state, values)
            self._check_count(state, selected, len(lists))
            distinct, index = self._distinct(selected)
            last = np.zeros(distinct.keys.num_rows, dtype=np.int64)
            np.maximum.at(last, index, np.arange(len(index), dtype=np.int64))
            at = from_numpy(last, pa.int64())
            items = Items.of(lists.take(at))
            self._collection(state).put(distinct.keys, items, None if moments is None else moments.take(at))
            return
        if not isinstance(values, pa.Table | pa.RecordBatch):
            raise InputError(
                f"a ValueState must be set to a table or batch, got {type(values).__name__}",
                where=self._at(state),
                fix=f"pass one row per key, with the columns {', '.join(field.name for field in state.fields)}",
            )
        rows = conformed_rows(values, pa.schema(state.fields), what="values", where=self._at(state))
        self._check_count(state, selected, rows.num_rows)
        view.upsert(selected.keys, rows, times=moments)

    def delete(self, state: State, keys: Keys = None) -> None:
        """Delete the state of keys; a list or map is emptied."""
        selected = self._chosen(keys)
        if isinstance(state, ListState | MapState):
            self._collection(state).delete(self._distinct(selected)[0].keys)
        else:
            self._view(state).delete(selected.keys)

    def append(self, state: ListState, rows: pa.Table | pa.RecordBatch, index: Keys = None) -> None:
        """Append rows to the lists of keys; `index` has the position of the key of each row, by default that of the
        batch's row.
        """
        lists = self._lists_of(state)
        new = conformed_rows(rows, state.schema, what="items", where=self._at(state))
        touched, inner = self._touched(state, index, new.num_rows)
        lists.append(touched.keys, Items(inner, new), self._moments(state, touched, None))

    def get_items(self, state: MapState, map_keys: pa.Array, index: Keys = None) -> pa.Array:
        """Return the value of each map key, null if there is none; `index` is as in `append`."""
        return self._find(state, map_keys, index)[0].cast(state.value_type)

    def has_items(self, state: MapState, map_keys: pa.Array, index: Keys = None) -> Flags:
        """Return which map keys have a value, which may be null; `index` is as in `append`."""
        return self._find(state, map_keys, index)[1]

    def put_items(self, state: MapState, map_keys: pa.Array, values: pa.Array, index: Keys = None) -> None:
        """Set the value of each map key; if one occurs several times, the last value wins."""
        maps = self._maps(state)
        entries = pa.table({KEY: self._map_keys(state, map_keys), VALUE: self._map_values(state, values)})
        touched, inner = self._touched(state, index, entries.num_rows)
        maps.merge(touched.keys, Items(inner, entries), self._moments(state, touched, None))

    def remove_items(self, state: MapState, map_keys: pa.Array, index: Keys = None) -> None:
        """Remove each map key."""
        maps = self._maps(state)
        gone = self._map_keys(state, map_keys)
        touched, inner = self._touched(state, index, len(gone))
        maps.remove(touched.keys, inner, gone)

    def sizes(self, state: ListState | MapState, limit: int) -> Integers:
        """Return the number of items in the list or map of each key of the batch, or any number above `limit`.

        Counting stops at the limit. Expired items of lists may be counted.
        """
        return self._collection(state).sizes(self.keys, limit)

    # ---- timers and outputs ----------------------------------------------------------------------------------

    def timer(self, at: Times, keys: Keys = None) -> None:
        """Set timers that call `on_timer` for keys when the watermark reaches a time; null sets none."""
        self._set(TimerKind.EVENT, at, keys, set_timers)

    def processing_timer(self, at: Times, keys: Keys = None) -> None:
        """Set timers that call `on_timer` for keys when the epoch time reaches a time; null sets none."""
        self._set(TimerKind.PROCESSING, at, keys, set_timers)

    def cancel(self, at: Times, keys: Keys = None) -> None:
        """Cancel the event-time timers of keys at these times."""
        self._set(TimerKind.EVENT, at, keys, cancel_timers)

    def cancel_processing(self, at: Times, keys: Keys = None) -> None:
        """Cancel the processing-time timers of keys at these times."""
        self._set(TimerKind.PROCESSING, at, keys, cancel_timers)

    def side(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Emit rows to a side output."""
        if name not in self._side_names:
            raise InputError(
                f"there is no side output {name!r}",
                where=self.where,
                fix=f"declare it in `side_outputs`, which has {sorted(self._side_names)}",
            )
        self.sides.append((name, rows))

    # ---- inside ----------------------------------------------------------------------------------------------

    def _at(self, state: State) -> str:
        return f"{self.where}, state {state.name!r}"

    def _chosen(self, keys: Keys) -> ChosenKeys:
        return chosen(keys, self.keys, where=self.where)

    def _view(self, state: State) -> KeyedView:
        if not isinstance(state, State) or self._states.get(state.name) != state:
            declared = ", ".join(f"self.{name}" for name in sorted(self._states))
            raise InputError(
                f"{_shown(state)} is not a state of this process",
                where=self.where,
                fix=f"use a state that the class declares: {declared}" if declared else "declare it in the class",
            )
        return self._tables.get_keyed(state.name)

    def _kind(self, state: State, kind: type[S]) -> S:
        if not isinstance(state, kind):
            raise InputError(
                f"the state must be a {kind.__name__}, got a {type(state).__name__}",
                where=self._at(state),
                fix="append and last are for lists; get_items, has_items, put_items and remove_items are for maps",
            )
        return state

    def _lists(self, state: State, values: object) -> pa.Array:
        assert isinstance(state, ListState | MapState)
        if not isinstance(values, pa.Array | pa.ChunkedArray) or not (
            pa.types.is_list(values.type) or pa.types.is_map(values.type)
        ):
            raise InputError(
                f"a {type(state).__name__} must be set to an array of lists, got {type(values).__name__}",
                where=self._at(state),
                fix="pass one list per key",
            )
        return one_chunk(values).cast(state.list_type)

    def _collection(self, state: ListState | MapState) -> ListTables | MapTables:
        self._view(state)
        return collection(state, self._tables)

    def _lists_of(self, state: ListState) -> ListTables:
        lists = self._collection(self._kind(state, ListState))
        assert isinstance(lists, ListTables)
        return lists

    def _maps(self, state: MapState) -> MapTables:
        maps = self._collection(self._kind(state, MapState))
        assert isinstance(maps, MapTables)
        return maps

    def _map_keys(self, state: MapState, map_keys: pa.Array) -> pa.Array:
        return conformed_column(
            one_chunk(map_keys), pa.field(KEY, state.key_type), what="map entries", where=self._at(state)
        )

    def _map_values(self, state: MapState, values: pa.Array) -> pa.Array:
        return conformed_column(
            one_chunk(values), pa.field(VALUE, state.value_type), what="map entries", where=self._at(state)
        )

    def _find(self, state: MapState, map_keys: pa.Array, index: Keys) -> tuple[pa.Array, Flags]:
        maps = self._maps(state)
        wanted = self._map_keys(state, map_keys)
        touched, inner = self._touched(state, index, len(wanted))
        return maps.find(touched.keys, inner, wanted)

    def _touched(self, state: State, index: Keys, count: int) -> tuple[ChosenKeys, Integers]:
        """Return the distinct keys of `count` items, and the position of the key of each item among them."""
        places = positions(index, self.key_index, count, self.keys.num_rows, where=self._at(state))
        touched, inner = np.unique(places, return_inverse=True)
        return self._chosen(touched), inner.astype(np.int64)

    def _distinct(self, selected: ChosenKeys) -> tuple[ChosenKeys, Integers]:
        """Return the distinct keys, and the position of each selected key among them."""
        if selected.places is not None:
            places, index = np.unique(selected.places, return_inverse=True)
            return self._chosen(places), index.astype(np.int64)
        columns = [one_chunk(column) for column in selected.keys.columns]
        grouping = group_rows(None, hash_columns(columns), columns)
        return ChosenKeys(taken(selected.keys, grouping.first_rows), None), grouping.group_of_rows()

    def _check_count(self, state: State, keys: ChosenKeys, rows: int) -> None:
        if rows != keys.keys.num_rows:
            raise InputError(
                f"the values have length {rows}, but there are {keys.keys.num_rows} keys",
                where=self._at(state),
                fix="pass one row per key, in the order of ctx.keys or of keys=",
            )

    def _moments(self, state: State, keys: ChosenKeys, times: Times | None) -> pa.Array | None:
        """Return the event times from which the time to live counts; None if it does not count in event time."""
        if not by_event_time(state.time_to_live):
            return None
        count = keys.keys.num_rows
        if times is not None:
            moments = timer_times(times, count, where=self._at(state))
        elif keys.places is None:
            moments = pa.nulls(count, TIMESTAMP)
        else:
            moments = self._batch.times.take(from_numpy(keys.places, pa.int64()))
        if moments.null_count and self._clock.watermark_us is not None:
            moments = moments.fill_null(pa.scalar(self._clock.watermark_us, TIMESTAMP))
        if not validity(moments).all():
            raise InputError(
                "a state with a time to live in event time was written for a key without an event time",
                where=self._at(state),
                fix="pass times=, or declare ttl_clock='epoch_time'",
            )
        return one_chunk(moments)

    def _set(self, kind: TimerKind, at: Times, keys: Keys, act: Callable[..., None]) -> None:
        selected = self._chosen(keys)
        times = timer_times(at, selected.keys.num_rows, where=self.where)
        if not self._fires:
            raise InputError(
                "a timer was set, but the process defines no `on_timer`",
                where=self.where,
                fix="define on_timer (in a ProcessKey: on_key_timer), which is called when the timer is due",
            )
        act(self._tables.get_time_keyed(kind.value), selected.keys, times)


def _shown(state: object) -> str:
    """Return what was passed in place of a state, in a few words."""
    if not isinstance(state, State):
        return repr(state)
    return f"the {type(state).__name__} {state.name!r}" if state.name else f"this {type(state).__name__}"
