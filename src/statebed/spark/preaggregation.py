"""Adding rows up in the JVM, where they are read, before they are shuffled and handed to Python.

It pays where many rows of a batch have one key: one row for each group is sent then. It costs where most keys are
different. So it is chosen batch by batch, by how many groups the rows of the batch before were. Only a job whose rows
all go to one aggregation can do it in one pass; what it computes of each group is `statebed.operators.preaggregation`,
and the state is the same either way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program uses

from statebed.format.schema import TIME
from statebed.operators import SubtaskReport, WindowAggregate
from statebed.operators.preaggregation import LATEST, ROW_COUNT, parts_of
from statebed.operators.updating_aggregate import UpdatingAggregate
from statebed.operators.windows import Window
from statebed.spark.part_expressions import Columns, part_expression
from statebed.spark.plan import JobPlan
from statebed.spark.routing import Layout
from statebed.spark.topology import Topology

LEAST_ROWS = 1_000
"""A batch of fewer rows is sent as it is."""


@dataclass(frozen=True)
class Preaggregation:
    """What one aggregation, which gets all rows of the job, lets the JVM do."""

    branch: int
    operator: WindowAggregate | UpdatingAggregate
    rows: Layout
    """How rows lie that are not added up."""

    @property
    def layout(self) -> Layout:
        """How groups lie."""
        one = self.operator.preaggregated
        assert one is not None
        names = [f"g{number}" for number in range(len(one.columns))]
        latest = names[one.columns.names.index(LATEST)]
        return Layout(one, tuple(names), self.rows.sources, latest=latest)

    def groups(self, batch: DataFrame, *, late_us: int | None) -> DataFrame:
        """One row for each group of the batch."""
        values = dict(zip(self.rows.input.columns.names, self.rows.columns, strict=True))
        operator = self.operator
        parts = parts_of(operator.partials)
        assert parts is not None
        if isinstance(operator, WindowAggregate):
            apart = F.timestamp_micros(_pane(F.unix_micros(TIME), operator.window))
        else:
            apart = _apart(operator, late_us)
        keys = [F.col(values[key.name]) for key in operator.keys]
        computed = {ROW_COUNT: F.count(F.lit(1)), LATEST: F.max(TIME)}
        columns = Columns(values, {field.name: field.type for field in self.rows.input.columns})
        computed |= {part.name: part_expression(part, columns) for part in parts}
        grouped = batch.groupBy(*keys, apart.alias("apart")).agg(
            *(column.alias(name) for name, column in computed.items())
        )
        given = [*keys, *(F.col(name) for name in computed)]
        return grouped.select(
            F.col("apart" if isinstance(operator, WindowAggregate) else LATEST).alias(TIME),
            *(column.alias(name) for column, name in zip(given, self.layout.columns, strict=True)),
        )


@dataclass
class Reduction:
    """How many groups the rows of the last batch were."""

    rows: int = 0
    groups: int = 0

    def observe(self, reports: Sequence[SubtaskReport]) -> None:
        """Take the figures of an epoch; one without rows tells nothing."""
        counted = [report for report in reports if report.groups_in]
        if counted:
            self.rows = sum(report.rows_in for report in counted)
            self.groups = sum(report.groups_in for report in counted)

    def worthwhile(self, plan: JobPlan) -> Preaggregation | None:
        """What to add up in the coming batch."""
        below = plan.settings.preaggregate_below
        few = self.rows >= LEAST_ROWS and self.groups <= below * self.rows
        return preaggregation_of(plan.topology, plan.layouts) if below and (few or below == 1) else None


def preaggregation_of(topology: Topology, layouts: Mapping[int, Layout]) -> Preaggregation | None:
    """What can be added up in the JVM; None: nothing."""
    if len(topology.branches) != 1:
        return None
    branch = topology.branches[0]
    place = next(one for one in topology.places if one.operator.operator_id == branch.operator_id)
    operator = place.operator
    if not isinstance(operator, WindowAggregate | UpdatingAggregate):
        return None
    if operator.late_columns or operator.preaggregated is None:
        return None
    return Preaggregation(branch.number, operator, layouts[branch.number])


def _apart(operator: UpdatingAggregate, late_us: int | None) -> Column:
    """Rows that are late, and those without a time where that makes them late, are in groups of their own."""
    until = operator.late_until(late_us)
    if not operator.needs_time:
        return F.lit(None)
    return F.col(TIME).isNull() if until is None else F.unix_micros(TIME) <= F.lit(until)


def _pane(micros: Column, window: Window) -> Column:
    pane, offset = F.lit(window.pane_us), window.offset_us % window.pane_us
    return micros - F.pmod(F.pmod(micros, pane) - F.lit(offset), pane)
