"""Joins of a stream with a static table: in the head and the tail by Spark, between two operators on Arrow.

Spark reads the table again in each batch, and so does statebed: the driver loads it before each epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from statebed.errors import InputError, StatebedError
from statebed.expressions import BoundExpression, bind
from statebed.flow.table_steps import EpochTable, StaticTable, TableJoin, table_join_columns
from statebed.format.stream_schema import Changes
from statebed.operators.joins.join_columns import JoinColumns
from statebed.operators.joins.join_type import JoinKind
from statebed.queries.catalyst import outputs
from statebed.queries.conditions import JoinConditions, check_collations, conditions_of
from statebed.queries.relation import Relation, fresh_name
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError
from statebed.spark.analysed.plan_tree import Expr, PlanNode
from statebed.spark.causes import cause_of
from statebed.spark.plan.head_expressions import arrow_field

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

_OF_THE_STREAM = {"inner": JoinKind.INNER, "left": JoinKind.LEFT, "semi": JoinKind.SEMI, "anti": JoinKind.ANTI}
_OF_THE_TABLE = {"inner": JoinKind.INNER, "right": JoinKind.LEFT}
"""Kinds of joins whose left side is the table, as kinds whose left side is the stream."""


def join_with_table(query: "Translation", node: PlanNode, how: str) -> Relation:
    """Join each row of a stream once, with the rows that the table has then."""
    place = 0 if node.children[0].is_streaming else 1
    kinds = _OF_THE_TABLE if place else _OF_THE_STREAM
    if how not in kinds:
        raise UntranslatableError(
            f"a {how} join keeps rows of the table without a partner, which a stream never knows for sure",
            "put the stream on the side whose rows are kept, or use an inner join",
        )
    relations = [query.visit(child) for child in node.children]
    stream, table = relations[place], relations[1 - place]
    if stream.is_head or stream.tail or not query.depth:
        return query.spark_step_over(node, relations)
    if stream.behind.output.changes is not Changes.APPEND:
        raise UntranslatableError(
            "the rows before it are a changelog: if the table changes, a retraction would not match the row that it "
            "retracts",
            "join the table before the first stateful step, or after the last",
        )
    return _TableSide(query, table, _name_of(node.children[1 - place])).joined(node, stream, kinds[how])


@dataclass(frozen=True)
class _TableSide:
    query: "Translation"
    table: Relation
    name: str

    def joined(self, node: PlanNode, stream: Relation, how: JoinKind) -> Relation:
        """Return the rows of a stream with those of the table."""
        query = self.query
        conditions = conditions_of(
            node.optional("condition"), left=stream.ids, right=self.table.ids, times=(frozenset(), frozenset())
        )
        check_collations(conditions.equal)
        keys = tuple(f"join_key_{place}" for place in range(len(conditions.equal)))
        columns = self._columns(keys)
        left = query.materialised(
            stream, dict(zip(keys, (a for a, _ in conditions.equal), strict=True)), avoid=list(columns.values())
        )
        rows = self._loaded_rows(columns, dict(zip(keys, (b for _, b in conditions.equal), strict=True)))
        pairs = table_join_columns(left.behind.output.columns, rows.columns, keys, how)
        try:
            pairs.check(where="query")
        except StatebedError as error:
            raise UntranslatableError(error.what, error.fix) from error
        step = TableJoin(rows, keys, how, left.behind.output.columns, self._condition(conditions, left, columns, pairs))
        return replace(
            left,
            names=query.names_of(node),
            stream=left.behind.add_step(step),
            columns={**left.columns, **columns} if how.gives_pairs else left.columns,
        )

    def _columns(self, keys: Sequence[str]) -> dict[int, str]:
        """Return the columns of the table by attribute."""
        columns: dict[int, str] = {}
        for number, label in self.table.names.items():
            columns[number] = fresh_name(label, [*keys, *columns.values()])
        return columns

    def _loaded_rows(self, columns: Mapping[int, str], keys: Mapping[str, Expr]) -> StaticTable:
        """Return the rows of the table, which the driver loads before each epoch."""
        catalyst, there = self.query.catalyst, outputs(self.table.plan)
        wanted = [catalyst.alias(there[number], name) for number, name in columns.items()]
        wanted += [catalyst.alias(value.handle, name) for name, value in keys.items()]
        frame = catalyst.frame(catalyst.project(wanted, self.table.plan))
        rows = StaticTable(self.name, pa.schema([arrow_field(field, where="query") for field in frame.schema.fields]))
        self.query.job.graph.tables.append(EpochTable(rows, lambda: _read(frame, rows)))
        return rows

    def _condition(
        self, conditions: JoinConditions, left: Relation, columns: Mapping[int, str], pairs: JoinColumns
    ) -> BoundExpression | None:
        """Return the condition of a pair besides the equal keys."""
        functions = self.query.job.graph.functions
        writer = ExpressionText({**left.columns, **columns}, left.windows, {}, functions, self.query.catalyst.session)
        texts = [writer.bound(condition, pairs.pairs).text for condition in conditions.rest]
        return bind(" and ".join(texts), pairs.pairs, functions=functions) if texts else None


def _read(frame: DataFrame, table: StaticTable) -> pa.Table:
    try:
        rows = frame.toArrow()
    except (PySparkException, Py4JError) as error:
        raise InputError(
            f"the table cannot be read: {cause_of(error)}",
            where=f"table {table.name}",
            fix="restore it; on the next start the job continues from its last committed epoch",
        ) from error
    return rows.cast(table.columns)


def _name_of(node: PlanNode) -> str:
    """Return the name of a table in the query."""
    aliases = (below for below in node.walk() if below.kind == "SubqueryAlias")
    return next((str(alias.fields["identifier"]["name"]) for alias in aliases), "of the query")
