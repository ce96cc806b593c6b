"""Converts the user's streaming DataFrames to the rows that are routed to the first level of operators.

Everything that Spark can compute is added to the streaming DataFrame before foreachBatch, where it is still pushed
down. A *branch* is the path of rows from a frame to one input of one operator. All branches of a job form one
DataFrame, so that one pass feeds all operators. A row has its event time, the number of its branch if there are
several, and its columns in *slots* that branches share by type.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField

from statebed.errors import InputError
from statebed.flow.graph import Edge
from statebed.flow.steps import Feed
from statebed.format.schema import TIME
from statebed.operators.labels import operator_label
from statebed.protocol.projection import offset_names
from statebed.quantities import duration_text
from statebed.spark.plan.head_expressions import analysed, column_of, input_error, named_column
from statebed.spark.plan.pieces import BRANCH
from statebed.spark.plan.routing import SOURCE, Layout
from statebed.spark.plan.source_plan import check_steps, max_watermarks, streams_of
from statebed.spark.plan.topology import Branch

WATERMARK_KEY = "spark.watermarkDelayMs"
HIDDEN = (TIME, SOURCE)
"""Columns of a frame besides the user's: the event time, and the position of the source."""


@dataclass(frozen=True)
class EventTimeColumn:
    """Event-time column of a DataFrame and its watermark delay."""

    column: str
    delay_us: int


def event_time_of(df: DataFrame, *, where: str) -> EventTimeColumn | None:
    """Return the column marked by withWatermark and its delay, or None; the mark is kept through select and rename."""
    field = field_with_watermark(df, where=where)
    if field is None:
        return None
    if field.dataType.typeName() != "timestamp":
        raise InputError(
            f"the column {field.name} with the watermark is a {field.dataType.typeName()}, not a timestamp",
            where=where,
            fix="call withWatermark on the time column before window(...)",
        )
    return EventTimeColumn(field.name, int(field.metadata[WATERMARK_KEY]) * 1_000)


def field_with_watermark(df: DataFrame, *, where: str) -> StructField | None:
    """Return the column that carries the watermark, or None: a time, or in the result of a query also its window."""
    marked = [field for field in df.schema.fields if WATERMARK_KEY in (field.metadata or {})]
    if not marked:
        return None
    field = marked[0]
    if len(marked) > 1:
        raise InputError(
            f"several columns have a watermark: {', '.join(column.name for column in marked)}",
            where=where,
            fix="mark one event-time column with withWatermark, and drop the mark of others with a cast",
        )
    if [name.lower() for name in df.columns].count(field.name.lower()) > 1:
        raise InputError(
            f"two columns are called {field.name!r} (names are not case-sensitive)",
            where=where,
            fix="rename or drop the one that is not the event time",
        )
    return field


def source_frame(df: DataFrame, event_time: EventTimeColumn | None, *, position: int) -> DataFrame:
    """Return the user's columns and the hidden ones."""
    time = F.lit(None).cast("timestamp") if event_time is None else named_column(event_time.column)
    return df.select("*", time.alias(TIME), F.lit(position).alias(SOURCE))


def marked(df: DataFrame, watermark: tuple[str, int] | None, *, where: str) -> DataFrame:
    """Return the DataFrame with the watermark given for the source."""
    if watermark is None:
        return df
    if max_watermarks(df):
        raise InputError(
            "the DataFrame already has a watermark", where=where, fix="leave out watermark= or withWatermark"
        )
    column, delay_us = watermark
    if delay_us < 0 or delay_us % 1_000:
        raise InputError(
            f"the delay of a watermark must be whole milliseconds, at least 0, got {duration_text(delay_us)!r}",
            where=where,
            fix="write watermark=('ts', '10 minutes')",
        )
    try:
        return df.withWatermark(column, f"{delay_us // 1_000} milliseconds")
    except PySparkException as error:
        raise input_error(error, df, where=where) from error


@dataclass(frozen=True)
class SourceFrame:
    """The streaming DataFrame of a job, and how subtasks read its rows."""

    df: DataFrame
    layouts: Mapping[int, Layout]
    sources: tuple[str, ...]
    """Name of each offset of Spark's query, in order."""


@dataclass(frozen=True)
class Split:
    """A frame that has the rows of another one for which a condition is true.

    If several splits of a frame have branches, they are read in one pass over that frame.
    """

    base: Edge
    condition: str
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns as SQL over the base; the others are the base's columns of the same names."""


def feeding(
    frames: Mapping[Edge, DataFrame],
    branches: Sequence[Branch],
    *,
    leaves: Mapping[Edge, Sequence[str]],
    splits: Mapping[Edge, Split],
    where: str,
) -> SourceFrame:
    """Combine all branches into one DataFrame; those that share a frame in one pass over it.

    `leaves` lists, for each frame, the sources of the streams that it reads: a DataFrame may be a union of several.
    """
    read_from = _frames_read({branch.edge for branch in branches}, splits)
    columns = {
        branch.number: projected(frames[branch.edge], branch.feed, where=f"{where}, {operator_label(branch.operator)}")
        for branch in branches
    }
    slots = _Slots()
    places = {number: slots.place(kinds) for number, (_, kinds) in columns.items()}
    hidden = [
        *([BRANCH] if len(branches) > 1 else []),
        *([SOURCE] if any(len(branch.sources) > 1 for branch in branches) else []),
    ]
    passes = []
    owners: list[str] = []
    for edge in dict.fromkeys(read_from[branch.edge] for branch in branches):
        owners += leaves[edge]
        rows = []
        for branch in branches:
            if read_from[branch.edge] != edge:
                continue
            split = None if branch.edge == edge else splits[branch.edge]
            values = columns[branch.number][0] if split is None else _feed_columns(branch.feed, split.columns)
            row = slots.row(branch.number, values, places[branch.number], hidden=hidden)
            rows.append((None if split is None else F.expr(split.condition), row))
        passes.append(_in_one_pass(frames[edge], rows))
    df = passes[0]
    for further in passes[1:]:
        df = df.unionByName(further)
    layouts = {
        branch.number: _layout(branch, [slots.name(place) for place in places[branch.number]]) for branch in branches
    }
    return SourceFrame(df, layouts, offset_names(streams_of(df), owners))


def _frames_read(edges: Collection[Edge], splits: Mapping[Edge, Split]) -> dict[Edge, Edge]:
    """Return the frame that is read for each edge: its own, or the one of which it and another edge are splits."""
    bases = Counter(splits[edge].base for edge in edges if edge in splits)
    return {edge: splits[edge].base if edge in splits and bases[splits[edge].base] > 1 else edge for edge in edges}


def _layout(branch: Branch, slots: Sequence[str]) -> Layout:
    count = len(branch.feed.input.columns)
    time = TIME if branch.feed.time is None else slots[count]
    return Layout(branch.feed.input, tuple(slots[:count]), branch.sources, time=time)


def projected(frame: DataFrame, feed: Feed, *, where: str) -> tuple[list[Column], list[DataType]]:
    """Return the columns of an input and their types; the last is the time of its rows if not their event time."""
    columns = _feed_columns(feed)
    result = analysed(frame, columns, where=where)
    check_steps(frame, result, where=where)
    return columns, [field.dataType for field in result.schema.fields]


def _feed_columns(feed: Feed, replaced: Mapping[str, str] | None = None) -> list[Column]:
    values = dict(feed.values)
    texts = replaced or {}
    assert not (values and texts), "values are expressions over columns that are not there"

    def plain(name: str) -> Column:
        return F.expr(texts[name]).alias(name) if name in texts else named_column(name)

    time = [] if feed.time is None else [plain(feed.time.name)]
    return [column_of(values[name]) if name in values else plain(name) for name in feed.input.columns.names] + time


class _Slots:
    """Columns that branches share: for each type, as many as the branch with the most needs."""

    def __init__(self) -> None:
        self._kinds: list[DataType] = []

    def place(self, kinds: Sequence[DataType]) -> tuple[int, ...]:
        taken: list[int] = []
        for kind in kinds:
            free = [n for n, slot_kind in enumerate(self._kinds) if slot_kind == kind and n not in taken]
            if not free:
                self._kinds.append(kind)
            taken.append(free[0] if free else len(self._kinds) - 1)
        return tuple(taken)

    def name(self, slot: int) -> str:
        return f"s{slot}"

    def row(
        self, branch: int, columns: Sequence[Column], places: Sequence[int], *, hidden: Sequence[str]
    ) -> list[Column]:
        filled = dict(zip(places, columns, strict=True))
        numbers = {BRANCH: F.lit(branch).alias(BRANCH), SOURCE: F.col(SOURCE)}
        return [
            *(numbers[name] for name in hidden),
            F.col(TIME),
            *(
                (filled[slot] if slot in filled else F.lit(None).cast(kind)).alias(self.name(slot))
                for slot, kind in enumerate(self._kinds)
            ),
        ]


def _in_one_pass(frame: DataFrame, rows: Sequence[tuple[Column | None, Sequence[Column]]]) -> DataFrame:
    """Return a row for each of these lists of columns and each row of the frame for which its condition is true."""
    if len(rows) == 1:
        return frame.select(*rows[0][1])
    structs = [F.struct(*row) if condition is None else F.when(condition, F.struct(*row)) for condition, row in rows]
    listed = F.array(*structs)
    is_split = any(condition is not None for condition, _ in rows)
    return frame.select(F.explode(F.array_compact(listed) if is_split else listed).alias("row")).select("row.*")
