"""Change events of a database's log as a changelog: the newest row of each key, by position in the log.

An event inserts, updates or deletes the row of a key. The state holds the newest event of each key with its position,
so events may be repeated and may arrive in any order: an event that is not newer than the stored one changes nothing. A
row that is replaced or deleted is retracted exactly as it was inserted, regardless of the previous row in the event.
Deleted keys stay in the state, because an older event may still arrive; a time to live removes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk
from statebed.arrays.sort_order import Flags, OrderBy, check_order
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators.changelog import consolidated
from statebed.operators.input_rows import filtered, gathered, late_output, late_rows
from statebed.operators.keyed_rows import admit_updating, by_key, check_input, state_keys, taken
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.operators.time_to_live import EXPIRED, TimeToLive, by_event_time, described_ttl, keyed_config
from statebed.operators.updating.deduplicate import ROW_TIME, is_later, stored_rows, weighted_rows
from statebed.state import TableConfig

EVENTS = "events"
"""Name of the state table."""


@dataclass(frozen=True)
class ChangeEvents(OperatorBase):
    """Definition of a changelog that is made from change events."""

    operator_id: str
    input: Input
    deleted: str
    """Boolean column that is true for events that delete the row of their key."""
    order: tuple[OrderBy, ...]
    """Position of an event in the log of the database; the last column breaks ties."""
    rows: tuple[str, ...]
    """Columns of the rows, including keys; the other columns only describe the event."""
    ttl: TimeToLive | None = None

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self._where)
        if not self.input.keys:
            raise InputError(
                "change events need a key that identifies a row", where=self._where, fix="changelog(..., key='id')"
            )
        if self.input.changes is Changes.CHANGELOG:
            raise InputError(
                "the input is a changelog already", where=self._where, fix="call changelog(...) on the events of a log"
            )
        check_order(self.order, self.input.columns, where=self._where)
        _ = self.outputs, self.tables  # raises if a name is taken

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        columns = pa.schema([self.input.columns.field(name) for name in self.rows])
        return {MAIN: Output(columns, Changes.CHANGELOG), LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        values = [pa.field(ROW_TIME, TIMESTAMP)]
        values += [field for field in self.input.columns if field.name not in self.input.keys]
        return {EVENTS: keyed_config(EVENTS, "the newest event of each key", state_keys(self.input), values, self.ttl)}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("ttl",),
            kind="change_events",
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            deleted=self.deleted,
            order=[term.text for term in self.order],
            rows=self.rows,
            ttl=described_ttl(self.ttl),
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        events = gathered(batches[0], self.input, where=self._where)
        admitted = admit_updating(events, self.ttl, clock.late_us)
        keyed = by_key(admitted.rows, self.input, order=self.order)
        view = tables.get_keyed(EVENTS)
        new = keyed.at(keyed.lasts, [*self.input.columns.names, TIME])
        kept, known = view.get(keyed.keys)
        there = np.flatnonzero(known)
        old = stored_rows(taken(keyed.keys, there), taken(kept, there), new.schema)
        newer = ~known
        newer[there] = is_later(taken(new, there), old, self.order)
        chosen = taken(new, np.flatnonzero(newer))
        values = chosen.drop_columns(list(self.input.keys))
        values = values.rename_columns([ROW_TIME if name == TIME else name for name in values.column_names])
        times = one_chunk(chosen[TIME]) if by_event_time(self.ttl) else None
        view.upsert(taken(keyed.keys, np.flatnonzero(newer)), values, times=times)
        replaced = taken(old, np.flatnonzero(newer[there]))
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        changes = pa.concat_tables([self._standing(replaced, -1), self._standing(chosen, 1)])
        return StepResult(
            {MAIN: consolidated(changes).cast(self.outputs[MAIN].schema), LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
        )

    def why_incomplete(self) -> str:
        return EXPIRED if self.ttl is not None else ""

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the rows of all keys that are not deleted, as insertions of the main output."""
        schema = pa.schema([*self.input.columns, pa.field(TIME, TIMESTAMP)])
        for stored in tables.get_keyed(EVENTS).scan():
            rows = stored_rows(stored.select(list(self.input.keys)), stored, schema)
            yield self._standing(rows, 1).cast(self.outputs[MAIN].schema)

    def _standing(self, events: pa.Table, weight: int) -> pa.Table:
        """Return the rows of events that do not delete them, with a weight."""
        rows = filtered(events, ~self._is_deleted(events)).select([*self.rows, TIME])
        return weighted_rows(rows, weight)

    def _is_deleted(self, events: pa.Table) -> Flags:
        column = one_chunk(events[self.deleted]).fill_null(False)
        deleted: Flags = column.to_numpy(zero_copy_only=False).astype(np.bool_)
        return deleted

    @property
    def _where(self) -> str:
        return operator_label(self)
