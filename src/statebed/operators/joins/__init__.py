"""Joins of two streams, by key: within an interval of time, in windows, of changelogs, and as of a time."""

from statebed.operators.joins.as_of import AsOfJoin
from statebed.operators.joins.columns import Condition, JoinColumns
from statebed.operators.joins.interval import IntervalJoin
from statebed.operators.joins.kinds import JoinKind
from statebed.operators.joins.updating import UpdatingJoin
from statebed.operators.joins.windowed import WindowJoin

__all__ = [
    "AsOfJoin",
    "Condition",
    "IntervalJoin",
    "JoinColumns",
    "JoinKind",
    "UpdatingJoin",
    "WindowJoin",
]
