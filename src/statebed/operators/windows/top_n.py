"""Top-n per window: the first n rows of each key and window, emitted when the window closes.

For an append-only input, the state holds the first n rows of each key and pane, since no other row can be among the
first n of a window. A row is late if all its windows are closed, as for other windows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, int64_values
from statebed.arrays.row_numbers import Numbering
from statebed.arrays.sort_order import OrderBy
from statebed.format import names
from statebed.format.schema import TIMESTAMP
from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators.aggregation import WINDOW_END
from statebed.operators.changelog import UNKNOWN_RETRACTIONS
from statebed.operators.input_rows import late_output, late_rows
from statebed.operators.keyed_rows import check_input, taken
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN, Clock, Definition, StepResult, Tables
from statebed.operators.updating.top_n import check_top_n, number_field
from statebed.operators.window_definition import Window
from statebed.operators.window_operator import WindowOperator
from statebed.operators.windows.buffered_rows import KEPT, WindowRows, check_windows
from statebed.state import Combine, TableConfig


@dataclass(frozen=True)
class WindowTopN(WindowOperator):
    """Definition of a windowed top-n; without keys, the first n rows of each window."""

    operator_id: str
    input: Input
    window: Window
    n: int
    order: tuple[OrderBy, ...]
    numbering: Numbering = Numbering.ROW_NUMBER
    number: str | None = None
    """Column of the row's number; None for no such column."""

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        check_input(self.input, where=self._where)
        check_top_n(self.n, self.order, self.input.columns, where=self._where)
        check_windows(self._rows, [field.name for field in number_field(self.number)], where=self._where)
        _ = self.outputs, self.tables  # raises if a name is taken

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Main output with keys, `window_start`, `window_end`, the other columns and the number; and the output of late
        rows.
        """
        columns = pa.schema([*self._rows.leading, *number_field(self.number)])
        return {MAIN: Output(columns), LATE: late_output(self.input)}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {KEPT: self._rows.table}

    @property
    def combines(self) -> Mapping[str, Combine]:
        return {KEPT: self.combined if self._prunes else self._rows.combined}

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            kind="window_top_n",
            window=self.window.as_data(),
            n=self.n,
            order=[term.text for term in self.order],
            numbering=self.numbering.value,
            number=self.number,
            keys=self.input.keys,
            columns=[[field.name, str(field.type)] for field in self.input.columns],
            changes=self.input.changes.value,
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        view = tables.get_time_keyed(KEPT)
        self._rows.prefetch(view, clock)
        admitted = self._rows.admit(batches[0], clock.late_us, where=self._where)
        rows = self._first(admitted.rows) if self._prunes else admitted.rows
        closed = self._rows.close(view, rows, clock)
        numbers = closed.shape.numbers(self.numbering)
        first = np.flatnonzero(numbers <= self.n)
        results = taken(closed.rows, first)
        columns = [results[field.name] for field in self._rows.leading]
        columns += [from_numpy(numbers[first].astype(np.int32), pa.int32()) for _ in number_field(self.number)]
        columns.append(from_numpy(int64_values(results[WINDOW_END]) - 1, TIMESTAMP))
        late = late_rows(admitted.late, self.input, clock.late_us, self.operator_id)
        return StepResult(
            {MAIN: pa.Table.from_arrays(columns, schema=self.outputs[MAIN].schema), LATE: late},
            rows_in=admitted.rows_in,
            rows_late=late.num_rows,
            counts={UNKNOWN_RETRACTIONS: closed.dropped},
        )

    def combined(self, rows: pa.Table) -> pa.Table:
        """Return the first n rows of each key and pane from rows of the state."""
        return self._rows.combined_first(rows, self.n, self.numbering)

    @property
    def _prunes(self) -> bool:
        return self.input.changes is Changes.APPEND

    def _first(self, rows: pa.Table) -> pa.Table:
        """Return the first n rows of each key and pane."""
        ordered = self._rows.sorted(rows)
        return taken(ordered.rows, np.flatnonzero(ordered.shape.numbers(self.numbering) <= self.n))

    @cached_property
    def _rows(self) -> WindowRows:
        return WindowRows(self.input, self.window, self.order)

    @property
    def _where(self) -> str:
        return operator_label(self)
