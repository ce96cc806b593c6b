"""Arithmetic of the aggregates: rows to partials, partials to partials, partials to results."""

from statebed.operators.accumulators.base import Accumulator
from statebed.operators.accumulators.bits import BitOperation, Bits
from statebed.operators.accumulators.counted import Counted
from statebed.operators.accumulators.counts import Count
from statebed.operators.accumulators.extremes import End, Extreme, ExtremeBy, has_order
from statebed.operators.accumulators.finishes import (
    AllValues,
    AtEnd,
    CollectedSet,
    CombinedBits,
    DistinctCount,
    DistinctSum,
    MostFrequent,
    Percentile,
)
from statebed.operators.accumulators.hyperloglog import (
    CODES,
    LEAST_PRECISION,
    MOST_PRECISION,
    DistinctSketch,
    registers_of,
)
from statebed.operators.accumulators.joined import Joined
from statebed.operators.accumulators.means import MORE_DIGITS, Mean
from statebed.operators.accumulators.moments import Moment, Moments
from statebed.operators.accumulators.multisets import CollectedList, Column, Finish, Multiset, multiset_of
from statebed.operators.accumulators.sketches import ApproximatePercentile
from statebed.operators.accumulators.sums import DecimalSum, FloatSum, IntegerSum
from statebed.operators.accumulators.user_defined import (
    UserAggregate,
    UserDefined,
    check_user_aggregate,
    user_description,
)

__all__ = [
    "CODES",
    "LEAST_PRECISION",
    "MORE_DIGITS",
    "MOST_PRECISION",
    "Accumulator",
    "AllValues",
    "ApproximatePercentile",
    "AtEnd",
    "BitOperation",
    "Bits",
    "CollectedList",
    "CollectedSet",
    "Column",
    "CombinedBits",
    "Count",
    "Counted",
    "DecimalSum",
    "DistinctCount",
    "DistinctSketch",
    "DistinctSum",
    "End",
    "Extreme",
    "ExtremeBy",
    "Finish",
    "FloatSum",
    "IntegerSum",
    "Joined",
    "Mean",
    "Moment",
    "Moments",
    "MostFrequent",
    "Multiset",
    "Percentile",
    "UserAggregate",
    "UserDefined",
    "check_user_aggregate",
    "has_order",
    "multiset_of",
    "registers_of",
    "user_description",
]
