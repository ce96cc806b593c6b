"""Joins of two streams, by key: within an interval of time, in windows, of changelogs, and as of a time."""

from statebed.operators.joins.as_of import AsOfJoin
from statebed.operators.joins.interval import IntervalJoin
from statebed.operators.joins.join_columns import JoinColumns, PairCondition
from statebed.operators.joins.join_type import JoinKind
from statebed.operators.joins.updating_join import UpdatingJoin
from statebed.operators.joins.windowed import WindowJoin

__all__ = [
    "AsOfJoin",
    "IntervalJoin",
    "JoinColumns",
    "JoinKind",
    "PairCondition",
    "UpdatingJoin",
    "WindowJoin",
]
