"""Intervals of joins, given as two durations or as SQL text over the event times of both streams.

The text is `b.ts BETWEEN a.ts - INTERVAL 10 MINUTES AND a.ts`, or comparisons of the same kind connected by AND. A
stream is called by the name of its source or operator, or `a` and `left` (the stream that `join` is called on), `b` and
`right` (the other one). A column without a stream must be the event time of one of them alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from statebed.errors import InputError
from statebed.expressions.language import Call, Literal, Name, Node, parse
from statebed.expressions.mistakes import TextSpan
from statebed.expressions.types import INTERVAL
from statebed.operators.joins.join_type import JoinSide

_MIRRORED = {"<=": ">=", "<": ">", ">=": "<=", ">": "<", "=": "="}
_EXAMPLE = "write 'b.ts BETWEEN a.ts - INTERVAL 10 MINUTES AND a.ts', or between('-10 minutes', '0s')"


@dataclass(frozen=True)
class Interval:
    """Bounds of the right row's event time minus the left row's, in microseconds, both included."""

    lower_us: int
    upper_us: int


@dataclass(frozen=True)
class WithinText:
    """Interval as SQL text, which is parsed once both streams are known."""

    text: str


Within = Interval | WithinText


@dataclass(frozen=True)
class TimeSide:
    """Ways in which SQL text may refer to the event time of one stream."""

    names: tuple[str, ...]
    """Sources or operators that the rows come from."""
    columns: tuple[str, ...]
    """Columns that equal the event time."""


@dataclass(frozen=True)
class _Shifted:
    """The event time of a side plus a number of microseconds."""

    side: JoinSide
    plus_us: int


def interval_of_text(text: str, left: TimeSide, right: TimeSide, *, where: str) -> Interval:
    """Return the interval that SQL text over the event times of both streams describes."""
    place = TextSpan(text, f"{where}, within", 0, len(text))
    reader = _IntervalReader(place, {JoinSide.LEFT: left, JoinSide.RIGHT: right})
    parsed = parse(place)
    lowers: list[int] = []
    uppers: list[int] = []
    for node, sign, first, second in reader.comparisons(parsed.root):
        shifted, other = reader.shifted(first), reader.shifted(second)
        if shifted.side is other.side:
            raise place.at(node.start, node.end).mistake("both times are of the same stream", fix=_EXAMPLE)
        is_mirrored = shifted.side is JoinSide.LEFT
        function = _MIRRORED[sign] if is_mirrored else sign
        difference = shifted.plus_us - other.plus_us if is_mirrored else other.plus_us - shifted.plus_us
        # Times are whole microseconds, so an excluded bound is one microsecond away from an included one.
        if function in {">=", ">", "="}:
            lowers.append(difference + (function == ">"))
        if function in {"<=", "<", "="}:
            uppers.append(difference - (function == "<"))
    if not lowers or not uppers:
        raise InputError(
            f"{text!r} bounds the time difference on one side only, so the state would grow without limit",
            where=place.where,
            fix=_EXAMPLE,
        )
    interval = Interval(max(lowers), min(uppers))
    if interval.lower_us > interval.upper_us:
        raise InputError(f"{text!r} is an empty interval", where=place.where, fix=_EXAMPLE)
    return interval


class _IntervalReader:
    """Reader of one SQL text."""

    def __init__(self, place: TextSpan, sides: dict[JoinSide, TimeSide]) -> None:
        self._place = place
        self._sides = sides
        self._qualifiers = {"a": JoinSide.LEFT, "left": JoinSide.LEFT, "b": JoinSide.RIGHT, "right": JoinSide.RIGHT}
        for side, time_side in sides.items():
            others = sides[side.other].names
            self._qualifiers |= {name.lower(): side for name in time_side.names if name not in others}

    def comparisons(self, node: Node) -> Iterator[tuple[Node, str, Node, Node]]:
        """Yield the comparisons of a condition: their node, operator and both operands."""
        if isinstance(node, Call) and node.function == "and":
            for argument in node.arguments:
                yield from self.comparisons(argument)
        elif isinstance(node, Call) and node.function == "between":
            subject, low, high = node.arguments
            yield node, ">=", subject, low
            yield node, "<=", subject, high
        elif isinstance(node, Call) and node.function in _MIRRORED:
            yield node, node.function, node.arguments[0], node.arguments[1]
        else:
            raise self._place.at(node.start, node.end).mistake(
                "this does not compare the two event times", fix=_EXAMPLE
            )

    def shifted(self, node: Node) -> _Shifted:
        """Return a time: a column, or a column plus or minus intervals."""
        if isinstance(node, Name):
            return _Shifted(self._side(node), 0)
        if isinstance(node, Call) and node.function in {"+", "-"}:
            first, second = node.arguments
            if node.function == "+" and isinstance(first, Literal):
                first, second = second, first
            if isinstance(second, Literal) and second.type == INTERVAL and isinstance(second.value, int):
                before = self.shifted(first)
                return _Shifted(before.side, before.plus_us + (second.value if node.function == "+" else -second.value))
        at = self._place.at(node.start, node.end)
        raise at.mistake("expected an event time, plus or minus an INTERVAL", fix=_EXAMPLE)

    def _side(self, name: Name) -> JoinSide:
        at = self._place.at(name.start, name.end)
        column = name.parts[-1].lower()
        holders = [side for side, times in self._sides.items() if column in (each.lower() for each in times.columns)]
        if len(name.parts) == 1:
            if len(holders) == 1:
                return holders[0]
            problem = "is the event time of both streams" if holders else "is the event time of neither stream"
            raise at.mistake(f"{name.parts[0]!r} {problem}", fix=self._known())
        side = self._qualifiers.get(name.parts[0].lower())
        if side is None:
            raise at.mistake(f"there is no stream {name.parts[0]!r} in this join", fix=self._known())
        if side not in holders or len(name.parts) > 2:  # noqa: PLR2004 - a stream and a column
            raise at.mistake(
                f"{'.'.join(name.parts)!r} is not the event time of the {side.value} stream",
                fix=self._known(),
            )
        return side

    def _known(self) -> str:
        texts = []
        for side, generic in ((JoinSide.LEFT, "a"), (JoinSide.RIGHT, "b")):
            columns = self._sides[side].columns
            shown = f"{generic}.{columns[0]}" if columns else "in none of its columns"
            texts.append(f"the event time of the {side.value} stream is {shown}")
        return "; ".join(texts)
