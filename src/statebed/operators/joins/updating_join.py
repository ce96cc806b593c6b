"""Updating join: continuously maintained join of two changelogs or append-only streams.

The result is a changelog: the consolidated changes that each epoch makes to the join of all rows so far. Weights
multiply: a left row with weight two and a right row with weight three are six pairs. A row without a partner is emitted
as such and retracted when its first partner arrives; semi and anti joins emit and retract left rows in the same way.

State is a multiset table per side: one row for each distinct row of a key, with its weight. An epoch looks up and
writes the rows that it changes, and reads the rows of the other side that they join with, in pages. The results are
collected in chunks that fit into memory (`changelog_spool`).

A retraction of more copies than are stored is counted as unknown and dropped for the surplus. With a time to live, rows
expire silently: their pairs stay in the result. A row is late only if its time to live is over when it arrives. Rows
with a null in the key are in no pair; where unmatched rows are results, they pass through without being stored.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import one_chunk, uint64_values
from statebed.arrays.grouping import group_rows
from statebed.arrays.mutable import taken
from statebed.format import names
from statebed.format.schema import KEY_HASH
from statebed.format.stream_schema import Changes, Input, Output, weights_of
from statebed.operators.changelog import UNKNOWN_RETRACTIONS, without_weight
from statebed.operators.changelog_spool import ChangelogSpool
from statebed.operators.input_rows import filtered
from statebed.operators.joins.inputs import SIDES, Sides, gathered_sides, late_outputs
from statebed.operators.joins.join_columns import SUFFIXES, JoinColumns, PairCondition
from statebed.operators.joins.join_index import Flags, without_nulls
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.updates import Integers, Updates, alone
from statebed.operators.keyed_rows import admit_updating
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.operators.time_to_live import EXPIRED, TimeToLive, by_event_time, described_ttl
from statebed.operators.weighted_rows import TouchedKeys, WeightedTable
from statebed.state import KeyedView, TableConfig
from statebed.state.live.files import BEGINNING


@dataclass(frozen=True)
class UpdatingJoin(OperatorBase):
    """Definition of an updating join."""

    operator_id: str
    left: Input
    right: Input
    how: JoinKind = JoinKind.INNER
    condition: PairCondition | None = None
    suffixes: tuple[str, str] = SUFFIXES
    ttl: TimeToLive | None = None
    """Time to live of rows; None if rows are kept until they are retracted."""

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        where = operator_label(self)
        self.columns.check(where=where, condition=self.condition)

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of pairs and results."""
        return JoinColumns(self.left, self.right, self.how, self.suffixes)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return (self.left, self.right)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.columns.results, Changes.CHANGELOG), **late_outputs(self.columns)}

    @cached_property
    def sides(self) -> Mapping[JoinSide, WeightedTable]:
        """Table of each side."""
        return {side: WeightedTable(side.value, self.columns.side(side), self.ttl) for side in SIDES}

    @cached_property
    def tables(self) -> Mapping[str, TableConfig]:
        return {side.name: side.config for side in self.sides.values()}

    @cached_property
    def earlier_tables(self) -> Mapping[str, Sequence[TableConfig]]:
        return {side.name: (side.lists.config,) for side in self.sides.values()}

    def upgrade(self, name: str, earlier: KeyedView, tables: Tables, clock: Clock) -> None:
        for rows in earlier.scan():
            self.sides[JoinSide(name)].put_lists(tables.get_keyed(name), rows, clock)

    @cached_property
    def definition(self) -> Definition:
        return Definition.of(
            ("ttl",),
            kind="updating_join",
            condition=None if self.condition is None else self.condition.text,
            ttl=described_ttl(self.ttl),
            **self.columns.described(),
        )

    def output_watermark(self, watermark_us: int) -> int:
        """Return the watermark of the results: a retraction has the time of the retracted result, as far back as rows
        are kept.
        """
        only_adds = self.left.changes is self.right.changes is Changes.APPEND
        if only_adds and self.how is JoinKind.INNER:
            return watermark_us
        if self.ttl is None or not by_event_time(self.ttl):
            return BEGINNING
        return watermark_us - self.ttl.span_us

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:
        rows = gathered_sides(self.columns, batches, where=operator_label(self))
        sides = Sides(
            self.columns,
            self.operator_id,
            {side: admit_updating(rows[side], self.ttl, clock.late_us) for side in SIDES},
        )
        new = {side: sides.admitted[side].rows for side in SIDES}
        schema = without_weight(self.outputs[MAIN].schema.empty_table()).schema
        views = {side: tables.get_keyed(self.sides[side].name) for side in SIDES}
        unknown = 0
        keyed = {side: filtered(new[side], self._has_key(side, new[side])) for side in SIDES}
        with ChangelogSpool(schema, views[JoinSide.LEFT]) as results:
            for part in self._without_key(new):
                results.add(part)
            if any(side_rows.num_rows for side_rows in keyed.values()):
                touched, places = _touched(self.columns, keyed)
                changed = {side: self.sides[side].changed(views[side], keyed[side], places[side]) for side in SIDES}
                for part in Updates(self.columns, self.condition, touched, self.sides, views, changed).results():
                    results.add(part)
                for side in SIDES:
                    self.sides[side].store(views[side], changed[side])
                unknown = sum(changes.unknown for changes in changed.values())
            return sides.result(clock, results.table(), {UNKNOWN_RETRACTIONS: unknown})

    def why_incomplete(self) -> str:
        if self.ttl is not None:
            return EXPIRED
        for side in SIDES:
            side_input = self.columns.side(side)
            nullable = [key for key in side_input.keys if side_input.columns.field(key).nullable]
            if self.how.gives_unmatched(side) and nullable:
                return (
                    f"rows of {side_input.name} with a null in the key {', '.join(nullable)} are results of a "
                    f"{self.how.value} join, but are not kept in state"
                )
        return ""

    def results_in_state(self, tables: Tables) -> Iterator[pa.Table]:
        """Yield the join of the rows in the state, as insertions of the main output.

        The rows of one side are read in pieces, and treated as if they had just arrived.
        """
        views = {side: tables.get_keyed(self.sides[side].name) for side in SIDES}
        for side in SIDES:
            table, other = self.sides[side], self.sides[side.other]
            if side is JoinSide.RIGHT and not self.how.gives_unmatched(side):
                continue
            for rows in views[side].scan():
                arrived = table.arrived(rows)
                nothing = other.arrived(views[side.other].table.row_schema.empty_table(), arrived.touched)
                changed = {side: arrived.rows, side.other: nothing.rows}
                updates = Updates(self.columns, self.condition, arrived.touched, self.sides, views, changed)
                for joined in updates.results() if side is JoinSide.LEFT else updates.unmatched(side):
                    if joined.num_rows:
                        yield joined.cast(self.outputs[MAIN].schema)

    def _has_key(self, side: JoinSide, rows: pa.Table) -> Flags:
        return without_nulls([one_chunk(rows[key]) for key in self.columns.side(side).keys], rows.num_rows)

    def _without_key(self, new: Mapping[JoinSide, pa.Table]) -> Iterator[pa.Table]:
        """Yield results of rows with a null in the key, which have no partners."""
        for side in SIDES:
            if self.how.gives_unmatched(side):
                at = np.flatnonzero(~self._has_key(side, new[side]))
                yield alone(self.columns, side, without_weight(new[side]), at, weights_of(new[side]))


def _touched(columns: JoinColumns, rows: Mapping[JoinSide, pa.Table]) -> tuple[TouchedKeys, dict[JoinSide, Integers]]:
    """Return the distinct keys of these rows, and the position of the key of each row."""
    hashes = np.concatenate([uint64_values(rows[side][KEY_HASH]) for side in SIDES])
    if not columns.left.keys:
        hashes = np.zeros(len(hashes), dtype=np.uint64)
    keys = [
        pa.concat_arrays([one_chunk(rows[JoinSide.LEFT][left]), one_chunk(rows[JoinSide.RIGHT][right])])
        for left, right in zip(columns.left.keys, columns.right.keys, strict=True)
    ]
    grouping = group_rows(None, hashes, keys)
    places, lefts = grouping.group_of_rows(), rows[JoinSide.LEFT].num_rows
    touched = TouchedKeys([taken(key, grouping.first_rows) for key in keys], grouping.groups)
    return touched, {JoinSide.LEFT: places[:lefts], JoinSide.RIGHT: places[lefts:]}
