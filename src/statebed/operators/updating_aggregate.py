"""Aggregation by key without a window: the result of a key stands until it changes, and is then taken back.

The state is one row of partials per key. A step folds the epoch's rows, merges them into those rows, and puts out what
changed as a changelog: the result before, taken away, and the one after. Of an input that is itself a changelog, rows
that are taken away leave their group, and a group without rows leaves the state; a retraction for a group that is not
(or no longer) known is counted and dropped.

No window is ever closed here, so no row is too late; with a time to live by event time one is whose state would be
gone at once. The event time of a result is the latest of its group's rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.format.columns import int64_values, one_chunk, validity
from statebed.format.schema import TIME, TIMESTAMP
from statebed.operators.aggregation import Aggregation
from statebed.operators.changelog import UNKNOWN_RETRACTIONS, replaced
from statebed.operators.grouping import Flags, Grouping, Integers
from statebed.operators.keyed_rows import EVERYTHING, taken
from statebed.operators.operator import (
    LATE,
    MAIN,
    Changes,
    Clock,
    Definition,
    StepResult,
    Tables,
)
from statebed.operators.partials import ROWS, latest_of_each
from statebed.operators.rows import Admitted, admit, filtered, gathered, late_rows
from statebed.operators.time_to_live import TimeToLive, by_event_time, described_ttl, keyed_config
from statebed.state import Combine, TableConfig

GROUPS = "groups"
"""Name of the state table."""
LATEST = "_latest"
"""Its column for the latest event time of a group's rows."""


@dataclass(frozen=True, kw_only=True)
class UpdatingAggregate(Aggregation):
    """The definition of the operator."""

    ttl: TimeToLive | None = None
    """None: groups are remembered for ever."""

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        return (*self.state_keys, *self._state_values)

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {
            GROUPS: keyed_config(
                GROUPS, "partial aggregates by key", self.state_keys, list(self._state_values), self.ttl
            )
        }

    @property
    def combines(self) -> Mapping[str, Combine]:
        return {}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(("ttl",), kind="updating_aggregate", ttl=described_ttl(self.ttl), **self.described())

    def output_watermark(self, watermark_us: int) -> int:
        return watermark_us

    def is_due(self, before_us: int | None, after_us: int) -> bool:  # noqa: ARG002 - time alone changes no result
        return False

    def closing_watermark(self, event_time_us: int) -> int:
        return event_time_us

    def latest_result(self, event_time_us: int) -> int:
        return event_time_us

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        admitted = self._admitted(gathered(batches[0], self.inputs[0], where=self.where), clock)
        grouping = self.partials.grouping(admitted.rows, np.zeros(admitted.rows.num_rows, dtype=np.int64))
        keys = self._keys_of(admitted.rows, grouping)
        view = tables.get_keyed(GROUPS)
        stored, found = view.get(keys)
        before = filtered(stored, found)
        after = self._merged(before, found, self._folded(admitted.rows, grouping))
        unknown, kept = 0, np.ones(keys.num_rows, dtype=np.bool_)
        if self.changes is Changes.CHANGELOG:
            rows = int64_values(after[ROWS])
            kept, unknown = rows > 0, int(-rows[(rows < 0) & ~found].sum())
            view.delete(filtered(keys, found & ~kept))
        times = one_chunk(filtered(after, kept)[LATEST]) if by_event_time(self.ttl) else None
        view.upsert(filtered(keys, kept), filtered(after, kept), times=times)
        old = self._results(filtered(keys, found), before)
        new = self._results(filtered(keys, kept), filtered(after, kept))
        late = late_rows(admitted.late, self.late_input, clock.late_us, self.operator_id)
        changed = replaced(old, new, old_keys=np.flatnonzero(found), new_keys=np.flatnonzero(kept))
        return StepResult(
            {MAIN: changed.cast(self.outputs[MAIN].schema), LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
            max_event_times_us=(admitted.max_event_time_us,),
            counts={UNKNOWN_RETRACTIONS: unknown},
        )

    def _admitted(self, rows: pa.Table, clock: Clock) -> Admitted:
        """Rows whose state would be gone at once are late; nobody else's are."""
        if not by_event_time(self.ttl):
            times = int64_values(rows[TIME])[validity(rows[TIME])]
            return Admitted(rows, rows.slice(0, 0), int(times.max()) if len(times) else None)
        assert self.ttl is not None
        return admit(rows, None if clock.late_us is None else clock.late_us - self.ttl.span_us)

    def _keys_of(self, rows: pa.Table, grouping: Grouping) -> pa.Table:
        firsts = taken(rows.select([key.name for key in self.keys]), grouping.first_rows) if self.keys else None
        columns = firsts.columns if firsts is not None else [pa.nulls(grouping.groups, EVERYTHING.type)]
        return pa.Table.from_arrays(list(columns), schema=pa.schema(self.state_keys))

    def _folded(self, rows: pa.Table, grouping: Grouping) -> pa.Table:
        """One row of the state's values for each key of the epoch."""
        columns = [latest_of_each(rows[TIME], grouping), *self.partials.fold(rows, grouping)]
        return pa.Table.from_arrays(columns, schema=pa.schema(self._state_values))

    def _merged(self, before: pa.Table, found: Flags, new: pa.Table) -> pa.Table:
        """The new values of each key with those before it, where there are any."""
        if not before.num_rows:
            return new
        both = pa.concat_tables([before.cast(new.schema), new])
        grouping = _pairs(np.flatnonzero(found), new.num_rows)
        columns = [latest_of_each(both[LATEST], grouping), *self.partials.merge(both, grouping)]
        return pa.Table.from_arrays(columns, schema=new.schema)

    def _results(self, keys: pa.Table, values: pa.Table) -> pa.Table:
        partials = [one_chunk(values[field.name]) for field in self.partials.fields]
        columns = [*(keys[key.name] for key in self.keys), *self.partials.finish(partials), values[LATEST]]
        fields = [*self.outputs[MAIN].columns, pa.field(TIME, TIMESTAMP)]
        return pa.Table.from_arrays(columns, schema=pa.schema(fields))

    @property
    def _state_values(self) -> tuple[pa.Field, ...]:
        return (pa.field(LATEST, TIMESTAMP), *self.partials.fields)


def _pairs(found: Integers, count: int) -> Grouping:
    """Groups of one new row each and, where there is one, the stored row that stands in front of them."""
    order = np.concatenate([found, np.arange(count, dtype=np.int64)])
    by_group = np.argsort(order, kind="stable")
    sizes = np.ones(count, dtype=np.int64)
    sizes[found] += 1
    return Grouping(order=by_group, starts=np.cumsum(sizes) - sizes)
