"""Stateless operator that passes rows through unchanged.

It connects a source to a sink, or to the point where its rows meet the results of other operators: everything that is
published comes from the outbox of an operator.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import pyarrow as pa

from statebed.format import names
from statebed.format.stream_schema import Input, Output
from statebed.operators.input_rows import gathered, in_total_order, without_routing
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.state import TableConfig


@dataclass(frozen=True)
class Forward(OperatorBase):
    """Definition of the pass-through operator."""

    KIND: ClassVar[str] = "forward"
    """Kind of its definition."""

    operator_id: str
    input: Input

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.input,)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.input.columns, self.input.changes)}

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        return {}

    @cached_property
    def definition(self) -> Definition:
        columns = [[field.name, str(field.type)] for field in self.input.columns]
        return Definition.of(kind=self.KIND, keys=self.input.keys, columns=columns, changes=self.input.changes.value)

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:  # noqa: ARG002 - it has no state, and to it no row is late
        rows = gathered(batches[0], self.input, where=operator_label(self))
        forwarded = without_routing(rows).select(self.outputs[MAIN].schema.names)
        return StepResult(
            {MAIN: in_total_order(forwarded)},
            rows_in=rows.num_rows,
        )
