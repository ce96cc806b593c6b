"""Adding rows up in the JVM, where they are read, before they are shuffled and handed to Python.

It pays where many rows of a batch have one key: one row for each group is sent then. It costs where most keys are
different. So it is chosen batch by batch, by how many groups the rows of the batch before were. Only a job whose rows
all go to one aggregation can do it in one pass; what it computes of each group is `statebed.aggregates.preaggregation`,
and the state is the same either way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statebed.aggregates.preaggregation import LATEST, ROW_COUNT, Factor, Reduce, parts_of
from statebed.format.schema import TIME
from statebed.operators import WindowAggregate
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.spark.epoch.part_expressions import Columns, owner_expression, part_expression
from statebed.spark.epoch.reports import Reports
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import SUBTASK
from statebed.spark.plan.routing import SOURCE, Layout, PlacedGroups
from statebed.spark.plan.topology import Topology

LEAST_ROWS = 1_000
"""A batch of fewer rows is sent as it is."""
_APART = "apart"


@dataclass(frozen=True)
class Preaggregation:
    """What one aggregation, which gets all rows of the job, lets the JVM do."""

    branch: int
    operator: WindowAggregate | UpdatingAggregate
    rows: Layout
    """How rows lie that are not added up."""
    sources: tuple[str, ...]
    """Of the job, by their positions."""
    parallelism: int

    @cached_property
    def layout(self) -> Layout:
        """How groups lie."""
        one = self.operator.preaggregated
        assert one is not None
        names = [f"g{number}" for number in range(len(one.columns))]
        latest = names[one.columns.names.index(LATEST)]
        return Layout(one, tuple(names), self.rows.sources, latest=latest)

    @cached_property
    def placed(self) -> PlacedGroups | None:
        """How groups are taken that go straight to their subtasks; None: they are cut into pieces like rows.

        Sketches are: their bytes depend on the order of rows, and what is shuffled must be the same in every attempt.
        """
        if any(part.reduce is Reduce.SKETCH for part in parts_of(self.operator.partials) or ()):
            return None
        one = self.layout.input.columns.names.index(ROW_COUNT)
        return PlacedGroups(self.layout, self.sources, self.layout.columns[one])

    def groups(self, batch: DataFrame, *, late_us: int | None) -> DataFrame:
        """One row for each group of the batch; if placed, with the subtask that owns it."""
        grouped, computed, given = self._columns
        return batch.groupBy(*grouped, self._apart(late_us)).agg(*computed).select(*given)

    @cached_property
    def _columns(self) -> tuple[list[Column], list[Column], list[Column]]:
        """What makes a group, what is computed, what is given; made once: that takes hundreds of calls of the JVM."""
        values = dict(zip(self.rows.input.columns.names, self.rows.columns, strict=True))
        parts = parts_of(self.operator.partials)
        assert parts is not None
        columns = Columns(values, {field.name: field.type for field in self.rows.input.columns})
        computed = {ROW_COUNT: F.count(F.lit(1)), LATEST: F.max(TIME)}
        computed |= {part.name: part_expression(part, columns) for part in parts}
        keys = [F.col(values[key.name]) for key in self.operator.keys]
        owner = owner_expression([columns.column(Factor(key.name)) for key in self.operator.keys], self.parallelism)
        # How far each source has come is seen in its groups.
        source = [F.col(SOURCE)] if len(self.rows.sources) > 1 else []
        given = [
            *([] if self.placed is None else [owner.alias(SUBTASK)]),
            *source,
            F.col(_APART if isinstance(self.operator, WindowAggregate) else LATEST).alias(TIME),
            *(
                column.alias(name)
                for column, name in zip([*keys, *map(F.col, computed)], self.layout.columns, strict=True)
            ),
        ]
        return [*keys, *source], [column.alias(name) for name, column in computed.items()], given

    def _apart(self, late_us: int | None) -> Column:
        """What tells groups of one key apart: the pane, or whether their rows are late."""
        operator = self.operator
        if isinstance(operator, UpdatingAggregate) and operator.needs_time:
            # Rows that are late, and those without a time where that makes them late, are in groups of their own.
            until = operator.late_until(late_us)
            late = F.col(TIME).isNull() if until is None else F.unix_micros(TIME) <= F.lit(until)
            return late.alias(_APART)
        return self._pane

    @cached_property
    def _pane(self) -> Column:
        operator = self.operator
        if not isinstance(operator, WindowAggregate):
            return F.lit(None).alias(_APART)
        micros, pane = F.unix_micros(TIME), F.lit(operator.window.pane_us)
        offset = F.lit(operator.window.offset_us % operator.window.pane_us)
        # Null where it does not fit: the subtask says then what is wrong, and Spark would fail or give another time.
        start = F.try_subtract(micros, F.pmod(F.pmod(micros, pane) - offset, pane))
        return F.timestamp_micros(start).alias(_APART)


@dataclass
class Reduction:
    """How many groups the rows of the last batch were, where they could be added up."""

    plan: JobPlan
    rows: int = 0
    groups: int = 0

    def observe(self, reports: Reports) -> None:
        """Take the figures of an epoch; one without rows tells nothing, nor do operators behind the first."""
        if self._possible is None:
            return
        counted = [report for report in reports[self._possible.operator.operator_id] if report.groups_in]
        if counted:
            self.rows = sum(report.rows_in for report in counted)
            self.groups = sum(report.groups_in for report in counted)

    def worthwhile(self) -> Preaggregation | None:
        """What to add up in the coming batch."""
        below = self.plan.settings.preaggregate_below
        few = self.rows >= LEAST_ROWS and self.groups <= below * self.rows
        return self._possible if below and (few or below == 1) else None

    @cached_property
    def _possible(self) -> Preaggregation | None:
        plan = self.plan
        return preaggregation_of(
            plan.topology, plan.layouts, sources=tuple(plan.graph.sources), parallelism=plan.parallelism
        )


def preaggregation_of(
    topology: Topology, layouts: Mapping[int, Layout], *, sources: tuple[str, ...], parallelism: int
) -> Preaggregation | None:
    """What can be added up in the JVM; None: nothing."""
    if len(topology.branches) != 1:
        return None
    branch = topology.branches[0]
    if branch.feed.time is not None:  # groups carry the greatest event time of their rows, by which panes are checked
        return None
    place = next(one for one in topology.places if one.operator.operator_id == branch.operator.operator_id)
    operator = place.operator
    if not isinstance(operator, WindowAggregate | UpdatingAggregate):
        return None
    if operator.late_columns or operator.preaggregated is None:
        return None
    return Preaggregation(branch.number, operator, layouts[branch.number], sources, parallelism)
