"""Windows in analysed plans: Spark's analyser writes them as arithmetic, from which size, slide and offset are read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from statebed.operators import Window, sliding, tumbling
from statebed.operators.window_definition import SessionWindow, cumulative
from statebed.spark.analysed.expression_text import UntranslatableError, interval_us
from statebed.spark.analysed.plan_tree import Expr

_START, _END = 1, 3
"""Positions of the values among the arguments of named_struct('start', ..., 'end', ...)."""
START, END, TIME = range(3)
"""Parts of a window: its first time, the time after its last one, and its last microsecond."""


def time_text(end: str) -> str:
    """Return the event time of the results of a window, whose end has this text."""
    return f"{end} - interval 1 microsecond"


@dataclass(frozen=True)
class WindowSpec:
    """A window over a timestamp column: size, slide and offset, or the gap of a session, in microseconds."""

    attribute: int
    """Id of the timestamp column."""
    size_us: int = 0
    slide_us: int = 0
    offset_us: int = 0
    gap_us: int = 0
    is_cumulative: bool = False
    """Whether windows grow by the slide up to the size, and then start again."""
    partition: frozenset[int] | None = None
    """Attributes whose rows share sessions, for SESSION as a table function; None if the groups decide."""
    part: int | None = field(default=None, compare=False)
    """Part of the window that a column is: its start (0), its end (1) or its time (2); None is the whole window."""

    @property
    def is_session(self) -> bool:
        return self.gap_us > 0

    @property
    def is_tumbling(self) -> bool:
        return not self.is_session and not self.is_cumulative and self.size_us == self.slide_us

    def tiles_like(self, other: "WindowSpec") -> bool:
        """Return whether both cut time in the same way, whatever column they are over."""
        return self == replace(other, attribute=self.attribute)

    def cumulative(self, step_us: int) -> "WindowSpec":
        """Return a window of the same size that grows by steps."""
        return replace(self, slide_us=step_us, is_cumulative=True)

    def partitioned(self, partition: frozenset[int]) -> "WindowSpec":
        """Return a session of rows that are equal in these attributes."""
        return replace(self, partition=partition)

    def text(self, column: str) -> str:
        """Return the tumbling window of a time column as text of our expressions."""
        if not self.is_tumbling:
            raise UntranslatableError(
                "SESSION or CUMULATE is a key of rollup, cube or grouping sets",
                "use a tumbling or sliding window, such as window(ts, '1 minute')",
                sql_fix="use a tumbling or sliding window, such as TUMBLE(ts, INTERVAL '1' MINUTE), or keep the window "
                "outside: GROUP BY window_start, window_end, ROLLUP(k)",
            )
        time = f"unix_micros({column})"
        start = f"{time} - pmod({time} - {self.offset_us}L, {self.size_us}L)"
        edges = f"'start', timestamp_micros({start}), 'end', timestamp_micros({start} + {self.size_us}L)"
        return f"if({column} is null, null, named_struct({edges}))"

    def window(self, on: str | None) -> Window | SessionWindow:
        """Return the window for an operator; `on` names the time column, unless it is the event time of the rows."""
        if self.is_session:
            return SessionWindow(self.gap_us, on)
        size, slide, offset = (_span(us) for us in (self.size_us, self.slide_us, self.offset_us))
        if self.is_cumulative:
            return cumulative(size, slide, offset, on=on)
        if self.size_us == self.slide_us:
            return tumbling(size, offset, on=on)
        return sliding(size, slide, offset, on=on)


def _span(us: int) -> str:
    return f"{us} microseconds"


def window_of(e: Expr) -> WindowSpec | None:
    """Recognise the struct that window() or session_window() became; None if it is another struct."""
    if e.kind != "CreateNamedStruct" or [field_name.fields.get("value") for field_name in e.children[::2]] != [
        "start",
        "end",
    ]:
        return None
    start, end = _bare(e.children[_START]), _bare(e.children[_END])
    if {start.kind, end.kind} != {"PreciseTimestampConversion"}:
        return None
    return _fixed(start.child, end.child) or _session(start.child, end.child)


def window_time_of(e: Expr) -> int | None:
    """Return the id of the window in window_time(window), which is its end minus one microsecond, or in the same
    subtraction as text: `window.end - interval 1 microsecond`.
    """
    if e.kind == "DatetimeSub":
        return window_time_of(e.part("replacement"))
    if e.kind == "Cast" and e.type_json == e.child.type_json:
        return window_time_of(e.child)
    if e.kind in {"TimestampAddInterval", "TimeAdd"}:
        return _window_of_end(e.children[0]) if _interval_us(e.children[1]) == -1 else None
    if e.kind != "PreciseTimestampConversion" or e.child.kind != "Subtract" or _integer(e.child.children[1]) != 1:
        return None
    end = e.child.children[0]
    return _window_of_end(end.child if end.kind == "PreciseTimestampConversion" else end)


def part_of_window(e: Expr, shapes: Mapping[int, WindowSpec]) -> WindowSpec | None:
    """Return the shape of the window, among those known, that an expression is a part of."""
    if e.kind == "GetStructField" and e.child.is_attribute and e.child.id in shapes:
        return replace(shapes[e.child.id], part=int(e.fields["ordinal"]))
    window = window_time_of(e)
    return replace(shapes[window], part=TIME) if window is not None and window in shapes else None


def _window_of_end(e: Expr) -> int | None:
    """Return the id of the window that an expression is the end of."""
    if e.kind != "GetStructField" or e.fields["ordinal"] != END or not e.child.is_attribute:
        return None
    return e.child.id


def _interval_us(e: Expr) -> int | None:
    try:
        return interval_us(e)
    except UntranslatableError:
        return None


def _bare(e: Expr) -> Expr:
    return _bare(e.child) if e.kind in {"KnownNullable", "KnownNotNull"} else e


def _integer(e: Expr) -> int | None:
    if e.kind == "Cast":
        return _integer(e.child)
    return int(e.fields["value"]) if e.kind == "Literal" and e.type_json in {"integer", "long"} else None


def _fixed(start: Expr, end: Expr) -> WindowSpec | None:
    """Read a fixed window: start is (time - CASE ... END) - shift, end is start + size."""
    if end.kind != "Add" or start.kind != "Subtract" or end.children[0].kind != "Subtract":
        return None
    last, size = start.children[0], _integer(end.children[1])
    if size is None or last.kind != "Subtract" or last.children[1].kind != "CaseWhen":
        return None
    rest = last.children[1].children[-1]
    if rest.kind != "Remainder" or rest.children[0].kind != "Subtract":
        return None
    (time, offset), slide = rest.children[0].children, _integer(rest.children[1])
    shift = _integer(offset)
    if slide is None or shift is None or time.kind != "PreciseTimestampConversion" or not time.child.is_attribute:
        return None
    return WindowSpec(time.child.id, size, slide, shift % slide)


def _session(start: Expr, end: Expr) -> WindowSpec | None:
    """Read a session: start is the time, end is the time plus the gap."""
    if start.kind != "PreciseTimestampConversion" or end.kind != "PreciseTimestampConversion":
        return None
    time, added = start.child, end.child
    while added.kind == "Cast":
        added = added.child
    if not time.is_attribute or added.kind not in {"TimestampAddInterval", "TimeAdd"}:
        return None
    gap = added.children[1]
    try:
        return WindowSpec(time.id, gap_us=interval_us(gap))
    except UntranslatableError:
        raise UntranslatableError(
            f"session_window has the gap {gap.sql}, which differs from row to row",
            "use a constant gap, such as session_window(ts, '5 minutes')",
            sql_fix="use a constant gap: SESSION(ts, INTERVAL '5' MINUTES)",
        ) from None
