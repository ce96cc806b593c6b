"""Operator that runs a process: first the rows of the epoch as one batch, then the due timers as another.

Timers that `on_timer` sets and that are already due fire in the same step, in another round; after MAX_ROUNDS rounds
the rest waits for the next epoch. The event time of an emitted row is its column `_time`, or else the watermark of the
epoch.
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values, one_chunk, uint64_values
from statebed.arrays.grouping import group_rows
from statebed.errors import InputError, ProcessError, StatebedError, error_text, raised_at
from statebed.expressions.type_text import schema_of
from statebed.format import names
from statebed.format.schema import KEY_HASH, TIME, TIMESTAMP
from statebed.format.stream_schema import WEIGHT, Changes, Input, Output, check_stream_columns
from statebed.operators.broadcast_table import BroadcastTable
from statebed.operators.input_rows import admit, gathered, late_output, late_rows
from statebed.operators.keyed_rows import admit_untimed, by_key, check_input, state_keys, taken
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.operators.process.collections import upgrade_lists
from statebed.operators.process.context import BatchKeys, Context
from statebed.operators.process.definition import Process, check_process
from statebed.operators.process.returned_rows import RAISED_TIMES, gathered_output, output_rows
from statebed.operators.process.states import ListState, MapState, State
from statebed.operators.process.timers import AT, TimerKind, next_time, prefetch_due, take_due, timer_tables
from statebed.operators.time_to_live import by_event_time, described_ttl
from statebed.state import KeyedView, TableConfig

MAX_ROUNDS = 16
"""Maximum number of rounds of timers in one step; each round fires the timers that the previous one set."""


@dataclass(frozen=True)
class ProcessOperator(OperatorBase):
    """Definition of the operator; the process is pickled with it."""

    operator_id: str
    input: Input
    process: Process
    broadcasts: tuple[BroadcastTable, ...] = ()
    """Tables that every subtask has; the process reads them by name."""

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self.where)
        check_process(self.process, where=self.where)
        if not self.input.keys:
            raise InputError(
                "a process needs at least one key", where=self.where, fix="name the keys of the input: key_by(...)"
            )
        if AT in self.input.keys and self.process.has_timers():
            raise InputError(
                f"the key column {AT!r} has the same name as the time of timers",
                where=self.where,
                fix="rename the key column",
            )
        for table in self.broadcasts:
            table.check(where=self.where)
        _ = self.outputs, self.tables, self._pickled()  # validates them

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input, *(table.input for table in self.broadcasts))

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        process = self.process
        declared = {MAIN: Output(self._declared("output", process.output), process.changes)}
        for name, columns in process.side_outputs.items():
            names.check_part("side output", name)
            if name == LATE:
                raise InputError(
                    f"{name!r} is reserved for late rows and cannot name a side output",
                    where=self.where,
                    fix="rename the side output",
                )
            declared[name] = Output(self._declared(f"side output {name!r}", columns))
        return {**declared, LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        keys = state_keys(self.input)
        timers = timer_tables(keys) if self.process.has_timers() else {}
        taken_names = [name for name in self.states if name in {kind.value for kind in TimerKind}]
        if taken_names:
            raise InputError(
                f"the states {taken_names} have the names of timer tables", where=self.where, fix="rename the states"
            )
        by_name = dict(timers)
        for state in self.states.values():
            state.check_names(keys, where=self.where)
            for name, table in state.tables(keys).items():
                if name in by_name:
                    raise InputError(
                        f"two tables are named {name!r}: one of a state, and an auxiliary one of another state",
                        where=self.where,
                        fix="rename the state",
                    )
                by_name[name] = table
        for broadcast in self.broadcasts:
            if broadcast.name in by_name:
                raise InputError(
                    f"the broadcast table {broadcast.name!r} has the name of another table of the process",
                    where=self.where,
                    fix='name the table: broadcast("rule_id", name="rules")',
                )
            by_name.update(broadcast.tables)
        return by_name

    @cached_property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        keys = state_keys(self.input)
        return {name: (state.table_of_values(keys),) for name, state in self._cleanups.items()}

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, _: Clock) -> None:
        upgrade_lists(self._cleanups[name], earlier, tables)

    @cached_property
    def _cleanups(self) -> dict[str, ListState | MapState]:
        return {name: state for name, state in self.states.items() if isinstance(state, ListState | MapState)}

    @cached_property
    def states(self) -> dict[str, State]:
        return self.process.states()

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("process", "states", "outputs", "broadcasts"),
            kind="process",
            process=type(self.process).__qualname__,
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            changes=self.input.changes.value,
            states=[
                [name, type(state).__name__, *(str(field) for field in state.fields), described_ttl(state.time_to_live)]
                for name, state in self.states.items()
            ],
            outputs=[[name, str(output.columns), output.changes.value] for name, output in self.outputs.items()],
            **({"broadcasts": {table.name: table.described() for table in self.broadcasts}} if self.broadcasts else {}),
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        if self.process.has_timers():
            for kind in TimerKind:
                now_us = kind.now_us(clock)
                if now_us is not None:
                    prefetch_due(tables.get_time_keyed(kind.value), now_us)
        shared = {
            table.name: table.update(tables, update, where=self.where)
            for table, update in zip(self.broadcasts, batches[1:], strict=True)
        }
        rows = gathered(batches[0], self.input, where=self.where)
        late_us = None if self.input.changes is Changes.CHANGELOG else clock.late_us
        needs_time = any(by_event_time(state.time_to_live) for state in self.states.values())
        admitted = (admit if needs_time else admit_untimed)(rows, late_us)
        call = _Calls(self, tables, clock, admitted.late.drop_columns([KEY_HASH]), shared)
        if admitted.rows.num_rows:
            call.on_batch(admitted.rows)
        if self.process.has_timers():
            for kind in TimerKind:
                call.fire(kind)
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        outputs = {name: gathered_output(call.given[name], self.outputs[name]) for name in call.given}
        return StepResult(
            {**outputs, LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
            counts={RAISED_TIMES: call.raised},
            next_timer_us=self._next_timer(tables, clock),
        )

    def _next_timer(self, tables: Tables, clock: Clock) -> int | None:
        if not self.process.has_timers():
            return None
        return next_time(tables.get_time_keyed(TimerKind.PROCESSING.value), clock.epoch_time_us)

    def output_watermark(self, watermark_us: int) -> int:
        # Rows of later epochs may have exactly this watermark as their event time.
        return watermark_us - 1

    def is_due(self, before_us: int | None, after_us: int) -> bool:
        return self.process.has_timers() and (before_us is None or after_us > before_us)

    def run(self, method: str, function: Callable[[], object], rows: int) -> object:
        """Call the user's code; add the location to its errors, and raise if it changes attributes of the instance."""
        method = self.process.shown_names.get(method, method)
        where = f"{self.where}, {type(self.process).__name__}.{method}, a batch of {rows} rows"
        before = self._pickled()
        try:
            returned = function()
        except StatebedError:
            raise
        except (Exception, SystemExit) as error:
            raise ProcessError(
                f"{method} raised {error_text(error)}",
                where=f"{where}; {raised_at(error)}",
                fix="see the traceback of its cause; nothing of this epoch was stored",
            ) from error
        if self._pickled() != before:
            raise InputError(
                f"{method} changed attributes of the {type(self.process).__name__} instance",
                where=where,
                fix="keep such data in states: attributes are lost in a crash and differ between subtasks",
            )
        return returned

    def _pickled(self) -> bytes:
        try:
            return pickle.dumps(vars(self.process))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise InputError(
                f"an attribute of {type(self.process).__name__} cannot be pickled: {error}",
                where=self.where,
                fix="keep only plain values as attributes; open files and connections inside on_batch",
            ) from error

    def _declared(self, what: str, columns: str | pa.Schema) -> pa.Schema:
        schema = schema_of(columns, where=f"{self.where}, {what}")
        check_stream_columns(schema.names, where=f"{self.where}, {what}")
        return schema

    @property
    def where(self) -> str:
        """Label of the operator in errors."""
        return operator_label(self)


class _Calls:
    """Calls of one step, and the rows that they emitted."""

    def __init__(
        self,
        operator: ProcessOperator,
        tables: Tables,
        clock: Clock,
        late: pa.Table,
        broadcasts: Mapping[str, pa.Table],
    ) -> None:
        self._operator = operator
        self._tables = tables
        self._clock = clock
        self._late = late
        self._broadcasts = broadcasts
        self.given: dict[str, list[pa.Table]] = {name: [] for name in operator.outputs if name != LATE}
        self.raised = 0

    def on_batch(self, rows: pa.Table) -> None:
        keyed = by_key(rows, self._operator.input)
        process, columns = self._operator.process, self._operator.input.columns.names
        weight = [WEIGHT] if self._operator.input.changes is Changes.CHANGELOG else []
        shown = _batch(keyed.rows.select([*columns, TIME, *weight]))
        context = self._context(BatchKeys(keyed.keys, keyed.key_index, keyed.latest_times), None)
        self._take("on_batch", lambda: process.on_batch(shown, context), shown.num_rows, context)

    def fire(self, kind: TimerKind) -> None:
        now_us = kind.now_us(self._clock)
        if now_us is None:
            return
        for _ in range(MAX_ROUNDS):
            due = take_due(self._tables.get_time_keyed(kind.value), now_us)
            if not due.num_rows:
                return
            self._on_timer(due, kind)

    def _on_timer(self, due: pa.Table, kind: TimerKind) -> None:
        process = self._operator.process
        key_names = list(self._operator.input.keys)
        grouping = group_rows(
            None,
            uint64_values(due[KEY_HASH]),
            [one_chunk(due[name]) for name in key_names],
        )
        keys = taken(due.select(key_names), grouping.first_rows)
        times = grouping.greatest(int64_values(due[TIME]))
        latest = from_numpy(times, TIMESTAMP) if kind is TimerKind.EVENT else pa.nulls(len(times), TIMESTAMP)
        context = self._context(BatchKeys(keys, grouping.group_of_rows(), latest), kind)
        timers = _batch(due.select([*key_names, TIME]).rename_columns([*key_names, AT]))
        self._take("on_timer", lambda: process.on_timer(timers, context), timers.num_rows, context)

    def _context(self, batch: BatchKeys, kind: TimerKind | None) -> Context:
        operator = self._operator
        return Context(
            self._tables,
            self._clock,
            batch,
            states=operator.states,
            sides=[name for name in operator.outputs if name not in {MAIN, LATE}],
            late=self._late,
            broadcasts=self._broadcasts,
            where=operator.where,
            timer_kind=kind,
            fires=operator.process.has_timers(),
        )

    def _take(self, method: str, function: Callable[[], object], rows: int, context: Context) -> None:
        returned = self._operator.run(method, function, rows)
        for name, part in [(MAIN, returned), *context.sides]:
            where = f"{self._operator.where}, {method}" + (f", side output {name!r}" if name else "")
            accepted, raised = output_rows(part, self._operator.outputs[name], self._clock, where=where)
            self.given[name].append(accepted)
            self.raised += raised


def _batch(rows: pa.Table) -> pa.RecordBatch:
    """Return the rows as one batch."""
    return pa.RecordBatch.from_arrays([one_chunk(column) for column in rows.columns], schema=rows.schema)
