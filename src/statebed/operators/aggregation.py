"""Common base of all aggregations: keys, aggregates over one input, output columns and late rows."""

import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import pyarrow as pa

from statebed.aggregates.accumulators import (
    Accumulator,
    AllValues,
    CollectedList,
    CollectedSet,
    Joined,
    Multiset,
)
from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.partials import Partials
from statebed.aggregates.preaggregation import preaggregated_input
from statebed.arrays.key_hash import check_key_type
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIMESTAMP, check_user_columns
from statebed.format.stream_schema import Changes, Input, Output, check_stream_columns
from statebed.operators.input_rows import late_output
from statebed.operators.keyed_rows import EVERYTHING
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN
from statebed.quantities import duration_text

WINDOW_START = "window_start"
WINDOW_END = "window_end"
FOREVER = dt.timedelta(days=36_500_000)
"""Retention of tables whose rows are deleted by their operator alone."""


def _collects_all(accumulator: Accumulator) -> bool:
    if isinstance(accumulator, Multiset) and not isinstance(accumulator.finishing, AllValues | CollectedSet):
        return False
    return isinstance(accumulator, Multiset | CollectedList | Joined) and accumulator.limit is None


class Emit(enum.Enum):
    """Times at which a window emits its result."""

    AT_CLOSE = "at close"
    EARLY = "early"
    """Emit in every epoch that changes the result."""


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """Definition of an aggregation; picklable, shipped with every task."""

    operator_id: str
    keys: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    late_columns: tuple[pa.Field, ...] = ()
    """Input columns that late rows carry in addition to the keys."""
    changes: Changes = Changes.APPEND
    """Kind of the input: append-only rows or a changelog."""

    def __post_init__(self) -> None:
        names.operator_metadata(1, self.operator_id, 0, "")  # raises if the id cannot be part of an object name
        for key in self.keys:
            check_key_type(key)
        for columns in (self.inputs[0].columns, self.outputs[MAIN].columns):
            check_stream_columns(columns.names, where=self.where)
        check_user_columns([field.name for field in self.stored_fields], where=self.where)

    @cached_property
    def partials(self) -> Partials:
        return Partials(self.keys, self.aggregates, self.changes)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The single input; aggregate inputs are named `_a0`, `_a1`, ... by the position of the aggregate."""
        columns = pa.schema([*self.late_input.columns, *self.partials.input_fields])
        return (Input("input", columns, self.late_input.keys, self.changes),)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Main output with keys and aggregates, and the output of late rows."""
        columns = pa.schema([*self.keys, *self.partials.output_fields])
        return {MAIN: Output(columns, Changes.CHANGELOG), LATE: late_output(self.late_input)}

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        """Key and value columns of the state."""
        return (*self.keys, *self.partials.fields)

    @property
    def key_names(self) -> list[str]:
        return [key.name for key in self.keys]

    @property
    def state_keys(self) -> tuple[pa.Field, ...]:
        """Key columns of keyed tables, which need at least one."""
        return self.keys or (EVERYTHING,)

    @property
    def where(self) -> str:
        """Label of the operator in errors."""
        return operator_label(self)

    @cached_property
    def late_input(self) -> Input:
        """Input without the columns that aggregates read: the columns of late rows."""
        shown = [*self.keys, *(column for column in self.late_columns if column.name not in self.key_names)]
        return Input("input", pa.schema(shown), tuple(self.key_names), self.changes)

    @property
    def whole_results(self) -> list[str]:
        """Names of the results that contain all values of a group, however many they are."""
        return [aggregate.name for aggregate in self.aggregates if _collects_all(aggregate.accumulator)]

    def without_late_columns(self) -> Self:
        """Return a copy whose late rows are only counted, for jobs that do not read them: their columns need not be
        shipped.
        """
        return replace(self, late_columns=())

    @cached_property
    def preaggregated(self) -> Input | None:
        """Second input, which takes pre-aggregated rows; None if the aggregates do not allow pre-aggregation."""
        return preaggregated_input(self.partials)

    def described(self) -> dict[str, object]:
        """Return the parts that go into the definition."""
        return {
            "keys": [[key.name, str(key.type)] for key in self.keys],
            "aggregates": self.partials.described(),
            "changes": self.changes.value,
        }


@dataclass(frozen=True, kw_only=True)
class WindowedAggregation(Aggregation):
    """Definition of an aggregation over windows of any kind."""

    emit: Emit = Emit.AT_CLOSE
    lateness_us: int = 0
    """Allowed lateness: how long a window still accepts rows after its end."""

    def __post_init__(self) -> None:
        if self.lateness_us < 0:
            raise InputError(
                f"the allowed lateness must not be negative, got {duration_text(self.lateness_us)!r}",
                where=self.where,
                fix="use a duration like '5 minutes'",
            )
        super().__post_init__()

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Main output with keys, `window_start`, `window_end` and aggregates, and the output of late rows."""
        edges = [pa.field(name, TIMESTAMP, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        updates = self.emit is Emit.EARLY or self.lateness_us > 0
        columns = pa.schema([*self.keys, *edges, *self.partials.output_fields])
        changes = Changes.CHANGELOG if updates else Changes.APPEND
        return {MAIN: Output(columns, changes), LATE: late_output(self.late_input)}

    def output_watermark(self, watermark_us: int) -> int:
        """Return the watermark of the results: open windows end after the watermark, and a result has the last
        microsecond of its window as event time.
        """
        return watermark_us - self.lateness_us - 1

    def described(self) -> dict[str, object]:
        return super().described() | {"emit": [self.emit.value, self.lateness_us]}
