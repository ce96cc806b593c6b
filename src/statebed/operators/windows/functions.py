"""Window functions over the rows of each key and window, evaluated when the window closes.

Every row of a window is emitted with the requested columns added to it; with overlapping windows, once for each window
that contains it. Rows are stored unchanged until then.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values
from statebed.arrays.sort_order import OrderBy, check_order
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input, Output, check_stream_columns
from statebed.operators.aggregation import WINDOW_END
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.input_rows import late_output, late_rows
from statebed.operators.keyed_rows import check_input
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, StepResult, Tables
from statebed.operators.window_definition import Window
from statebed.operators.window_operator import WindowOperator
from statebed.operators.windows.buffered_rows import KEPT, WindowRows, check_windows
from statebed.operators.windows.function_calls import WindowCall
from statebed.state import Combine, TableConfig


@dataclass(frozen=True)
class WindowFunctions(WindowOperator):
    """Definition of the operator; `calls` are the columns to add, by name.

    Without an order, rows are sorted by all their columns, and all rows of a window are peers.
    """

    operator_id: str
    input: Input
    window: Window
    order: tuple[OrderBy, ...]
    calls: tuple[tuple[str, WindowCall], ...]

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self._where)
        if self.order:
            check_order(self.order, self.input.columns, where=self._where)
        if not self.calls:
            raise InputError("no function was passed", where=self._where, fix="name at least one column to add")
        check_windows(self._rows, [name for name, _ in self.calls], where=self._where)
        check_stream_columns([name for name, _ in self.calls], where=self._where)
        for _, call in self.calls:
            if call.default is not None:
                self._check_default(call)
        _ = self.outputs, self.tables  # raises if a name is taken

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Main output with keys, `window_start`, `window_end`, the other and the added columns; and the output of late
        rows.
        """
        added = [pa.field(name, call.type_in(self.input.columns)) for name, call in self.calls]
        return {MAIN: Output(pa.schema([*self._rows.leading, *added])), LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {KEPT: self._rows.table}

    @property
    def combines(self) -> Mapping[str, Combine]:
        return {KEPT: self._rows.combined} if self.input.changes is Changes.CHANGELOG else {}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("order", "calls"),
            kind="window_functions",
            window=self.window.as_data(),
            order=[term.text for term in self.order],
            calls=[[name, call.call.value, call.column, call.number, repr(call.default)] for name, call in self.calls],
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            changes=self.input.changes.value,
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        view = tables.get_time_keyed(KEPT)
        self._rows.prefetch(view, clock)
        admitted = self._rows.admit(batches[0], clock.late_us, where=self._where)
        closed = self._rows.close(view, admitted.rows, clock)
        columns = [
            *(closed.rows[field.name] for field in self._rows.leading),
            *(call.evaluate(closed.rows, closed.shape) for _, call in self.calls),
            from_numpy(int64_values(closed.rows[WINDOW_END]) - 1, TIMESTAMP),
        ]
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        return StepResult(
            {MAIN: pa.Table.from_arrays(columns, schema=self.outputs[MAIN].schema), LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
            counts={UNKNOWN_RETRACTIONS: closed.dropped},
        )

    def _check_default(self, call: WindowCall) -> None:
        try:
            pa.scalar(call.default, call.type_in(self.input.columns))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
            raise InputError(
                f"the default {call.default!r} of {call.call.value} is not a value of the column {call.column!r}",
                where=self._where,
                fix="use a value of the column's type",
            ) from error

    @cached_property
    def _rows(self) -> WindowRows:
        return WindowRows(self.input, self.window, self.order)

    @property
    def _where(self) -> str:
        return operator_label(self)
