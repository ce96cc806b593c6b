"""What all aggregations have in common: keys, aggregates over one input, their results, and late rows."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import pyarrow as pa

from statebed.aggregates.aggregate import BoundAggregate
from statebed.aggregates.partials import Partials
from statebed.aggregates.preaggregation import preaggregated_input
from statebed.arrays.key_hash import check_key_type
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import TIMESTAMP, check_user_columns
from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators.input_rows import late_output
from statebed.operators.keyed_rows import EVERYTHING
from statebed.operators.labels import operator_label
from statebed.operators.operator import LATE, MAIN

WINDOW_START = "window_start"
WINDOW_END = "window_end"


class Emit(enum.Enum):
    """When a window shows its result."""

    AT_CLOSE = "at close"
    EARLY = "early"
    """In every epoch that changes it."""


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """The definition of an aggregation; picklable, shipped with every task."""

    operator_id: str
    keys: tuple[pa.Field, ...]
    aggregates: tuple[BoundAggregate, ...]
    late_columns: tuple[pa.Field, ...] = ()
    """Columns of the input that late rows show, beside the keys."""
    changes: Changes = Changes.APPEND
    """What the rows of the input do."""

    def __post_init__(self) -> None:
        names.operator_metadata(1, self.operator_id, 0, "")  # refuses an id that cannot be part of an object name
        for key in self.keys:
            check_key_type(key)
        for columns in (self.inputs[0].columns, self.outputs[MAIN].columns, self.stored_fields):
            check_user_columns([field.name for field in columns], where=self.where)

    @cached_property
    def partials(self) -> Partials:
        return Partials(self.keys, self.aggregates, self.changes)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """One; inputs of aggregates are `_a0`, `_a1`, ... by the aggregate's position."""
        columns = pa.schema([*self.late_input.columns, *self.partials.input_fields])
        return (Input("input", columns, self.late_input.keys, self.changes),)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Keys and aggregates, and late rows."""
        columns = pa.schema([*self.keys, *self.partials.output_fields])
        return {MAIN: Output(columns, Changes.CHANGELOG), LATE: late_output(self.late_input)}

    @property
    def stored_fields(self) -> Iterable[pa.Field]:
        """Keys and values of the state."""
        return (*self.keys, *self.partials.fields)

    @property
    def key_names(self) -> list[str]:
        return [key.name for key in self.keys]

    @property
    def state_keys(self) -> tuple[pa.Field, ...]:
        """The keys of keyed tables, which have at least one."""
        return self.keys or (EVERYTHING,)

    @property
    def where(self) -> str:
        """For errors."""
        return operator_label(self)

    @cached_property
    def late_input(self) -> Input:
        """The input without what aggregates read: the columns that late rows show."""
        shown = [*self.keys, *(one for one in self.late_columns if one.name not in self.key_names)]
        return Input("input", pa.schema(shown), tuple(self.key_names), self.changes)

    def without_late_columns(self) -> Self:
        """The same where nobody looks at late rows: they are counted, and nothing is carried along for them."""
        return replace(self, late_columns=())

    @cached_property
    def preaggregated(self) -> Input | None:
        """How rows come that were added up before, as a second input; None: they cannot be."""
        return preaggregated_input(self.partials)

    def described(self) -> dict[str, object]:
        """For fingerprints."""
        return {
            "keys": [[key.name, str(key.type)] for key in self.keys],
            "aggregates": self.partials.described(),
            "changes": self.changes.value,
        }


@dataclass(frozen=True, kw_only=True)
class WindowedAggregation(Aggregation):
    """The same over windows of any kind."""

    emit: Emit = Emit.AT_CLOSE
    lateness_us: int = 0
    """For so long after its close a window still takes rows."""

    def __post_init__(self) -> None:
        if self.lateness_us < 0:
            raise InputError("the allowed lateness is negative", where=self.where, fix="give a span like '5 minutes'")
        super().__post_init__()

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """Keys, window_start, window_end, aggregates; and late rows."""
        edges = [pa.field(name, TIMESTAMP, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        updates = self.emit is Emit.EARLY or self.lateness_us > 0
        columns = pa.schema([*self.keys, *edges, *self.partials.output_fields])
        changes = Changes.CHANGELOG if updates else Changes.APPEND
        return {MAIN: Output(columns, changes), LATE: late_output(self.late_input)}

    def output_watermark(self, watermark_us: int) -> int:
        """Later results are of windows that end after the watermark, at any time, and have their last microsecond."""
        return watermark_us - self.lateness_us - 1

    def described(self) -> dict[str, object]:
        return super().described() | {"emit": [self.emit.value, self.lateness_us]}
