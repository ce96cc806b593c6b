"""Translation of the analysed plan of a streaming DataFrame into a stream of a job.

A query has three zones. The *head*, before the first stateful step, remains a Spark plan. *Between* operators,
expressions are SQL text that runs on Arrow. The *tail*, after the last operator, is SQL text as well. Where our
expressions lack a function, it is a Spark plan over the rows of each committed epoch on their way to the sink.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from statebed.errors import InputError
from statebed.flow.keys import quoted
from statebed.flow.spark_clock import SparkClock, SparkWatermark
from statebed.queries import grouping_sets, groups, row_numbers, row_steps, stream_joins
from statebed.queries.catalyst import Catalyst, outputs
from statebed.queries.refusals import ALLOWED_OVER_TABLES, NEVER, STEPS, refusal
from statebed.queries.relation import NEVER_US, Relation, fresh_name, result_names
from statebed.queries.tail import tail_function
from statebed.spark.analysed.expression_text import UntranslatableError, WindowColumns
from statebed.spark.analysed.optimised import optimised_plan, pushed_filters, untimed_deduplications
from statebed.spark.analysed.plan_tree import Expr, PlanNode, analysed_plan, plan_of
from statebed.spark.api.job import Job
from statebed.spark.api.stream import JobStream
from statebed.spark.plan.source_frames import WATERMARK_KEY

MODES = ("append", "update", "complete")
CLOCKS = ("spark", "statebed")
_NEVER_LATE_MS = 86_400_000
"""Delay of a watermark of rows that all have one event time: with a delay, none of them is late."""
_STATEFUL = frozenset({"Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Join", "Window"})
_WATERMARK_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"
_PASSES = frozenset({"SubqueryAlias", "View"})
_ROW_WISE = frozenset({"Filter", "Project", "SubqueryAlias"})
"""Steps between the results of an operator and the alias that names it."""
Step = Callable[["Translation", PlanNode], Relation]


@dataclass(frozen=True)
class Options:
    """Options of the translation of a query."""

    mode: str | None = None
    """Output mode of Spark's; None for final rows where windows close, and a changelog elsewhere."""
    approximate: bool = False
    """Whether aggregates are accepted whose results differ from Spark's."""
    clock: str = "spark"
    """Clock of the operators: "spark" for one watermark of the query, "statebed" for one of each operator."""

    whole_table: bool = False
    """Whether steps behind an aggregation see all its results in each epoch, as in complete mode."""
    tail_has_weights: bool = True
    """Whether Spark's steps on the way to the sink see the weights of a changelog."""

    @property
    def follows_spark(self) -> bool:
        return self.clock == "spark"


class Translation:
    """Translates one query into streams of a job."""

    has_sessions_of_rows = True
    """Whether a session window that is not a key of groups is that of its row alone, as in Spark."""

    def __init__(self, job: Job, df: DataFrame, options: Options) -> None:
        self.job, self.df, self.options = job, df, options
        self.catalyst = Catalyst(df.sparkSession)
        self.plan = analysed_plan(df)
        self.notes: list[str] = []
        """Remarks of `explain` on steps that did not become operators."""
        self.ctes: dict[int, PlanNode] = {}
        self.tail_steps: tuple[PlanNode, ...] = ()
        optimised = optimised_plan(df.sparkSession, self.plan)
        self.pushed = pushed_filters(self.plan, optimised)
        self.untimed = untimed_deduplications(optimised)
        """Keys of deduplications that drop no late row."""
        self.depth = 0
        """Number of stateful steps above the node that is visited."""
        self.clock = spark_clock(self.catalyst, self.plan) if options.follows_spark else None
        self._operators: dict[str, int] = {}
        self.visited: list[PlanNode] = []
        """Nodes that are being visited, from the root to the current one."""
        self._aliases = _aliases_of(self.plan)
        self._tail_reason = ""
        self._is_deterministic = bool(self.plan.handle.deterministic())

    def result(self) -> Any:
        """Return a stream of the job, or its rows on their way to a sink if Spark computes the tail."""
        relation = self.visit(self.plan)
        self._check_ranked(_outermost(self.plan), relation)
        names = result_names([str(name) for name in self.df.columns])
        is_repeated = len(names) > len(relation.names)
        columns = list(zip(outputs(self.plan.handle).ids if is_repeated else relation.names, names, strict=True))
        self.tail_steps = relation.tail
        if relation.tail:
            function = tail_function(self.catalyst, relation, columns, has_weights=self.options.tail_has_weights)
            return relation.behind.transform(function)
        try:
            relation.check_ready("the result")
        except UntranslatableError as error:
            raise refusal(_outermost(self.plan), error.why, error.fix, error.sql_fix) from error
        if relation.is_head:
            stream, _ = self.opened(relation, columns)
            return stream.select(*(quoted(name) for name in names))
        return self.selected(relation, columns)

    # ---- nodes ---------------------------------------------------------------------------------------------------

    def visit(self, node: PlanNode) -> Relation:
        """Return the rows of a node."""
        self.visited.append(node)
        try:
            return self._visit(node)
        finally:
            self.visited.pop()

    def _visit(self, node: PlanNode) -> Relation:
        if node.kind in NEVER and node.is_streaming:
            if not self.options.whole_table or node.kind not in ALLOWED_OVER_TABLES:
                raise refusal(node, *NEVER[node.kind])
            return self.spark_step(node)
        if not node.is_streaming and node.kind != "CTERelationRef":
            return self.spark_step(node)
        step = _STEPS.get(node.kind)
        try:
            relation = self.spark_step(node) if step is None else step(self, node)
        except UntranslatableError as error:
            raise refusal(node, error.why, error.fix, error.sql_fix) from error
        except InputError as error:
            if error.where:
                raise
            raise refusal(node, error.what, error.fix) from error
        if relation.is_head and not self._is_deterministic:
            _check_deterministic(node, "store it with the rows before they are read")
        return relation

    def operand(self, node: PlanNode) -> Relation:
        """Return the rows that an operator reads."""
        self.depth += 1
        relation = self.visit(node)
        self.depth -= 1
        if relation.tail:
            raise refusal(
                relation.tail[0],
                f"it stands between two stateful steps, where expressions run on Arrow: {self._tail_reason}",
                "compute it before the first stateful step, or use functions of docs/reference/expressions.md",
            )
        self._check_ranked(_outermost(node), relation)
        return relation

    def _check_ranked(self, node: PlanNode, relation: Relation) -> None:
        if relation.rankings and not relation.tail:
            raise refusal(
                node,
                "row numbers have no upper bound",
                "keep the first rows of each: where('rn <= 3')",
                "keep the first rows of each: SELECT ... FROM (SELECT ..., ROW_NUMBER() OVER (...) AS rn FROM ...) "
                "WHERE rn <= 3",
            )

    def spark_step(self, node: PlanNode) -> Relation:
        """Return the rows of a step that only Spark knows: part of the head or of the tail."""
        return self.spark_step_over(node, [self.visit(child) for child in node.children])

    def spark_step_over(self, node: PlanNode, children: Sequence[Relation]) -> Relation:
        """Return the rows of a step that only Spark knows, over the rows of its inputs."""
        behind = [child for child in children if not child.is_head]
        if behind:
            if sum(child.is_streaming for child in node.children) > 1:
                raise UntranslatableError("it combines results of operators in a way that only Spark knows")
            return self.in_tail(self._with_tables(node, children), behind[0], "only Spark knows this step")
        for child in children:
            child.check_ready("this step")
        return self.head_of(node, children)

    def _with_tables(self, node: PlanNode, children: Sequence[Relation]) -> PlanNode:
        """Return a step of the tail with the plans of its tables, which may be sub-queries of a WITH clause."""
        pairs = list(zip(children, node.children, strict=True))
        if all(original.is_streaming or child.plan is original.handle for child, original in pairs):
            return node
        plans = [original.handle if original.is_streaming else child.plan for child, original in pairs]
        return plan_of(self.catalyst.with_children(node.handle, plans))

    def head_of(self, node: PlanNode, children: Sequence[Relation]) -> Relation:
        """Return a step of the head with the plan that its inputs have."""
        unchanged = all(child.plan is original.handle for child, original in zip(children, node.children, strict=True))
        plans = [child.plan for child in children]
        plan = node.handle if unchanged else self.catalyst.with_children(node.handle, plans)
        names = self.names_of(node)
        streams = [child for child, original in zip(children, node.children, strict=True) if original.is_streaming]
        like = streams[0] if streams else (children[0] if children else None)
        if like is None:
            return Relation(names, plan=plan)
        timed = [child for child in streams if child.time is not None]
        there = outputs(plan) if timed else {}
        time = next((child.time for child in timed if child.time in there), None)
        return replace(
            like,
            names=names,
            plan=plan,
            time=time,
            times=frozenset(number for child in streams for number in child.times if number in names),
            pending={number: spec for number, spec in like.pending.items() if number in names},
            pending_parts={number: part for number, part in like.pending_parts.items() if number in names},
        )

    def in_tail(self, node: PlanNode, child: Relation, why: str) -> Relation:
        """Return the rows with a step that Spark computes on the way to the sink."""
        child.check_ready("a step of Spark's")
        _check_deterministic(node, "add it where the results are read")
        self.notes.append(f"{STEPS.get(node.kind, node.kind)} runs in Spark on the way to the sink: {why}")
        if not child.tail:
            self._tail_reason = why
        return replace(child, names=self.names_of(node), tail=(*child.tail, node))

    def names_of(self, node: PlanNode) -> dict[int, str]:
        """Return the attributes of a node's rows."""
        return dict(outputs(node.handle).names)

    # ---- streams -------------------------------------------------------------------------------------------------

    def delay_ms(self) -> int:
        """Return the longest delay of the query's watermarks."""
        watermarks = () if self.clock is None else self.clock.watermarks
        return max((watermark.delay_ms for watermark in watermarks), default=0)

    def operator_name(self, kind: str) -> str:
        """Return a name for the next operator of a kind: the alias of its results, else by its place in the query.

        The name is the same in every start.
        """
        alias = self._aliases.get(id(self.visited[-1])) if self.visited else None
        if alias is not None and alias not in self.job.graph.names:
            return alias
        self._operators[kind] = self._operators.get(kind, 0) + 1
        count = self._operators[kind]
        name = kind if count == 1 else f"{kind}_{count}"
        return self.operator_name(kind) if name in self.job.graph.names else name

    def opened(
        self,
        head: Relation,
        wanted: Sequence[tuple[int | Expr, str]],
        *,
        window: str | None = None,
        is_kept: bool = False,
    ) -> tuple[Any, str | None]:
        """Make a source of the head, with these attributes and expressions as columns.

        Return its stream and the column of the event time. If `window` is one of the columns, the event time of a row
        is the last microsecond of that window, by which Spark judges rows that are joined by window. If `is_kept`, rows
        without an event time get one that no watermark reaches.
        """
        there = outputs(head.plan)
        columns, time = [], None
        keeps = is_kept and (head.time is None or self.clock is not None)
        for value, name in wanted:
            number = value if isinstance(value, int) else (value.id if value.is_attribute else None)
            is_time = window is None and number is not None and number == head.time and time is None
            column = there[number] if number is not None else value.handle  # type: ignore[union-attr]
            columns.append(self.catalyst.alias(column, name, plain=keeps or not is_time))
            time = name if is_time else time
        if window is None and head.time is not None and time is None:
            time = fresh_name("event_time", [name for _, name in wanted])
            columns.append(self.catalyst.alias(there[head.time], time, plain=keeps))
        if not columns:
            columns.append(self.catalyst.alias(next(iter(there.values())), "row"))
        frame = self.catalyst.frame(self.catalyst.project(columns, head.plan))
        if window is not None:
            time = fresh_name("event_time", frame.columns)
            last = F.expr(f"{quoted(window)}.end - interval 1 microsecond")
            frame = frame.select("*", last.alias(time, metadata={WATERMARK_KEY: self.delay_ms()}))
        elif keeps:
            known = fresh_name("known_time", frame.columns)
            never = F.expr(f"timestamp_micros({NEVER_US}L)")
            event_time = never if time is None else F.coalesce(F.col(quoted(time)), never)
            frame = frame.select("*", event_time.alias(known, metadata={WATERMARK_KEY: _NEVER_LATE_MS}))
            time = known
        return self.source_of(frame, head.label), time

    def source_of(self, frame: DataFrame, label: str) -> JobStream:
        """Return the stream of a frame, as a source of the job that is called after its label."""
        name, count = label, 1
        while name in self.job.graph.names:
            count += 1
            name = f"{label}_{count}"
        self.job.graph.heads[name] = self.catalyst.digest(frame)
        stream = Job.source(self.job, frame, name=name)
        if self.clock is not None:
            self.job.graph.spark_clocks[name] = self.clock
        return stream

    def materialised(
        self,
        relation: Relation,
        extra: Mapping[str, Expr] | None = None,
        *,
        avoid: Sequence[str] = (),
        window: str | int | None = None,
        is_kept: bool = False,
    ) -> Relation:
        """Return a stream with a column for each attribute, and for each extra expression.

        A window takes two columns; an extra one that is a window becomes `name` and `name_end`. `window` is the extra
        column or the attribute that is a window of the rows: by Spark's clock, its end is their event time, and
        otherwise they keep the one that the window was made from. If `is_kept`, rows of the head without an event time
        get one that no watermark reaches.
        """
        relation.check_ready("this step")
        if relation.is_head and window is None and relation.time not in relation.names:
            relation = replace(relation, time=None)  # as in Spark, rows without the column have no event time
        taken: list[str] = [*avoid, *(extra or {})]
        columns: dict[int, str] = {}
        windows: dict[int, WindowColumns] = {}
        texts: list[str] = []
        for number, label in relation.names.items():
            if number in relation.windows:
                ends = [fresh_name(f"{label}_{part}", taken) for part in ("start", "end")]
                windows[number] = WindowColumns(*ends)
                taken += ends
                old = relation.windows[number]
                texts += [f"{quoted(a)} as {quoted(b)}" for a, b in zip((old.start, old.end), ends, strict=True)]
                continue
            columns[number] = fresh_name(label, taken)
            taken.append(columns[number])
            if not relation.is_head:
                texts.append(f"{quoted(relation.columns[number])} as {quoted(columns[number])}")
        if relation.is_head:
            wanted: list[tuple[int | Expr, str]] = list(columns.items())
            wanted += [(expression, name) for name, expression in (extra or {}).items()]
            window = columns[window] if isinstance(window, int) else window
            window = window if self.options.follows_spark else None
            stream, _ = self.opened(relation, wanted, window=window, is_kept=is_kept)
            stream = stream.select(*(quoted(name) for _, name in wanted))
        else:
            for name, expression in (extra or {}).items():
                if expression.is_attribute and expression.id in relation.windows:
                    ends_of = relation.windows[expression.id]
                    texts += [f"{quoted(ends_of.start)} as {quoted(name)}", f"{quoted(ends_of.end)} as {name}_end"]
                else:
                    texts.append(f"{relation.bound_text(expression)} as {quoted(name)}")
            stream = relation.behind.select(*texts)
        return replace(relation, plan=None, time=None, stream=stream, columns=columns, windows=windows)

    def extended(self, stream: Any, columns: Mapping[str, str]) -> Any:
        """Return a stream with more columns."""
        if not columns:
            return stream
        return stream.select(
            *map(quoted, stream.columns), *(f"{text} as {quoted(name)}" for name, text in columns.items())
        )

    def selected(self, relation: Relation, columns: Iterable[tuple[int, str]]) -> Any:
        """Return a stream of exactly these attributes, each under a name."""
        writer = relation.text
        texts = []
        for number, name in columns:
            window = relation.windows.get(number)
            if window is not None:
                value = f"named_struct('start', {quoted(window.start)}, 'end', {quoted(window.end)})"
            else:
                value = quoted(writer.columns[number])
            texts.append(f"{value} as {quoted(name)}")
        return relation.behind.select(*texts)


def _check_deterministic(node: PlanNode, alternative: str) -> None:
    if not node.handle.deterministic():
        raise refusal(
            node,
            "it returns different rows when computed again (rand, uuid, a nondeterministic function), and an epoch may "
            "be computed or written again after a failure",
            f"derive the value from the row, for example with xxhash64, or {alternative}",
        )


def _outermost(plan: PlanNode) -> PlanNode:
    """Return the last step of a query, inside its WITH clause and its names."""
    while plan.kind in {"WithCTE", *_PASSES}:
        plan = plan.children[-1]
    return plan


def _aliases_of(plan: PlanNode) -> dict[int, str]:
    """Return the names that `df.alias(...)` gives to the results of stateful steps, by node; the nearest one counts."""
    names: dict[int, str] = {}
    for node in plan.walk():
        if node.kind != "SubqueryAlias":
            continue
        label = str(node.fields["identifier"]["name"])
        below = node.child
        while below.kind in _ROW_WISE and len(below.children) == 1:
            below = below.child
        if below.kind in _STATEFUL and label.isidentifier() and label.isascii() and not label.startswith("_"):
            names[id(below)] = label
    return names


_STEPS: dict[str, Step] = {
    "Aggregate": groups.aggregate,
    "CTERelationRef": row_steps.cte_reference,
    "Deduplicate": groups.deduplicate,
    "DeduplicateWithinWatermark": groups.deduplicate_within_watermark,
    "Distinct": groups.distinct,
    "EventTimeWatermark": row_steps.watermark,
    "Expand": grouping_sets.expand,
    "Filter": stream_joins.filter_or_join,
    "Generate": row_steps.generate,
    "Join": stream_joins.join,
    "Project": row_steps.project,
    "SubqueryAlias": row_steps.named,
    "Union": row_steps.union,
    "View": row_steps.passed,
    "Window": row_numbers.window_functions,
    "WithCTE": row_steps.with_cte,
}


def spark_clock(catalyst: Catalyst, plan: PlanNode) -> SparkClock | None:
    """Return the clock of a query; None if it has no watermark.

    Spark counts a watermark once, even if the query reads it in several places.
    """
    watermarks: dict[str, SparkWatermark] = {}
    for node in plan.walk():
        if node.kind == "EventTimeWatermark":
            name = str(node.fields["nodeId"])
            if name not in watermarks:
                watermarks[name] = SparkWatermark(name, catalyst.delay_ms(node.handle))
    if not watermarks:
        return None
    policy = str(catalyst.session.conf.get(_WATERMARK_POLICY, "min")).lower()
    return SparkClock(tuple(watermarks.values()), policy)
