"""Joins of two streams by key: interval, window, updating and as-of joins; and lookups in a broadcast table."""

from statebed.operators.joins.as_of import AsOfJoin
from statebed.operators.joins.interval import IntervalJoin
from statebed.operators.joins.join_columns import JoinColumns, PairCondition
from statebed.operators.joins.join_type import JoinKind
from statebed.operators.joins.lookup import LookupJoin
from statebed.operators.joins.updating_join import UpdatingJoin
from statebed.operators.joins.windowed import WindowJoin

__all__ = [
    "AsOfJoin",
    "IntervalJoin",
    "JoinColumns",
    "JoinKind",
    "LookupJoin",
    "PairCondition",
    "UpdatingJoin",
    "WindowJoin",
]
