"""Pre-aggregation of rows in the JVM, before they are shuffled and passed to Python.

It pays off if many rows of a batch share a key, because only one row per group is sent. It costs time if most keys are
different. It is therefore chosen batch by batch, by the ratio of groups to rows in the previous batch. Only a job whose
rows all go to one aggregation can do it in one pass. `statebed.aggregates.preaggregation` defines what is computed for
each group, and the state is the same either way.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from statebed.aggregates.parts import Factor, Reduce
from statebed.aggregates.preaggregation import LATEST, ROW_COUNT, parts_of
from statebed.format.schema import TIME
from statebed.operators import WindowAggregate
from statebed.operators.updating.aggregate import UpdatingAggregate
from statebed.spark.epoch.part_expressions import Columns, owner_expression, part_expression
from statebed.spark.epoch.reports import Reports
from statebed.spark.plan.job_plan import JobPlan
from statebed.spark.plan.pieces import SUBTASK
from statebed.spark.plan.routing import SOURCE, Layout, PlacedGroups
from statebed.spark.plan.topology import Topology

MIN_ROWS = 1_000
"""Batches of fewer rows are sent as they are."""
_APART = "apart"


@dataclass(frozen=True)
class Preaggregation:
    """Pre-aggregation for the one aggregation that gets all rows of the job."""

    branch: int
    operator: WindowAggregate | UpdatingAggregate
    rows: Layout
    """Layout of rows that are not pre-aggregated."""
    sources: tuple[str, ...]
    """Sources of the job by position."""
    parallelism: int

    @cached_property
    def layout(self) -> Layout:
        """Layout of groups."""
        groups = self.operator.preaggregated
        assert groups is not None
        names = [f"g{number}" for number in range(len(groups.columns))]
        latest = names[groups.columns.names.index(LATEST)]
        return Layout(groups, tuple(names), self.rows.sources, latest=latest)

    @cached_property
    def placed(self) -> PlacedGroups | None:
        """Layout of groups that go directly to their subtasks, or None if they are split into pieces like rows.

        Sketches are split: their bytes depend on the order of rows, and shuffled data must be the same in every
        attempt.
        """
        if any(part.reduce is Reduce.SKETCH for part in parts_of(self.operator.partials) or ()):
            return None
        count_at = self.layout.input.columns.names.index(ROW_COUNT)
        return PlacedGroups(self.layout, self.sources, self.layout.columns[count_at])

    def groups(self, batch: DataFrame, *, late_us: int | None) -> DataFrame:
        """Return one row for each group of the batch; if placed, with the subtask that owns it."""
        grouped, computed, outputs = self._columns
        return batch.groupBy(*grouped, self._apart(late_us)).agg(*computed).select(*outputs)

    @cached_property
    def _columns(self) -> tuple[list[Column], list[Column], list[Column]]:
        """Grouping, computed and output columns; cached, because building them takes hundreds of JVM calls."""
        values = dict(zip(self.rows.input.columns.names, self.rows.columns, strict=True))
        parts = parts_of(self.operator.partials)
        assert parts is not None
        columns = Columns(values, {field.name: field.type for field in self.rows.input.columns})
        computed = {ROW_COUNT: F.count(F.lit(1)), LATEST: F.max(TIME)}
        computed |= {part.name: part_expression(part, columns) for part in parts}
        keys = [F.col(values[key.name]) for key in self.operator.keys]
        owner = owner_expression([columns.column(Factor(key.name)) for key in self.operator.keys], self.parallelism)
        # The groups of each source show how far it has advanced.
        source = [F.col(SOURCE)] if len(self.rows.sources) > 1 else []
        outputs = [
            *([] if self.placed is None else [owner.alias(SUBTASK)]),
            *source,
            F.col(_APART if isinstance(self.operator, WindowAggregate) else LATEST).alias(TIME),
            *(
                column.alias(name)
                for column, name in zip([*keys, *map(F.col, computed)], self.layout.columns, strict=True)
            ),
        ]
        return [*keys, *source], [column.alias(name) for name, column in computed.items()], outputs

    def _apart(self, late_us: int | None) -> Column:
        """Return the column that separates groups of one key: the pane, or whether their rows are late."""
        operator = self.operator
        if isinstance(operator, UpdatingAggregate) and operator.needs_time:
            # Late rows, and rows without a time if that makes them late, form separate groups.
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
        # Null on overflow: the subtask then reports the error, whereas Spark would fail or return a wrong time.
        start = F.try_subtract(micros, F.pmod(F.pmod(micros, pane) - offset, pane))
        return F.timestamp_micros(start).alias(_APART)


@dataclass
class Reduction:
    """Ratio of groups to rows in the last batch that could be pre-aggregated."""

    plan: JobPlan
    rows: int = 0
    groups: int = 0

    def observe(self, reports: Reports) -> None:
        """Update the ratio from the reports of an epoch; epochs without rows and later operators are ignored."""
        if self._possible is None:
            return
        counted = [report for report in reports[self._possible.operator.operator_id] if report.groups_in]
        if counted:
            self.rows = sum(report.rows_in for report in counted)
            self.groups = sum(report.groups_in for report in counted)

    def worthwhile(self) -> Preaggregation | None:
        """Return the pre-aggregation for the next batch, or None if it does not pay off."""
        below = self.plan.settings.preaggregate_below
        few = self.rows >= MIN_ROWS and self.groups <= below * self.rows
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
    """Return the pre-aggregation that a job allows, or None."""
    if len(topology.branches) != 1:
        return None
    branch = topology.branches[0]
    if (
        branch.feed.time is not None
    ):  # groups carry the maximum event time of their rows, against which panes are checked
        return None
    place = next(
        candidate for candidate in topology.places if candidate.operator.operator_id == branch.operator.operator_id
    )
    operator = place.operator
    if not isinstance(operator, WindowAggregate | UpdatingAggregate):
        return None
    if operator.late_columns or operator.preaggregated is None:
        return None
    return Preaggregation(branch.number, operator, layouts[branch.number], sources, parallelism)
