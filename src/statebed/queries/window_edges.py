"""Windows in join conditions: which equalities put both rows into one window, and how far apart their times are."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from statebed.queries.relation import Relation
from statebed.queries.windows import END, START, TIME, WindowSpec
from statebed.spark.analysed.plan_tree import Expr


@dataclass(frozen=True)
class WindowEdge:
    """A key of a join that is a window, or a part of one."""

    spec: WindowSpec
    """Shape of the window. Its `part` is None if the key is the whole window."""
    is_of_rows: bool
    """Whether the rows of the side are those of the window, and not the results of an operator for it."""

    @property
    def decides_window(self) -> bool:
        """Return whether rows with equal keys are in the same window, if their windows have the same shape."""
        spec = self.spec
        has_start_alone = spec.part == START and (spec.is_session or spec.is_cumulative)
        has_end_alone = spec.part in {END, TIME} and spec.is_session
        return not has_start_alone and not has_end_alone

    def times(self) -> list[tuple[int, int]]:
        """Return the earliest and the latest event time of a row minus each edge of its window that is in the key.

        The order of the edges is that of the parts, so that the edges of two keys can be compared one by one.
        """
        return [_times(self.spec, part, is_of_rows=self.is_of_rows) for part in self._parts]

    @property
    def _parts(self) -> Sequence[int]:
        return (START, END) if self.spec.part is None else (self.spec.part,)


_UNKNOWN = (-(1 << 62), 1 << 62)


def _times(spec: WindowSpec, part: int, *, is_of_rows: bool) -> tuple[int, int]:
    """Return the earliest and the latest event time of a row minus the start, the end or the time of its window."""
    if part == TIME:
        first, last = _times(spec, END, is_of_rows=is_of_rows)
        return first + 1, last + 1
    if not is_of_rows:  # results have the last microsecond of their window
        if part == END:
            return -1, -1
        if spec.is_session:
            return _UNKNOWN
        return (spec.slide_us if spec.is_cumulative else spec.size_us) - 1, spec.size_us - 1
    if spec.is_session:  # of its row alone
        return (0, 0) if part == START else (-spec.gap_us, -spec.gap_us)
    return (0, spec.size_us - 1) if part == START else (-spec.size_us, -1)


def window_edge(key: Expr, side: Relation) -> WindowEdge | None:
    """Return the window that a key of a join is, or is a part of; None if it is another expression."""
    inner = key.child if key.kind == "GetStructField" else key
    if not inner.is_attribute:
        return None
    pending, part = side.pending.get(inner.id), None
    if pending is None and inner.id in side.pending_parts:
        pending, part = side.pending_parts[inner.id]
    spec = side.shapes.get(inner.id) if pending is None else pending
    if spec is None:
        return None
    is_over_time = side.time is not None if side.is_head else spec.attribute in side.times
    if side.shift_us or (pending is not None and not is_over_time):
        return None
    part = spec.part if pending is None else part
    if inner is not key:
        part = int(key.fields["ordinal"])
    return WindowEdge(replace(spec, part=part), pending is not None)


def time_difference(pairs: Sequence[tuple[Expr, Expr]], left: Relation, right: Relation) -> tuple[int, int] | None:
    """Return the bounds of the right row's event time minus the left row's that follow from equal windows."""
    lower, upper = _UNKNOWN
    for a, b in pairs:
        edges = window_edge(a, left), window_edge(b, right)
        if edges[0] is None or edges[1] is None:
            continue
        if (edges[0].spec.part is None) is not (edges[1].spec.part is None):
            continue
        for (left_first, left_last), (right_first, right_last) in zip(edges[0].times(), edges[1].times(), strict=True):
            lower, upper = max(lower, right_first - left_last), min(upper, right_last - left_first)
    return None if lower == _UNKNOWN[0] or upper == _UNKNOWN[1] else (min(lower, upper), max(lower, upper))


@dataclass(frozen=True)
class SharedWindow:
    """The window that both rows of a pair are in."""

    spec: WindowSpec
    places: frozenset[int]
    """Equalities that say so, by their places in the condition."""


def shared_window(pairs: Sequence[tuple[Expr, Expr]], left: Relation, right: Relation) -> SharedWindow | None:
    """Return the window of rows that a window join can find; None if the condition does not say that it is the same.

    Results of an operator join rows of the same tumbling window, since their event time is in no other one.
    """
    window: WindowSpec | None = None
    decides, places = False, set[int]()
    for place, (a, b) in enumerate(pairs):
        edges = window_edge(a, left), window_edge(b, right)
        if edges[0] is None or edges[1] is None or edges[0].spec.part != edges[1].spec.part:
            continue
        spec = edges[0].spec
        of_rows = [edge.is_of_rows for edge in edges if edge is not None]
        if not spec.tiles_like(edges[1].spec) or spec.is_session or not any(of_rows):
            continue
        if (window is not None and not window.tiles_like(spec)) or not (all(of_rows) or spec.is_tumbling):
            continue
        window = spec
        decides = decides or edges[0].decides_window
        places.add(place)
    return SharedWindow(replace(window, part=None), frozenset(places)) if window is not None and decides else None


def window_columns(side: Relation, spec: WindowSpec) -> dict[int, int | None]:
    """Return the attributes of a side that are the window, or the part of it that is the value; None is all of it."""
    whole: dict[int, int | None] = {
        number: None for number, pending in side.pending.items() if pending.tiles_like(spec) and number in side.names
    }
    parts = {
        number: part
        for number, (pending, part) in side.pending_parts.items()
        if pending.tiles_like(spec) and number in side.names
    }
    return {**whole, **parts}
