"""Lookup join: each row with the rows of a broadcast table that match it now.

The table is small and every subtask has it, so rows of the stream are spread evenly over the subtasks, regardless of
the columns of the join. The results are final: a later change of the table changes only later results. A condition
alone, without equal columns, compares every row with every row of the table: rules, price bands, ranges of addresses.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from statebed.arrays.columns import from_numpy, one_chunk
from statebed.arrays.key_hash import is_key_type
from statebed.errors import InputError
from statebed.format import names
from statebed.format.schema import KEY_HASH, TIME
from statebed.format.stream_schema import Changes, Input, Output
from statebed.operators.broadcast_table import BroadcastTable
from statebed.operators.input_rows import gathered, in_total_order
from statebed.operators.joins.join_columns import SUFFIXES, JoinColumns, PairCondition
from statebed.operators.joins.join_type import JoinKind, JoinSide
from statebed.operators.joins.pairs import Flags, IndexedSide, Integers, PairRule, SideRows
from statebed.operators.labels import operator_label
from statebed.operators.operator import MAIN, Clock, Definition, OperatorBase, StepResult, Tables
from statebed.state import TableConfig

KINDS = (JoinKind.INNER, JoinKind.LEFT, JoinKind.SEMI, JoinKind.ANTI)
"""Kinds of lookup joins: the table alone gives no results."""


@dataclass(frozen=True)
class LookupJoin(OperatorBase):
    """Definition of a lookup join; the keys of `left` are its columns that must equal `on` of the table."""

    operator_id: str
    left: Input
    table: BroadcastTable
    on: tuple[str, ...]
    how: JoinKind = JoinKind.INNER
    condition: PairCondition | None = None
    suffixes: tuple[str, str] = SUFFIXES

    def __post_init__(self) -> None:
        names.check_part("operator", self.operator_id)
        where = operator_label(self)
        self.table.check(where=where)
        self.columns.check(where=where, condition=self.condition)
        if self.left.changes is Changes.CHANGELOG:
            raise InputError(
                "the stream is a changelog, but a lookup uses the table as it is now: a retraction would not match the "
                "row that it retracts after the table has changed",
                where=where,
                fix="look up before the aggregation, or use join(): an updating join keeps both sides",
            )
        if self.how not in KINDS:
            raise InputError(
                f"a lookup gives results only for rows of the stream, so `how` cannot be {self.how.value!r}",
                where=where,
                fix=f"use one of {[kind.value for kind in KINDS]}, or join()",
            )
        if not self.on and self.condition is None:
            raise InputError(
                "the lookup has neither equal columns nor a condition, so every row would match the whole table",
                where=where,
                fix='name columns, on=eq("rule", "rule_id"), or give a condition="amount > threshold"',
            )

    @cached_property
    def columns(self) -> JoinColumns:
        """Columns of pairs and results."""
        return lookup_columns(self.left, self.table, self.on, self.how, self.suffixes)

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        spread = tuple(field.name for field in self.left.columns if is_key_type(field.type))
        return (replace(self.left, keys=spread), self.table.input)

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        return {MAIN: Output(self.columns.results)}

    @property
    def tables(self) -> Mapping[str, TableConfig]:
        return self.table.tables

    @cached_property
    def definition(self) -> Definition:
        # Results are not stored, so everything but the table's key and how it changes may be edited.
        return Definition.of(
            ("join", "columns"),
            kind="lookup_join",
            join={
                "how": self.how.value,
                "on": [list(self.left.keys), list(self.on)],
                "condition": None if self.condition is None else self.condition.text,
                "suffixes": list(self.suffixes),
                "left": [[field.name, str(field.type)] for field in self.left.columns],
            },
            keys=list(self.left.keys),
            table={name: part for name, part in self.table.described().items() if name != "columns"},
            columns=self.table.described()["columns"],
        )

    def step(self, tables: Tables, batches: Sequence[Iterable[pa.RecordBatch]], clock: Clock) -> StepResult:  # noqa: ARG002 - to it no row is late
        where = operator_label(self)
        table = self.table.update(tables, batches[1], where=where)
        index = PairRule(self.columns, condition=self.condition).index(unnumbered(JoinSide.RIGHT, table))
        results, count = [self.outputs[MAIN].schema.empty_table()], 0
        for batch in batches[0]:
            rows = gathered([batch], self.inputs[0], where=where).drop_columns([KEY_HASH])
            for result, places in matched(self.columns, index, unnumbered(JoinSide.LEFT, rows)):
                times = one_chunk(rows[TIME]).take(from_numpy(places, pa.int64()))
                results.append(result.append_column(self.outputs[MAIN].schema.field(TIME), times))
            count += rows.num_rows
        return StepResult({MAIN: in_total_order(pa.concat_tables(results))}, rows_in=count)


def lookup_columns(
    left: Input, table: BroadcastTable, on: tuple[str, ...], how: JoinKind, suffixes: tuple[str, str]
) -> JoinColumns:
    """Return the columns of a lookup's pairs and results."""
    return JoinColumns(replace(left, name="left"), Input("table", table.columns, on), how, suffixes)


def matched(columns: JoinColumns, index: IndexedSide, rows: SideRows) -> Iterator[tuple[pa.Table, Integers]]:
    """Yield the results for some rows of the stream, and for each result the place of its row."""
    has_match: Flags = np.zeros(len(rows), dtype=np.bool_)
    for pairs, places in index.pairs(rows):
        has_match[places] = True
        if columns.how.gives_pairs:
            yield columns.paired(pairs.left, pairs.left_at, pairs.right, pairs.right_at), places
    if columns.how is JoinKind.INNER:
        return
    alone = np.flatnonzero(has_match if columns.how is JoinKind.SEMI else ~has_match)
    yield columns.alone(JoinSide.LEFT, rows.table, alone), alone


def unnumbered(side: JoinSide, rows: pa.Table) -> SideRows:
    """Return rows of one side; a lookup does not compare numbers, so all have the same."""
    return SideRows(side, rows, np.zeros(rows.num_rows, dtype=np.int64))
