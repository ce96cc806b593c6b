"""Arithmetic of the aggregates: rows to partials, partials to partials, partials to results."""

from statebed.operators.accumulators.base import Accumulator
from statebed.operators.accumulators.bits import BitOperation, Bits
from statebed.operators.accumulators.counts import Count
from statebed.operators.accumulators.extremes import End, Extreme, ExtremeBy, has_order
from statebed.operators.accumulators.hyperloglog import LEAST_PRECISION, MOST_PRECISION, DistinctSketch
from statebed.operators.accumulators.means import MORE_DIGITS, Mean
from statebed.operators.accumulators.moments import Moment, Moments
from statebed.operators.accumulators.multisets import (
    CollectedList,
    CollectedSet,
    DistinctCount,
    Multiset,
    Percentile,
)
from statebed.operators.accumulators.sketches import ApproximatePercentile
from statebed.operators.accumulators.sums import DecimalSum, FloatSum, IntegerSum

__all__ = [
    "LEAST_PRECISION",
    "MORE_DIGITS",
    "MOST_PRECISION",
    "Accumulator",
    "ApproximatePercentile",
    "BitOperation",
    "Bits",
    "CollectedList",
    "CollectedSet",
    "Count",
    "DecimalSum",
    "DistinctCount",
    "DistinctSketch",
    "End",
    "Extreme",
    "ExtremeBy",
    "FloatSum",
    "IntegerSum",
    "Mean",
    "Moment",
    "Moments",
    "Multiset",
    "Percentile",
    "has_order",
]
