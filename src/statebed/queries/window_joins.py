"""Joins of rows in the same window: Flink's window join, which keeps rows until their window closes.

`TABLE(TUMBLE(..)) L JOIN TABLE(TUMBLE(..)) R ON L.k = R.k AND L.window_start = R.window_start AND L.window_end =
R.window_end` becomes the operator that finds the windows of rows itself. The operator reads rows without the columns of
the window, and adds them to its results.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from statebed.format.stream_schema import Changes
from statebed.operators import Window
from statebed.operators.aggregation import WINDOW_END, WINDOW_START
from statebed.queries.catalyst import outputs
from statebed.queries.conditions import JoinConditions
from statebed.queries.relation import Relation, fresh_name
from statebed.queries.window_edges import shared_window, window_columns
from statebed.queries.windows import END, START, TIME, WindowSpec, time_text
from statebed.spark.analysed.expression_text import WindowColumns
from statebed.spark.analysed.plan_tree import Expr

if TYPE_CHECKING:
    from statebed.queries.translation import Translation

_NAMES = {START: WINDOW_START, END: WINDOW_END}
_PRESENT = ("is_left", "is_right")
"""Columns that are null in a result without a row of their side."""


@dataclass(frozen=True)
class WindowedSides:
    """Both sides of a window join, without the columns of their window."""

    spec: WindowSpec
    left: Relation
    right: Relation
    conditions: JoinConditions
    """The condition without the equality of the window."""
    how: str
    originals: tuple[Relation, Relation]
    columns: tuple[Mapping[int, int | None], Mapping[int, int | None]]
    """Attributes of each side that are the window, with the part of it that they are; None is all of it."""

    @classmethod
    def of(
        cls, query: "Translation", left: Relation, right: Relation, how: str, conditions: JoinConditions
    ) -> "WindowedSides | None":
        """Return the sides of a join whose condition says that both rows are in one window; None for other joins.

        Queries that follow Spark's clock have Spark's joins, which judge rows by their own times.
        """
        if query.options.follows_spark or query.options.mode == "complete":
            return None
        shared = shared_window(conditions.equal, left, right)
        sides = (left, right)
        if shared is None or any(
            not side.is_head and side.behind.output.changes is not Changes.APPEND for side in sides
        ):
            return None
        is_whole = all(
            key.is_attribute and key.id in side.pending
            for place in shared.places
            for key, side in zip(conditions.equal[place], sides, strict=True)
        )
        if is_whole and shared.spec.is_tumbling and all(side.is_head for side in sides):
            return None  # the end of the window is the event time of its rows, and pairs are emitted at once
        equal = [pair for place, pair in enumerate(conditions.equal) if place not in shared.places]
        read = {
            number
            for expression in (*conditions.rest, *conditions.bounds, *(key for pair in equal for key in pair))
            for number in expression.references
        }
        columns = tuple(
            {
                number: part
                for number, part in window_columns(side, shared.spec).items()
                if number not in read or number in side.virtual
            }
            for side in sides
        )
        for side in sides:
            # A condition on a window that no plan computes is refused.
            replace(side, names={number: side.names[number] for number in read & side.ids}).check_ready("a condition")
        without = [_without(side, known) for side, known in zip(sides, columns, strict=True)]
        return cls(
            shared.spec,
            without[0],
            without[1],
            replace(conditions, equal=equal),
            how,
            sides,
            (columns[0], columns[1]),
        )

    @property
    def window(self) -> Window:
        window = self.spec.window(None)
        assert isinstance(window, Window)
        return window

    def opened(
        self, query: "Translation", relation: Relation, keys: Mapping[str, Expr], *, avoid: Sequence[str]
    ) -> Relation:
        """Return a side as a stream, with a column that tells whether a result has a row of it."""
        present = _PRESENT[relation is self.right]
        reserved = [*avoid, WINDOW_START, WINDOW_END, *_PRESENT]
        side = query.materialised(relation, keys, avoid=reserved)
        if not self._needs_mark(relation is self.right):
            return side
        return replace(side, stream=query.extended(side.behind, {present: "true"}))

    def _needs_mark(self, place: int) -> bool:
        return self._may_be_missing(place) and bool(self.columns[place])

    def _may_be_missing(self, place: int) -> bool:
        return self.how in ({"right", "full"}, {"left", "full"})[place]

    def described(self, query: "Translation", left: Relation, right: Relation, stream: Any) -> Relation:
        """Return the results with the columns of their window."""
        kept = (left,) if self.how in {"semi", "anti"} else (left, right)
        columns = {number: name for side in kept for number, name in side.columns.items()}
        windows = {number: window for side in kept for number, window in side.windows.items()}
        shapes: dict[int, WindowSpec] = {}
        times: set[int] = set()
        texts: dict[str, str] = {}
        for place, side in enumerate(kept):
            parts = self.columns[place]
            wanted = {part for known in parts.values() for part in ((START, END) if known is None else (known,))}
            names = self._part_names(place, wanted, [*stream.columns, *texts])
            texts |= {name: self._part_text(place, part) for part, name in names.items() if name not in _NAMES.values()}
            for number, part in parts.items():
                if part is None:
                    windows[number] = WindowColumns(names[START], names[END])
                else:
                    columns[number] = names[part]
            if not self._may_be_missing(place):
                # The event time of results is the last microsecond of their window.
                shapes |= {**side.shapes, **{number: replace(self.spec, part=part) for number, part in parts.items()}}
                times |= {number for number, part in parts.items() if part == TIME}
        return Relation(
            names={number: name for side in self.originals[: len(kept)] for number, name in side.names.items()},
            label=self.left.label,
            stream=query.extended(stream, texts),
            columns=columns,
            windows=windows,
            shapes=shapes,
            times=frozenset(times),
        )

    def _part_names(self, place: int, parts: Iterable[int], taken: Sequence[str]) -> dict[int, str]:
        """Return the columns of the results that are parts of the window of a side's row."""
        names: dict[int, str] = {}
        for part in sorted(parts):
            if part in _NAMES and not self._may_be_missing(place):
                names[part] = _NAMES[part]
            else:
                names[part] = fresh_name(_NAMES.get(part, "window_time"), [*taken, *names.values()])
        return names

    def _part_text(self, place: int, part: int) -> str:
        text = _NAMES.get(part, time_text(WINDOW_END))
        return f"if({_PRESENT[place]} is null, null, {text})" if self._may_be_missing(place) else text


def _without(side: Relation, windows: Collection[int]) -> Relation:
    """Return rows without the columns of a window, but with their event time."""
    names = {number: name for number, name in side.names.items() if number not in windows}
    if side.is_head and side.time is not None and side.time not in names:
        names[side.time] = outputs(side.plan).names[side.time]
    return replace(
        side,
        names=names,
        pending={number: spec for number, spec in side.pending.items() if number in names},
        pending_parts={number: part for number, part in side.pending_parts.items() if number in names},
        virtual=side.virtual - frozenset(windows),
    )
