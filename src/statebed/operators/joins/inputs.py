"""Inputs of a join in one epoch: collected rows, late rows, and the statistics reported about them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from statebed.arrays.columns import int64_values
from statebed.format import checkpoint_pb2 as pb
from statebed.format.schema import TIME
from statebed.format.stream_schema import Output
from statebed.operators.input_rows import AdmittedRows, gathered, late_output, late_rows
from statebed.operators.joins.join_columns import JoinColumns
from statebed.operators.joins.join_type import JoinSide
from statebed.operators.operator import LATE, MAIN, Clock, StepResult

SIDES = (JoinSide.LEFT, JoinSide.RIGHT)


def late_name(name: str) -> str:
    """Return the name of the output of an input's late rows."""
    return f"{LATE}_{name}"


def late_outputs(columns: JoinColumns) -> dict[str, Output]:
    """Return the outputs of late rows by name."""
    return {late_name(side.name): late_output(side) for side in (columns.left, columns.right)}


def gathered_sides(
    columns: JoinColumns, batches: Sequence[Iterable[pa.RecordBatch]], *, where: str
) -> dict[JoinSide, pa.Table]:
    """Collect all rows of each side."""
    return {side: gathered(rows, columns.side(side), where=where) for side, rows in zip(SIDES, batches, strict=True)}


@dataclass(frozen=True)
class Sides:
    """Input rows of an epoch by side."""

    columns: JoinColumns
    operator_id: str
    admitted: Mapping[JoinSide, AdmittedRows]

    def matches(self, pairs: int) -> pb.JoinMatches:
        """Return the statistics of the epoch: rows and event times of both inputs, and the number of pairs."""
        left, right = (_times(self.admitted[side].rows) for side in SIDES)
        return pb.JoinMatches(pairs=pairs, left=left, right=right)

    def result(self, clock: Clock, main: pa.Table, counts: Mapping[str, int] | None = None) -> StepResult:
        """Build the result of the step with `main` as its main output."""
        outputs = {MAIN: main}
        for side, admitted in self.admitted.items():
            side_input = self.columns.side(side)
            if admitted.late.num_rows:
                outputs[late_name(side_input.name)] = late_rows(
                    admitted.late, side_input, clock.late_us, self.operator_id
                )
        return StepResult(
            outputs=outputs,
            rows_in=sum(side_rows.rows_in for side_rows in self.admitted.values()),
            rows_late=sum(side_rows.late.num_rows for side_rows in self.admitted.values()),
            counts=counts or {},
        )


def _times(rows: pa.Table) -> pb.InputTimes:
    """Count the rows of an input and find the range of their event times."""
    times = int64_values(rows[TIME])
    if not len(times):
        return pb.InputTimes()
    return pb.InputTimes(rows=len(times), first_us=int(times.min()), last_us=int(times.max()))
