"""Accumulators of the aggregates: rows to partials, partials to partials, partials to results."""

from statebed.aggregates.accumulators.base import Accumulator, MadeOfParts
from statebed.aggregates.accumulators.bits import BitOperation, Bits
from statebed.aggregates.accumulators.counts import Count, Counted
from statebed.aggregates.accumulators.extremes import End, Extreme, ExtremeBy, has_order
from statebed.aggregates.accumulators.finishes import (
    AllValues,
    AtEnd,
    CollectedSet,
    CombinedBits,
    DistinctCount,
    DistinctSum,
    MostFrequent,
    Percentile,
)
from statebed.aggregates.accumulators.hyperloglog import (
    CODES,
    MAX_PRECISION,
    MIN_PRECISION,
    DistinctSketch,
    registers_of,
)
from statebed.aggregates.accumulators.means import MORE_DIGITS, Mean
from statebed.aggregates.accumulators.moments import MomentFunction, Moments
from statebed.aggregates.accumulators.multisets import (
    CollectedList,
    EntryAccumulator,
    EntryColumn,
    Finish,
    Joined,
    Limit,
    Multiset,
    multiset_of,
)
from statebed.aggregates.accumulators.sketches import ApproximatePercentile
from statebed.aggregates.accumulators.sums import DecimalSum, FloatSum, IntegerSum
from statebed.aggregates.accumulators.user_defined import (
    UserAggregate,
    UserDefined,
    check_user_aggregate,
    user_description,
)

__all__ = [
    "CODES",
    "MAX_PRECISION",
    "MIN_PRECISION",
    "MORE_DIGITS",
    "Accumulator",
    "AllValues",
    "ApproximatePercentile",
    "AtEnd",
    "BitOperation",
    "Bits",
    "CollectedList",
    "CollectedSet",
    "CombinedBits",
    "Count",
    "Counted",
    "DecimalSum",
    "DistinctCount",
    "DistinctSketch",
    "DistinctSum",
    "End",
    "EntryAccumulator",
    "EntryColumn",
    "Extreme",
    "ExtremeBy",
    "Finish",
    "FloatSum",
    "IntegerSum",
    "Joined",
    "Limit",
    "MadeOfParts",
    "Mean",
    "MomentFunction",
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
