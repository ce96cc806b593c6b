"""Rows of a node of an analysed plan: computed by Spark in the head, or a stream after an operator."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from statebed.format.schema import RESERVED_FIELDS
from statebed.format.stream_schema import WEIGHT
from statebed.queries.windows import WindowSpec
from statebed.spark.analysed.expression_text import ExpressionText, UntranslatableError, WindowColumns
from statebed.spark.analysed.plan_tree import Expr, Handle, PlanNode
from statebed.spark.api.stream import JobStream

NEVER_US = 253_370_764_800_000_000
"""The year 9999: the time of rows without an event time where Spark keeps them for ever."""


@dataclass(frozen=True)
class Ranking:
    """row_number(), rank() or dense_rank() over a partition, which waits for an upper bound."""

    numbering: str
    partition: tuple[Expr, ...]
    order: tuple[Expr, ...]

    @property
    def attributes(self) -> dict[int, str]:
        """Names of the attributes that it reads, by id."""
        return {node.id: node.name for e in (*self.partition, *self.order) for node in e.walk() if node.is_attribute}

    @property
    def references(self) -> frozenset[int]:
        return frozenset(self.attributes)


@dataclass(frozen=True)
class BroadcastRows:
    """A table that was declared as a broadcast table."""

    name: str
    stream: JobStream
    """Rows of the table, with all declared columns."""
    columns: Mapping[int, str]
    """Columns of the stream by attribute."""
    key: tuple[str, ...]
    deleted: str | None
    """Column that is true in a row that removes the row of its key."""


@dataclass(frozen=True)
class Relation:
    """Rows of a node. In the head, `plan` computes them; after an operator, `stream` does."""

    names: Mapping[int, str]
    """Names of the node's attributes by id, in order."""
    label: str = "source"
    """Name for a source of these rows."""
    plan: Handle = None
    """Plan of Spark's, in the head."""
    time: int | None = None
    """Attribute of the event time in the plan, which the plan keeps even if the node drops it."""
    stream: JobStream | None = None
    columns: Mapping[int, str] = field(default_factory=dict)
    """Columns of the stream by attribute."""
    windows: Mapping[int, WindowColumns] = field(default_factory=dict)
    """Windows that an operator computed, by attribute."""
    shapes: Mapping[int, WindowSpec] = field(default_factory=dict)
    """Shapes of computed windows, and of their starts and ends, by attribute."""
    pending: Mapping[int, WindowSpec] = field(default_factory=dict)
    """Windows over a time column that wait for an aggregation, by attribute."""
    pending_parts: Mapping[int, tuple[WindowSpec, int]] = field(default_factory=dict)
    """Attributes that are the start (0), the end (1) or the time (2) of a pending window."""
    sessions: frozenset[int] = frozenset()
    """Attributes that are session windows of rows, which an aggregation merges with those they overlap."""
    shift_us: int = 0
    """Event time of a row minus its attributes in `times`, in microseconds."""
    origins: Mapping[int, int] = field(default_factory=dict)
    """Attributes that only rename another one, by the attribute that they rename."""
    virtual: frozenset[int] = frozenset()
    """Attributes without a column: pending windows that no plan computes."""
    times: frozenset[int] = frozenset()
    """Attributes that equal the event time of their row."""
    times_or_null: frozenset[int] = frozenset()
    """Attributes that equal the event time of their row, or are null in a row that never expires."""
    rankings: Mapping[int, Ranking] = field(default_factory=dict)
    is_versioned: bool = False
    """Whether rows are versions of keys, for FOR SYSTEM_TIME AS OF."""
    broadcast: BroadcastRows | None = None
    tail: tuple[PlanNode, ...] = ()
    """Steps that Spark computes on the way to the sink."""

    def is_session(self, attribute: int) -> bool:
        """Return whether an attribute is a session window, of rows or of the results of an operator."""
        part = self.pending_parts.get(attribute)
        spec = self.shapes.get(attribute) if part is None else part[0]
        return attribute in self.sessions or (spec is not None and spec.is_session)

    @property
    def is_head(self) -> bool:
        return self.stream is None

    @property
    def ids(self) -> frozenset[int]:
        return frozenset(self.names)

    @property
    def behind(self) -> JobStream:
        """The stream, after an operator."""
        assert self.stream is not None
        return self.stream

    @property
    def text(self) -> ExpressionText:
        """Writer of expressions over the stream's columns."""
        return ExpressionText(self.columns, self.windows, {}, self.behind.graph.functions, self.behind.job.spark)

    def bound_text(self, expression: Expr) -> str:
        """Return the text of an expression over the stream, with its type checked."""
        return self.text.bound(expression, self.behind.output.columns).text

    def kept(self, names: Mapping[int, str]) -> "Relation":
        """Return the relation with these attributes alone."""
        return replace(self, names=names)

    def check_ready(self, step: str) -> None:
        """Raise UntranslatableError if rows wait for an operator that a step cannot be."""
        if self.virtual & self.ids:
            raise UntranslatableError(
                f"a window is used in {step} before its aggregation",
                "aggregate by the window first: groupBy(window, ...).agg(...)",
                sql_fix="group by the window first, in a subquery if there is another step: GROUP BY window_start, "
                "window_end, ...",
            )
        if self.rankings:
            raise UntranslatableError(
                f"row numbers without an upper bound are used in {step}",
                "keep some of them first: where('rn <= 3')",
                sql_fix="keep some of them first: WHERE rn <= 3",
            )


def renamed_ids(
    relation: Relation, ids: Mapping[int, int], names: Mapping[int, str], copies: Mapping[int, int]
) -> Relation:
    """Return the same rows under other attribute ids. `copies` are attributes that equal one of these."""

    def moved(known: Mapping[int, Any]) -> dict[int, Any]:
        renamed = {ids[number]: value for number, value in known.items() if number in ids}
        return renamed | {copy: renamed[number] for copy, number in copies.items() if number in renamed}

    def moved_ids(known: Iterable[int]) -> frozenset[int]:
        return frozenset(moved(dict.fromkeys(known)))

    def over(spec: WindowSpec) -> WindowSpec:
        return replace(spec, attribute=ids.get(spec.attribute, spec.attribute))

    return replace(
        relation,
        names=names,
        columns={**relation.columns, **moved(relation.columns)},
        windows=moved(relation.windows),
        shapes=moved(relation.shapes),
        pending={number: over(spec) for number, spec in moved(relation.pending).items()},
        pending_parts={number: (over(spec), part) for number, (spec, part) in moved(relation.pending_parts).items()},
        rankings=moved(relation.rankings),
        origins=moved({old: relation.origins.get(old, old) for old in ids}),
        virtual=moved_ids(relation.virtual),
        sessions=moved_ids(relation.sessions),
        times=moved_ids(relation.times),
        times_or_null=moved_ids(relation.times_or_null),
    )


def fresh_name(name: str, taken: Iterable[str]) -> str:
    """Return a column name that differs from those taken, ignoring case, and from those of operators, which begin with
    an underscore; the same in every run of a program.
    """
    lowered = {other.lower() for other in taken}
    base = "".join(character if character.isalnum() or character == "_" else "_" for character in name).strip("_")
    if name and not name.startswith("_") and name.lower() not in lowered:
        return name
    base = base or "column"
    fresh, count = base, 1
    while fresh.lower() in lowered:
        count += 1
        fresh = f"{base}_{count}"
    return fresh


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names with numbers where one is taken."""
    distinct: list[str] = []
    for name in names:
        distinct.append(fresh_name(name, distinct))
    return distinct


def result_names(names: Sequence[str]) -> list[str]:
    """Return the names of a query's results: its own, unless one is reserved or taken by an earlier result."""
    results: list[str] = []
    for name in names:
        is_free = name and name.lower() not in {*RESERVED_FIELDS, WEIGHT, *(other.lower() for other in results)}
        results.append(name if is_free else fresh_name(name, results))
    return results
