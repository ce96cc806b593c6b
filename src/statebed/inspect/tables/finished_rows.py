"""Rows of state as final results: the filters on them, and how they are read.

Filters apply to the results. Keys and window times also reduce the rows of state that are read.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from statebed.arrays.columns import int64_values
from statebed.errors import InputError
from statebed.inspect.tables.read_plan import PartPlan
from statebed.inspect.tables.request import Condition, Instant, Request, check_condition, instant_us, matching, select
from statebed.inspect.tables.row_reader import in_time_order, rows_of_part
from statebed.inspect.tables.stored_elements import StoredElements
from statebed.operators.finished_results import Results
from statebed.operators.input_rows import filtered
from statebed.state.live.files import BEGINNING, END


@dataclass(frozen=True, eq=False)
class FinishedRows:
    """Selects results and their columns."""

    results: Results
    columns: tuple[str, ...]
    elements: StoredElements
    """Other tables of the operator, from which some results are built."""
    conditions: tuple[Condition, ...] = ()
    start_us: int = BEGINNING
    end_us: int = END
    where: str = ""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([self.results.columns.field(name) for name in self.columns])

    def select(self, columns: Iterable[str]) -> "FinishedRows":
        """Return a copy with only these columns."""
        return replace(self, columns=select(columns, self.results.columns.names, where=self.where))

    def matching(self, condition: str | pc.Expression) -> "FinishedRows":
        """Return a copy with only results that satisfy the condition."""
        bound = check_condition(condition, self.results.columns, where=self.where)
        return replace(self, conditions=(*self.conditions, bound))

    def between(self, start: Instant | None, end: Instant | None, request: Request) -> tuple["FinishedRows", Request]:
        """Restrict to windows that start in a time range. Return also the request for the rows that they are computed
        from.
        """
        if self.results.time_column is None:
            raise InputError(
                "these results have no window and therefore no time",
                where=self.where,
                fix="select by key, or with a filter on their columns",
            )
        first = BEGINNING if start is None else instant_us(start)
        behind = END if end is None else instant_us(end)
        narrower = replace(self, start_us=max(self.start_us, first), end_us=min(self.end_us, behind))
        if self.results.span_us is not None:
            last = None if behind == END else min(behind + self.results.span_us, END)
            request = request.between(None if start is None else first, last)
        return narrower, request

    def of_part(self, plan: PartPlan) -> Iterator[pa.Table]:
        """Yield the requested results of one subtask."""
        rows = in_time_order(plan) if self.results.in_time_order else rows_of_part(plan)
        for piece in self.results.finish(rows, self.elements):
            kept = matching(self._in_time(piece), self.conditions)
            if kept.num_rows:
                yield pa.Table.from_arrays([kept[name] for name in self.columns], schema=self.schema)

    def _in_time(self, rows: pa.Table) -> pa.Table:
        if (self.start_us, self.end_us) == (BEGINNING, END) or self.results.time_column is None:
            return rows
        times = int64_values(rows[self.results.time_column])
        return filtered(rows, (times >= self.start_us) & ((times < self.end_us) | (self.end_us == END)))
