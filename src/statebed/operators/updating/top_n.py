"""Continuously updated top-n: the first n rows of each key, as a changelog.

For an append-only input, the state of a key is its first n rows, with rank and dense_rank also their peers: no other
row can become one of them. For a changelog, it is all rows. Each row has a weight, its number of copies. The
first rows of a key are one list; for a changelog, the rows after them are rows of a separate table, which are deleted
when the list expires. A step emits the difference between the first n before and after it.

A row keeps its original event time, also when it is retracted or its number changes. No window closes, so no row is
late; with a time to live by event time, a row is late if its state would expire immediately. Rows of a changelog are
never late: a dropped retraction would leave its row in the result forever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from statebed.argument_checks import check_text
from statebed.arrays.columns import from_numpy, int64_values, one_chunk, validity
from statebed.arrays.row_numbers import Numbering
from statebed.arrays.sort_order import Integers, OrderBy, check_order
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIME, TIMESTAMP, check_user_columns
from statebed.format.stream_schema import WEIGHT, Changes, Input, Output, check_stream_columns, weights_of
from statebed.operators.changelog import UNKNOWN_RETRACTIONS, difference, weighted
from statebed.operators.input_rows import gathered, late_output, late_rows
from statebed.operators.keyed_rows import KeyedRows, admit_updating, by_key, check_input, state_keys, taken
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.operators.time_to_live import EXPIRED, TimeToLive, by_event_time, described_ttl, keyed_config
from statebed.operators.updating.ranked_rows import FirstRows, RankedRows, RankingStep
from statebed.operators.updating.top_n_rest import RowsBeyond, SettledRows
from statebed.operators.weighted_rows import WeightedTable
from statebed.state import TableConfig

STANDING = "standing"
"""Name of the table with the first rows of each key."""
REST = "rest"
"""Name of the table with the rows after the first ones, for a changelog."""
ROWS = "_rows"
ROW_TIME = "_row_time"


@dataclass(frozen=True)
class TopN(OperatorBase):
    """Definition of an updating top-n; without keys, the first n of all rows."""

    operator_id: str
    input: Input
    n: int
    order: tuple[OrderBy, ...]
    numbering: Numbering = Numbering.ROW_NUMBER
    number: str | None = None
    """Column of the row's number; None for no such column."""
    ttl: TimeToLive | None = None
    """Time after its last row at which a key expires; its results are not retracted."""

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self._where)
        check_top_n(self.n, self.order, self.input.columns, where=self._where)
        _ = self.outputs, self.tables  # raises if a name is taken

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        columns = pa.schema([*self.input.columns, *number_field(self.number)])
        check_stream_columns(columns.names, where=self._where)
        return {MAIN: Output(columns, Changes.CHANGELOG), LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        values = [pa.field(ROWS, self._list_type)]
        first = keyed_config(STANDING, "first rows by key", state_keys(self.input), values, self.ttl)
        return {STANDING: first, **({} if self._rest is None else {REST: self._rest.config})}

    @cached_property
    def _rest(self) -> WeightedTable | None:
        """Table of the rows after the first ones; None if there are none."""
        if self.input.changes is Changes.APPEND:
            return None
        return WeightedTable(REST, self.input, None, expires_with=None if self.ttl is None else STANDING)

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("ttl",),
            kind="top_n",
            n=self.n,
            order=[term.text for term in self.order],
            numbering=self.numbering.value,
            number=self.number,
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            changes=self.input.changes.value,
            ttl=described_ttl(self.ttl),
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        rows = gathered(batches[0], self.input, where=self._where)
        late_us = None if self.input.changes is Changes.CHANGELOG else clock.late_us
        admitted = admit_updating(rows, self.ttl, late_us)
        keyed = by_key(admitted.rows, self.input)
        view = tables.get_keyed(STANDING)
        kept, _ = view.get(keyed.keys)
        standing = self._standing(keyed, one_chunk(kept[ROWS]))
        settled = SettledRows(standing, standing.kept, standing.unknown)
        if self._rest is not None:
            settled = RowsBeyond(self._rest, tables.get_keyed(REST), keyed).settle(standing)
            standing = settled.standing
        counts = np.bincount(standing.index[settled.kept[0]], minlength=keyed.count)[standing.touched]
        filled = standing.touched[counts > 0]
        times = keyed.latest_times.take(from_numpy(filled, pa.int64())) if by_event_time(self.ttl) else None
        view.upsert(taken(keyed.keys, filled), self._lists(settled, counts[counts > 0]), times=times)
        view.delete(taken(keyed.keys, standing.touched[counts == 0]))
        before, after = (
            self._shown(standing, keyed, first_rows) for first_rows in (standing.first_before, standing.first_after)
        )
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        return StepResult(
            {MAIN: difference(before, after).cast(self.outputs[MAIN].schema), LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
            counts={UNKNOWN_RETRACTIONS: settled.unknown},
        )

    def finished(self, rows: pa.Table) -> pa.Table:
        """Return the first n rows of each key, from rows of the state table."""
        shown = self._first_rows(rows)
        each = from_numpy(np.repeat(np.arange(shown.num_rows), weights_of(shown)), pa.int64())
        return shown.take(each).select(self.outputs[MAIN].columns.names)

    def why_incomplete(self) -> str:
        return "" if self.ttl is None else EXPIRED

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the first n rows of all keys in the state, as insertions of the main output."""
        for rows in tables.get_keyed(STANDING).scan():
            yield self._first_rows(rows).cast(self.outputs[MAIN].schema)

    def _first_rows(self, rows: pa.Table) -> pa.Table:
        """Return the first n rows of each key, with event times and weights, from rows of the state table."""
        keys = rows.select([key.name for key in state_keys(self.input)])
        nothing = np.zeros(0, dtype=np.int64)
        keyed = KeyedRows(
            self.input.schema.empty_table(), nothing, keys, starts=np.zeros(rows.num_rows, dtype=np.int64)
        )
        standing = replace(self._standing(keyed, one_chunk(rows[ROWS])), touches_all=True)
        return self._shown(standing, keyed, standing.first_after)

    @property
    def _where(self) -> str:
        return operator_label(self)

    @cached_property
    def _values(self) -> pa.Schema:
        """Columns of rows in the state, without their weights."""
        values = [field for field in self.input.columns if field.name not in self.input.keys]
        return pa.schema([*values, pa.field(ROW_TIME, TIMESTAMP)])

    @cached_property
    def _list_type(self) -> pa.DataType:
        check_user_columns([*self._values.names, WEIGHT], where=self._where)
        return pa.list_(pa.struct([*self._values, pa.field(WEIGHT, pa.int64())]))

    def _standing(self, keyed: KeyedRows, lists: pa.Array) -> RankingStep:
        lengths = np.where(validity(lists), int64_values(pc.list_value_length(lists).cast(pa.int64())), 0)
        *columns, weights = lists.flatten().flatten()
        new = [keyed.rows[TIME if name == ROW_TIME else name] for name in self._values.names]
        return RankingStep(
            keys=keyed.count,
            old=RankedRows(
                np.repeat(np.arange(keyed.count, dtype=np.int64), lengths),
                pa.Table.from_arrays(columns, names=self._values.names).cast(self._values),
                int64_values(weights),
            ),
            new=RankedRows(keyed.key_index, pa.Table.from_arrays(new, schema=self._values), weights_of(keyed.rows)),
            n=self.n,
            order=self.order,
            numbering=self.numbering,
            prunes=self.input.changes is Changes.APPEND,
            touches_all=self.ttl is not None,
        )

    def _lists(self, settled: SettledRows, counts: Integers) -> pa.Table:
        """Return the rows that are kept, as lists of these lengths."""
        at, weights = settled.kept
        columns = [*taken(settled.standing.rows, at).columns, from_numpy(weights, pa.int64())]
        struct = pa.StructArray.from_arrays(
            [one_chunk(column) for column in columns], fields=list(self._list_type.value_type)
        )
        offsets = from_numpy(np.append(0, np.cumsum(counts)).astype(np.int32), pa.int32())
        return pa.table({ROWS: pa.ListArray.from_arrays(offsets, struct, type=self._list_type)})

    def _shown(self, standing: RankingStep, keyed: KeyedRows, first: FirstRows) -> pa.Table:
        """Return rows in the columns of the main output."""
        keys, rows = taken(keyed.keys, standing.index[first.at]), taken(standing.rows, first.at)
        columns = {name: (keys if name in self.input.keys else rows)[name] for name in self.input.columns.names}
        if self.number is not None:
            columns[self.number] = from_numpy(first.numbers.astype(np.int32), pa.int32())
        return weighted(pa.table({**columns, TIME: rows[ROW_TIME]}), first.weights)


def check_top_n(n: int, order: Sequence[OrderBy], columns: pa.Schema, *, where: str) -> None:
    """Raise InputError if the number of rows or the order is invalid."""
    if not isinstance(n, int) or n < 1:
        raise InputError(f"`n` must be a whole number of at least 1, got {n!r}", where=where, fix="write top(3, ...)")
    check_order(order, columns, where=where)


def number_field(name: str | None) -> list[pa.Field]:
    """Return the field of the number column, if there is one."""
    if name is None:
        return []
    check_text(name, "number", where="top()", fix="name the column with the number of a row: top(..., number='place')")
    return [pa.field(name, pa.int32(), nullable=False)]
