"""Translation of a query that came from text: operators are named after its blocks, refusals point into it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame

from statebed.errors import StatebedError
from statebed.format.names import stored_name
from statebed.queries.catalyst import outputs
from statebed.queries.refusals import RefusedStepError, refusal
from statebed.queries.relation import BroadcastRows, Relation
from statebed.queries.translation import Options, Translation
from statebed.spark.analysed.plan_tree import Expr, PlanNode
from statebed.spark.api.job import Job
from statebed.spark.api.stream import JobStream
from statebed.spark.plan.source_plan import analysed_handle
from statebed.sql.query_blocks import block_at
from statebed.sql.query_rewriter import SparkQuery
from statebed.sql.source_text import SqlSpan

_OVER_BROADCAST = frozenset({"Join", "Project", "SubqueryAlias", "View"})
"""Steps that the rows of a broadcast table may pass."""

_STATE_LIMIT = "group by a window, such as TUMBLE(...), or join by a time range"
"""Advice on limiting the state of an operator in SQL text."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]+")


@dataclass(frozen=True)
class BroadcastDeclaration:
    """Options of a table that is declared as a broadcast table."""

    name: str
    key: tuple[str, ...]
    deleted: str | None


class TextTranslation(Translation):
    """Translates a query of SQL text.

    `texts` has every query by its text as Spark parsed it, because a plan contains the plans of views. `sources` are
    the job's sources that the query may read, by the names of their tables.
    """

    has_sessions_of_rows = False

    def __init__(
        self,
        job: Job,
        df: DataFrame,
        options: Options,
        *,
        query: SparkQuery,
        texts: Mapping[str, SparkQuery],
        sources: Mapping[str, JobStream],
        broadcasts: Mapping[str, BroadcastDeclaration],
    ) -> None:
        super().__init__(job, df, options)
        self._query = query
        self._texts = texts
        self._sources = sources
        self._broadcasts = broadcasts
        self._broadcast_nodes: set[int] = set()
        """Nodes whose rows are those of a broadcast table."""
        self._leaves: dict[frozenset[int], str] = {}
        """Tables by the attributes of their streams."""

    def result(self) -> Any:
        try:
            return super().result()
        except StatebedError as error:
            raise self._placed(error, None) from error

    def visit(self, node: PlanNode) -> Relation:
        try:
            if node.kind == "SubqueryAlias":
                self._note_source(node)
            return self._with_broadcast(node, super().visit(node))
        except StatebedError as error:
            raise self._placed(error, node) from error

    def operator_name(self, kind: str) -> str:
        """Name an operator after its block: `NAME` hint, or the block's label and the kind of operator."""
        query, span = self._place()
        block = block_at(query.blocks, span)
        name = f"{_NOT_IN_NAMES.sub('_', stored_name(block.label)).strip('_') or 'query'}_{kind}"
        if block.hint is not None:
            is_inner = kind in {"join", "lookup"} and block.is_grouped
            name = f"{block.hint}_{kind}" if is_inner or block.hint in self.job.graph.names else block.hint
        result, count = name, 1
        while result in self.job.graph.names:
            count += 1
            result = f"{name}_{count}"
        self.job.graph.state_limits[result] = _STATE_LIMIT
        return result

    def source_of(self, frame: DataFrame, label: str) -> JobStream:
        """Return the stream of a frame: of the registered source that it reads, or of a new one."""
        name = self._registered(frame)
        if name is None:
            return super().source_of(frame, label)

        def selected(_: DataFrame) -> DataFrame:
            return frame

        stream: JobStream = self._sources[name].transform(selected)
        return stream

    # ---- inside ------------------------------------------------------------------------------------------------

    def _note_source(self, node: PlanNode) -> None:
        name = str(node.fields["identifier"]["name"]).lower()
        if name in self._sources and node.child.kind == "View":
            for entry in node.walk():
                if not entry.children and entry.is_streaming:
                    self._leaves[frozenset(outputs(entry.handle))] = name

    def _with_broadcast(self, node: PlanNode, relation: Relation) -> Relation:
        """Mark the rows of a broadcast table; refuse steps that would see its changes instead of its rows."""
        if node.kind == "SubqueryAlias" and node.child.kind == "View":
            name = str(node.fields["identifier"]["name"]).lower()
            declared = self._broadcasts.get(name)
            if declared is not None:
                names = outputs(node.handle).names
                columns = {number: column for number, column in names.items() if column in self._sources[name].columns}
                rows = BroadcastRows(declared.name, self._sources[name], columns, declared.key, declared.deleted)
                relation = replace(relation, broadcast=rows)
        below = [child for child in node.children if id(child) in self._broadcast_nodes]
        if below and node.kind not in _OVER_BROADCAST:
            raise refusal(
                node,
                "a broadcast table can only be joined with a stream: its rows replace one another by key",
                "join it first, and filter or aggregate the results; or remove the option 'broadcast'",
            )
        if relation.broadcast is not None:
            self._broadcast_nodes.add(id(node))
            if len(self.visited) == 0:
                name = relation.broadcast.name
                raise refusal(
                    node,
                    f"{name} is a broadcast table, of which a query alone would give the changes instead of the rows",
                    f"read the rows from the state of a job that joins it: FROM job.operator.{name}; or join it with a "
                    "stream; or remove the option 'broadcast' to see its changes",
                )
        return relation

    def _registered(self, frame: DataFrame) -> str | None:
        """Return the table that a frame reads, if it reads a single one."""
        leaves = analysed_handle(frame).collectLeaves()
        streams = [leaves.apply(place) for place in range(leaves.size()) if leaves.apply(place).isStreaming()]
        names = {self._leaves.get(frozenset(outputs(entry))) for entry in streams}
        return names.pop() if len(names) == 1 else None

    def _place(self, visited: PlanNode | None = None) -> tuple[SparkQuery, SqlSpan]:
        """Return the place of the node that is visited, or of the nearest one around it that has a place."""
        for node in [*([] if visited is None else [visited]), *reversed(self.visited)]:
            result = self._origin(node)
            if result is not None:
                return result
        whole = self._query.rewritten
        return self._query, whole.origin(SqlSpan(0, len(whole.text)))

    def _origin(self, node: PlanNode | Expr) -> tuple[SparkQuery, SqlSpan] | None:
        origin = node.handle.origin()
        text, start, stop = origin.sqlText(), origin.startIndex(), origin.stopIndex()
        if text.isEmpty() or start.isEmpty() or stop.isEmpty() or str(text.get()) not in self._texts:
            return None
        query = self._texts[str(text.get())]
        return query, query.rewritten.origin(SqlSpan(int(start.get()), int(stop.get()) + 1))

    def _placed(self, error: StatebedError, node: PlanNode | None) -> StatebedError:
        if isinstance(error.__cause__, StatebedError) and "^" in error.where:
            return error  # an inner node has placed it
        cause = None if node is None else _cause_within(node)
        query, span = (None if cause is None else self._origin(cause)) or self._place(node)
        if node is None:
            whole = self._query.rewritten
            query, span = self._query, whole.origin(SqlSpan(0, len(whole.text)))
        where = query.rewritten.source.shown(span)
        if isinstance(error, RefusedStepError):
            return error.in_sql(where)
        return type(error)(error.what, where=where, fix=error.fix)


def _cause_within(node: PlanNode) -> Expr | None:
    """Return the expression that is to blame if a step is refused whose own place in the text is the whole SELECT."""
    if node.kind == "Filter":
        return node.expression("condition")
    return node.expressions("windowExpressions")[0].value if node.kind == "Window" else None
