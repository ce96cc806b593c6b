"""Deduplication: one row of each key, the first or the last.

Rows of a key are compared by the columns of `order`, if there are any, then by event time, then by all columns; the
order of arrival is lost in a shuffle. Keeping the first, the operator emits the first row of the first epoch that has
the key, and nothing after it. With a time to live by event time, a key is forgotten when the watermark reaches the
event time of that row plus the span, as in Spark's `dropDuplicatesWithinWatermark`: a later duplicate counts as new.

Keeping the last, the results are a changelog: the last row of all epochs is the current one, and the row that it
replaces is retracted. Rows are late only if they lack an event time that is needed (without `order`, or with a time to
live by event time), or if their state would expire immediately.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.sort_order import Flags, Integers, OrderBy, check_order, total_keys, user_keys
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input, Output
from statebed.operators.input_rows import AdmittedRows, admit, gathered, late_output, late_rows
from statebed.operators.keyed_rows import (
    KeyedRows,
    admit_untimed,
    admit_updating,
    by_key,
    check_input,
    state_keys,
    taken,
)
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.operators.time_to_live import EXPIRED, TimeToLive, by_event_time, described_ttl, keyed_config
from statebed.state import KeyedView, TableConfig

SEEN = "seen"
"""Name of the state table."""
ROW_TIME = "_row_time"
"""Column of the state table with the event time of the current row of the key."""


class Keep(enum.Enum):
    """Row of a key that is kept."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Deduplicate(OperatorBase):
    """Definition of a deduplication; rows with equal keys are duplicates."""

    operator_id: str
    input: Input
    keep: Keep = Keep.FIRST
    ttl: TimeToLive | None = None
    """Time to live of keys; None to keep them forever."""
    order: tuple[OrderBy, ...] = ()
    """Columns that decide which row is first or last before event time does, for example the log position of a change.
    """

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self._where)
        if not self.input.keys:
            raise InputError(
                "deduplication needs at least one key: without keys all rows are duplicates",
                where=self._where,
                fix="name the keys of the input",
            )
        if self.input.changes is Changes.CHANGELOG:
            raise InputError(
                "the input is a changelog: it may retract the row that was kept, after its duplicates were dropped",
                where=self._where,
                fix="deduplicate before the step that makes it a changelog, or use top-n with n=1",
            )
        if self.order:
            check_order(self.order, self.input.columns, where=self._where)
        _ = self.outputs, self.tables  # raises if a name is taken

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        changes = Changes.APPEND if self.keep is Keep.FIRST else Changes.CHANGELOG
        return {MAIN: Output(self.input.columns, changes), LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        values = [pa.field(ROW_TIME, TIMESTAMP)]
        if self.keep is Keep.LAST:
            values += [field for field in self.input.columns if field.name not in self.input.keys]
        description = f"the {self.keep.value} row of each key"
        return {SEEN: keyed_config(SEEN, description, state_keys(self.input), values, self.ttl)}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("ttl",),
            kind="deduplicate",
            keep=self.keep.value,
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            ttl=described_ttl(self.ttl),
            **({"order": [term.text for term in self.order]} if self.order else {}),
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        rows = gathered(batches[0], self.input, where=self._where)
        admitted = self._admitted(rows, clock.late_us)
        keyed = by_key(admitted.rows, self.input, order=self.order)
        view = tables.get_keyed(SEEN)
        results = self._first(view, keyed) if self.keep is Keep.FIRST else self._last(view, keyed)
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        return StepResult(
            {MAIN: results, LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
        )

    def why_incomplete(self) -> str:
        if self.ttl is not None:
            return EXPIRED
        if self.keep is Keep.FIRST and len(self.input.keys) < len(self.input.columns):
            return "deduplication that keeps the first row stores its key and time, not its other columns"
        return ""

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the rows of all keys in the state, as insertions of the main output."""
        schema = pa.schema([*self.input.columns, pa.field(TIME, TIMESTAMP)])
        for rows in tables.get_keyed(SEEN).scan():
            kept = stored_rows(rows.select(list(self.input.keys)), rows, schema)
            yield (kept if self.keep is Keep.FIRST else weighted_rows(kept, 1)).cast(self.outputs[MAIN].schema)

    @property
    def _where(self) -> str:
        return operator_label(self)

    def _admitted(self, rows: pa.Table, late_us: int | None) -> AdmittedRows:
        if self.keep is Keep.FIRST:
            return (admit if by_event_time(self.ttl) else admit_untimed)(rows, late_us)
        if by_event_time(self.ttl):
            return admit_updating(rows, self.ttl, late_us)
        # Without `order`, a row without an event time is neither before nor after any other.
        return admit_untimed(rows, None) if self.order else admit(rows, None)

    def _first(self, view: KeyedView, keyed: KeyedRows) -> pa.Table:
        fresh = np.flatnonzero(~view.has(keyed.keys))
        firsts = keyed.at(keyed.starts[fresh], self.outputs[MAIN].schema.names)
        times = one_chunk(firsts[TIME])
        keys = keyed.keys if len(fresh) == keyed.count else taken(keyed.keys, fresh)
        view.upsert(keys, pa.table({ROW_TIME: times}), times=self._times(times))
        return firsts

    def _last(self, view: KeyedView, keyed: KeyedRows) -> pa.Table:
        columns = [*self.input.columns.names, TIME]
        new = keyed.at(keyed.lasts, columns)
        kept, known = view.get(keyed.keys)
        there = np.flatnonzero(known)
        old = stored_rows(taken(keyed.keys, there), taken(kept, there), new.schema)
        beside = taken(new, there)
        later = ~known
        later[there] = is_later(beside, old, self.order)
        chosen = taken(new, np.flatnonzero(later))
        values = chosen.drop_columns(list(self.input.keys))
        values = values.rename_columns([ROW_TIME if name == TIME else name for name in values.column_names])
        times = self._times(one_chunk(chosen[TIME]))
        view.upsert(taken(keyed.keys, np.flatnonzero(later)), values, times=times)
        replaced = taken(old, np.flatnonzero(later[there]))
        return pa.concat_tables([weighted_rows(replaced, -1), weighted_rows(chosen, 1)]).cast(self.outputs[MAIN].schema)

    def _times(self, times: pa.Array) -> pa.Array | None:
        return times if by_event_time(self.ttl) else None


def stored_rows(keys: pa.Table, values: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the columns of an input, from keys and the values stored for them."""
    known = {**dict(zip(keys.column_names, keys.columns, strict=True)), TIME: values[ROW_TIME]}
    columns = [known[name] if name in known else values[name] for name in schema.names]
    return pa.Table.from_arrays(columns, names=schema.names).cast(schema)


def weighted_rows(rows: pa.Table, weight: int) -> pa.Table:
    """Return the rows, all with the same weight."""
    weights = np.full(rows.num_rows, weight, dtype=np.int64)
    return rows.append_column(WEIGHT, from_numpy(weights, pa.int64()))


def is_later(new: pa.Table, old: pa.Table, order: Sequence[OrderBy]) -> Flags:
    """Return whether each new row is after the old row at the same position: by `order`, then event time, then all
    columns.
    """
    later, equal = np.zeros(new.num_rows, dtype=np.bool_), np.ones(new.num_rows, dtype=np.bool_)
    both = pa.concat_tables([new, old])
    _compare([*user_keys(both, order), *total_keys(both, [TIME])], later, equal)
    tied = np.flatnonzero(equal)
    rest = pa.concat_tables([taken(new, tied), taken(old, tied)]).drop_columns([TIME])
    later_of_tied, still_equal = later[tied], equal[tied]
    _compare(total_keys(rest, rest.column_names), later_of_tied, still_equal)
    later[tied] = later_of_tied
    return later


def _compare(keys: Sequence[Integers], later: Flags, equal: Flags) -> None:
    """Update `later` and `equal` by comparing each row of the first half with the same row of the second half."""
    for key in keys:
        ours, theirs = key[: len(later)], key[len(later) :]
        later |= equal & (ours > theirs)
        equal &= ours == theirs
