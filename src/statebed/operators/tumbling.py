"""Aggregation by key over tumbling windows, as a pure step.

The state of an open window is one partial row per key and batch that touched it. A step folds the batch into partials,
merges those of the windows that the watermark closes with what the state holds of them, and puts out one row per key
and closed window. Every partial is exact (`accumulators`), so nothing depends on the order of rows.

Late is judged by the previous epoch's watermark, closing by the current one, as Spark does: a row is late when its
window's end is not after `late_us`. A row without event time belongs to no window and is counted as late.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.errors import InputError
from statebed.format.names import check_name
from statebed.format.schema import BIN, KEY_HASH, TIME, TIMESTAMP, check_user_columns
from statebed.operators.aggregates import BoundAggregate
from statebed.operators.grouping import Grouping, group_rows, normalise_key
from statebed.operators.windows import Times, TumblingWindow
from statebed.state.columns import from_numpy, int64_values, one_chunk, uint64_values, validity
from statebed.state.time_keyed import TimeKeyedTable

WINDOW_START = "window_start"
WINDOW_END = "window_end"
PARTIALS = "partials"
"""Name of the state table."""


def input_column(position: int) -> str:
    """The column that carries the input of the aggregate at this position."""
    return f"_a{position}"


@dataclass(frozen=True)
class StepCounts:
    """What became of the rows: admitted + late = input."""

    rows_in: int
    rows_late: int
    max_event_time_us: int | None


@dataclass(frozen=True)
class StepResult:
    """What a step changes: rows to append to the state, what to delete from it, and what to put out."""

    partials: pa.Table
    """Rows of windows still open; the state's columns without `_seq`."""
    delete_before_us: int | None
    """All windows that start before this are closed and leave the state."""
    output: pa.Table
    counts: StepCounts


@dataclass(frozen=True)
class TumblingAggregate:
    """The definition of the operator; picklable, shipped with every task."""

    operator_id: str
    keys: tuple[pa.Field, ...]
    window: TumblingWindow
    aggregates: tuple[BoundAggregate, ...]

    def __post_init__(self) -> None:
        where = f"operator {check_name('operator', self.operator_id)!r}"
        if not self.keys:
            raise InputError("a group_by without a key", where=where, fix="name at least one key column")
        for key in self.keys:
            _check_key_type(key, where=where)
        inputs = [name for name in self.input_schema.names if name not in {KEY_HASH, TIME}]
        check_user_columns(inputs, where=where)
        check_user_columns(self.output_schema.names, where=where)
        check_user_columns([field.name for field in (*self.keys, *self.partial_fields)], where=where)

    @cached_property
    def input_schema(self) -> pa.Schema:
        """Columns of input batches: `_key_hash`, `_time`, the keys, and `_a0`, `_a1`, ... by position of the aggregate."""
        inputs = [
            pa.field(input_column(position), aggregate.input_type)
            for position, aggregate in enumerate(self.aggregates)
            if aggregate.input_type is not None
        ]
        return pa.schema([pa.field(KEY_HASH, pa.int64()), pa.field(TIME, TIMESTAMP), *self.keys, *inputs])

    @cached_property
    def output_schema(self) -> pa.Schema:
        """Columns of the result: keys, window_start, window_end, aggregates."""
        return pa.schema(
            [
                *self.keys,
                pa.field(WINDOW_START, TIMESTAMP, nullable=False),
                pa.field(WINDOW_END, TIMESTAMP, nullable=False),
                *(aggregate.output_field for aggregate in self.aggregates),
            ]
        )

    @cached_property
    def partial_fields(self) -> tuple[pa.Field, ...]:
        return tuple(
            field for aggregate in self.aggregates for field in aggregate.accumulator.partial_fields
        )

    @cached_property
    def table(self) -> TimeKeyedTable:
        """The state table of the partials."""
        return TimeKeyedTable(
            name=PARTIALS,
            description="partial aggregates by window and key",
            keys=self.keys,
            values=self.partial_fields,
            bin_us=self.window.size_us,
        )

    @cached_property
    def fingerprint(self) -> str:
        """Tells one configuration from another; the operator's name is not part of it."""
        described = {
            "kind": "tumbling_aggregate",
            "keys": [[key.name, str(key.type)] for key in self.keys],
            "window": [self.window.size_us, self.window.offset_us],
            "aggregates": [
                [one.name, one.function.value, str(one.input_type), one.text] for one in self.aggregates
            ],
        }
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]


def _check_key_type(key: pa.Field, *, where: str) -> None:
    kind = key.type
    known = (
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
        or pa.types.is_decimal128(kind)
        or pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )
    if not known:
        raise InputError(
            f"the key {key.name!r} has the type {kind}, by which rows cannot be grouped",
            where=where,
            fix="group by numbers, strings, binaries, booleans, dates or timestamps; take a struct or list apart first",
        )
