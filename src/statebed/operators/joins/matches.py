"""Statistics of joins by time, and the warning about a join that finds no pairs.

Watermarks alone never rule out a pair: a row waits until the watermark has passed the last time that a partner may
have, and no partner is late before that. The check therefore looks back: over all epochs it counts the pairs, and the
rows and event times of both inputs. If rows of both inputs have expired without a single pair, the join is probably
wrong: an interval with the wrong sign, a clock in another time zone, or keys in different formats.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statebed.format import checkpoint_pb2 as pb
from statebed.operators.joins.inputs import SIDES
from statebed.operators.window_definition import Window
from statebed.present import units
from statebed.quantities import duration_text

MAX_BOUND_US = 1 << 60
"""Largest bound of an interval, 36,000 years: rows that have it wait for ever."""
MIN_ROWS = 100
"""Minimum number of rows on each side for a warning, unless the event times themselves rule out any pair."""


@dataclass(frozen=True)
class MatchInterval:
    """Inclusive bounds of the right row's event time minus the left row's, in microseconds."""

    lower_us: int
    upper_us: int

    def described(self) -> str:
        """Describe the bounds on the time difference of a pair in words."""
        if self.lower_us == self.upper_us == 0:
            return "both rows have the same time"
        is_open = (self.lower_us <= -MAX_BOUND_US, self.upper_us >= MAX_BOUND_US)
        if any(is_open):
            return self._described_open(*is_open)
        if self.lower_us >= 0:
            return f"the right row is {_apart(self.lower_us, self.upper_us)} after the left one"
        if self.upper_us <= 0:
            return f"the right row is {_apart(-self.upper_us, -self.lower_us)} before the left one"
        before, after = duration_text(-self.lower_us), duration_text(self.upper_us)
        return f"the right row is at most {before} before and {after} after the left one"

    def _described_open(self, is_lower_open: bool, is_upper_open: bool) -> str:
        """Describe the bounds if one of them or both are missing."""
        if is_lower_open and is_upper_open:
            return "both rows have any time"
        bound = self.upper_us if is_lower_open else self.lower_us
        side = "before" if bound < 0 else "after"
        is_minimum = is_upper_open is (bound >= 0)
        return (
            f"the right row is at {'least' if is_minimum else 'most'} {duration_text(abs(bound))} {side} the left one"
        )


def added_up(parts: Iterable[pb.JoinMatches]) -> pb.JoinMatches | None:
    """Add up the statistics of several subtasks or epochs; None if there are none."""
    statistics = list(parts)
    if not statistics:
        return None
    return pb.JoinMatches(
        pairs=sum(match.pairs for match in statistics),
        left=_joined(match.left for match in statistics),
        right=_joined(match.right for match in statistics),
    )


def _joined(parts: Iterable[pb.InputTimes]) -> pb.InputTimes:
    with_rows = [times for times in parts if times.rows]
    return pb.InputTimes(
        rows=sum(times.rows for times in with_rows),
        first_us=min((times.first_us for times in with_rows), default=None),
        last_us=max((times.last_us for times in with_rows), default=None),
    )


def no_pairs_warning(definition: str, matches: pb.JoinMatches, watermark_us: int | None) -> str | None:
    """Return a warning that rows of both inputs have expired without a pair; None if there are pairs or it is too early
    to tell.
    """
    left, right = matches.left, matches.right
    if matches.pairs or not left.rows or not right.rows or watermark_us is None:
        return None
    described: dict[str, Any] = json.loads(definition)
    if "window" in described:
        window = Window.from_data(described["window"])
        interval = f"both rows are in the same {window.described()}"
        has_passed = all(window.newest_end(side.first_us) <= watermark_us for side in (left, right))
        excluded = False
    else:
        bounds = MatchInterval(int(described["lower_us"]), int(described["upper_us"]))
        interval = bounds.described()
        has_passed = left.first_us + bounds.upper_us < watermark_us and right.first_us - bounds.lower_us < watermark_us
        nearest, farthest = right.first_us - left.last_us, right.last_us - left.first_us
        excluded = farthest < bounds.lower_us or nearest > bounds.upper_us
    if not has_passed or (not excluded and min(left.rows, right.rows) < MIN_ROWS):
        return None
    ranges = "; ".join(f"{side.value}: {_range(times)}" for side, times in zip(SIDES, (left, right), strict=True))
    why = "these times exclude a pair" if excluded else "check its sign, the time zones, and the keys of both streams"
    return (
        f"the join has found no pair, and rows of both streams have left ({ranges}). The watermark is at "
        f"{units.instant(watermark_us)}; the interval is: {interval}; {why}"
    )


def entry_warning(entry: pb.OperatorEntry) -> str | None:
    """Return the warning about an operator in a record; None if there is none."""
    if not entry.HasField("matches"):
        return None
    marks = [input_.watermark_us for input_ in entry.inputs if input_.HasField("watermark_us")]
    return no_pairs_warning(entry.definition, entry.matches, min(marks, default=None))


def _range(times: pb.InputTimes) -> str:
    return f"{units.number(times.rows)} rows from {units.instant(times.first_us)} to {units.instant(times.last_us)}"


def _apart(min_us: int, max_us: int) -> str:
    if min_us == max_us:
        return duration_text(min_us)
    return f"{duration_text(min_us)} to {duration_text(max_us)}"
